/**
 * One POST. Guarantees: it never rejects, what came of it is a value; it ends by its deadline, counted from its start to
 * the end of the answer's body; it follows no redirect; of an answer of any size 16 KiB are read.
 *
 * An undici Client is one connection here, not a Pool of them: so each connection knows whose POST it serves, which
 * gives every failure its phase, and needs one timer for its life instead of a signal for each POST.
 */
import type { Socket } from 'node:net';
import tls from 'node:tls';
import { Client, type Dispatcher } from 'undici';
import { MovableTimer } from '../lib/movable-timer.ts';
import { type ConnectErrorCode, ConnectFault, type Connecting, connect, tell } from '../net/connect.ts';
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

/** Of headers and body 16 KiB each are kept. */
interface Received {
  status: number;
  headers: Record<string, string>;
  body: string;
}

export type PostOutcome =
  | ({ kind: 'answer'; retryAfter: string | null; durationMs: number } & Received)
  | ({
      kind: 'failure';
      error: PostErrorCode;
      detail: string;
      durationMs: number;
      /** What had come before it failed, if the head of the answer had. */
    } & Partial<Received>);

export interface Poster {
  post(request: PostRequest): Promise<PostOutcome>;
  /** Ends all connections. What is under way fails with `connection_lost`: wait for it first. */
  close(): Promise<void>;
  readonly isClosed: boolean;
}

/** From connect to the end of the answer. */
export const maxTryMs = 15_000;

const maxDetailLength = 500;
const maxKnownUrls = 10_000;

interface Target {
  origin: string;
  path: string;
}

export function makePoster(options: {
  egress: Egress;
  timeoutMs?: number;
  /** Connections kept open without work, over all hosts; beyond it the longest idle one goes. */
  maxIdleConnections?: number;
  /** Certificate authorities (PEM) instead of the well-known ones. */
  ca?: string;
}): Poster {
  const { egress, timeoutMs = maxTryMs, maxIdleConnections = 1000 } = options;
  const open = new Set<Connection>();
  /** In the order in which they became idle. */
  const idle = new Set<Connection>();
  const idleByOrigin = new Map<string, Connection[]>();
  const targets = new Map<string, Target>();
  let closed = false;

  function findTarget(text: string): Target | null {
    const known = targets.get(text);
    if (known) return known;
    const url = URL.canParse(text) ? new URL(text) : null;
    if (url?.protocol !== 'https:' && url?.protocol !== 'http:') return null;
    const target = { origin: url.origin, path: url.pathname + url.search };
    if (targets.size >= maxKnownUrls) targets.clear();
    targets.set(text, target);
    return target;
  }

  function takeIdle(origin: string): Connection | undefined {
    const connection = idleByOrigin.get(origin)?.at(-1);
    if (connection) forgetIdle(connection);
    return connection;
  }

  function keepIdle(connection: Connection): void {
    idle.add(connection);
    const siblings = idleByOrigin.get(connection.origin);
    if (siblings) siblings.push(connection);
    else idleByOrigin.set(connection.origin, [connection]);
    const [oldest] = idle.size > maxIdleConnections ? idle : [];
    oldest?.end();
  }

  function forgetIdle(connection: Connection): void {
    if (!idle.delete(connection)) return;
    const siblings = idleByOrigin.get(connection.origin) ?? [];
    if (siblings.at(-1) === connection) siblings.pop();
    else siblings.splice(siblings.indexOf(connection), 1);
    if (siblings.length === 0) idleByOrigin.delete(connection.origin);
  }

  const owner: Owner = {
    egress,
    secure: tls.createSecureContext(options.ca === undefined ? {} : { ca: options.ca }),
    idle: keepIdle,
    ended(connection) {
      forgetIdle(connection);
      open.delete(connection);
    },
    again(post) {
      send(post, undefined, post.startedAt + timeoutMs - performance.now());
    },
  };

  function send(post: Post, kept: Connection | undefined, withinMs: number): void {
    if (closed) {
      post.fail('connection_lost', 'The sender is shutting down');
      return;
    }
    const connection = kept ?? new Connection(post.target.origin, owner);
    open.add(connection);
    connection.send(post, withinMs);
  }

  return {
    post(request) {
      return new Promise((settle) => {
        const target = findTarget(request.url);
        const post = new Post(request, target ?? { origin: '', path: '' }, settle);
        if (target) send(post, takeIdle(target.origin), timeoutMs);
        else post.fail('target_refused', 'The URL is neither https nor http');
      });
    },
    async close() {
      closed = true;
      await Promise.all([...open].map((connection) => connection.end()));
    },
    get isClosed() {
      return closed;
    },
  };
}

