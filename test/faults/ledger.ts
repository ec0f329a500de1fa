/**
 * Records outside of the service what was sent, acknowledged and delivered, and compares it with what is stored: message by
 * message, by the hash of its bytes.
 */
import { createHash } from 'node:crypto';
import type { Pool } from '../../src/db/client.ts';
import type { ReceivedRequest } from '../receiver.ts';
import { pick } from './fault.ts';
import { findHalfStored } from './half-stored.ts';

export interface Letter {
  number: number;
  to: readonly string[];
  /** Generated at each call: thousands of messages would fill the memory. */
  compose(): Buffer;
  sha256: string;
  /** The round of the first 250; null before it. */
  acknowledgedIn: number | null;
  /** How often it was sent, completely or not. */
  sendings: number;
}

export interface Webhook {
  id: string;
  path: string;
  /** The identity of the webhook; null for all identities. */
  only: string | null;
}

/** The violations, a sentence for each. */
export interface Differences {
  lost: string[];
  conjured: string[];
  broken: string[];
}

export class Ledger {
  readonly letters: Letter[] = [];
  /** By webhook, recipient and hash: the ids of the delivered messages, and the number of POSTs. */
  readonly posts = new Map<string, { ids: Set<string>; count: number }>();
  /** POSTs whose raw bytes do not match their hash. */
  readonly garbled: string[] = [];
  /** Ids of stored messages whose bytes were read and are complete. */
  readonly #complete = new Set<string>();
  readonly #random: () => number;
  readonly #addresses: readonly string[];

  constructor(random: () => number, addresses: readonly string[]) {
    this.#random = random;
    this.#addresses = addresses;
  }

