/**
 * `kill -9` of the service at random moments under SMTP load, at times of its PostgreSQL too, or once more while it comes up.
 * What must hold: every letter that got a 250 is stored once and reaches every listening webhook at least once; one that
 * got none is stored whole or not at all, and sent again it is still stored once.
 */
import { createHash } from 'node:crypto';
import net from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { waitFor } from '../harness.ts';
import { startReceiver } from '../receiver.ts';
import { SmtpClient, type SmtpReply } from '../smtp-client.ts';
import { type Fault, type FaultRun, makeRandom, pick } from './fault.ts';
import { Ledger, type Letter, type Webhook } from './ledger.ts';
import { prepareServer, type Server } from './server.ts';

const addresses = ['ada@faults.example', 'bea@faults.example'];
const senders = 16;
/** A kill comes after up to so many letters of its round, or this long. */
const mostLetters = 400;
const mostMs = 3000;
/** Deliveries of a killed process wait for their lease of 20 s. */
const announceMs = 60_000;
/** Of those that were acknowledged, so many are sent again at the end, as by clients that missed the answer. */
const repeats = 30;
const readBack = 100;

export const kill: Fault = {
  about: 'kill -9 of the service under SMTP load, restart',
  usualRounds: 20,
  boundMs: (rounds) => 150_000 + rounds * 12_000,
  run,
};

async function run(lent: FaultRun): Promise<string[]> {
  const { random, tell } = lent;
  const receiver = await startReceiver();
  lent.defer(() => receiver.close());
  const server = await prepareServer(lent);
  await server.start();
  const webhooks = await connectAndSubscribe(server, receiver.url());
  // By a row of its own, so that the moments of the kills follow from the seed whatever is sent between them.
  const ledger = new Ledger(makeRandom(pick(random, 1, 2 ** 31)), addresses);
  // Slow enough that a kill finds some under way.
  receiver.behave((request, response) => {
    ledger.note(request);
    request.body = Buffer.alloc(0);
    setTimeout(() => response.writeHead(204).end(), 3);
  });
  const post = new PostOffice(server.smtpPort);

  for (let round = 1; round <= lent.rounds; round += 1) {
    const before = post.counts();
    const sending = post.send(round, () => ledger.write());
    await awaitMoment(random, () => post.counts().acknowledged - before.acknowledged);
    const victims = await strike(server, round, random);
    await sending;
    const began = performance.now();
    await server.start();
    const upMs = Math.round(performance.now() - began);
    const { violations, stored } = await server.look((sql) => ledger.compare(sql));
    const { acknowledged, deferred } = post.counts();
    const cut = post.unanswered;
    tell(
      `round ${round}/${lent.rounds}: ${acknowledged - before.acknowledged} acknowledged, ${deferred - before.deferred} put ` +
        `off, ${cut.length} cut off (${cut.filter((letter) => stored.has(letter)).length} of them are stored); ` +
        `killed ${victims}, up again in ${upMs} ms`,
    );
    if (violations.length > 0) return violations;
  }

  const rest = await sendRest(lent, post, ledger);
  const deadline = performance.now() + announceMs;
  while (ledger.listUnannounced(webhooks).length > 0 && performance.now() < deadline) await delay(250);
  const { violations } = await server.look((sql) => ledger.compare(sql));
  const { letters } = ledger;
  tell(
    `${letters.length} letters got ${post.counts().acknowledged} times 250; ` +
      `${letters.filter(({ sendings }) => sendings > 1).length} were sent more than once, ${rest} of them after the last ` +
      `round; ${receiver.requests.length} POSTs came, ${ledger.countRepeatedPosts()} of them once more`,
  );
  return [
    ...violations,
    ...ledger.violations,
    ...post.refusals,
    ...ledger.listUnannounced(webhooks),
    ...ledger.listAnnouncedTwice(),
    ...(await readBackByApi(server, ledger, random)),
  ];
}

/** Kills, and says whom. */
async function strike(server: Server, round: number, random: () => number): Promise<string> {
  if (round % 6 === 2) {
    const dead = server.kill();
    server.killDatabase();
    await dead;
    return 'the service and its database';
  }
  if (round % 6 === 4) {
    server.killDatabase();
    await delay(pick(random, 0, 400));
    await server.kill();
    return 'the database, then the service';
  }
  await server.kill();
  if (round % 6 !== 0) return 'the service';
  server.launch();
  await delay(pick(random, 50, 1000));
  await server.kill();
  return 'the service, and again while it started';
}

/** Some letters into the round, and not at the very moment of an answer. */
async function awaitMoment(random: () => number, countTaken: () => number): Promise<void> {
  const letters = pick(random, 0, mostLetters);
  const restMs = pick(random, 0, 50);
  await waitFor('letters to be taken', () => countTaken() >= letters, mostMs).catch(() => {});
  await delay(restMs);
}

