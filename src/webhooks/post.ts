/**
 * One POST. Guarantees: `post` never rejects, because a failure is a value; a POST ends by its deadline, which covers everything
 * from connecting to the end of the response body; redirects are not followed; at most 16 KiB of a response body are read.
 *
 * Each undici Client is used as one connection, instead of a Pool. So a connection knows which POST it serves, every failure
 * gets the error code of its phase, and a connection needs one timer for its lifetime instead of a signal for each POST.
 */
import type { Socket } from 'node:net';
import tls from 'node:tls';
import { Client, type Dispatcher } from 'undici';
import { MovableTimer } from '../lib/movable-timer.ts';
import {
  ConnectError,
  type ConnectErrorCode,
  type Connecting,
  connect,
  describeSocketError,
} from '../net/connect.ts';
import type { Egress } from '../net/egress.ts';
import { type IncomingHeaders, keepHeaders, maxKeptBytes, readText } from './response.ts';

interface PostRequest {
  url: string;
  headers: Record<string, string>;
  body: Buffer;
}

export type PostErrorCode =
  | ConnectErrorCode
  | 'response_timeout'
  | 'body_timeout'
  | 'connection_lost'
  | 'invalid_response';

/** At most 16 KiB of the headers and 16 KiB of the body. */
interface KeptResponse {
  status: number;
  headers: Record<string, string>;
  body: string;
}

/** A failure has what came of the response before it failed. */
export type PostOutcome = { durationMs: number } & (
  | ({
      kind: 'response';
      /** From the start of the request to the end of the response, without connecting. */
      answerMs: number;
    } & KeptResponse)
  | ({ kind: 'failure'; error: PostErrorCode; detail: string } & Partial<KeptResponse>)
);

interface ParsedUrl {
  origin: string;
  path: string;
}

/** From connecting to the end of the response. */
export const maxTryMs = 15_000;

const maxDetailLength = 500;
const maxParsedUrls = 10_000;
const shutdownDetail = 'Posthorn is shutting down';

export class Poster {
  readonly egress: Egress;
  readonly secureContext: tls.SecureContext;
  readonly #timeoutMs: number;
  readonly #maxIdleConnections: number;
  readonly #connections = new Set<Connection>();
  /** In the order in which they became idle. */
  readonly #idle = new Set<Connection>();
  readonly #idleByOrigin = new Map<string, Connection[]>();
  readonly #parsedUrls = new Map<string, ParsedUrl>();
  isClosed = false;

  constructor(options: {
    egress: Egress;
    timeoutMs?: number;
    /** Idle connections to all hosts together. Above this number the connection that is idle longest is closed. */
    maxIdleConnections?: number;
    /** Certificate authorities (PEM) instead of the well-known ones. */
    ca?: string;
  }) {
    this.egress = options.egress;
    this.secureContext = tls.createSecureContext(options.ca === undefined ? {} : { ca: options.ca });
    this.#timeoutMs = options.timeoutMs ?? maxTryMs;
    this.#maxIdleConnections = options.maxIdleConnections ?? 1000;
  }

  post(request: PostRequest): Promise<PostOutcome> {
    return new Promise((resolve) => {
      const url = this.#parse(request.url);
      const post = new Post(request, url ?? { origin: '', path: '' }, resolve);
      if (url) this.#send(post, this.#takeIdle(url.origin), this.#timeoutMs);
      else post.fail('target_refused', 'The URL is neither https nor http');
    });
  }

  /** Sends a POST again over a new connection, in the time that is left. */
  resend(post: Post): void {
    this.#send(post, undefined, post.startedAt + this.#timeoutMs - performance.now());
  }

