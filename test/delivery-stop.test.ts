/** The loop by itself: its schedule, its end, and a database that goes away beneath it. */
import assert from 'node:assert/strict';
import net from 'node:net';
import { after, describe, test } from 'node:test';
import { deliveryLimits } from '../src/webhooks/deliver.ts';
import { startTestService, type TestUser, waitFor } from './harness.ts';
import { answer, type ReceivedRequest, startReceiver } from './receiver.ts';
import { deliveryKey, startTestDelivery } from './test-delivery.ts';

const service = await startTestService({ POSTHORN_ROLES: 'api', POSTHORN_SECRET_KEY: deliveryKey });
const { sql, call, makeWebhook, makeEvent } = service;
const receiver = await startReceiver();
after(() => receiver.close());

const at = (path: string) => (request: ReceivedRequest) => request.url === path;

/** A webhook of an owner of its own, with so many events. */
async function prepare(path: string, events: number) {
  const owner = await service.makeUser();
  const webhook = await makeWebhook(receiver.url(path), {}, owner);
  for (let index = 0; index < events; index++) await makeEvent({ ownerId: owner.userId });
  return { owner, webhook };
}

async function list(owner: TestUser, webhook: { id: string }, query = '') {
  return (await call('GET', `/webhooks/${webhook.id}/deliveries${query}`, { as: owner })).body;
}

function delivered(owner: TestUser, webhook: { id: string }, count: number) {
  return waitFor(`${count} deliveries`, async () => {
    const found = await list(owner, webhook, '?status=delivered');
    return found.length === count ? found : null;
  });
}

