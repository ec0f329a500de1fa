/**
 * One client's connection: bytes in, replies out, time and memory bounded. The session decides what is said.
 * Guarantees: the 250 of a message goes out after `accept` has said yes, and never before; of bytes that came before a
 * TLS handshake none is read after it (CVE-2011-0411); whatever `accept` says is logged if the client is gone by then.
 */
import type { Socket } from 'node:net';
import tls from 'node:tls';
import type { Log } from '../lib/log.ts';
import { MovableTimer } from '../lib/movable-timer.ts';
import type { Certificate } from '../net/certificate.ts';
import { type Budget, DataReader } from './data.ts';
import type { SmtpLimits } from './limits.ts';
import type { SmtpMetrics } from './metrics.ts';
import { formatReply, type Reply, reply } from './reply.ts';
import {
  type Recipient,
  type RecipientDecision,
  type Refusal,
  Session,
  tooBig,
  tryLater,
} from './session.ts';

export interface ReceivedMail<Route = unknown> {
  /** What the client sent, byte for byte, with only the dot-stuffing undone. */
  raw: Buffer;
  /** Null for `<>`. */
  mailFrom: string | null;
  /** In the order in which they were accepted, each once. */
  recipients: Recipient<Route>[];
  remoteIp: string;
  helo: string | null;
  tls: { version: string; cipher: string } | null;
  smtpUtf8: boolean;
}

export type Acceptance = { ok: true; id: string } | ({ ok: false } & Refusal);

export interface ConnectionParts<Route> {
  mailHost: string;
  limits: SmtpLimits;
  certificate: Certificate;
  budget: Budget;
  route(address: string): Promise<RecipientDecision<Route>>;
  accept(mail: ReceivedMail<Route>): Promise<Acceptance>;
  log: Log;
  metrics?: SmtpMetrics | undefined;
}

/** `waiting` is for `route`, `accept` or a certificate; `closing` for the client to read our last words. */
type Phase = 'command' | 'waiting' | 'data' | 'handshake' | 'closing';

const nothing = Buffer.alloc(0);
const lineFeed = 10;
const carriageReturn = 13;

/** How many times the longest command line, and the biggest message, we put up with before we cut. */
const cutAtLines = 32;
const cutAtMessages = 2;
const lingerMs = 1000;

const lineTooLong = reply(500, '5.5.2', 'The line is too long');
const noRoom = reply(452, '4.3.1', 'Too much mail at once; please try again later');
const noTls = reply(454, '4.7.0', 'TLS is not available for the moment');

export class Connection<Route> {
  readonly #parts: ConnectionParts<Route>;
  readonly #remoteIp: string;
  readonly #session: Session<Route>;
  readonly #ended: () => void;
  /** The client's, and the one on top of it once there is TLS. */
  readonly #plain: Socket;
  #socket: Socket;
  #secureContext: tls.SecureContext | null = null;
  #tls: ReceivedMail['tls'] = null;

  #phase: Phase = 'command';
  #pending: Buffer = nothing;
  /** Bytes of a line that is too long, which were not kept. */
  #skipped = 0;
  #reader: DataReader | null = null;
  #messageEndsBy = 0;
  #replies = '';

  readonly #timer = new MovableTimer(() => this.#expire());
  #inputEnded = false;
  #isStopping = false;
  #isGone = false;
  /** Something was asked whose answer is not there yet; it may outlive the socket. */
  #isAsking = false;

  /** `ended` is called once, when the socket is closed and nothing is under way for it any more. */
  constructor(socket: Socket, remoteIp: string, parts: ConnectionParts<Route>, ended: () => void) {
    this.#parts = parts;
    this.#remoteIp = remoteIp;
    this.#session = new Session({ ...parts, remoteIp });
    this.#ended = ended;
    this.#plain = socket;
    this.#socket = socket;
    this.#listen(socket);
    this.#say(reply(220, null, `${parts.mailHost} ESMTP`));
    this.#flush();
  }