  #send(post: Post, idle: Connection | undefined, withinMs: number): void {
    if (this.isClosed) post.fail('connection_lost', shutdownDetail);
    else {
      const connection = idle ?? new Connection(post.url.origin, this);
      this.#connections.add(connection);
      connection.send(post, withinMs);
    }
  }

  /** Closes all connections. A running POST fails with `connection_lost`, so wait for running POSTs first. */
  async close(): Promise<void> {
    this.isClosed = true;
    await Promise.all([...this.#connections].map((connection) => connection.end()));
  }

  #parse(text: string): ParsedUrl | null {
    const known = this.#parsedUrls.get(text);
    if (known) return known;
    const url = URL.parse(text);
    if (url?.protocol !== 'https:' && url?.protocol !== 'http:') return null;
    const parsed = { origin: url.origin, path: url.pathname + url.search };
    if (this.#parsedUrls.size >= maxParsedUrls) this.#parsedUrls.clear();
    this.#parsedUrls.set(text, parsed);
    return parsed;
  }

  #takeIdle(origin: string): Connection | undefined {
    const connection = this.#idleByOrigin.get(origin)?.at(-1);
    if (connection) this.#removeIdle(connection);
    return connection;
  }

  keepIdle(connection: Connection): void {
    this.#idle.add(connection);
    const siblings = this.#idleByOrigin.get(connection.origin);
    if (siblings) siblings.push(connection);
    else this.#idleByOrigin.set(connection.origin, [connection]);
    const [oldest] = this.#idle.size > this.#maxIdleConnections ? this.#idle : [];
    oldest?.end();
  }

  #removeIdle(connection: Connection): void {
    if (!this.#idle.delete(connection)) return;
    const siblings = this.#idleByOrigin.get(connection.origin) ?? [];
    if (siblings.at(-1) === connection) siblings.pop();
    else siblings.splice(siblings.indexOf(connection), 1);
    if (siblings.length === 0) this.#idleByOrigin.delete(connection.origin);
  }

  forget(connection: Connection): void {
    this.#removeIdle(connection);
    this.#connections.delete(connection);
  }
}

class Connection {
  readonly origin: string;
  /** The first error of the socket: of two errors that follow each other, undici reports the second. */
  socketError: Error | null = null;
  readonly #poster: Poster;
  readonly #client: Client;
  #post: Post | null = null;
  #connecting: Connecting | null = null;
  /** Responses that came over the present socket. */
  #responses = 0;
  readonly #timer = new MovableTimer(() => this.#expire());
  #ended: Promise<void> | null = null;

  constructor(origin: string, poster: Poster) {
    this.origin = origin;
    this.#poster = poster;
    this.#client = new Client(origin, {
      connect: (to, callback) => this.#connect(to, callback as ConnectCallback),
      allowH2: false,
      // `#timer` is the only deadline.
      headersTimeout: 0,
      bodyTimeout: 0,
      keepAliveTimeout: 30_000,
      keepAliveMaxTimeout: 60_000,
      keepAliveTimeoutThreshold: 1000,
      // More than is kept, so that a response with long headers does not fail.
      maxHeaderSize: 4 * maxKeptBytes,
    });
    // While a POST is on the connection, undici reports the loss to the POST, or connects again for a POST that was not sent.
    this.#client.on('disconnect', () => {
      if (this.#post === null) this.end();
    });
  }

  /** A response has come over this socket before, so the receiver may have closed it as idle just now. */
  get isReused(): boolean {
    return this.#responses > 0;
  }

  send(post: Post, withinMs: number): void {
    this.#post = post;
    post.connection = this;
    this.#timer.arm(withinMs);
    const { headers, body } = post.request;
    this.#client.dispatch({ method: 'POST', path: post.url.path, headers, body }, post);
  }

  /** The POST has ended, and the connection can serve another one. */
  release(): void {
    this.#post = null;
    this.#responses += 1;
    if (!this.#ended) this.#poster.keepIdle(this);
  }

  /** Sends a POST that got no response over another connection. */
  resend(post: Post): void {
    this.#post = null;
    this.end();
    this.#poster.resend(post);
  }

  end(): Promise<void> {
    if (this.#ended === null) {
      // Not at once: callbacks of undici call `end`, and undici must finish its own work first.
      this.#ended = Promise.resolve().then(() => {
        this.#connecting?.expire();
        return this.#client.destroy();
      });
      this.#poster.forget(this);
      this.#post?.fail('connection_lost', shutdownDetail);
      this.#post = null;
      this.#timer.clear();
    }
    return this.#ended;
  }

  #connect(to: { hostname: string; port: string; protocol: string }, callback: ConnectCallback): void {
    const secure = to.protocol === 'https:' ? this.#poster.secureContext : null;
    const hostname = to.hostname.replace(/\.+$/, '');
    const port = Number(to.port || (secure ? 443 : 80));
    this.#responses = 0;
    this.socketError = null;
    this.#connecting = connect({ hostname, port, secure }, this.#poster.egress, (fault, socket) => {
      this.#connecting = null;
      socket?.once('error', (error) => {
        this.socketError = error;
      });
      callback(fault, socket);
    });
  }

  /** While the connection is idle, the timer may fire without effect. */
  #expire(): void {
    if (this.#connecting) this.#connecting.expire();
    else this.#post?.expire();
  }
}

type ConnectCallback = (error: Error | null, socket: Socket | null) => void;