  /** Most messages are small; some are large enough for a worker of the service, a few for several rows. */
  write(to = this.#chooseRecipients()): Letter {
    const number = this.letters.length + 1;
    const dice = this.#random();
    const [least, most] =
      dice < 0.01 ? [1_100_000, 2_200_000] : dice < 0.04 ? [270_000, 330_000] : [200, 8000];
    const line = `${createHash('sha256').update(String(number)).digest('base64')}\r\n`;
    const lines = Math.ceil(pick(this.#random, least, most) / line.length);
    const head = `From: <load@sender.example>\r\nTo: ${to.join(', ')}\r\nSubject: ${number}\r\nMessage-ID: <${number}@sender.example>\r\n\r\n`;
    return this.enter(to, () => Buffer.from(head + line.repeat(lines)));
  }

  /** A message that the fault wrote itself. */
  enter(to: readonly string[], compose: () => Buffer): Letter {
    const sha256 = hash(compose());
    const number = this.letters.length + 1;
    const letter = { number, to, compose, sha256, acknowledgedIn: null, sendings: 0 };
    this.letters.push(letter);
    return letter;
  }

  #chooseRecipients(): readonly string[] {
    const dice = pick(this.#random, 0, this.#addresses.length);
    const chosen = this.#addresses[dice];
    return chosen === undefined ? this.#addresses : [chosen];
  }

  /** A POST came. */
  note({ url, body }: ReceivedRequest): void {
    const { data } = JSON.parse(body.toString());
    const { rawEmail, rawEmailEncoding, rawEmailSha256, message } = data;
    if (rawEmail !== null && hash(Buffer.from(rawEmail, rawEmailEncoding)) !== rawEmailSha256) {
      this.garbled.push(`message ${message.id} was announced with other bytes than its hash says`);
    }
    const key = `${url} ${message.identity.value} ${rawEmailSha256}`;
    const post = this.posts.get(key) ?? { ids: new Set(), count: 0 };
    post.ids.add(message.id);
    post.count += 1;
    this.posts.set(key, post);
  }

  /** Acknowledged messages that some webhook has not received yet. */
  listUnannounced(webhooks: readonly Webhook[]): string[] {
    return this.#acknowledged().flatMap((letter) =>
      letter.to.flatMap((address) =>
        webhooks
          .filter(({ only }) => only === null || only === address)
          .filter(({ path }) => !this.posts.has(`${path} ${address} ${letter.sha256}`))
          .map(({ path }) => `${describe(letter)} never reached the webhook ${path} for ${address}`),
      ),
    );
  }

  /** Messages that were delivered as two events (not the same POST twice), or were never sent. */
  listConjuredPosts(): string[] {
    const known = new Set(this.letters.map(({ sha256 }) => sha256));
    const twice = [...this.posts]
      .filter(([, { ids }]) => ids.size > 1)
      .map(([key, { ids }]) => `${key} was announced as several messages: ${[...ids].join(', ')}`);
    const unknown = [...this.posts.keys()].filter((key) => !known.has(key.split(' ')[2] ?? ''));
    return [...twice, ...unknown.map((key) => `announced, and never sent so: ${key}`)];
  }

  countAcknowledged(): number {
    return this.#acknowledged().length;
  }

  /** The number of repeated POSTs, which are allowed. */
  countRepeatedPosts(): number {
    return [...this.posts.values()].reduce((sum, { count }) => sum + count - 1, 0);
  }

  /**
   * Compares the messages with the database. Also returns which messages are stored. `bytesOf`: `new` are those that no comparison
   * has read yet; a hundred rounds that each read all bytes take hours.
   */
  async compare(sql: Pool, bytesOf: 'all' | 'new' = 'all'): Promise<Differences & { stored: Set<Letter> }> {
    const rows = await sql<{ sha256: string; address: string; count: number }[]>`
      select encode(sha256, 'hex') as sha256, value as address, count(*)::int as count
      from messages join identities on identities.id = identity_id group by 1, 2`;
    const counts = new Map(rows.map(({ sha256, address, count }) => [`${address} ${sha256}`, count]));
    const lost: string[] = [];
    const conjured: string[] = [];
    const broken = await findHalfStored(sql, bytesOf === 'all' ? new Set() : this.#complete);
    const stored = new Set<Letter>();
    for (const letter of this.letters) {
      const found = letter.to.map((address) => counts.get(`${address} ${letter.sha256}`) ?? 0);
      const copies = found.join(' and ');
      if (found.some((count) => count > 0)) stored.add(letter);
      if (found.some((count) => count > 1)) conjured.push(`${describe(letter)} is stored ${copies} times`);
      else if (letter.acknowledgedIn !== null && found.includes(0))
        lost.push(`${describe(letter)} is stored ${copies} times although it was acknowledged`);
      else if (new Set(found).size > 1)
        broken.push(`${describe(letter)} is stored for some of its recipients: ${copies} times`);
    }
    const sent = new Set(
      this.letters.flatMap(({ to, sha256 }) => to.map((address) => `${address} ${sha256}`)),
    );
    for (const key of counts.keys()) if (!sent.has(key)) conjured.push(`stored, and never sent so: ${key}`);
    return { lost, conjured, broken, stored };
  }

  #acknowledged(): Letter[] {
    return this.letters.filter(({ acknowledgedIn }) => acknowledgedIn !== null);
  }
}

/** Tries of one delivery that overlapped, by the receiver's clock. */
export function listOverlapping(requests: readonly ReceivedRequest[]): string[] {
  const byDelivery = Map.groupBy(requests, ({ url, headers }) => `${url} ${headers['webhook-id']}`);
  return [...byDelivery].flatMap(([delivery, tries]) => {
    const inTurn = tries.toSorted((one, other) => one.arrivedAtMs - other.arrivedAtMs);
    const isOverlapping = inTurn.some(
      ({ arrivedAtMs }, index) =>
        index > 0 && arrivedAtMs < (inTurn[index - 1]?.endedAtMs ?? Number.POSITIVE_INFINITY),
    );
    return isOverlapping ? [`two tries at the same moment: ${delivery}`] : [];
  });
}

export function hash(bytes: Buffer): string {
  return createHash('sha256').update(bytes).digest('hex');
}

function describe({ number, to, sha256, acknowledgedIn, sendings }: Letter): string {
  const when = acknowledgedIn === null ? 'no 250' : `250 in round ${acknowledgedIn}`;
  return `letter ${number} to ${to.join(' and ')} (${when}, sent ${sendings} times, sha256 ${sha256.slice(0, 12)}…)`;
}
