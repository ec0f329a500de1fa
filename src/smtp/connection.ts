/**
 * One client's connection: reads bytes, writes replies, limits time and memory. The session decides the replies to commands,
 * `acceptMessage` the reply to a message. Guarantees: bytes that came before a TLS handshake are never read after it
 * (CVE-2011-0411); if the client left, the decision about its message is logged.
 */
import type { Socket } from 'node:net';
import tls from 'node:tls';
import { MovableTimer } from '../lib/movable-timer.ts';
import { Pace } from '../lib/pace.ts';
import type { Certificate } from '../net/certificate.ts';
import { type AcceptMessageParts, acceptMessage, type ReceivedMail } from './accept-message.ts';
import { DataReader, type MessageRoom } from './data.ts';
import { takeLine } from './line.ts';
import { formatReply, type Reply, refusal, reply } from './reply.ts';
import { lineTooLong, type MailTransaction, Session, type SessionParts, tooBig } from './session.ts';

export interface ConnectionParts<Route> extends SessionParts<Route>, AcceptMessageParts<Route> {
  certificate: Certificate;
  /** RFC 8314 §3.3: the client begins with the TLS handshake, and the greeting comes after it. */
  isTlsFromStart?: boolean | undefined;
  /** Room for one message of this connection. */
  room: MessageRoom;
}

/** `waiting`: for `route`, `accept` or a certificate. `closing`: for the client to read the last reply. */
type Phase = 'command' | 'waiting' | 'data' | 'handshake' | 'closing';

const nothing = Buffer.alloc(0);

/** Multiple of `maxMessageBytes` at which the connection is closed. */
const closeAtMessages = 2;
const lingerMs = 1000;

const noMemory = refusal(
  452,
  '4.3.1',
  'Too many messages at once; please try again later',
  'too_many_messages',
);
const goAhead = reply(220, '2.0.0', 'Ready to start TLS', 'tls');
const noTls = reply(454, '4.7.0', 'TLS is not available right now');

export class Connection<Route> {
  readonly #parts: ConnectionParts<Route>;
  readonly #remoteIp: string;
  readonly #session: Session<Route>;
  readonly #ended: () => void;
  /** `#socket` is `#plain`, or the TLS socket on top of it. */
  readonly #plain: Socket;
  #socket: Socket;
  #secureContext: tls.SecureContext | null = null;
  #tls: ReceivedMail['tls'] = null;

  #phase: Phase = 'command';
  #pending: Buffer = nothing;
  /** Of `takeLine`. */
  #skipped = 0;
  /** What is being sent. */
  #message: { reader: DataReader; pace: Pace } | null = null;
  #replies = '';

  readonly #timer = new MovableTimer(() => this.#expire());
  #hasInputEnded = false;
  #isStopping = false;
  /** Aborted when the socket is closed, by either side. */
  readonly #closed = new AbortController();
  /** `route`, `accept` or the certificate has not answered yet; the answer may come after the socket closed. */
  #isWaiting = false;