/** What a connection needs of the poster that it belongs to. */
interface Owner {
  egress: Egress;
  secure: tls.SecureContext;
  idle(connection: Connection): void;
  ended(connection: Connection): void;
  /** Sends it over a fresh connection, in the time that it has left. */
  again(post: Post): void;
}

class Connection {
  readonly origin: string;
  #owner: Owner;
  #client: Client;
  #post: Post | null = null;
  #connecting: Connecting | null = null;
  /** Answers that have come over the present socket. */
  #served = 0;
  #socketError: Error | null = null;
  readonly #timer = new MovableTimer(() => this.#expire());
  #ended: Promise<void> | null = null;

  constructor(origin: string, owner: Owner) {
    this.origin = origin;
    this.#owner = owner;
    this.#client = new Client(origin, {
      connect: (to, callback) => this.#connect(to, callback as ConnectCallback),
      allowH2: false,
      // The one deadline is ours.
      headersTimeout: 0,
      bodyTimeout: 0,
      keepAliveTimeout: 30_000,
      keepAliveMaxTimeout: 60_000,
      keepAliveTimeoutThreshold: 1000,
      // More than is kept: an answer is not refused for its long headers.
      maxHeaderSize: 4 * maxKeptBytes,
    });
    // With a POST on it, undici either tells the POST, or connects anew for one that was not sent yet.
    this.#client.on('disconnect', () => {
      if (this.#post === null) this.end();
    });
  }

  /** Whether an answer has come over this socket before: then the other side may just have closed it as idle. */
  get isReused(): boolean {
    return this.#served > 0;
  }

  /** The first error of the socket: of two that follow each other, undici tells the second. */
  get socketError(): Error | null {
    return this.#socketError;
  }

  send(post: Post, withinMs: number): void {
    this.#post = post;
    post.connection = this;
    this.#timer.arm(withinMs);
    const { headers, body } = post.request;
    this.#client.dispatch({ method: 'POST', path: post.target.path, headers, body }, post);
  }

  /** The POST is over and the connection fit for another. */
  release(): void {
    this.#post = null;
    this.#served += 1;
    if (!this.#ended) this.#owner.idle(this);
  }

  /** Lets go of a POST that was not answered, so that it can go over another connection. */
  handOn(post: Post): void {
    this.#post = null;
    this.end();
    this.#owner.again(post);
  }

  end(): Promise<void> {
    if (this.#ended === null) {
      // Mostly called from callbacks of undici, which is in the middle of something then; so not at once.
      this.#ended = Promise.resolve().then(() => this.#destroy());
      this.#owner.ended(this);
      this.#post?.fail('connection_lost', 'The sender is shutting down');
      this.#post = null;
      this.#timer.clear();
    }
    return this.#ended;
  }

  async #destroy(): Promise<void> {
    this.#connecting?.expire();
    await this.#client.destroy();
  }

  #connect(to: { hostname: string; port: string; protocol: string }, callback: ConnectCallback): void {
    const secure = to.protocol === 'https:' ? this.#owner.secure : null;
    const hostname = to.hostname.replace(/\.+$/, '');
    const port = Number(to.port || (secure ? 443 : 80));
    this.#served = 0;
    this.#socketError = null;
    this.#connecting = connect({ hostname, port, secure }, this.#owner.egress, (fault, socket) => {
      this.#connecting = null;
      socket?.once('error', (error) => {
        this.#socketError = error;
      });
      callback(fault, socket);
    });
  }

  /** Fired while idle it is ignored. */
  #expire(): void {
    if (this.#connecting) this.#connecting.expire();
    else this.#post?.expire();
  }
}

type ConnectCallback = (error: Error | null, socket: Socket | null) => void;

