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
import {
  answerBytes,
  lineBytes,
  loginResponses,
  maxFound,
  maxResponses,
  shortBytes,
} from './answer-limits.ts';
import { type ImapFailure, ServerFailure } from './imap-failure.ts';
import type { OpenOptions } from './imap-messages.ts';

export type { ImapFlow };

/** What a response costs the thread: this, or more if its line is long. The bytes of messages are hardly parsed, and cost little. */
const responseMs = 0.1;
const lineBytesPerMs = 2000;
/** A set of numbers, by the square of its length. */
const setBytes2PerMs = 1.5e7;

/** What a server may send until the limit is set anew. */
export class Intake {
  #maxBytes = shortBytes;
  /** That of the login, until the first limit is set. */
  #maxResponses = loginResponses;
  #startedAt = 0;
  #received = 0;
  #responses = 0;
  #numbers = 0;
  #costMs = 0;
  #excess: Error | null = null;

  /** Why the connection was closed; null: the limit was kept. */
  get excess(): Error | null {
    return this.#excess;
  }

  /** Of the thread's time, since the connection was opened. */
  get costMs(): number {
    return this.#costMs;
  }

  /** From now on. */
  limit(maxBytes: number): void {
    this.#startedAt = this.#received;
    this.#responses = 0;
    this.#numbers = 0;
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

  /** `lineLength`: without the bytes of messages. */
  admitsResponse(text: string, lineLength: number): boolean {
    const numbers = countNumbers(text);
    this.#responses += 1;
    this.#numbers += numbers;
    // Beyond the limit no list is made.
    const lineMs = (lineLength + Math.min(numbers, maxFound)) / lineBytesPerMs;
    const setLength = /[\d:,*]{1000,}/.exec(text)?.[0].length ?? 0;
    this.#costMs += Math.max(responseMs, lineMs + setLength ** 2 / setBytes2PerMs);
    return (
      this.#admits(this.#responses, this.#maxResponses, 'responses') &&
      this.#admits(this.#numbers, maxFound, 'numbers of messages')
    );
  }

  #admits(count: number, most: number, what: string): boolean {
    if (count > most)
      this.#excess ??= new Error(
        `The server sent more than it was asked for: ${count} ${what}, and at most ${most} were expected`,
      );
    return this.#excess === null;
  }
}

/**
 * Of the two responses whose ranges imapflow makes a list of. `text`: as imapflow logs the response, where strings have quotes. Only
 * what a server has a reason to send is counted: a VANISHED, which nobody enabled, or a range in a string has endless numbers.
 */
function countNumbers(text: string): number {
  if (/^\* (\d+ )?("|VANISHED\b)/i.test(text)) return Number.POSITIVE_INFINITY;
  if (!/^\* (\d+ )?ESEARCH\b/i.test(text)) return 0;
  const result = text.replace(/ \(TAG "[^"]*"\)/i, '');
  if (result.includes('"')) return Number.POSITIVE_INFINITY;
  let count = 0;
  for (const part of result.split(/[ ,]/)) {
    const [first, ...rest] = part.split(':');
    if (rest.length > 0) count += Math.abs(Number(rest.join(':')) - Number(first)) + 1 || 1;
    else count += 1;
  }
  return count;
}

/** How long the line was. imapflow logs the length of a long string instead of the string. */
function lineLengthOf(text: string): number {
  let total = text.length;
  for (const [, length] of text.matchAll(/"\(\* (\d+)B string \*\)"/g)) total += Number(length);
  return total;
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
  // Called before the bytes that were read are parsed, and with each response before it is used. After `close` imapflow drops what it has.
  const note = ({ src, data, msg = '', payloadBytes }: LogLine) => {
    if (src !== 's') return;
    const isWithin =
      data === undefined
        ? intake.admitsResponse(msg, payloadBytes ?? lineLengthOf(msg))
        : intake.admitsBytes(client.stats().received);
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

interface LogLine {
  /** `s`: from the server. */
  src?: string;
  /** Bytes that were read. Undefined: `msg` is a response. */
  data?: string;
  msg?: string;
  /** Of a response that cannot be parsed, of which `msg` has only the start. */
  payloadBytes?: number;
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
