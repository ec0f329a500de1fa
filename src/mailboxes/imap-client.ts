/**
 * Connections to IMAP servers, by imapflow, which only the threads load. Guarantees: the socket is connected to an address that the
 * egress rules allowed; a login goes out only over verified TLS, except to this machine in development; a server that sends more than
 * it was asked for is cut before the bytes are parsed.
 */
import type { LookupFunction } from 'node:net';
import { ImapFlow, type ImapFlowError } from 'imapflow';
import { describeSocketError } from '../net/connect.ts';
import type { HideSecrets } from '../net/hide-secrets.ts';
import { describeServerError, type ServerError, type ServerErrorCode } from '../net/mail-server.ts';
import { answerBytes, lineBytes, loginResponses, maxResponses, shortBytes } from './answer-limits.ts';
import { type ImapFailure, ServerFailure } from './imap-failure.ts';
import type { OpenOptions } from './imap-messages.ts';

export type { ImapFlow };

/** What a server may send until the limit is set anew. */
export class Intake {
  #maxBytes = shortBytes;
  /** That of the login, until the first limit is set. */
  #maxResponses = loginResponses;
  #startedAt = 0;
  #received = 0;
  #responses = 0;
  #parsed = 0;
  #excess: Error | null = null;

  /** Why the connection was closed; null: the limit was kept. */
  get excess(): Error | null {
    return this.#excess;
  }

  /** How many responses since the connection was opened. */
  get parsed(): number {
    return this.#parsed;
  }

  /** From now on. */
  limit(maxBytes: number): void {
    this.#startedAt = this.#received;
    this.#responses = 0;
    this.#maxBytes = maxBytes;
    this.#maxResponses = maxResponses;
  }

  /** What came so far was used, and is in the memory no more. */
  restart(): void {
    this.limit(this.#maxBytes);
  }

  /** `received`: since the connection was opened. Returns whether that is within the limit. */
  admitsBytes(received: number): boolean {
    this.#received = received;
    return this.#admits(received - this.#startedAt, this.#maxBytes, 'bytes');
  }

  admitsResponse(): boolean {
    this.#responses += 1;
    this.#parsed += 1;
    return this.#admits(this.#responses, this.#maxResponses, 'responses');
  }

  #admits(count: number, most: number, what: string): boolean {
    if (count > most)
      this.#excess ??= new Error(
        `The server sent more than it was asked for: ${count} ${what}, and at most ${most} were expected`,
      );
    return this.#excess === null;
  }
}

/** Not connected yet. imapflow limits each response, and not how many there are: `intake` does. */
export function makeImapFlow(options: OpenOptions, intake: Intake): ImapFlow {
  const { host, port, secure, username, login, addresses, isVerified, ca, timeouts } = options;
  // Not asked for an IP address, which egress has checked as it is.
  const lookup: LookupFunction = (_host, { all }, answer) =>
    all ? answer(null, addresses) : answer(null, addresses[0]?.address ?? '', addresses[0]?.family);
  const tls = {
    ...{ lookup, minVersion: 'TLSv1.2' as const, rejectUnauthorized: isVerified },
    ...(ca === undefined ? {} : { ca }),
  };
  // Called before the bytes that were read are parsed, and after each response. After `close` imapflow drops what it has.
  const note = ({ src, data }: { src?: string; data?: string }) => {
    if (src !== 's') return;
    const isWithin =
      data === undefined ? intake.admitsResponse() : intake.admitsBytes(client.stats().received);
    if (!isWithin) client.close();
  };
  const client: ImapFlow = new ImapFlow({
    ...{ host, port, secure, tls },
    // True: no login without TLS. Left out: TLS if the server offers it.
    ...(secure || !isVerified ? {} : { doSTARTTLS: true }),
    auth: { user: username, ...('password' in login ? { pass: login.password } : login) },
    // IDLE is started as soon as all mail was read.
    disableAutoIdle: true,
    // The log is the one place where bytes can be counted, and the connection ended, before they are parsed.
    logRaw: true,
    logger: { trace: note, debug: note, info() {}, warn() {}, error: note, fatal() {} },
    ...limitResponses(options.maxMessageBytes),
    connectionTimeout: timeouts.connectMs,
    greetingTimeout: timeouts.greetingMs,
    socketTimeout: timeouts.silenceMs,
  });
  return client;
}

function limitResponses(maxMessageBytes: number) {
  const maxLiteralSize = answerBytes(maxMessageBytes);
  return { maxLiteralSize, maxLineLength: lineBytes, maxResponseSize: maxLiteralSize + lineBytes };
}

/** As a value that can cross to the main thread, without the password that the server may have repeated. */
export function describeFailure(error: unknown, hide: HideSecrets): ImapFailure {
  if (error instanceof ServerFailure) {
    const { isRefusal, isFolderRefused } = error;
    return { error: error.error, isRefusal, isFolderRefused };
  }
  const { responseStatus = '', serverResponseCode, code } = error as ImapFlowError;
  return {
    error: describeImapError(error as ImapFlowError, hide),
    // RFC 7889: imapflow does not send what is longer than the server's limit.
    isRefusal: ['NO', 'BAD'].includes(responseStatus) || serverResponseCode === 'APPENDLIMIT',
    isFolderRefused: responseStatus === 'NO' || code === 'NotFound',
  };
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

function describeImapError(error: ImapFlowError, hide: HideSecrets): ServerError {
  const { code = '', authenticationFailed, serverResponseCode = '' } = error;
  const detail = hide(describeSocketError(error as Error));
  // Before the words are cut: of a secret that was cut too little may be left to find it.
  const responseText = error.responseText ? hide(error.responseText) : null;
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