/** A POST under way, as undici tells of it. Settled once; what comes later is ignored. */
class Post implements Dispatcher.DispatchHandler {
  readonly request: PostRequest;
  readonly target: Target;
  readonly startedAt = performance.now();
  connection: Connection | null = null;
  #settle: ((outcome: PostOutcome) => void) | null;
  #answerBegan = false;
  #status = 0;
  #headers: Record<string, string> = {};
  #chunks: Buffer[] = [];
  #size = 0;

  constructor(request: PostRequest, target: Target, settle: (outcome: PostOutcome) => void) {
    this.request = request;
    this.target = target;
    this.#settle = settle;
  }

  onRequestStart(): void {}

  onResponseStarted(): void {
    this.#answerBegan = true;
  }

  onResponseStart(_controller: unknown, status: number, headers: IncomingHeaders): void {
    if (status < 200) return;
    this.#status = status;
    this.#headers = keepHeaders(headers);
  }

  onResponseData(_controller: unknown, chunk: Buffer): void {
    if (!this.#settle) return;
    this.#chunks.push(chunk);
    this.#size += chunk.length;
    if (this.#size <= maxKeptBytes) return;
    this.#answer();
    // Reading the rest, which may have no end, costs more than a new connection.
    this.connection?.end();
  }

  onResponseEnd(): void {
    if (!this.#settle) return;
    this.#answer();
    this.connection?.release();
  }

  onResponseError(_controller: unknown, told: Error): void {
    if (!this.#settle) return;
    const { connection } = this;
    const error = connection?.socketError ?? told;
    const code = codeOf(error, this.#status !== 0);
    // The other side closed an idle connection just as we sent. Deliveries are at least once anyway, so say it again;
    // once, for the new connection has not been used before.
    if (code === 'connection_lost' && connection?.isReused && !this.#answerBegan) {
      connection.handOn(this);
    } else {
      this.fail(code, tell(error));
    }
  }

  expire(): void {
    if (this.#status === 0) this.fail('response_timeout', 'The request was sent, but no answer came in time');
    else this.fail('body_timeout', 'The answer began, but did not end in time');
  }

  fail(error: PostErrorCode, text: string): void {
    if (!this.#settle) return;
    const detail = text.replace(controlCharacters, ' ').slice(0, maxDetailLength);
    const received = this.#status === 0 ? {} : this.#received();
    this.#finish({ kind: 'failure', error, detail, durationMs: this.#elapsedMs(), ...received });
    this.connection?.end();
  }

  #answer(): void {
    const retryAfter = this.#headers['retry-after'] ?? null;
    const { status, headers, body } = this.#received();
    this.#finish({ kind: 'answer', status, headers, body, retryAfter, durationMs: this.#elapsedMs() });
  }

  #received(): Received {
    return { status: this.#status, headers: this.#headers, body: readText(this.#chunks, this.#size) };
  }

  #elapsedMs(): number {
    return Math.round(performance.now() - this.startedAt);
  }

  #finish(outcome: PostOutcome): void {
    this.#settle?.(outcome);
    this.#settle = null;
  }
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what it looks for.
const controlCharacters = /[\u0000-\u001f\u007f]+/g;

function codeOf(error: Error, headHasCome: boolean): PostErrorCode {
  if (error instanceof ConnectFault) return error.code;
  const { name, code = '', message } = error as NodeJS.ErrnoException;
  // undici 8.12 leaves the parser's code out. An end too soon, where closing was to tell the end, is no bad grammar.
  if (name === 'HTTPParserError') return message.includes('EOF') ? 'connection_lost' : 'invalid_response';
  // Said of a body cut short, but of any fault in the head as well once a length was read there.
  if (code === 'UND_ERR_RES_CONTENT_LENGTH_MISMATCH' && !headHasCome) return 'invalid_response';
  if (code === 'UND_ERR_HEADERS_OVERFLOW') return 'invalid_response';
  if (code === 'UND_ERR_SOCKET' && message.startsWith('bad ')) return 'invalid_response';
  // With TLS 1.3 the other side may refuse us after the handshake, for want of a client certificate, say.
  if (code.startsWith('ERR_SSL_')) return 'tls_failed';
  if (code === 'UND_ERR_INVALID_ARG') return 'connect_failed';
  return 'connection_lost';
}
