/** Sends letters over several connections at once, those first that are still without an answer, and keeps the answers. */
import net from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { waitFor } from '../harness.ts';
import { SmtpClient, type SmtpReply, toWire } from '../smtp-client.ts';
import type { Letter } from './ledger.ts';

const againMs = 50;

export class PostOffice {
  /** Sent, and neither taken nor refused. */
  unanswered: Letter[] = [];
  /** Refusals for good, of which there must be none. */
  readonly refusals: string[] = [];
  /** How often each status that puts off was answered. */
  readonly deferrals = new Map<number, number>();
  /** Connections that ended before we ended them. */
  broken = 0;
  acknowledged = 0;
  /** The longest that a letter waited for its answer. */
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

  /** Goes on until the connections break, or `write` has no more. */
  async send(round: number, write: () => Letter | undefined): Promise<void> {
    const next = () => this.unanswered.shift() ?? write();
    await Promise.all(Array.from({ length: this.#senders }, (_, n) => this.#sendInTurn(n, round, next)));
  }

  /** What is without an answer until it has one, then these. */
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

  /** Over one connection, until it breaks, the server has enough of it, or there is nothing more to send. */
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
      // The connection broke, and whatever was under way has no answer.
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

/** The reply to the letter, or to what came before it and was not taken. */
export async function sendLetter(client: SmtpClient, { to, compose }: Letter): Promise<SmtpReply> {
  const recipients = to.map((address) => `RCPT TO:<${address}>\r\n`).join('');
  void client.send(`MAIL FROM:<load@sender.example>\r\n${recipients}`);
  const replies = await client.replies(1 + to.length);
  const refusal = replies.find(({ status }) => status !== 250);
  if (!refusal) return client.data(toWire(compose()));
  // Those that were taken are forgotten.
  const reset = await client.command('RSET');
  return reset.status === 250 ? refusal : reset;
}
