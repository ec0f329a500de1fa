/**
 * Receivers that hang, send slowly, send endlessly, close the connection, have a bad certificate or redirect. Each causes one
 * failed try with the right error; no redirect is followed; the memory of the service does not grow; and good receivers get
 * their events at once.
 */
import { waitFor } from '../harness.ts';
import {
  answer,
  type Behaviour,
  type Certificate,
  drip,
  dripHead,
  flood,
  floodHead,
  hang,
  type Receiver,
  raw,
  readCertificate,
  reset,
  startReceiver,
} from '../receiver.ts';
import type { Fault, FaultRun, Outcome } from './fault.ts';
import { watchMemory } from './memory.ts';
import { prepareServer, type Server } from './server.ts';
import { addresses, awaitAnnouncements, conclude, make, prepareTrial, type Trial } from './trial.ts';

interface Bad {
  name: string;
  url: string;
  error: string | null;
  status: number | null;
}

const gigabyte = 2 ** 30;
const lettersPerRound = 4;
/** A try may take 15 s; wait for the time of two tries. */
const tryMs = 30_000;
const goodWithinMs = 5000;
const mostGrowthMb = 100;

export const receiver: Fault = {
  about: 'receivers that hang, drip, flood, break off, have bad TLS or redirect inside',
  rounds: { usual: 3, short: 1 },
  boundMs: (rounds) => 120_000 + rounds * 60_000,
  run,
};

async function run(lent: FaultRun): Promise<Outcome> {
  // The test expects one failed try, so the next try is much later.
  const server = await prepareServer(lent, { settings: { POSTHORN_RETRY_SCHEDULE: '86400' } });
  await server.start();
  const trial = await prepareTrial(lent, server, { senders: 1 });
  const inside = await startReceiver();
  lent.defer(() => inside.close());
  const bad = await openBadReceivers(lent, inside);
  const broken: string[] = [];

  await send(trial, 0);
  await awaitAnnouncements(trial, goodWithinMs);
  const memory = watchMemory(server);
  for (let round = 1; round <= lent.rounds; round += 1) {
    const webhooks = await subscribe(server, bad);
    await send(trial, round);
    const goodMs = await awaitAnnouncements(trial, goodWithinMs);
    if (goodMs > goodWithinMs) broken.push(`round ${round}: good receivers waited ${Math.round(goodMs)} ms`);
    for (const { id, expected } of webhooks) broken.push(...(await readLog(server, id, expected)));
    await Promise.all(webhooks.map(({ id }) => server.call('DELETE', `/webhooks/${id}`)));
    lent.log(
      `round ${round}/${lent.rounds}: ${webhooks.length} bad receivers got ${lettersPerRound} letters each; ` +
        `good ones had them after ${Math.round(goodMs)} ms; ${memory.describe()}`,
    );
  }
  memory.stop();
  if (memory.growthMb() > mostGrowthMb) broken.push(`memory grew by ${memory.growthMb()} MB`);
  if (inside.requests.length > 0) broken.push(`a redirect was followed, ${inside.requests.length} times`);
  const outcome = await conclude(trial);
  return { ...outcome, broken: [...outcome.broken, ...broken] };
}

async function openBadReceivers(lent: FaultRun, inside: Receiver): Promise<Bad[]> {
  const plain = await startReceiver();
  lent.defer(() => plain.close());
  const misbehave = (
    name: string,
    behaviour: Behaviour,
    error: string | null,
    status: number | null,
  ): Bad => {
    const at = `/${name.replaceAll(' ', '-')}`;
    plain.behaveAt(at, behaviour);
    return { name, url: plain.url(at), error, status };
  };
  const cutShort = 'HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf of i';
  const bad = [
    misbehave('hangs', hang(), 'response_timeout', null),
    misbehave('drips', drip(), 'body_timeout', 200),
    misbehave('drips its head', dripHead(), 'response_timeout', null),
    misbehave('answers 500 and 1 GB', flood(gigabyte, undefined, 500), 'http_error', 500),
    // The response is a 200, of which 16 KiB are stored.
    misbehave('answers 200 and 1 GB', flood(gigabyte), null, 200),
    misbehave('has a head without end', floodHead(), 'invalid_response', null),
    misbehave('closes mid-answer', raw(cutShort, 'close'), 'connection_lost', 200),
    misbehave('resets', reset(), 'connection_lost', null),
    misbehave('redirects inside', answer(301, { location: inside.url('/inside') }), 'redirect', 301),
  ];
  for (const name of ['self-signed', 'expired', 'other-name'] satisfies Certificate[]) {
    const secure = await startReceiver({ tls: readCertificate(name) });
    lent.defer(() => secure.close());
    bad.push({ name, url: secure.url(), error: 'tls_failed', status: null });
  }
  bad.push({
    name: 'no TLS at all',
    url: plain.url().replace('http:', 'https:'),
    error: 'tls_failed',
    status: null,
  });
  return bad;
}

/** New webhooks for each round: the breaker pauses webhooks that failed before. */
async function subscribe(server: Server, bad: readonly Bad[]): Promise<{ id: string; expected: Bad }[]> {
  const { userId: ownerId } = (await (await server.call('GET', '/me')).json()) as { userId: string };
  const subscribed = [];
  for (const expected of bad) {
    const { id } = await make(server, '/webhooks', {
      url: expected.url,
      events: ['message.received'],
      ownerId,
    });
    subscribed.push({ id, expected });
  }
  return subscribed;
}

async function send({ ledger, post }: Trial, round: number): Promise<void> {
  let left = lettersPerRound;
  await post.send(round, () => {
    left -= 1;
    return left < 0 ? undefined : ledger.write([addresses[0] ?? '']);
  });
}

/** The violations in the delivery log of a webhook that must have failed once for each message. */
async function readLog(server: Server, webhookId: string, expected: Bad): Promise<string[]> {
  const { name, error, status } = expected;
  const list = async () =>
    (await (await server.call('GET', `/webhooks/${webhookId}/deliveries`)).json()) as {
      id: string;
      attemptCount: number;
    }[];
  const deliveries = await waitFor(
    `tries of the one that ${name}`,
    async () => {
      const found = await list();
      const isOver = found.length === lettersPerRound && found.every(({ attemptCount }) => attemptCount > 0);
      return isOver ? found : null;
    },
    tryMs,
  );
  const broken: string[] = [];
  for (const { id } of deliveries) {
    const response = await server.call('GET', `/deliveries/${id}`);
    const { attempts } = (await response.json()) as {
      attempts: { error: string | null; responseStatus: number | null }[];
    };
    const told = attempts.map((attempt) => `${attempt.error} ${attempt.responseStatus}`).join(', ');
    if (told !== `${error} ${status}`) broken.push(`the one that ${name} has ${told} in its log`);
  }
  return broken;
}
