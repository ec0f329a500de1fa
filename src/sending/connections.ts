/**
 * Connections to mail servers, shared by the messages that go to the same host. Guarantees:
 * - An owner has at most `maxPerOwner` to a host, and all owners together twice as many. An owner whose mail is taken slowly leaves
 *   some to the others.
 * - A connection that failed, was refused with 421 or sent unexpected text is not used again.
 * - `send` never rejects, and the signal ends every wait.
 */
import { MovableTimer } from '../lib/movable-timer.ts';
import { Slots } from '../lib/slots.ts';
import type { OutgoingMail } from './outgoing-mail.ts';
import { type ClientParts, openConnection, type Server, type SmtpConnection } from './transmit.ts';
import type { Phase, TryReply } from './try-reply.ts';

interface Idle {
  connection: SmtpConnection;
  timer: MovableTimer;
}

/** Failures of a host before it was asked to take a message: the next host is tried (RFC 5321 §5.1). */
const hostPhases: readonly Phase[] = ['connect', 'greeting', 'ehlo', 'tls'];

export class Connections {
  readonly #parts: ClientParts;
  readonly #idleMs: number;
  readonly #maxPerHost: number;
  readonly #maxMails: number;
  readonly #maxOpeningMs: number;
  readonly #slots: Slots;
  /** By host, in the order in which they became idle. */
  readonly #idle = new Map<string, Idle[]>();
  readonly #busy = new Map<string, number>();
  #isClosed = false;

  constructor(
    parts: ClientParts,
    options: {
      idleMs?: number;
      maxPerOwner?: number;
      maxMails?: number;
      /** After this time no further host is tried: ten hosts that hang must not make one try last for an hour. */
      maxOpeningMs?: number;
    } = {},
  ) {
    this.#parts = parts;
    this.#idleMs = options.idleMs ?? 5000;
    this.#maxPerHost = 2 * (options.maxPerOwner ?? 10);
    this.#maxMails = options.maxMails ?? 100;
    this.#maxOpeningMs = options.maxOpeningMs ?? 300_000;
    // The owners of these slots are the hosts, and their keys are the owners of the mail.
    this.#slots = new Slots({
      inAll: Number.POSITIVE_INFINITY,
      perOwner: this.#maxPerHost,
      keysLeaveRoom: true,
    });
  }

  /** Sends to the first server that takes the conversation. Of several failures the first that may pass is returned. */
  async send(
    servers: readonly [Server, ...Server[]],
    mail: OutgoingMail,
    signal: AbortSignal,
  ): Promise<TryReply> {
    const [first, ...others] = servers;
    const startedAt = performance.now();
    let kept = await this.#sendTo(first, mail, signal);
    let last = kept;
    for (const server of others) {
      if (!isHostFailure(last) || performance.now() - startedAt >= this.#maxOpeningMs) break;
      last = await this.#sendTo(server, mail, signal);
      if (!isHostFailure(last) || isUnreachable(kept)) kept = last;
    }
    return kept;
  }

  /** Closes idle connections at once, and the others when their message has ended. */
  close(): void {
    this.#isClosed = true;
    for (const idle of [...this.#idle.values()].flat()) this.#drop(idle);
  }

  async #sendTo(server: Server, mail: OutgoingMail, signal: AbortSignal): Promise<TryReply> {
    const key = keyOf(server);
    const share = await this.#slots.take(key, 1, { key: mail.ownerId, signal }).catch(() => null);
    if (!share) return stoppedBefore(server);
    this.#countBusy(key, 1);
    try {
      const idle = this.#takeIdle(key, server);
      const reply = idle ? await this.#sendOver(idle, mail, signal) : null;
      // The server may have closed an idle connection just now. Nothing was sent but MAIL, so a new connection makes no copy.
      if (reply && !isStale(reply)) return reply;
      this.#makeRoom(key);
      const opened = await openConnection(server, this.#parts, signal);
      return 'failure' in opened ? opened.failure : await this.#sendOver(opened.connection, mail, signal);
    } finally {
      this.#countBusy(key, -1);
      share.release();
    }
  }

  async #sendOver(connection: SmtpConnection, mail: OutgoingMail, signal: AbortSignal): Promise<TryReply> {
    const reply = await connection.send(mail, signal);
    this.#keepIdle(connection);
    return reply;
  }

  #keepIdle(connection: SmtpConnection): void {
    if (this.#isClosed || !connection.isUsable || connection.mails >= this.#maxMails) {
      connection.quit();
      return;
    }
    const idle: Idle = { connection, timer: new MovableTimer(() => this.#drop(idle)) };
    idle.timer.arm(this.#idleMs);
    const key = keyOf(connection.server);
    const siblings = this.#idle.get(key);
    if (siblings) siblings.push(idle);
    else this.#idle.set(key, [idle]);
  }

  /** A connection whose certificate was checked also serves mail that does not need the check. */
  #takeIdle(key: string, server: Server): SmtpConnection | null {
    for (const idle of (this.#idle.get(key) ?? []).toReversed()) {
      const { connection } = idle;
      if (!connection.isUsable) this.#drop(idle);
      else if (server.security === 'opportunistic' || connection.isVerified) {
        this.#remove(idle);
        return connection;
      }
    }
    return null;
  }

  /** Closes idle connections that do not fit, where a new connection would be one too many. */
  #makeRoom(key: string): void {
    const idle = this.#idle.get(key) ?? [];
    const excess = idle.length + (this.#busy.get(key) ?? 0) - this.#maxPerHost;
    for (const one of idle.slice(0, Math.max(0, excess))) this.#drop(one);
  }

  #countBusy(key: string, change: 1 | -1): void {
    const count = (this.#busy.get(key) ?? 0) + change;
    if (count === 0) this.#busy.delete(key);
    else this.#busy.set(key, count);
  }

  #drop(idle: Idle): void {
    this.#remove(idle);
    idle.connection.quit();
  }

  #remove(idle: Idle): void {
    idle.timer.clear();
    const key = keyOf(idle.connection.server);
    const siblings = (this.#idle.get(key) ?? []).filter((other) => other !== idle);
    if (siblings.length === 0) this.#idle.delete(key);
    else this.#idle.set(key, siblings);
  }
}

function keyOf({ host, port, isImplicitTls, login, account = '' }: Server): string {
  return `${isImplicitTls ? 'smtps' : 'smtp'} ${account} ${login?.user ?? ''} ${host}:${port}`;
}

function isHostFailure({ kind, phase, error }: TryReply): boolean {
  return kind !== 'accepted' && hostPhases.includes(phase) && error !== 'stopped';
}

/** The host cannot be called at all, today or later. */
function isUnreachable({ error }: TryReply): boolean {
  return error === 'no_such_host' || error === 'target_refused';
}

function isStale({ phase, error, response }: TryReply): boolean {
  return phase === 'mail' && (error === 'connection_lost' || response?.code === 421);
}

function stoppedBefore({ host }: Server): TryReply {
  const detail = 'Posthorn is shutting down';
  const place = { phase: 'connect', host, address: null, tls: null } as const;
  return { kind: 'failed', response: null, error: 'stopped', detail, uncertain: false, ...place };
}
