/** One owner's deliveries do not delay another's: receivers that answer only when a test tells them to. */
import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import { after, afterEach, test } from 'node:test';
import { recordEvent } from '../src/store/events.ts';
import { deliveryLimits } from '../src/webhooks/deliver.ts';
import { clearDeliveries } from './delivery-rows.ts';
import { startTestService, type TestUser, waitFor } from './harness.ts';
import { hang, type ReceivedRequest, startReceiver } from './receiver.ts';
import { deliveryKey, startTestDelivery } from './test-delivery.ts';

const service = await startTestService({ POSTHORN_ROLES: 'api', POSTHORN_SECRET_KEY: deliveryKey });
const { sql, makeUser, makeWebhook } = service;
const receiver = await startReceiver();
after(() => receiver.close());

const limits = { ...deliveryLimits, perLane: 2, perProcess: 16 };
/** Longer than any test: a POST to a receiver that hangs does not end by itself. */
const timeoutMs = 3_600_000;
const at = (path: string) => (request: ReceivedRequest) => request.url === path;

async function makeWebhooks(owner: TestUser, count: number, path: string): Promise<void> {
  for (let n = 0; n < count; n += 1) await makeWebhook(receiver.url(path), {}, owner);
}

let stopLoop = async () => {};
afterEach(async () => {
  receiver.dropConnections();
  await stopLoop();
  await clearDeliveries(sql, sql`true`);
});

function startLoop(changed: Partial<typeof limits> = {}) {
  const loop = startTestDelivery(service.databaseUrl, { limits: { ...limits, ...changed }, timeoutMs });
  stopLoop = loop.stop;
  return loop;
}

/** All in one commit, so that a claim finds them together. */
async function makeEvents(owner: TestUser, count: number): Promise<void> {
  const given = { ownerId: owner.userId, event: 'message.received', identityId: null, data: '{}' };
  await sql.begin(async (sql) => {
    for (let n = 0; n < count; n += 1) await recordEvent(sql, given);
  });
}

/** In the order of their ids, in which a claim goes through the owners. */
async function makeOwners(): Promise<[TestUser, TestUser]> {
  const [one, other] = [await makeUser(), await makeUser()];
  return one.userId < other.userId ? [one, other] : [other, one];
}

for (const order of ['before', 'after']) {
  test(`webhooks that never answer do not delay another owner, whose id comes ${order} theirs`, async () => {
    const path = { slow: `/never-${order}`, quick: `/quick-${order}` };
    receiver.behaveAt(path.slow, hang());
    const owners = await makeOwners();
    const [quick, slow] = order === 'before' ? owners : owners.reverse();
    assert.ok(quick && slow);
    await makeWebhooks(slow, 100, path.slow);
    await makeWebhooks(quick, 1, path.quick);
    await makeEvents(slow, 3);
    const loop = startLoop();
    // As many as one owner may have.
    await receiver.received(12, at(path.slow));
    await makeEvents(quick, 5);
    loop.wake();
    await receiver.received(5, at(path.quick));
    const hanging = receiver.requests.filter(at(path.slow));
    assert.deepEqual(
      hanging.filter(({ endedAtMs }) => endedAtMs !== null),
      [],
    );
  });
}

test('the places go to the owners in equal parts, whatever the number of their webhooks', async () => {
  receiver.behaveAt('/many', hang());
  receiver.behaveAt('/few', hang());
  const [many, few] = await makeOwners();
  await makeWebhooks(many, 40, '/many');
  await makeWebhooks(few, 4, '/few');
  await makeEvents(few, 4);
  await makeEvents(many, 4);
  startLoop();
  // 16 places: 7 for each of the two owners, and 2 for the next one.
  await receiver.received(7, at('/many'));
  await receiver.received(7, at('/few'));
});

test('what one owner has claimed ahead leaves room to claim for another', async () => {
  receiver.behaveAt('/ahead', hang());
  const [slow, quick] = await makeOwners();
  await makeWebhooks(slow, 100, '/ahead');
  await makeWebhooks(quick, 100, '/late');
  await makeEvents(slow, 5);
  const loop = startLoop();
  await receiver.received(12, at('/ahead'));
  await waitFor('the end of the claims', async () => {
    const claimed = await sql`select distinct webhook_id from delivery_queue where lease_token is not null`;
    return claimed.count >= limits.perProcess;
  });
  await makeEvents(quick, 3);
  loop.wake();
  await receiver.received(300, at('/late'));
  assert.equal(receiver.requests.filter(at('/ahead')).length, 12);
});

test('a webhook that got more tries at once and then hangs delays no other, of its owner or of another', async () => {
  let [isHanging, open, mostOpen] = [false, 0, 0];
  receiver.behaveAt('/grows', (_request, response) => {
    open += 1;
    mostOpen = Math.max(open, mostOpen);
    if (isHanging) return;
    setTimeout(() => {
      open -= 1;
      response.writeHead(204).end();
    }, 100);
  });
  const [owner, other] = await makeOwners();
  await makeWebhooks(owner, 1, '/grows');
  await makeEvents(owner, 500);
  const loop = startLoop();
  await waitFor('more tries at once', () => mostOpen > 2 * limits.perLane);
  isHanging = true;
  await waitFor('all of them to hang', () => open > 2 * limits.perLane);
  await makeWebhooks(owner, 1, '/beside-grown');
  await makeWebhooks(other, 1, '/other-than-grown');
  await makeEvents(owner, 20);
  await makeEvents(other, 20);
  loop.wake();
  await receiver.received(20, at('/beside-grown'));
  await receiver.received(20, at('/other-than-grown'));
  // A third of 16 places, and the one that is taken while there are fewer.
  assert.ok(open <= 6, `${open} hang`);
});

test('a webhook that answers 429 gets fewer tries at once', async () => {
  const first: ServerResponse[] = [];
  let open = 0;
  receiver.behaveAt('/limited', (_request, response) => {
    if (first.length === 4) open += 1;
    // Answered together: a try that starts after the first 429 has arrived would lower the limit once more.
    else if (first.push(response) === 4) for (const one of first) one.writeHead(429).end();
  });
  const [owner] = await makeOwners();
  await makeWebhooks(owner, 1, '/limited');
  await makeWebhooks(owner, 1, '/beside-limited');
  await makeEvents(owner, 20);
  startLoop({ perLane: 4 });
  await receiver.received(20, at('/beside-limited'));
  await waitFor('tries after those', () => open === 2);
  await makeEvents(owner, 20);
  await receiver.received(40, at('/beside-limited'));
  assert.equal(open, 2);
});
