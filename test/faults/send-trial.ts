/**
 * Used by the faults that send: messages that are submitted to a service whose relay is a process of the test, and at the end the
 * comparison of what was acknowledged with what the relay took, and with what the service has recorded and announced.
 */
import { createHash } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import type { Pool } from '../../src/db/client.ts';
import { waitFor } from '../harness.ts';
import { startReceiver } from '../receiver.ts';
import { type FaultRun, makeRandom, type Outcome, pick } from './fault.ts';
import type { Relay } from './relay.ts';
import type { Server } from './server.ts';
import { make } from './trial.ts';

interface SentLetter {
  /** Its subject. */
  number: number;
  to: string[];
  /** From the 202; null: no answer came. */
  messageId: string | null;
}

/** From before the fault until the service works again: a copy that the relay took then may have no recorded outcome. */
export interface Trouble {
  name: string;
  fromMs: number;
  toMs: number;
}

const sender = 'ada@faults.example';
const againMs = 100;
/** A commit follows the reply of the relay within this time, also on a busy machine. */
const commitMs = 2000;
/** Recipients of a killed process wait for their lease of 20 s, those of a relay that was away for at most 30 s more. */
const settledMs = 90_000;

/** Settings of a service that sends by the relay. The waits are short, and there are so many that no recipient is given up. */
export function sendSettings(relay: Relay, name = 'mail.faults.example'): Record<string, string> {
  return {
    POSTHORN_OUTBOUND: 'relay',
    POSTHORN_RELAY_URL: `smtp://127.0.0.1:${relay.port}`,
    POSTHORN_SEND_RATE: '0',
    POSTHORN_SEND_SCHEDULE: Array(300).fill('1').join(','),
    POSTHORN_MAIL_HOST: name,
  };
}

export class SendTrial {
  readonly letters: SentLetter[] = [];
  readonly troubles: Trouble[] = [];
  readonly relay: Relay;
  readonly #server: Server;
  readonly #random: () => number;
  readonly #identityId: string;
  /** By message, recipient and event: the ids of the events that were delivered. */
  readonly #posted: Map<string, Set<string>>;
  readonly #refusals: string[] = [];

  constructor(parts: {
    server: Server;
    relay: Relay;
    identityId: string;
    posted: Map<string, Set<string>>;
    random: () => number;
  }) {
    this.#server = parts.server;
    this.relay = parts.relay;
    this.#identityId = parts.identityId;
    this.#posted = parts.posted;
    this.#random = parts.random;
  }

  get acknowledged(): number {
    return this.letters.filter(({ messageId }) => messageId !== null).length;
  }

