/**
 * Connections to IMAP servers, by imapflow. Guarantees: the socket is connected to an address that the egress rules allowed; a login
 * goes out only over verified TLS, except to this machine in development; an expected failure is a value that says what to do; a
 * server that answers with more than it was asked for is cut, before it fills the memory.
 */
import type { LookupFunction } from 'node:net';
import type { ImapFlow, ImapFlowError } from 'imapflow';
import { describeSocketError } from '../net/connect.ts';
import type { Egress } from '../net/egress.ts';
import {
  describeServerError,
  isLoopbackHost,
  type MailServer,
  resolveMailServer,
  type ServerError,
  type ServerErrorCode,
} from '../net/mail-server.ts';

export type { ImapFlow };

export interface ImapParts {
  egress: Egress;
  production: boolean;
  /** Certificate authorities (PEM) instead of the well-known ones. */
  ca?: string | undefined;
  timeouts?: typeof standardTimeouts;
  /** No message that is longer is read. */
  maxMessageBytes?: number;
  /** Ends the attempt to connect. */
  signal?: AbortSignal;
}

export type ImapLogin = { password: string } | { accessToken: string };

/** `loginMs`: from the connection to the end of the login, for a server that says something from time to time and never ends. */
const standardTimeouts = { connectMs: 10_000, greetingMs: 15_000, silenceMs: 60_000, loginMs: 60_000 };

/** Connects and logs in. Whoever gets the client ends it, with `logout` or `close`. */
export async function openImap(
  server: MailServer,
  login: ImapLogin,
  parts: ImapParts,
): Promise<{ client: ImapFlow } | { error: ServerError }> {
  const { host, port, secure, username } = server;
  const found = await resolveMailServer(parts.egress, host, port);
  if (!found.ok) {
    const code = found.code === 'target_refused' ? 'target_refused' : 'host_not_found';
    return { error: describeServerError(code, { detail: found.reason }) };
  }
  const { connectMs, greetingMs, silenceMs, loginMs } = parts.timeouts ?? standardTimeouts;
  const isVerified = parts.production || !isLoopbackHost(host);
  // Not asked for an IP address, which egress has checked as it is.
  const lookup: LookupFunction = (_host, { all }, answer) =>
    all
      ? answer(null, found.addresses)
      : answer(null, found.addresses[0]?.address ?? '', found.addresses[0]?.family);
  const tls = {
    ...{ lookup, minVersion: 'TLSv1.2' as const, rejectUnauthorized: isVerified },
    ...(parts.ca === undefined ? {} : { ca: parts.ca }),
  };
  // At the first connection: loading it takes 0.3 s and 20 MB, and most processes never need it.
  const imapflow = await import('imapflow');
  const client = new imapflow.ImapFlow({
    ...{ host, port, secure, tls, logger: false as const },
    // True: no login without TLS. Left out: TLS if the server offers it.
    ...(secure || !isVerified ? {} : { doSTARTTLS: true }),
    auth: {
      user: username,
      ...('password' in login ? { pass: login.password } : { accessToken: login.accessToken }),
    },
    // IDLE is started as soon as all mail was read.
    disableAutoIdle: true,
    ...limitResponses(parts.maxMessageBytes ?? 0),
    ...{ connectionTimeout: connectMs, greetingTimeout: greetingMs, socketTimeout: silenceMs },
  });
  // Without a listener an error of the socket would end the process; `connect` rejects with the same error.
  client.on('error', () => {});
  const close = () => client.close();
  parts.signal?.addEventListener('abort', close);
  using limit = limitAnswer(client, shortBytes);
  let isLate = false;
  const timer = setTimeout(() => {
    isLate = true;
    close();
  }, loginMs);
  try {
    parts.signal?.throwIfAborted();
    await client.connect();
    return { client };
  } catch (error) {
    client.close();
    if (isLate) return { error: describeServerError('timeout') };
    return { error: describeImapError(limit.excess ?? (error as Error)) };
  } finally {
    clearTimeout(timer);
    parts.signal?.removeEventListener('abort', close);
  }
}

/** The UIDs of 47,000 messages or more. imapflow parses about 2 MB of a line in a second, and nothing else runs meanwhile. */
export const lineBytes = 512 * 1024;
/** What a server says at the login, about a folder, or while nothing is asked. */
export const shortBytes = 256 * 1024;

