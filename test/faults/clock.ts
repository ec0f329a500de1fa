/**
 * Two services on one database; one clock is an hour ahead, the other an hour behind. The next round swaps the clocks. By the
 * receiver's clock no delivery comes too early, none comes twice, and none is stuck.
 */

import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { waitFor } from '../harness.ts';
import type { Behaviour, ReceivedRequest } from '../receiver.ts';
import type { Fault, FaultRun, Outcome } from './fault.ts';
import { preparePostgres } from './postgres.ts';
import { prepareServer, type Server } from './server.ts';
import { awaitAnnouncements, conclude, make, prepareTrial, type Trial } from './trial.ts';

const hourMs = 3_600_000;
const lettersPerRound = 40;
const scheduleSeconds = 3;
/** The receiver's Retry-After, as a number and as a date. */
const askedSeconds = 5;
/** The time from due to tried, on a busy machine. */
const patienceMs = 8000;
const clock = pathToFileURL(path.join(import.meta.dirname, 'shifted-clock.ts')).href;

export const clockOff: Fault = {
  about: "the program's clock an hour ahead and an hour behind",
  rounds: { usual: 4, short: 1 },
  boundMs: (rounds) => 120_000 + rounds * 60_000,
  run,
};

async function run(lent: FaultRun): Promise<Outcome> {
  const postgres = await preparePostgres(lent);
  await postgres.start();
  let shiftMs = hourMs;
  const settings = { POSTHORN_RETRY_SCHEDULE: `${scheduleSeconds},${scheduleSeconds}` };
  const prepare = (sign: number) =>
    prepareServer(lent, {
      databaseUrl: postgres.url,
      settings,
      nodeArguments: () => ['--import', `${clock}?ms=${sign * shiftMs}`],
    });
  const [one, other] = [await prepare(1), await prepare(-1)];
  await start(one, other);
  const trial = await prepareTrial(lent, one, { senders: 4, otherPorts: [other.smtpPort] });
  const slow = await subscribe(trial);
  const broken: string[] = [];

  for (let round = 1; round <= lent.rounds; round += 1) {
    if (round > 1) {
      await Promise.all([one.stop(), other.stop()]);
      shiftMs = -shiftMs;
      await start(one, other);
    }
    let left = lettersPerRound;
    await trial.post.send(round, () => {
      left -= 1;
      return left < 0 ? undefined : trial.ledger.write();
    });
    const announcedMs = await awaitAnnouncements(trial, patienceMs);
    const unsettled = await awaitSettled(one);
    lent.log(
      `round ${round}/${lent.rounds}: one ${shiftMs > 0 ? 'ahead' : 'behind'}, the other ${shiftMs > 0 ? 'behind' : 'ahead'}; ` +
        `${lettersPerRound} letters announced after ${Math.round(announcedMs)} ms, ${unsettled} deliveries not settled in time`,
    );
    if (unsettled > 0) broken.push(`round ${round}: ${unsettled} deliveries are stuck`);
    broken.push(...(await checkOnce(one, other, round)));
  }
  broken.push(...slow.flatMap((receiver) => receiver.judge(trial.receiver.requests)));
  broken.push(...findTwice(trial.receiver.requests));
  const outcome = await conclude(trial);
  return { ...outcome, broken: [...outcome.broken, ...broken] };
}

async function start(one: Server, other: Server): Promise<void> {
  await one.start();
  other.apiKey = one.apiKey;
  await other.start();
}

interface SlowReceiver {
  judge(requests: readonly ReceivedRequest[]): string[];
}

/** Receivers that accept a delivery at the second try, and send Retry-After at the first. */
async function subscribe({ server, receiver }: Trial): Promise<SlowReceiver[]> {
  const { userId: ownerId } = (await (await server.call('GET', '/me')).json()) as { userId: string };
  const inSeconds = () => ({ 'retry-after': String(askedSeconds) });
  // Rounded up to whole seconds.
  const byDate = () => ({ 'retry-after': new Date(Date.now() + (askedSeconds + 1) * 1000).toUTCString() });
  const kinds = [
    { at: '/schedule', headers: () => ({}), least: scheduleSeconds * 0.9, most: scheduleSeconds * 1.1 },
    { at: '/retry-after-seconds', headers: inSeconds, least: askedSeconds, most: askedSeconds },
    { at: '/retry-after-date', headers: byDate, least: askedSeconds, most: askedSeconds + 2 },
  ];
  for (const { at, headers } of kinds) {
    receiver.behaveAt(at, secondTime(headers));
    await make(server, '/webhooks', { url: receiver.url(at), events: ['message.received'], ownerId });
  }
  return kinds.map(({ at, least, most }) => ({
    judge: (requests) => judgeGaps(at, requests, least * 1000, most * 1000 + patienceMs),
  }));
}

/** Refuses one first try in four: with more failures in a row the breaker would pause the webhook. */
function secondTime(headers: () => Record<string, string>): Behaviour {
  const seen = new Set<unknown>();
  return (request, response) => {
    const id = request.headers['webhook-id'];
    if (seen.has(id) || seen.size % 4 !== 0) response.writeHead(204).end();
    else response.writeHead(503, headers()).end();
    seen.add(id);
  };
}

/** Each delivery has one try, or two tries with at least this time between them. */
function judgeGaps(
  at: string,
  requests: readonly ReceivedRequest[],
  leastMs: number,
  mostMs: number,
): string[] {
  const own = requests.filter(({ url }) => url === at);
  const again = [...Map.groupBy(own, ({ headers }) => headers['webhook-id'])].filter(
    ([, all]) => all.length > 1,
  );
  if (again.length === 0) return [`${at}: nothing was tried again`];
  return again.flatMap(([id, [first, second, third]]) => {
    if (!first || !second) return [];
    if (third) return [`${at}: ${id} was tried more than twice`];
    const gapMs = Math.round(second.arrivedAtMs - (first.endedAtMs ?? 0));
    if (gapMs < leastMs) return [`${at}: ${id} came ${gapMs} ms after the first try, which is early`];
    return gapMs > mostMs ? [`${at}: ${id} came ${gapMs} ms after the first try, which is late`] : [];
  });
}

/** POSTs to good receivers that came more than once: no process was killed, so none may repeat. */
function findTwice(requests: readonly ReceivedRequest[]): string[] {
  const good = requests.filter(({ url }) => url === '/all' || url === '/one');
  const byDelivery = Map.groupBy(good, ({ url, headers }) => `${url} ${headers['webhook-id']}`);
  return [...byDelivery].filter(([, all]) => all.length > 1).map(([delivery]) => `came twice: ${delivery}`);
}

/** The number of deliveries that are still pending at the end. */
async function awaitSettled(server: Server): Promise<number> {
  const count = () =>
    server.look(async (sql) => (await sql`select from deliveries where status = 'pending'`).count);
  const settled = waitFor(
    'deliveries',
    async () => (await count()) === 0,
    (askedSeconds + 2) * 1000 + patienceMs,
  );
  return settled.then(
    () => 0,
    () => count(),
  );
}

/** The same Idempotency-Key at both services, whose clocks differ by two hours, creates one identity. */
async function checkOnce(one: Server, other: Server, round: number): Promise<string[]> {
  const body = { value: `once${round}@clock.example` };
  const answers = [];
  for (const server of [one, other, one])
    answers.push(
      await (await server.call('POST', '/identities', body, { 'idempotency-key': `once${round}` })).json(),
    );
  const ids = new Set((answers as { id?: string }[]).map(({ id }) => id));
  return ids.size === 1 && !ids.has(undefined)
    ? []
    : [`round ${round}: made ${ids.size} identities with one key`];
}