/** A way to the database that can be cut and mended, as a network can. */
async function startWire(databaseUrl: string) {
  const target = new URL(databaseUrl);
  const sockets = new Set<net.Socket>();
  let cut = false;
  const server = net.createServer((client) => {
    if (cut) return client.destroy();
    const upstream = net.connect(Number(target.port || 5432), target.hostname);
    for (const [one, other] of [
      [client, upstream],
      [upstream, client],
    ] as const) {
      sockets.add(one);
      one
        .on('error', () => {})
        .on('close', () => {
          sockets.delete(one);
          other.destroy();
        });
      one.pipe(other);
    }
    return undefined;
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const url = new URL(databaseUrl);
  url.hostname = '127.0.0.1';
  url.port = String((server.address() as net.AddressInfo).port);
  after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return {
    url: url.href,
    cut() {
      cut = true;
      for (const socket of sockets) socket.destroy();
    },
    mend() {
      cut = false;
    },
  };
}

/** Answers when told to. */
function makeGate(path: string) {
  const waiting: (() => void)[] = [];
  let isOpen = false;
  receiver.behaveAt(path, (_request, response) => {
    const reply = () => response.writeHead(204).end();
    if (isOpen) reply();
    else waiting.push(reply);
  });
  return {
    open() {
      isOpen = true;
      for (const reply of waiting) reply();
    },
  };
}

test('the schedule is followed to its end, with as many tries as it has waits and one', async () => {
  const { owner, webhook } = await prepare('/schedule', 1);
  receiver.behaveAt('/schedule', answer(500));
  const loop = startTestDelivery(service.databaseUrl, { scheduleSeconds: [0, 0, 0] });
  const [{ id }] = await waitFor('the end', async () => {
    const found = await list(owner, webhook, '?status=failed');
    return found.length > 0 ? found : null;
  });
  await loop.stop();
  const { attempts, attemptCount } = (await call('GET', `/deliveries/${id}`, { as: owner })).body;
  assert.equal(attemptCount, 4);
  assert.equal(attempts.length, 4);
  assert.equal(receiver.requests.filter(at('/schedule')).length, 4);
});

describe('an orderly stop', () => {
  test('finishes what is under way and gives back at once what was not tried', async () => {
    const gate = makeGate('/drain');
    const { owner, webhook } = await prepare('/drain', 6);
    const limits = { ...deliveryLimits, perLane: 2, maxWindow: 2 };
    const loop = startTestDelivery(service.databaseUrl, { limits: { ...limits, perProcess: 1 } });
    await receiver.received(1, at('/drain'));
    const stopping = loop.stop();
    await waitFor('what was not tried to be free', async () => {
      const leased =
        await sql`select from delivery_queue where webhook_id = ${webhook.id} and lease_token is not null`;
      return leased.count === 1;
    });
    gate.open();
    await stopping;
    assert.equal(receiver.requests.filter(at('/drain')).length, 1);
    assert.equal((await list(owner, webhook, '?status=delivered')).length, 1);
    const leased =
      await sql`select from delivery_queue where webhook_id = ${webhook.id} and lease_token is not null`;
    assert.equal(leased.count, 0);

    const next = startTestDelivery(service.databaseUrl);
    await delivered(owner, webhook, 6);
    await next.stop();
    assert.equal(receiver.requests.filter(at('/drain')).length, 6);
  });

  test('cuts what does not end in its time, and another process does it over', async () => {
    const gate = makeGate('/stuck');
    const { owner, webhook } = await prepare('/stuck', 1);
    const loop = startTestDelivery(service.databaseUrl);
    const [request] = await receiver.received(1, at('/stuck'));
    await loop.stop();
    await waitFor('the connection to be cut', () => request?.endedAtMs);
    const [pending] = await list(owner, webhook);
    assert.deepEqual([pending.status, pending.attemptCount], ['pending', 0]);

    gate.open();
    const next = startTestDelivery(service.databaseUrl);
    await delivered(owner, webhook, 1);
    await next.stop();
  });
});

test('a stop ends the wait of large bodies for memory, and gives them back at once', async () => {
  const gate = makeGate('/heavy');
  const owner = await service.makeUser();
  const webhook = await makeWebhook(receiver.url('/heavy'), {}, owner);
  const data = JSON.stringify({ text: 'x'.repeat(9_000_000) });
  for (let n = 0; n < 3; n += 1) await makeEvent({ ownerId: owner.userId, data });
  const loop = startTestDelivery(service.databaseUrl);
  await receiver.received(1, at('/heavy'));
  const stopping = loop.stop();
  const leased = () =>
    sql`select from delivery_queue where webhook_id = ${webhook.id} and lease_token is not null`;
  await waitFor('one lease, of the POST that runs', async () => (await leased()).count === 1);
  gate.open();
  await stopping;
  assert.equal((await list(owner, webhook, '?status=delivered')).length, 1);
  assert.equal((await leased()).count, 0);
});

describe('a database that goes away', () => {
  test('while tries are under way: each is recorded once when it is back, and none made twice', async () => {
    const gate = makeGate('/away');
    const { owner, webhook } = await prepare('/away', 5);
    const wire = await startWire(service.databaseUrl);
    const loop = startTestDelivery(wire.url);
    await receiver.received(5, at('/away'));
    wire.cut();
    gate.open();
    await waitFor('a word in the log', () =>
      loop.logged.some(({ msg }) => /recording deliveries/.test(String(msg))),
    );
    assert.deepEqual(await list(owner, webhook, '?status=delivered'), []);
    wire.mend();
    const found = await delivered(owner, webhook, 5);
    for (const { id } of found) {
      assert.equal((await call('GET', `/deliveries/${id}`, { as: owner })).body.attempts.length, 1);
    }
    await loop.stop();
    assert.equal(receiver.requests.filter(at('/away')).length, 5);
  });

  test('for good: the loop ends all the same, and another process takes over when the leases have run out', async () => {
    const gate = makeGate('/lost');
    const { owner, webhook } = await prepare('/lost', 3);
    const wire = await startWire(service.databaseUrl);
    const loop = startTestDelivery(wire.url);
    await receiver.received(3, at('/lost'));
    wire.cut();
    gate.open();
    await waitFor('a word in the log', () =>
      loop.logged.some(({ msg }) => /recording deliveries/.test(String(msg))),
    );
    await loop.stop();
    assert.ok(loop.logged.some(({ msg }) => /tried again when the lease expires/.test(String(msg))));
    assert.deepEqual(await list(owner, webhook, '?status=delivered'), []);

    await sql`update delivery_queue set lease_until = now() where webhook_id = ${webhook.id}`;
    const next = startTestDelivery(service.databaseUrl);
    await delivered(owner, webhook, 3);
    await next.stop();
  });
});
