/**
 * What was sent, what was acknowledged, what is stored and what was announced, kept outside the service and held against
 * each other, message by message, by the hash of its bytes.
 */
import { createHash } from 'node:crypto';
import type { Pool } from '../../src/db/client.ts';
import type { ReceivedRequest } from '../receiver.ts';
import { toWire } from '../smtp-client.ts';
import { pick } from './fault.ts';

export interface Letter {
  number: number;
  to: readonly string[];
  wire: Buffer;
  sha256: string;
  /** The round in which its first 250 came; null while none has. */
  acknowledgedIn: number | null;
  /** How often it was sent, to its last byte or not. */
  sendings: number;
}

export interface Webhook {
  id: string;
  path: string;
  /** Whose mail it hears of; null for everyone's. */
  only: string | null;
}

export class Ledger {
  readonly letters: Letter[] = [];
  /** By webhook, recipient and bytes: the ids of the messages that were announced, and how many POSTs there were. */
  readonly posts = new Map<string, { ids: Set<string>; count: number }>();
  /** What can be seen at once to be wrong. */
  readonly violations: string[] = [];
  readonly #random: () => number;
  readonly #addresses: readonly string[];

  constructor(random: () => number, addresses: readonly string[]) {
    this.#random = random;
    this.#addresses = addresses;
  }

  /** Most are small; some are large enough for a thread of the service's, a few for several rows. */
  write(): Letter {
    const number = this.letters.length + 1;
    const dice = this.#random();
    const [least, most] =
      dice < 0.01 ? [1_100_000, 2_200_000] : dice < 0.04 ? [270_000, 330_000] : [200, 8000];
    const to = this.#chooseRecipients();
    const head = `From: <load@sender.example>\r\nTo: ${to.join(', ')}\r\nSubject: ${number}\r\nMessage-ID: <${number}@sender.example>\r\n\r\n`;
    const line = `${createHash('sha256').update(String(number)).digest('base64')}\r\n`;
    const raw = Buffer.from(head + line.repeat(Math.ceil(pick(this.#random, least, most) / line.length)));
    const sha256 = createHash('sha256').update(raw).digest('hex');
    const letter = { number, to, wire: toWire(raw), sha256, acknowledgedIn: null, sendings: 0 };
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
    const { rawEmail, rawEmailSha256, message } = data;
    if (rawEmail !== null && createHash('sha256').update(rawEmail).digest('hex') !== rawEmailSha256) {
      this.violations.push(`message ${message.id} was announced with other bytes than its hash says`);
    }
    const key = `${url} ${message.identity.value} ${rawEmailSha256}`;
    const post = this.posts.get(key) ?? { ids: new Set(), count: 0 };
    post.ids.add(message.id);
    post.count += 1;
    this.posts.set(key, post);
  }

  /** The letters that some webhook has not been told of yet. */
  listUnannounced(webhooks: readonly Webhook[]): string[] {
    return this.letters.flatMap((letter) =>
      letter.to.flatMap((address) =>
        webhooks
          .filter(({ only }) => only === null || only === address)
          .filter(({ path }) => !this.posts.has(`${path} ${address} ${letter.sha256}`))
          .map(({ path }) => `${describe(letter)} never reached the webhook ${path} for ${address}`),
      ),
    );
  }

  /** Sent twice as an event of its own, which is another thing than the same POST twice. */
  listAnnouncedTwice(): string[] {
    return [...this.posts]
      .filter(([, { ids }]) => ids.size > 1)
      .map(([key, { ids }]) => `${key} was announced as several messages: ${[...ids].join(', ')}`);
  }

  /** How many POSTs came more than once, which is allowed. */
  countRepeatedPosts(): number {
    return [...this.posts.values()].reduce((sum, { count }) => sum + count - 1, 0);
  }

  /** Holds the letters against the database. Returns what does not fit, and which letters are stored. */
  async compare(sql: Pool): Promise<{ violations: string[]; stored: Set<Letter> }> {
    const rows = await sql<{ sha256: string; address: string; count: number }[]>`
      select encode(sha256, 'hex') as sha256, value as address, count(*)::int as count
      from messages join identities on identities.id = identity_id group by 1, 2`;
    const counts = new Map(rows.map(({ sha256, address, count }) => [`${address} ${sha256}`, count]));
    const violations = await findHalfStored(sql);
    const stored = new Set<Letter>();
    for (const letter of this.letters) {
      const found = letter.to.map((address) => counts.get(`${address} ${letter.sha256}`) ?? 0);
      for (const address of letter.to) counts.delete(`${address} ${letter.sha256}`);
      const copies = found.join(' and ');
      if (found.some((count) => count > 0)) stored.add(letter);
      if (found.some((count) => count > 1)) violations.push(`${describe(letter)} is stored ${copies} times`);
      else if (letter.acknowledgedIn !== null && found.includes(0))
        violations.push(`${describe(letter)} is stored ${copies} times although it was acknowledged`);
      else if (new Set(found).size > 1)
        violations.push(`${describe(letter)} is stored for some of its recipients: ${copies} times`);
    }
    for (const key of counts.keys()) violations.push(`stored, and never sent so: ${key}`);
    return { violations, stored };
  }
}

function describe({ number, to, sha256, acknowledgedIn, sendings }: Letter): string {
  const when = acknowledgedIn === null ? 'no 250' : `250 in round ${acknowledgedIn}`;
  return `letter ${number} to ${to.join(' and ')} (${when}, sent ${sendings} times, sha256 ${sha256.slice(0, 12)}…)`;
}

/** Parts without their whole. */
async function findHalfStored(sql: Pool): Promise<string[]> {
  const looks: Record<string, Promise<{ id: string }[]>> = {
    'a message without its event': sql`
      select id from messages where not exists (
        select from events where events.id = messages.event_id and events.message_id = messages.id
          and events.event = 'message.received' and events.identity_id = messages.identity_id)`,
    'a message without all its bytes': sql`
      select id from messages where sha256 is distinct from (
        select sha256(string_agg(bytes, ''::bytea order by n)) from raw_chunks where raw_chunks.raw_id = messages.raw_id)`,
    'an event without its message': sql`
      select id from events where not exists (
        select from messages where messages.id = events.message_id and messages.event_id = events.id)`,
    'bytes without a message': sql`
      select distinct raw_id as id from raw_chunks where not exists (
        select from messages where messages.raw_id = raw_chunks.raw_id)`,
    'an event without the delivery to a webhook that listens': sql`
      select events.id from events join webhooks using (owner_id)
      where (webhooks.identity_id is null or webhooks.identity_id = events.identity_id) and not exists (
        select from deliveries where deliveries.event_id = events.id and deliveries.webhook_id = webhooks.id)`,
    'a delivery without its event': sql`
      select id from deliveries where not exists (select from events where events.id = deliveries.event_id)`,
  };
  const found = await Promise.all(
    Object.entries(looks).map(async ([what, look]) =>
      (await look).map(({ id }) => `half stored: ${what}, ${id}`),
    ),
  );
  return found.flat();
}
