/**
 * Used by most faults: a service with two identities and two webhooks, messages that are sent to it, and at the end the comparison
 * of the ledger with what the service has stored, delivered and shows.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { type Receiver, startReceiver } from '../receiver.ts';
import { type FaultRun, makeRandom, type Outcome, pick } from './fault.ts';
import { hash, Ledger, type Letter, listOverlapping, type Webhook } from './ledger.ts';
import { PostOffice } from './post-office.ts';
import type { Server } from './server.ts';

export const addresses = ['ada@faults.example', 'bea@faults.example'];
/** Deliveries of a killed process wait for their lease of 20 s. */
const announceMs = 60_000;
/** So many acknowledged messages are sent again at the end, as by clients that missed the reply. */
const repeats = 30;
const readBack = 100;

export interface Trial {
  lent: FaultRun;
  server: Server;
  receiver: Receiver;
  ledger: Ledger;
  post: PostOffice;
  webhooks: Webhook[];
}

/** On a running service. `answerMs` is the receiver's response time: long enough that a fault meets running tries. */
export async function prepareTrial(
  lent: FaultRun,
  server: Server,
  options: { senders?: number; answerMs?: number; otherPorts?: number[] } = {},
): Promise<Trial> {
  const { senders = 16, answerMs = 3, otherPorts = [] } = options;
  const receiver = await startReceiver();
  lent.defer(() => receiver.close());
  const webhooks = await connectAndSubscribe(server, receiver.url());
  // Separate random numbers, so that the moments of a fault depend only on the seed.
  const ledger = new Ledger(makeRandom(pick(lent.random, 1, 2 ** 31)), addresses);
  receiver.behave((request, response) => {
    ledger.note(request);
    request.body = Buffer.alloc(0);
    setTimeout(() => response.writeHead(204).end(), answerMs);
  });
  const post = new PostOffice([server.smtpPort, ...otherPorts], senders);
  return { lent, server, receiver, ledger, post, webhooks };
}

/** Sends messages without pause until `stop`, then repeats the messages without a reply. */
export function keepSending(
  { ledger, post }: Pick<Trial, 'ledger' | 'post'>,
  round: number,
): { stop(): Promise<void> } {
  let isOver = false;
  const sending = post.send(round, () => (isOver ? undefined : ledger.write()));
  return {
    async stop() {
      isOver = true;
      await sending;
    },
  };
}

/** Waits until everything is acknowledged and delivered, then compares it with the ledger. */
export async function conclude(trial: Trial): Promise<Outcome> {
  const { lent, server, receiver, ledger, post, webhooks } = trial;
  const { letters } = ledger;
  const rest = post.unanswered.length;
  const again = Array.from({ length: repeats }, () => letters[pick(lent.random, 0, letters.length - 1)]);
  await post.sendRest(lent.rounds + 1, again);
  await awaitAnnouncements(trial, announceMs);
  const { lost, conjured, broken } = await server.look((sql) => ledger.compare(sql));
  lent.log(
    `${letters.length} letters got ${post.acknowledged} times 250; ` +
      `${letters.filter(({ sendings }) => sendings > 1).length} were sent more than once, ${rest} of them at the end; ` +
      `${receiver.requests.length} POSTs came, ${ledger.countRepeatedPosts()} of them once more`,
  );
  return {
    acknowledged: ledger.countAcknowledged(),
    lost: [...lost, ...ledger.listUnannounced(webhooks)],
    conjured: [...conjured, ...ledger.listConjuredPosts()],
    broken: [
      ...broken,
      ...ledger.garbled,
      ...post.refusals,
      ...listOverlapping(receiver.requests),
      ...(await readBackByApi(server, letters, lent.random)),
    ],
  };
}

/** Waits until every webhook has every message, or the time is up. Returns the time. */
export async function awaitAnnouncements({ ledger, webhooks }: Trial, withinMs: number): Promise<number> {
  const began = performance.now();
  while (ledger.listUnannounced(webhooks).length > 0 && performance.now() < began + withinMs)
    await delay(100);
  return performance.now() - began;
}

/** Two identities; a webhook for both, and one for the first alone. */
async function connectAndSubscribe(server: Server, url: string): Promise<Webhook[]> {
  const { userId: ownerId } = (await (await server.call('GET', '/me')).json()) as { userId: string };
  const [first] = [
    await make(server, '/identities', { value: addresses[0] }),
    await make(server, '/identities', { value: addresses[1] }),
  ];
  const events = ['message.received'];
  const all = await make(server, '/webhooks', { url: `${url}all`, events, ownerId });
  const one = await make(server, '/webhooks', { url: `${url}one`, events, ownerId, identityId: first.id });
  return [
    { id: all.id, path: '/all', only: null },
    { id: one.id, path: '/one', only: addresses[0] ?? '' },
  ];
}

export async function make(server: Server, at: string, body: unknown): Promise<{ id: string }> {
  const response = await server.call('POST', at, body);
  if (response.status !== 201) throw new Error(`POST ${at}: ${response.status} ${await response.text()}`);
  return (await response.json()) as { id: string };
}

/** The list is complete and without duplicates, and the raw bytes of some messages are as they were sent. */
export async function readBackByApi(
  server: Server,
  letters: readonly Letter[],
  random: () => number,
): Promise<string[]> {
  const ids: string[] = [];
  for (let at: string | undefined = '/messages?limit=100'; at; ) {
    const page: Response = await server.call('GET', at);
    ids.push(...((await page.json()) as { id: string }[]).map(({ id }) => id));
    [, at] = /^<([^>]+)>; rel="next"/.exec(page.headers.get('link') ?? '') ?? [];
  }
  const expected = letters.reduce((sum, { to }) => sum + to.length, 0);
  const listed = new Set(ids).size;
  const broken =
    ids.length === expected && listed === expected
      ? []
      : [`GET /messages lists ${ids.length} messages, ${listed} of them different, of ${expected}`];
  const known = new Set(letters.map(({ sha256 }) => sha256));
  for (let n = 0; n < Math.min(readBack, ids.length); n += 1) {
    const id = ids[pick(random, 0, ids.length - 1)];
    const raw = Buffer.from(await (await server.call('GET', `/messages/${id}/raw`)).arrayBuffer());
    if (!known.has(hash(raw)))
      broken.push(`GET /messages/${id}/raw gives ${raw.length} bytes that nobody sent`);
  }
  return broken;
}