  /** Submits a message; most are small, some are large enough for rows of their own. */
  async submit(recipients = pick(this.#random, 1, 3)): Promise<void> {
    const number = this.letters.length + 1;
    const to = Array.from({ length: recipients }, (_, n) => `to-${number}-${n}@dest.example`);
    const letter: SentLetter = { number, to, messageId: null };
    this.letters.push(letter);
    const line = `${createHash('sha256').update(String(number)).digest('base64')}\n`;
    const lines = this.#random() < 0.02 ? 12_000 : pick(this.#random, 1, 150);
    const subject = String(number);
    const body = { identityId: this.#identityId, to, subject, text: line.repeat(lines) };
    const response = await this.#server.call('POST', '/messages', body);
    if (response.status === 202) letter.messageId = ((await response.json()) as { id: string }).id;
    else if (response.status === 503) await delay(againMs);
    else this.#refusals.push(`letter ${number} was answered ${response.status}: ${await response.text()}`);
  }

  async submitMany(count: number, clients: number, recipients?: number): Promise<void> {
    let left = count;
    const work = async () => {
      while (left-- > 0) await this.submit(recipients);
    };
    await Promise.all(Array.from({ length: clients }, work));
  }

  /** Copies too many among the messages that the relay took after this many. */
  countRepeated(known: number): number {
    const recent = this.relay.taken.slice(known);
    return recent.length - new Set(recent.map(({ rcpt }) => rcpt)).size;
  }

  /** Submits with so many clients until `stop`. A client whose call fails waits. */
  keepSubmitting(clients: number): { stop(): Promise<void> } {
    let isOver = false;
    const work = async () => {
      while (!isOver)
        await this.submit().catch(() => {
          // The service was killed. Whether it stored the letter is unknown.
          return delay(againMs);
        });
    };
    const working = Promise.all(Array.from({ length: clients }, work));
    return {
      async stop() {
        isOver = true;
        await working;
      },
    };
  }

  /** Runs the fault. Copies that the relay took from shortly before it until its end are explained by it. */
  async during<T>(name: string, fault: () => Promise<T>): Promise<T> {
    const fromMs = Date.now() - commitMs;
    const done = await fault();
    this.troubles.push({ name, fromMs, toMs: Date.now() });
    return done;
  }

  /** Waits until every recipient has ended. */
  async settle(): Promise<void> {
    const isEmpty = (sql: Pool) => async () => (await sql`select from send_queue limit 1`).count === 0;
    await this.#server.look((sql) => waitFor('every recipient to end', isEmpty(sql), settledMs));
  }

  async conclude(lent: FaultRun): Promise<Outcome> {
    await this.settle();
    const found = await this.#server.look((sql) => this.#compare(sql));
    const expected = found.events.map(({ key }) => key);
    await waitFor('every event to be delivered', () => expected.every((key) => this.#posted.has(key)));
    const copies = this.#explainCopies(found.failures);
    lent.log(
      `${this.letters.length} letters, ${this.acknowledged} got 202; the relay took ${this.relay.taken.length} messages for ` +
        `${found.recipients} recipients; second copies: ${copies.explained.join(', ') || 'none'}`,
    );
    const twice = [...this.#posted]
      .filter(([, ids]) => ids.size > 1)
      .map(([key, ids]) => `${key} was announced by ${ids.size} events`);
    return {
      acknowledged: this.acknowledged,
      lost: found.lost,
      conjured: [...found.conjured, ...copies.unexplained],
      broken: [...found.broken, ...twice, ...this.#refusals],
    };
  }

  async #compare(sql: Pool) {
    const rows = await sql<
      {
        messageId: string;
        address: string;
        status: string;
        sha256: string;
        sentEvents: number;
        otherEvents: number;
        good: number;
        failures: number;
      }[]
    >`
      select r.message_id as "messageId", r.address, r.status, encode(sha256, 'hex') as sha256,
        (select count(*)::int from events where events.message_id = r.message_id
          and data->'recipient'->>'address' = r.address and event = 'message.sent') as "sentEvents",
        (select count(*)::int from events where events.message_id = r.message_id
          and data->'recipient'->>'address' = r.address and event <> 'message.sent') as "otherEvents",
        (select count(*)::int from send_attempts t where t.message_id = r.message_id
          and r.address = any (t.recipients) and error is null and response->>'code' = '250') as good,
        (select count(*)::int from send_attempts t where t.message_id = r.message_id
          and r.address = any (t.recipients) and error is not null) as failures
      from recipients r join messages on messages.id = r.message_id`;
    const byAddress = new Map(rows.map((row) => [row.address, row]));
    const taken = Map.groupBy(this.relay.taken, ({ rcpt }) => rcpt);
    const lost: string[] = [];
    const broken: string[] = [];
    for (const { number, to, messageId } of this.letters) {
      const isStored = to.filter((address) => byAddress.has(address)).length;
      if (isStored !== to.length && (isStored > 0 || messageId))
        lost.push(`letter ${number} is stored for ${isStored} of ${to.length} recipients`);
      if (isStored === 0) continue;
      for (const address of to) {
        const row = byAddress.get(address);
        const hashes = taken.get(address)?.map(({ sha256 }) => sha256) ?? [];
        if (!hashes.includes(row?.sha256 ?? '')) lost.push(`letter ${number} was never sent to ${address}`);
        else if (hashes.some((sha256) => sha256 !== row?.sha256))
          broken.push(`letter ${number} was sent to ${address} with other bytes than are stored`);
      }
    }
    for (const row of rows) {
      const { address, status, sentEvents, otherEvents, good } = row;
      if (status !== 'sent' || sentEvents !== 1 || otherEvents !== 0 || good !== 1)
        broken.push(
          `${address} is ${status}, with ${sentEvents} message.sent, ${otherEvents} other events and ${good} good tries`,
        );
    }
    const double = rows.length - byAddress.size;
    const known = new Set(this.letters.flatMap(({ to }) => to));
    return {
      recipients: rows.length,
      failures: new Map(rows.map(({ address, failures }) => [address, failures])),
      events: rows.map(({ messageId, address }) => ({ key: `${messageId} ${address} message.sent` })),
      lost,
      broken,
      conjured: [
        ...(double > 0 ? [`${double} recipients are stored twice`] : []),
        ...[...taken.keys()].filter((address) => !known.has(address)).map((address) => `${address} got mail`),
      ],
    };
  }

  /**
   * A copy too many is explained by a recorded try that failed (its connection was lost after the end of data), or by a trouble
   * in which the outcome was not recorded.
   */
  #explainCopies(failures: ReadonlyMap<string, number>): { explained: string[]; unexplained: string[] } {
    const counts = new Map<string, number>();
    const unexplained: string[] = [];
    const explain = (name: string) => counts.set(name, (counts.get(name) ?? 0) + 1);
    for (const [address, copies] of Map.groupBy(this.relay.taken, ({ rcpt }) => rcpt)) {
      let failed = failures.get(address) ?? 0;
      for (const { atMs } of copies.slice(0, -1)) {
        const trouble = this.troubles.find(({ fromMs, toMs }) => fromMs <= atMs && atMs <= toMs);
        if (trouble) explain(trouble.name);
        else if (failed > 0) {
          failed -= 1;
          explain('a lost connection');
        } else unexplained.push(`${address} got ${copies.length} copies, one of them without a failure`);
      }
    }
    return { explained: [...counts].map(([name, count]) => `${count} by ${name}`), unexplained };
  }
}

/** On a running service. */
export async function prepareSendTrial(lent: FaultRun, server: Server, relay: Relay): Promise<SendTrial> {
  const receiver = await startReceiver();
  lent.defer(() => receiver.close());
  const posted = new Map<string, Set<string>>();
  receiver.behave((request, response) => {
    const { event, data } = JSON.parse(request.body.toString());
    const key = `${data.message.id} ${data.recipient.address} ${event}`;
    posted.set(key, (posted.get(key) ?? new Set()).add(String(request.headers['webhook-id'])));
    request.body = Buffer.alloc(0);
    response.writeHead(204).end();
  });
  const { userId: ownerId } = (await (await server.call('GET', '/me')).json()) as { userId: string };
  const events = ['message.sent', 'message.delivered', 'message.bounced'];
  await make(server, '/webhooks', { url: receiver.url(), events, ownerId });
  const { id: identityId } = await make(server, '/identities', { value: sender });
  await server.look((sql) => sql`update identities set status = 'verified' where id = ${identityId}`);
  const random = makeRandom(pick(lent.random, 1, 2 ** 31));
  return new SendTrial({ server, relay, identityId, posted, random });
}
