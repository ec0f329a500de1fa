/** Opens a connection to an IMAP server: resolves its name by the egress rules, and has a thread connect to what was found. */
import type { Egress } from '../net/egress.ts';
import {
  describeServerError,
  isLoopbackHost,
  type MailServer,
  resolveMailServer,
  type ServerError,
} from '../net/mail-server.ts';
import type { ImapConnection } from './imap-connection.ts';
import type { ImapLogin, ImapTimeouts } from './imap-messages.ts';
import type { ImapThreads } from './imap-threads.ts';

export interface ImapParts {
  egress: Egress;
  threads: ImapThreads;
  production: boolean;
  /** Certificate authorities (PEM) instead of the well-known ones. */
  ca?: string | undefined;
  timeouts?: ImapTimeouts;
  /** No message that is longer is read. */
  maxMessageBytes?: number;
  /** Ends the attempt to connect. */
  signal?: AbortSignal;
}

const standardTimeouts = { connectMs: 10_000, greetingMs: 15_000, silenceMs: 60_000, loginMs: 60_000 };

/** Connects and logs in. Whoever gets the client closes it. */
export async function openImap(
  ownerId: string,
  { host, port, secure, username }: MailServer,
  login: ImapLogin,
  parts: ImapParts,
): Promise<{ client: ImapConnection } | { error: ServerError }> {
  const { egress, threads, production, ca, signal } = parts;
  const found = await resolveMailServer(egress, host, port);
  if (!found.ok) {
    const code = found.code === 'target_refused' ? 'target_refused' : 'host_not_found';
    return { error: describeServerError(code, { detail: found.reason }) };
  }
  const { addresses } = found;
  const options = {
    ...{ host, port, secure, username, login, addresses, ca },
    isVerified: production || !isLoopbackHost(host),
    timeouts: parts.timeouts ?? standardTimeouts,
    maxMessageBytes: parts.maxMessageBytes ?? 0,
  };
  return threads.open(ownerId, options, signal);
}
