/** What one try to hand a message to a server came to. A value: every failure of the network and every refusal is expected. */
import type { SmtpResponse } from '../store/send-events.ts';

export type { SmtpResponse };

/** The part of the conversation in which the try ended. */
export type Phase =
  | 'connect'
  | 'greeting'
  | 'ehlo'
  | 'tls'
  | 'auth'
  | 'mail'
  | 'rcpt'
  | 'data'
  | 'end-of-data';

/** Before MAIL. A failure here is about the server, the connection or the login, not about the recipient. */
export const earlyPhases: readonly Phase[] = ['connect', 'greeting', 'ehlo', 'tls', 'auth'];

/** Why there is no reply that counts. */
export type SendErrorCode =
  | 'dns_failed'
  | 'no_such_host'
  | 'target_refused'
  | 'connect_failed'
  | 'connect_timeout'
  | 'tls_failed'
  | 'tls_timeout'
  | 'tls_required'
  | 'auth_unsupported'
  | 'connection_lost'
  | 'reply_timeout'
  | 'invalid_reply'
  | 'message_too_large'
  | 'needs_8bitmime'
  | 'needs_smtputf8'
  | 'invalid_address'
  | 'message_malformed'
  | 'message_unreadable'
  | 'lease_lost'
  | 'stopped';

export interface TryReply {
  /** `refused`: the server replied 4xx or 5xx. `failed`: no such reply came, or the message was not sent. */
  kind: 'accepted' | 'refused' | 'failed';
  phase: Phase;
  response: SmtpResponse | null;
  error: SendErrorCode | null;
  /** A sentence or the end of one, for people. */
  detail: string | null;
  /** The end of data was sent and no reply came: the server may have the message. */
  uncertain: boolean;
  host: string;
  /** The IP address; null before there was a connection. */
  address: string | null;
  tls: { version: string; cipher: string } | null;
}

/** No server was asked, for a reason that may pass. */
export interface NotTried {
  kind: 'temporary';
  code: 'identity_not_verified' | 'mta_sts_failed' | 'account_failed' | 'stopped';
  reason: string;
}

export class SendFault extends Error {
  readonly code: SendErrorCode;
  constructor(code: SendErrorCode, message: string) {
    super(message);
    this.code = code;
  }
}