/** Two identities; a webhook for both, and one for the first alone. */
async function connectAndSubscribe(server: Server, url: string): Promise<Webhook[]> {
  const make = async (at: string, body: unknown) => {
    const response = await server.call('POST', at, body);
    if (response.status !== 201) throw new Error(`POST ${at}: ${response.status} ${await response.text()}`);
    return (await response.json()) as { id: string };
  };
  const { userId: ownerId } = (await (await server.call('GET', '/me')).json()) as { userId: string };
  const [first] = [
    await make('/identities', { value: addresses[0] }),
    await make('/identities', { value: addresses[1] }),
  ];
  const events = ['message.received'];
  const all = await make('/webhooks', { url: `${url}all`, events, ownerId });
  const one = await make('/webhooks', { url: `${url}one`, events, ownerId, identityId: first.id });
  return [
    { id: all.id, path: '/all', only: null },
    { id: one.id, path: '/one', only: addresses[0] ?? '' },
  ];
}

/** Sends letters over several connections at once, those first that are still without an answer. */
class PostOffice {
  /** Sent, and neither taken nor refused. */
  unanswered: Letter[] = [];
  /** Refusals for good, of which there must be none. */
  readonly refusals: string[] = [];
  readonly #port: number;
  #acknowledged = 0;
  #deferred = 0;

  constructor(port: number) {
    this.#port = port;
  }

  counts() {
    return { acknowledged: this.#acknowledged, deferred: this.#deferred };
  }

  /** Goes on until the connections break, or `write` has no more. */
  async send(round: number, write: () => Letter | undefined): Promise<void> {
    const next = () => this.unanswered.shift() ?? write();
    await Promise.all(Array.from({ length: senders }, () => this.#sendInTurn(round, next)));
  }

  async #sendInTurn(round: number, next: () => Letter | undefined): Promise<void> {
    const client = new SmtpClient(net.connect({ host: '127.0.0.1', port: this.#port, noDelay: true }));
    let letter: Letter | undefined;
    try {
      await client.reply();
      for (letter = next(); letter; letter = next()) {
        letter.sendings += 1;
        await this.#take(letter, await sendLetter(client, letter), round);
      }
    } catch {
      // The connection broke, and whatever was under way has no answer.
      if (letter) this.unanswered.push(letter);
    } finally {
      client.close();
    }
  }

  async #take(letter: Letter, { status, full }: SmtpReply, round: number): Promise<void> {
    if (status === 250) {
      letter.acknowledgedIn ??= round;
      this.#acknowledged += 1;
    } else if (status < 500) {
      this.#deferred += 1;
      this.unanswered.push(letter);
      await delay(50);
    } else {
      this.refusals.push(`letter ${letter.number} was refused for good: ${full}`);
    }
  }
}

/** The reply to the letter, or to what came before it and was not taken. */
async function sendLetter(client: SmtpClient, { to, wire }: Letter): Promise<SmtpReply> {
  const recipients = to.map((address) => `RCPT TO:<${address}>\r\n`).join('');
  void client.send(`EHLO sender.example\r\nMAIL FROM:<load@sender.example>\r\n${recipients}`);
  const replies = await client.replies(2 + to.length);
  return replies.find(({ status }) => status !== 250) ?? client.data(wire);
}

/** What is without an answer until it has one, then some that have had theirs. Returns how many the former were. */
async function sendRest({ rounds, random }: FaultRun, post: PostOffice, ledger: Ledger): Promise<number> {
  const rest = post.unanswered.length;
  const again = Array.from(
    { length: repeats },
    () => ledger.letters[pick(random, 0, ledger.letters.length - 1)],
  );
  await waitFor('every letter to be answered', async () => {
    await post.send(rounds + 1, () => again.pop());
    return post.unanswered.length === 0;
  });
  return rest;
}

/** The list is whole and without repeats, and the bytes of some come back as they were sent. */
async function readBackByApi(server: Server, ledger: Ledger, random: () => number): Promise<string[]> {
  const ids: string[] = [];
  for (let at: string | undefined = '/messages?limit=100'; at; ) {
    const page: Response = await server.call('GET', at);
    ids.push(...((await page.json()) as { id: string }[]).map(({ id }) => id));
    [, at] = /^<([^>]+)>; rel="next"/.exec(page.headers.get('link') ?? '') ?? [];
  }
  const expected = ledger.letters.reduce((sum, { to }) => sum + to.length, 0);
  const listed = new Set(ids).size;
  const violations =
    ids.length === expected && listed === expected
      ? []
      : [`GET /messages lists ${ids.length} messages, ${listed} of them different, of ${expected}`];
  const known = new Set(ledger.letters.map(({ sha256 }) => sha256));
  for (let n = 0; n < Math.min(readBack, ids.length); n += 1) {
    const id = ids[pick(random, 0, ids.length - 1)];
    const raw = Buffer.from(await (await server.call('GET', `/messages/${id}/raw`)).arrayBuffer());
    const sha256 = createHash('sha256').update(raw).digest('hex');
    if (!known.has(sha256))
      violations.push(`GET /messages/${id}/raw gives ${raw.length} bytes that nobody sent`);
  }
  return violations;
}