  /** Ends politely: at once when the client is idle, else after the message or command that is under way. */
  stop(): void {
    this.#isStopping = true;
    if (this.#phase === 'handshake') this.cut();
    else if (this.#phase === 'command') this.#advance();
  }

  cut(): void {
    this.#socket.destroy();
    this.#plain.destroy();
  }

  #listen(socket: Socket): void {
    socket.on('data', this.#onData).on('end', this.#onEnd).on('drain', this.#onDrain);
    socket.on('error', this.#onError).on('close', this.#onClose);
  }

  #onData = (chunk: Buffer): void => {
    if (this.#phase === 'closing') return;
    this.#pending = this.#pending.length === 0 ? chunk : Buffer.concat([this.#pending, chunk]);
    if (this.#phase === 'waiting') this.#socket.pause();
    else this.#advance();
  };

  /** The client will say no more, but may still listen. */
  #onEnd = (): void => {
    this.#inputEnded = true;
    this.#advance();
  };

  #onDrain = (): void => {
    this.#listenAgain();
  };

  #onError = (err: Error): void => {
    this.#parts.log.debug({ remoteIp: this.#remoteIp, reason: err.message }, 'An SMTP connection broke');
  };

  #onClose = (): void => {
    if (this.#isGone) return;
    this.#isGone = true;
    this.#phase = 'closing';
    this.cut();
    this.#dropMessage();
    this.#timer.clear();
    if (!this.#isAsking) this.#ended();
  };

  /** Does what can be done with the bytes that have come. */
  #advance(): void {
    this.#guard(() => {
      while (this.#step());
    });
    // An empty view would keep the chunk it is a view of.
    if (this.#pending.length === 0) this.#pending = nothing;
    // The replies to commands sent in one go leave in one go (RFC 2920 §3.2), so not while one is still awaited.
    if (this.#phase === 'waiting') return;
    this.#flush();
    if (this.#inputEnded) this.#close();
  }

  /** What fails here is ours, not the client's: better to give up this connection than the process. */
  #guard(work: () => void): void {
    try {
      work();
    } catch (err) {
      this.#parts.log.error({ err, remoteIp: this.#remoteIp }, 'An SMTP session failed');
      this.cut();
    }
  }

  /** Takes one line, or what there is of a message. False when there is nothing to take. */
  #step(): boolean {
    if (this.#phase === 'data') return this.#takeData();
    if (this.#phase !== 'command') return false;
    if (this.#isStopping) {
      this.#say(this.#farewell('4.3.2', 'Shutting down; please try again later'));
      return false;
    }
    const line = this.#takeLine();
    if (line === null) return false;
    const answer = line === 'too long' ? this.#session.count(lineTooLong) : this.#session.answer(line);
    if (answer instanceof Promise) this.#ask(answer);
    else if (answer.next === 'tls') this.#ask(this.#prepareTls(answer));
    else this.#say(answer);
    return true;
  }

  /** A bare line feed ends a command as well: people type them, and no message can hide in one. */
  #takeLine(): Buffer | 'too long' | null {
    const { maxLineBytes } = this.#parts.limits;
    const end = this.#pending.indexOf(lineFeed);
    const length = this.#skipped + (end === -1 ? this.#pending.length : end + 1);
    if (length > cutAtLines * maxLineBytes) {
      this.#say({ ...lineTooLong, next: 'close' });
      return null;
    }
    if (end === -1) {
      if (length > maxLineBytes) {
        this.#skipped = length;
        this.#pending = nothing;
      }
      return null;
    }
    const line = this.#pending.subarray(0, this.#pending[end - 1] === carriageReturn ? end - 1 : end);
    this.#pending = this.#pending.subarray(end + 1);
    this.#skipped = 0;
    return length > maxLineBytes ? 'too long' : line;
  }

  #takeData(): boolean {
    const reader = this.#reader;
    if (!reader || this.#pending.length === 0) return false;
    const { maxMessageBytes } = this.#parts.limits;
    const rest = reader.push(this.#pending);
    this.#pending = rest ?? nothing;
    if (rest === null) {
      if (reader.size > cutAtMessages * maxMessageBytes) {
        this.#tellMessage({ ...tooBig(maxMessageBytes), next: 'close' });
      } else {
        this.#armForData();
      }
      return false;
    }
    this.#reader = null;
    this.#takeMessage(reader);
    return true;
  }

  #takeMessage(reader: DataReader): void {
    const envelope = this.#session.takeEnvelope();
    if (reader.isRefused) {
      reader.release();
      this.#phase = 'command';
      const { maxMessageBytes } = this.#parts.limits;
      this.#tellMessage(reader.size > maxMessageBytes ? tooBig(maxMessageBytes) : noRoom);
      return;
    }
    const mail: ReceivedMail<Route> = {
      raw: reader.message(),
      mailFrom: envelope.mailFrom,
      recipients: envelope.recipients,
      remoteIp: this.#remoteIp,
      helo: this.#session.helo,
      tls: this.#tls,
      smtpUtf8: envelope.smtpUtf8,
    };
    this.#ask(this.#accept(mail, reader));
  }

  async #accept(mail: ReceivedMail<Route>, reader: DataReader): Promise<Reply> {
    const { log, metrics } = this.#parts;
    const answer = await this.#askAccept(mail);
    reader.release();
    metrics?.messageAnswered(answer.status);
    if (this.#isGone || this.#inputEnded) {
      const told = { remoteIp: mail.remoteIp, status: answer.status, answer: answer.text };
      log.info(told, 'The client closed its side before it was told what became of its message');
    }
    return this.#session.count(answer);
  }

  async #askAccept(mail: ReceivedMail<Route>): Promise<Reply> {
    const { accept, log } = this.#parts;
    try {
      const outcome = await accept(mail);
      if (!outcome.ok) return reply(outcome.status, outcome.enhanced, outcome.text);
      this.#session.messageAccepted();
      return reply(250, '2.0.0', `Accepted as ${outcome.id}`);
    } catch (err) {
      log.error({ err, remoteIp: mail.remoteIp }, 'A message was not accepted; told to try again later');
      return tryLater;
    }
  }