/** What an answer with a message may have in all. Some servers only estimate the size that they tell. */
export function answerBytes(messageBytes: number): number {
  return messageBytes + Math.ceil(messageBytes / 8) + 1024 * 1024;
}

function limitResponses(maxMessageBytes: number) {
  const maxLiteralSize = answerBytes(maxMessageBytes);
  return { maxLiteralSize, maxLineLength: lineBytes, maxResponseSize: maxLiteralSize + lineBytes };
}

export interface AnswerLimit {
  /** Why the connection was closed; null: the limit was kept. */
  readonly excess: Error | null;
  /** What came so far was used, and is in the memory no more. */
  restart(): void;
  [Symbol.dispose](): void;
}

const limitCheckMs = 50;

/** Until it is disposed: closes the connection when more bytes came. imapflow limits each response, and not how many there are. */
export function limitAnswer(client: ImapFlow, maxBytes: number, checkMs = limitCheckMs): AnswerLimit {
  let excess: Error | null = null;
  let start = client.stats().received;
  const timer = setInterval(() => {
    if (client.stats().received - start <= maxBytes) return;
    excess = tooMuch();
    client.close();
  }, checkMs);
  return {
    get excess() {
      return excess;
    },
    restart() {
      start = client.stats().received;
    },
    [Symbol.dispose]: () => clearInterval(timer),
  };
}

export function tooMuch(): Error {
  return new Error('The server sent more than it was asked for');
}

/** The server, or the way to it, failed. Of all that can end a sync, its user is shown only these failures. */
export class ServerFailure extends Error {
  readonly error: ServerError;

  /** `cause`: the error of imapflow. */
  constructor(error: ServerError, cause?: unknown) {
    super(error.message, { cause });
    this.error = error;
  }
}

/** The server did not search the folder. imapflow hides its reply. */
export class SearchRefused extends ServerFailure {}

/** Runs commands on a connection. */
export async function askServer<T>(commands: () => Promise<T>): Promise<T> {
  try {
    return await commands();
  } catch (error) {
    if (error instanceof ServerFailure) throw error;
    throw new ServerFailure(describeImapError(error as Error), error);
  }
}

/** The server refuses a command, and the connection goes on. */
export function isRefusal({ cause }: ServerFailure): boolean {
  const { responseStatus = '', serverResponseCode } = (cause ?? {}) as Partial<ImapFlowError>;
  // RFC 7889: imapflow does not send what is longer than the server's limit.
  return ['NO', 'BAD'].includes(responseStatus) || serverResponseCode === 'APPENDLIMIT';
}

/** The server refuses one folder, and the connection goes on. */
export function isFolderRefused(error: unknown): error is ServerFailure {
  if (error instanceof SearchRefused) return true;
  if (!(error instanceof ServerFailure)) return false;
  const { responseStatus, code } = (error.cause ?? {}) as Partial<ImapFlowError>;
  return responseStatus === 'NO' || code === 'NotFound';
}

/** By the code of an error of Node or imapflow. */
const errorCodes: Record<string, ServerErrorCode | undefined> = {
  ECONNREFUSED: 'connection_refused',
  ETIMEDOUT: 'timeout',
  CONNECT_TIMEOUT: 'timeout',
  GREETING_TIMEOUT: 'timeout',
  UPGRADE_TIMEOUT: 'timeout',
};

/** RFC 5530 §3: a login that fails for a reason which may pass. */
const passingReasons: readonly string[] = ['UNAVAILABLE', 'INUSE', 'LIMIT'];

export function describeImapError(error: ImapFlowError): ServerError {
  const { code = '', authenticationFailed, responseText = null, serverResponseCode = '' } = error;
  const detail = describeSocketError(error as Error);
  if (authenticationFailed && passingReasons.includes(serverResponseCode))
    return describeServerError('server_refused', { response: responseText });
  if (authenticationFailed) return describeServerError('authentication_failed', { response: responseText });
  const known = errorCodes[code];
  if (known) return describeServerError(known, { detail });
  if (/CERT|ALTNAME|ISSUER|SELF_SIGNED|LEAF_SIGNATURE/.test(code))
    return describeServerError('certificate_invalid', { detail });
  if (error.tlsFailed && !/^E[A-Z]/.test(code)) return describeServerError('tls_unavailable', { detail });
  if (error.tlsFailed || /SSL|TLS/.test(code)) return describeServerError('tls_failed', { detail });
  if (responseText) return describeServerError('server_refused', { response: responseText });
  return describeServerError('connection_failed', { detail });
}
