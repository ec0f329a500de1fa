/** Sends messages over several connections, first the messages without a reply, and records the replies. */
import net from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { waitFor } from '../harness.ts';
import { SmtpClient, type SmtpReply, toWire } from '../smtp-client.ts';
import type { Letter } from './ledger.ts';

const againMs = 50;

export class PostOffice {
  /** Sent, and neither accepted nor refused. */
  unanswered: Letter[] = [];
  /** Permanent refusals; there must be none. */
  readonly refusals: string[] = [];
  /** The number of replies for each temporary status. */
  readonly deferrals = new Map<number, number>();
  /** Connections that the server closed first. */
  broken = 0;
  acknowledged = 0;
  /** The longest wait for a reply to a message. */
  slowestMs = 0;
  readonly #ports: readonly number[];
  readonly #senders: number;

  constructor(ports: readonly number[], senders: number) {
    this.#ports = ports;
    this.#senders = senders;
  }

  get deferred(): number {
    return [...this.deferrals.values()].reduce((sum, count) => sum + count, 0);
  }

  /** Sends until the connections break, or `write` returns no more messages. */
  async send(round: number, write: () => Letter | undefined): Promise<void> {
    const next = () => this.unanswered.shift() ?? write();
    await Promise.all(Array.from({ length: this.#senders }, (_, n) => this.#sendInTurn(n, round, next)));
  }

  /** Sends the messages without a reply until all have one, then these. */
  async sendRest(round: number, again: (Letter | undefined)[]): Promise<void> {
    await waitFor('every letter to be answered', async () => {
      await this.send(round, () => again.pop());
      return this.unanswered.length === 0;
    });
  }

  async #sendInTurn(n: number, round: number, next: () => Letter | undefined): Promise<void> {
    const port = this.#ports[n % this.#ports.length] ?? 0;
    while ((await this.#sendOver(port, round, next)) === 'farewell');
  }

  /** Sends over one connection until it breaks, the server closes it, or there are no more messages. */
  async #sendOver(port: number, round: number, next: () => Letter | undefined) {
    const client = new SmtpClient(net.connect({ host: '127.0.0.1', port, noDelay: true }));
    let letter: Letter | undefined;
    try {
      await client.reply();
      await client.command('EHLO sender.example');
      for (letter = next(); letter; letter = next()) {
        letter.sendings += 1;
        const began = performance.now();
        const reply = await sendLetter(client, letter);
        this.slowestMs = Math.max(this.slowestMs, performance.now() - began);
        await this.#take(letter, reply, round);
        if (reply.status === 421) return 'farewell';
      }
      return 'done';
    } catch {
      // The connection broke; the message that was being sent has no reply.
      this.broken += 1;
      if (letter) this.unanswered.push(letter);
      return 'broken';
    } finally {
      client.close();
    }
  }

  async #take(letter: Letter, { status, full }: SmtpReply, round: number): Promise<void> {
    if (status === 250) {
      letter.acknowledgedIn ??= round;
      this.acknowledged += 1;
    } else if (status < 500) {
      this.deferrals.set(status, (this.deferrals.get(status) ?? 0) + 1);
      this.unanswered.push(letter);
      await delay(againMs);
    } else {
      this.refusals.push(`letter ${letter.number} was refused for good: ${full}`);
    }
  }
}

/** The reply to the message, or to the command before it that was refused. */
export async function sendLetter(client: SmtpClient, { to, compose }: Letter): Promise<SmtpReply> {
  const recipients = to.map((address) => `RCPT TO:<${address}>\r\n`).join('');
  void client.send(`MAIL FROM:<load@sender.example>\r\n${recipients}`);
  const replies = await client.replies(1 + to.length);
  const refusal = replies.find(({ status }) => status !== 250);
  if (!refusal) return client.data(toWire(compose()));
  // Accepted messages are removed.
  const reset = await client.command('RSET');
  return reset.status === 250 ? refusal : reset;
}