  #tellMessage(answer: Reply): void {
    this.#parts.metrics?.messageAnswered(answer.status);
    this.#say(this.#session.count(answer));
  }

  /** Meanwhile the client is not timed and, past what it has sent already, not read. */
  #ask(answer: Promise<Reply>): void {
    this.#phase = 'waiting';
    this.#isAsking = true;
    answer.then((answered) => {
      this.#isAsking = false;
      if (this.#isGone) {
        this.#ended();
        return;
      }
      this.#phase = 'command';
      this.#guard(() => this.#say(answered));
      this.#advance();
      this.#listenAgain();
    });
  }

  /** Not before all that came is dealt with: else a client could fill our memory with commands. */
  #listenAgain(): void {
    if (this.#phase !== 'waiting' && !this.#socket.writableNeedDrain) this.#socket.resume();
  }

  #say(answer: Reply): void {
    this.#replies += formatReply(answer);
    if (answer.next === 'close') this.#close();
    else if (answer.next === 'tls') this.#startTls();
    else if (answer.next === 'data') this.#startData();
    else this.#timer.arm(this.#parts.limits.commandTimeoutMs);
  }

  /** A client that does not read what it is told is not listened to. */
  #flush(): void {
    if (this.#replies === '' || !this.#socket.writable) return;
    const written = this.#socket.write(this.#replies);
    this.#replies = '';
    if (!written) this.#socket.pause();
  }

  #farewell(enhanced: string, text: string): Reply {
    return reply(421, enhanced, `${this.#parts.mailHost} ${text}`, 'close');
  }

  #startData(): void {
    const { limits, budget } = this.#parts;
    this.#phase = 'data';
    this.#reader = new DataReader(limits.maxMessageBytes, budget);
    this.#messageEndsBy = performance.now() + limits.messageTimeoutMs;
    this.#armForData();
  }

  #dropMessage(): void {
    this.#reader?.release();
    this.#reader = null;
  }

  /** Reads no more than what hangs in the line, so that the client sees our last reply and not a reset. */
  #close(): void {
    if (this.#phase === 'closing') return;
    this.#flush();
    this.#phase = 'closing';
    this.#pending = nothing;
    this.#dropMessage();
    this.#socket.end();
    this.#socket.resume();
    this.#timer.arm(lingerMs);
  }

  /** The go-ahead is given once there is a certificate. */
  async #prepareTls(goAhead: Reply): Promise<Reply> {
    try {
      this.#secureContext = await this.#parts.certificate.context();
      return goAhead;
    } catch (err) {
      this.#parts.log.error({ err }, 'There is no certificate for SMTP');
      return noTls;
    }
  }

  #startTls(): void {
    const secureContext = this.#secureContext;
    if (!secureContext || this.#plain.destroyed) return;
    const { limits } = this.#parts;
    this.#flush();
    this.#phase = 'handshake';
    this.#pending = nothing;
    this.#timer.arm(limits.commandTimeoutMs);
    this.#plain.off('data', this.#onData).off('end', this.#onEnd).off('drain', this.#onDrain);
    const secured = new tls.TLSSocket(this.#plain, { isServer: true, secureContext });
    this.#socket = secured;
    this.#listen(secured);
    // Only a tls.Server makes an 'error' of what fails in the protocol; a socket of its own leaves it at this.
    secured.on('_tlsError', (err: Error) => {
      this.#onError(err);
      this.cut();
    });
    secured.once('secure', () => {
      if (this.#phase !== 'handshake') return;
      this.#tls = { version: secured.getProtocol() ?? '', cipher: secured.getCipher().standardName };
      this.#session.becomeSecure();
      this.#phase = 'command';
      this.#timer.arm(limits.commandTimeoutMs);
      this.#advance();
    });
  }

  #armForData(): void {
    const leftMs = Math.ceil(this.#messageEndsBy - performance.now());
    this.#timer.arm(Math.max(0, Math.min(this.#parts.limits.dataTimeoutMs, leftMs)));
  }

  #expire(): void {
    if (this.#phase === 'waiting') return;
    if (this.#phase === 'closing' || this.#phase === 'handshake') this.cut();
    else this.#say(this.#farewell('4.4.2', 'Waited too long for you; closing the connection'));
  }
}