/** A running POST, in the form of an undici handler. The first outcome counts; later events are ignored. */
class Post implements Dispatcher.DispatchHandler {
  readonly request: PostRequest;
  readonly url: ParsedUrl;
  readonly startedAt = performance.now();
  connection: Connection | null = null;
  #sentAt = this.startedAt;
  #resolve: ((outcome: PostOutcome) => void) | null;
  #hasResponseStarted = false;
  #status = 0;
  #headers: Record<string, string> = {};
  #chunks: Buffer[] = [];
  #size = 0;

  constructor(request: PostRequest, url: ParsedUrl, resolve: (outcome: PostOutcome) => void) {
    this.request = request;
    this.url = url;
    this.#resolve = resolve;
  }

  /** undici calls it when it writes the request, to a socket that is connected. */
  onRequestStart(): void {
    this.#sentAt = performance.now();
  }

  onResponseStarted(): void {
    this.#hasResponseStarted = true;
  }

  onResponseStart(_controller: unknown, status: number, headers: IncomingHeaders): void {
    if (status < 200) return;
    this.#status = status;
    this.#headers = keepHeaders(headers);
  }

  onResponseData(_controller: unknown, chunk: Buffer): void {
    if (!this.#resolve) return;
    this.#chunks.push(chunk);
    this.#size += chunk.length;
    if (this.#size <= maxKeptBytes) return;
    this.#succeed();
    // The rest of the body may be endless, and reading it costs more than a new connection.
    this.connection?.end();
  }

  onResponseEnd(): void {
    if (!this.#resolve) return;
    this.#succeed();
    this.connection?.release();
  }

  onResponseError(_controller: unknown, reported: Error): void {
    if (!this.#resolve) return;
    const { connection } = this;
    const error = connection?.socketError ?? reported;
    const code = toErrorCode(error, this.#status !== 0);
    // The receiver closed an idle connection while the POST was sent. Deliveries are at least once, so the POST is sent again:
    // once, because the new connection is not a reused one.
    if (code === 'connection_lost' && connection?.isReused && !this.#hasResponseStarted)
      connection.resend(this);
    else this.fail(code, describeSocketError(error));
  }

  expire(): void {
    if (this.#status === 0)
      this.fail('response_timeout', 'The request was sent, but no response came in time');
    else this.fail('body_timeout', 'The response started, but did not end in time');
  }

  fail(error: PostErrorCode, text: string): void {
    if (!this.#resolve) return;
    const detail = text.replace(controlCharacters, ' ').slice(0, maxDetailLength);
    const response = this.#status === 0 ? {} : this.#keptResponse();
    this.#finish({ kind: 'failure', error, detail, durationMs: this.#elapsedMs(), ...response });
    this.connection?.end();
  }

  #succeed(): void {
    const answerMs = performance.now() - this.#sentAt;
    this.#finish({ kind: 'response', durationMs: this.#elapsedMs(), answerMs, ...this.#keptResponse() });
  }

  #keptResponse(): KeptResponse {
    return { status: this.#status, headers: this.#headers, body: readText(this.#chunks, this.#size) };
  }

  #elapsedMs(): number {
    return Math.round(performance.now() - this.startedAt);
  }

  #finish(outcome: PostOutcome): void {
    this.#resolve?.(outcome);
    this.#resolve = null;
  }
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: the expression finds control characters.
const controlCharacters = /[\u0000-\u001f\u007f]+/g;

function toErrorCode(error: Error, hasHeaders: boolean): PostErrorCode {
  if (error instanceof ConnectError) return error.code;
  const { name, code = '', message } = error as NodeJS.ErrnoException;
  // undici 8.12 leaves out the parser's code. A response that ends with the connection, and ended too early, is not malformed.
  if (name === 'HTTPParserError') return message.includes('EOF') ? 'connection_lost' : 'invalid_response';
  // undici reports this code for a body that was cut short, and after a content-length for every error in the headers.
  if (code === 'UND_ERR_RES_CONTENT_LENGTH_MISMATCH' && !hasHeaders) return 'invalid_response';
  if (code === 'UND_ERR_HEADERS_OVERFLOW') return 'invalid_response';
  if (code === 'UND_ERR_SOCKET' && message.startsWith('bad ')) return 'invalid_response';
  // With TLS 1.3 the receiver can refuse the client after the handshake, for example because it wants a client certificate.
  if (code.startsWith('ERR_SSL_')) return 'tls_failed';
  if (code === 'UND_ERR_INVALID_ARG') return 'connect_failed';
  return 'connection_lost';
}
