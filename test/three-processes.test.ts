/**
 * Three processes that deliver from one database, while one of them is killed twice without warning. Judged by the
 * receiver's own clock: no delivery has two tries at the same moment, and none is lost.
 */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { newId } from '../src/lib/ids.ts';
import { startTestService, waitFor } from './harness.ts';
import { type Program, run } from './programs.ts';
import { type ReceivedRequest, startReceiver } from './receiver.ts';
import { deliveryKey } from './test-delivery.ts';

const webhookCount = 10;
const eventCount = 300;
const total = webhookCount * eventCount;

const service = await startTestService({ POSTHORN_ROLES: 'api', POSTHORN_SECRET_KEY: deliveryKey });
const { sql, makeWebhook, user } = service;
const receiver = await startReceiver();
const programs: Program[] = [];
after(async () => {
  for (const { child } of programs) child.kill('SIGKILL');
  await Promise.all(programs.map(({ ended }) => ended));
  await receiver.close();
});

async function startProcess(): Promise<Program> {
  const program = run(process.execPath, ['src/cli/posthorn.ts', 'serve'], {
    DATABASE_URL: service.databaseUrl,
    POSTHORN_SECRET_KEY: deliveryKey,
    POSTHORN_ROLES: 'deliver',
  });
  programs.push(program);
  await program.line(/is ready/);
  return program;
}

async function kill(program: Program): Promise<void> {
  process.kill(program.pid, 'SIGKILL');
  assert.equal(await program.ended, 'SIGKILL');
}

/** Every event with a delivery to every webhook, in two statements. */
async function fill(webhookIds: string[]): Promise<void> {
  const ids = Array.from({ length: eventCount }, newId);
  await sql`
    insert into events (id, owner_id, event, data)
    select id, ${user.userId}, 'message.received', '{"a":1}' from unnest(${ids}::uuid[]) id`;
  await sql`
    insert into delivery_queue (id, owner_id, event_id, webhook_id, event)
    select delivery_id(event_id, webhook_id), ${user.userId}, event_id, webhook_id, 'message.received'
    from unnest(${ids}::uuid[]) event_id cross join unnest(${webhookIds}::uuid[]) webhook_id`;
}

function received(count: number): Promise<boolean> {
  return waitFor(`${count} requests`, () => receiver.requests.length >= count);
}

/** Tries of one delivery that were under way at the same moment. */
function findOverlaps(requests: ReceivedRequest[]): string[] {
  const byDelivery = Map.groupBy(requests, ({ url, headers }) => `${url} ${headers['webhook-id']}`);
  return [...byDelivery].flatMap(([delivery, tries]) => {
    const inTurn = tries.sort((one, other) => one.arrivedAtMs - other.arrivedAtMs);
    const overlapping = inTurn.some(
      ({ arrivedAtMs }, index) =>
        index > 0 && arrivedAtMs < (inTurn[index - 1]?.endedAtMs ?? Number.POSITIVE_INFINITY),
    );
    return overlapping ? [delivery] : [];
  });
}

test(`${total} deliveries: none has two tries at once, none is lost`, async (t) => {
  // Slow enough that a kill finds many under way.
  receiver.behave((_request, response) => {
    setTimeout(() => response.writeHead(204).end(), 5);
  });
  const webhooks = [];
  for (let index = 0; index < webhookCount; index++)
    webhooks.push(await makeWebhook(receiver.url(`/${index}`)));
  await fill(webhooks.map(({ id }) => id));

  const [victim] = await Promise.all([startProcess(), startProcess(), startProcess()]);
  await received(total / 8);
  await kill(victim);
  const second = startProcess();
  await received(total / 3);
  await kill(await second);
  await startProcess();

  await waitFor(
    'every delivery to be recorded as delivered',
    async () => (await sql`select from deliveries where status <> 'delivered' limit 1`).count === 0,
    300_000,
  );
  const { requests } = receiver;
  await waitFor('every answer to be sent', () => requests.every(({ endedAtMs }) => endedAtMs !== null));
  const pairs = new Set(requests.map(({ url, headers }) => `${url} ${headers['webhook-id']}`));
  assert.equal(pairs.size, total);
  assert.deepEqual(findOverlaps(requests), []);
  // A try that the machine was too slow for has failed, and is followed by another one.
  const [counted] = await sql`
    select count(*)::int as delivered, count(distinct delivery_id)::int as deliveries from attempts where error is null`;
  assert.deepEqual({ ...counted }, { delivered: total, deliveries: total });
  t.diagnostic(`${requests.length - total} of ${requests.length} requests were made over after a kill`);
});

test('an overlap would have been found', () => {
  const at = (arrivedAtMs: number, endedAtMs: number | null) =>
    ({ url: '/', headers: { 'webhook-id': 'e' }, arrivedAtMs, endedAtMs }) as unknown as ReceivedRequest;
  assert.equal(findOverlaps([at(0, 10), at(10, 20)]).length, 0);
  assert.equal(findOverlaps([at(9, 20), at(0, 10)]).length, 1);
  assert.equal(findOverlaps([at(0, null), at(10, 20)]).length, 1);
});
