/**
 * The mail log: one line for each message that was accepted, refused or put off.
 * Guarantee: refusals, which any stranger can cause, cannot fill the disk. A connection gets a few lines, all connections
 * together get a limited number of lines a second, and everything beyond that is logged as sums by reason.
 */
import type { Log } from '../lib/log.ts';

/** One message of accepted mail. With the outcome `gone` this message was not stored, and has no id. */
export interface AcceptedMail {
  messageId: string | null;
  ownerId: string;
  identityId: string;
  source: string;
  outcome: 'recorded' | 'repeat' | 'gone';
  size: number;
  deliveries: number;
  mailFrom: string | null;
  recipients: readonly string[];
  remoteIp: string | null;
  requestId: string | undefined;
}

export interface RefusedMail {
  /** From a fixed list, never a client's text: the sums have an entry for each reason. */
  reason: string;
  /** The reply code. 4xx of SMTP: the sender tries again. */
  status: number;
  mailFrom?: string | null | undefined;
  recipients?: readonly string[] | undefined;
}

/** The refusals of one SMTP connection. */
export interface ConnectionLog {
  refused(mail: RefusedMail): void;
  /** Writes the sums. */
  end(): void;
}

const linesPerConnection = 3;
const sumEveryMs = 10_000;

const accepted = {
  recorded: 'message accepted',
  repeat: 'message accepted; it is a repeat of a stored message',
  gone: 'message not stored: its identity was deleted or may no longer receive mail',
} as const;

export class MailLog {
  readonly #log: Log;
  readonly #bound: { burst: number; perSecond: number };
  readonly #now: () => number;
  #lines: number;
  #refilledAt: number;
  #sums = new Sums();
  #timer: NodeJS.Timeout | undefined;

  constructor(log: Log, bound = { burst: 200, perSecond: 5 }, now = () => performance.now()) {
    this.#log = log;
    this.#bound = bound;
    this.#now = now;
    this.#lines = bound.burst;
    this.#refilledAt = now();
  }

  accepted(mail: AcceptedMail): void {
    this.#log.info(mail, accepted[mail.outcome]);
  }

  openConnection(remoteIp: string, source: 'smtp' | 'submission'): ConnectionLog {
    const sums = new Sums();
    let lines = 0;
    return {
      refused: (mail) => {
        lines += 1;
        if (lines > linesPerConnection) sums.add(mail.reason, 1);
        else if (mail.status < 500) this.#write('warn', { ...mail, source, remoteIp }, 'message put off');
        else this.#write('info', { ...mail, source, remoteIp }, 'message refused');
      },
      end: () => {
        const refusals = sums.take();
        if (refusals)
          this.#write('info', { refusals, source, remoteIp }, 'further refusals of one connection');
      },
    };
  }

  /** A request that was not accepted. */
  refusedByApi(mail: RefusedMail & { ownerId: string; requestId: string }): void {
    this.#write('info', { ...mail, source: 'api' }, 'message refused');
  }

  /** Writes the sums of what was not logged. */
  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const refusals = this.#sums.take();
    if (refusals) this.#log.warn({ refusals }, 'too many refusals to log each of them');
  }

  #write(level: 'info' | 'warn', fields: RefusalLine, text: string): void {
    const nowMs = this.#now();
    const { burst, perSecond } = this.#bound;
    this.#lines = Math.min(burst, this.#lines + ((nowMs - this.#refilledAt) / 1000) * perSecond);
    this.#refilledAt = nowMs;
    if (this.#lines >= 1) {
      this.#lines -= 1;
      this.#log[level](fields, text);
      return;
    }
    const counts = fields.refusals ?? { [fields.reason ?? '']: 1 };
    for (const [reason, count] of Object.entries(counts)) this.#sums.add(reason, count);
    this.#timer ??= setTimeout(() => this.stop(), sumEveryMs).unref();
  }
}

type Counts = Record<string, number>;
type RefusalLine = Record<string, unknown> & { reason?: string; refusals?: Counts };

class Sums {
  #counts: Counts | null = null;

  add(reason: string, count: number): void {
    this.#counts ??= {};
    this.#counts[reason] = (this.#counts[reason] ?? 0) + count;
  }

  /** Null: nothing was added since the last call. */
  take(): Counts | null {
    const counts = this.#counts;
    this.#counts = null;
    return counts;
  }
}