  /** `ended` is called once: when the socket is closed and no answer is awaited. */
  constructor(socket: Socket, remoteIp: string, parts: ConnectionParts<Route>, ended: () => void) {
    this.#parts = parts;
    this.#remoteIp = remoteIp;
    this.#session = new Session(parts, remoteIp);
    this.#ended = () => {
      this.#session.end();
      ended();
    };
    this.#plain = socket;
    this.#socket = socket;
    if (parts.isTlsFromStart) this.#beginWithTls();
    else {
      this.#addListeners(socket);
      this.#greet();
    }
  }

  #greet(): void {
    this.#queueReply(reply(220, null, `${this.#parts.mailHost} ESMTP`));
    this.#flush();
  }

  /** Reads nothing before: the first bytes are for the TLS socket. */
  #beginWithTls(): void {
    this.#plain.on('error', this.#onError).on('close', this.#onClose);
    this.#wait(this.#prepareTls(goAhead), 'handshake', (answer) => {
      if (answer === goAhead) this.#startTls();
      else this.destroy();
    });
  }

  /** Closes with 421: at once if the client is idle, else after its current message or command. */
  stop(): void {
    this.#isStopping = true;
    if (this.#phase === 'handshake') this.destroy();
    else if (this.#phase === 'command') this.#advance();
  }

  /** How long the client has needed for a part of a message that takes room; 0 if it takes none. */
  slownessMs(now: number): number {
    const message = this.#phase === 'data' ? this.#message : null;
    return message?.reader.isSpilled && !message.reader.isRefused ? message.pace.slownessMs(now) : 0;
  }

  /** For a client that sends too slowly while others need the room. */
  cut(): void {
    const text = 'Too slow while many messages are being received; closing the connection';
    this.#disconnect('4.3.2', text, 'too_slow');
  }

  destroy(): void {
    this.#socket.destroy();
    this.#plain.destroy();
  }

  get #isClosed(): boolean {
    return this.#closed.signal.aborted;
  }

  #addListeners(socket: Socket): void {
    socket.on('data', this.#onData).on('end', this.#onEnd).on('drain', this.#onDrain);
    socket.on('error', this.#onError).on('close', this.#onClose);
  }

  #onData = (chunk: Buffer): void => {
    if (this.#phase === 'closing') return;
    this.#pending = this.#pending.length === 0 ? chunk : Buffer.concat([this.#pending, chunk]);
    if (this.#phase === 'waiting') this.#socket.pause();
    else this.#advance();
  };

  /** The client sends no more, but may still read replies. */
  #onEnd = (): void => {
    this.#hasInputEnded = true;
    this.#advance();
  };

  #onDrain = (): void => this.#resumeReading();

  #onError = (err: Error): void => {
    this.#parts.log.debug({ remoteIp: this.#remoteIp, reason: err.message }, 'An SMTP connection failed');
  };

  #onClose = (): void => {
    if (this.#isClosed) return;
    this.#closed.abort('closed');
    this.#phase = 'closing';
    this.destroy();
    this.#dropMessage();
    this.#timer.clear();
    if (!this.#isWaiting) this.#ended();
  };

  #advance(): void {
    this.#guard(() => {
      while (this.#step());
    });
    // An empty view would keep the memory of its chunk.
    if (this.#pending.length === 0) this.#pending = nothing;
    // RFC 2920 §3.2: the replies to pipelined commands leave together, so none while an answer is awaited.
    if (this.#phase === 'waiting') return;
    this.#flush();
    if (this.#hasInputEnded) this.#close();
  }

  /** An exception here is a bug of ours: it must end this connection only, not the process. */
  #guard(work: () => void): void {
    try {
      work();
    } catch (err) {
      this.#parts.log.error({ err, remoteIp: this.#remoteIp }, 'An SMTP session failed');
      this.destroy();
    }
  }

  /** Handles one command line or one chunk of a message. False: more bytes are needed. */
  #step(): boolean {
    if (this.#phase === 'data') return this.#takeData();
    if (this.#phase !== 'command') return false;
    if (this.#isStopping) {
      this.#disconnect('4.3.2', 'Shutting down; please try again later');
      return false;
    }
    const { line, rest, skipped } = takeLine(this.#pending, this.#skipped, this.#parts.limits.maxLineBytes);
    this.#pending = rest;
    this.#skipped = skipped;
    if (line === 'endless') this.#queueReply({ ...lineTooLong, next: 'close' });
    if (line === 'endless' || line === null) return false;
    const answer = this.#session.answer(line);
    if (answer instanceof Promise) this.#replyLater(answer);
    else if (answer.next === 'tls') this.#replyLater(this.#prepareTls(answer));
    else this.#queueReply(answer);
    return true;
  }

  #takeData(): boolean {
    if (!this.#message || this.#pending.length === 0) return false;
    const { reader, pace } = this.#message;
    const { maxMessageBytes } = this.#parts.limits;
    const rest = reader.push(this.#pending);
    this.#pending = rest ?? nothing;
    if (rest === null) {
      if (reader.size > closeAtMessages * maxMessageBytes) {
        this.#refuseMessage({ ...tooBig(maxMessageBytes), next: 'close' });
      } else {
        const now = performance.now();
        if (pace.advance(reader.size, now)) this.#timer.arm(pace.leftMs(now));
        if (reader.mustSpill) this.#spill(reader, pace);
      }
      return false;
    }
    this.#message = null;
    const transaction = this.#session.takeTransaction();
    if (reader.isRefused) {
      reader.release();
      this.#phase = 'command';
      this.#refuseMessage(reader.size > maxMessageBytes ? tooBig(maxMessageBytes) : noMemory, transaction);
      return true;
    }
    const { helo } = this.#session;
    const mail = { ...transaction, remoteIp: this.#remoteIp, helo, tls: this.#tls };
    this.#replyLater(this.#answerMessage(mail, reader));
    return true;
  }

  #refuseMessage(refusal: Reply, transaction?: MailTransaction<Route>): void {
    this.#parts.metrics?.messageAnswered(refusal.status);
    this.#queueReply(this.#session.countError(refusal, transaction));
  }

  async #answerMessage(mail: Omit<ReceivedMail<Route>, 'raw'>, reader: DataReader): Promise<Reply> {
    const { log, metrics } = this.#parts;
    const answer = await acceptMessage(this.#parts, mail, reader, this.#closed.signal);
    reader.release();
    if (answer.status === 250) this.#session.messageAccepted();
    metrics?.messageAnswered(answer.status);
    if (this.#isClosed || this.#hasInputEnded) {
      // The text of a refusal may contain an address.
      const { status, text, reason } = answer;
      const fields = { remoteIp: mail.remoteIp, status, answer: reason ?? text };
      log.info(fields, 'The client closed its side before the reply to its message was ready');
    }
    return this.#session.countError(answer, mail);
  }

  #replyLater(answer: Promise<Reply>): void {
    this.#wait(answer, 'command', (answered) => this.#queueReply(answered));
  }

  #spill(reader: DataReader, pace: Pace): void {
    const { log } = this.#parts;
    const spilled = reader.spill().catch((err) => {
      log.error({ err }, 'A temporary file for a large message cannot be written; the client gets 452');
    });
    this.#wait(spilled, 'data', () => this.#timer.arm(pace.leftMs(performance.now())));
  }

  /** Meanwhile the client has no timeout, and nothing more is read than one chunk. */
  #wait<T>(work: Promise<T>, next: Phase, go: (result: T) => void): void {
    this.#phase = 'waiting';
    this.#isWaiting = true;
    work.then((result) => {
      this.#isWaiting = false;
      if (this.#isClosed) {
        this.#ended();
        return;
      }
      this.#phase = next;
      this.#guard(() => go(result));
      this.#advance();
      this.#resumeReading();
    });
  }

  /** Only after all received bytes are handled: else a client could fill our memory with commands. */
  #resumeReading(): void {
    if (this.#phase !== 'waiting' && !this.#socket.writableNeedDrain) this.#socket.resume();
  }

  #queueReply(answer: Reply): void {
    this.#replies += formatReply(answer);
    if (answer.next === 'close') this.#close();
    else if (answer.next === 'tls') this.#startTls();
    else if (answer.next === 'data') this.#startData();
    else this.#timer.arm(this.#parts.limits.commandTimeoutMs);
  }

  /** If the client does not read its replies, we stop reading its commands. */
  #flush(): void {
    if (this.#replies === '' || !this.#socket.writable) return;
    const written = this.#socket.write(this.#replies);
    this.#replies = '';
    if (!written) this.#socket.pause();
  }

  #disconnect(enhanced: string, text: string, reason?: string): void {
    const closing = reply(421, enhanced, `${this.#parts.mailHost} ${text}`, 'close');
    this.#queueReply(reason ? this.#session.countError({ ...closing, reason }) : closing);
  }

  #startData(): void {
    const { limits, room } = this.#parts;
    const now = performance.now();
    const pace = new Pace(limits, now);
    this.#phase = 'data';
    this.#message = { reader: new DataReader(room), pace };
    this.#timer.arm(pace.leftMs(now));
  }

  #dropMessage(): void {
    this.#message?.reader.release();
    this.#message = null;
  }

  /** Goes on reading for `lingerMs`: closing with unread bytes would send a reset, and the client would miss the reply. */
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

  async #prepareTls(goAhead: Reply): Promise<Reply> {
    try {
      this.#secureContext = await this.#parts.certificate.context();
      return goAhead;
    } catch (err) {
      this.#parts.log.error({ err }, 'The SMTP certificate cannot be loaded; TLS is not possible');
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
    this.#addListeners(secured);
    // A TLSSocket without a tls.Server emits this instead of 'error' when the handshake fails.
    secured.on('_tlsError', (err: Error) => {
      this.#onError(err);
      this.destroy();
    });
    secured.once('secure', () => {
      if (this.#phase !== 'handshake') return;
      this.#tls = { version: secured.getProtocol() ?? '', cipher: secured.getCipher().standardName };
      this.#session.becomeSecure();
      this.#phase = 'command';
      this.#timer.arm(limits.commandTimeoutMs);
      if (this.#parts.isTlsFromStart) this.#greet();
      this.#advance();
    });
  }

  #expire(): void {
    if (this.#phase === 'waiting') return;
    if (this.#phase === 'closing' || this.#phase === 'handshake') this.destroy();
    else {
      const reason = this.#phase === 'data' ? 'timeout' : undefined;
      this.#disconnect('4.4.2', 'Timeout; closing the connection', reason);
    }
  }
}
