/** What an operator sees of deliveries: metrics of every kind, and the lines of the log. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { countBacklog, readOldestPending } from '../src/store/backlog.ts';
import { deliveryLimits } from '../src/webhooks/deliver.ts';
import { clearDeliveries, endDeliveries } from './delivery-rows.ts';
import { startTestService, type TestWebhook, waitFor } from './harness.ts';
import { answer, type ReceivedRequest, reset, startReceiver } from './receiver.ts';
import { deliveryKey, startTestDelivery } from './test-delivery.ts';

const service = await startTestService({ POSTHORN_RETRY_SCHEDULE: '3600' });
const idle = await startTestService({ POSTHORN_ROLES: 'api', POSTHORN_SECRET_KEY: deliveryKey });
const receiver = await startReceiver();
after(() => receiver.close());

const at = (path: string) => (request: ReceivedRequest) => request.url === path;

/** The samples of `GET /metrics` by name and labels. */
async function readMetrics(of = service): Promise<Map<string, number>> {
  const { status, text } = await of.call('GET', '/metrics', { as: null });
  assert.equal(status, 200);
  const samples = text.split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  return new Map(
    samples.map((line) => {
      const space = line.lastIndexOf(' ');
      return [line.slice(0, space), Number(line.slice(space + 1))];
    }),
  );
}

describe('GET /metrics', () => {
  test('counts tries by outcome, and their times', async () => {
    receiver.behaveAt('/fails', answer(500));
    receiver.behaveAt('/resets', reset());
    const webhooks = [];
    for (const path of ['/well', '/fails', '/resets'])
      webhooks.push(await service.makeWebhook(receiver.url(path)));
    for (let index = 0; index < 3; index++) {
      const eventId = await service.makeEvent();
      for (const webhook of webhooks) {
        await service.findDelivery(eventId, webhook, ({ attemptCount }) => attemptCount === 1);
      }
    }
    const metrics = await readMetrics();
    const tries = (outcome: string) => metrics.get(`posthorn_delivery_tries_total{outcome="${outcome}"}`);
    assert.deepEqual([tries('delivered'), tries('http_error'), tries('connection_lost')], [3, 3, 3]);
    assert.equal(metrics.get('posthorn_delivery_try_seconds_count'), 9);
    assert.equal(metrics.get('posthorn_delivery_try_seconds_bucket{le="15"}'), 9);
    assert.equal(metrics.get('posthorn_delivery_first_try_delay_seconds_count'), 9);
    assert.equal(metrics.get('posthorn_delivery_tries_under_way'), 0);
    assert.equal(metrics.get('posthorn_delivery_parked_webhooks'), 0);
    for (const { id } of webhooks) await service.call('DELETE', `/webhooks/${id}`);
  });

  test('has no label whose values can grow without bound', async () => {
    const webhook = await service.makeWebhook(receiver.url('/labels'));
    const eventId = await service.makeEvent();
    await service.findDelivery(eventId, webhook);
    for (const name of (await readMetrics()).keys()) {
      if (!name.startsWith('posthorn_delivery')) continue;
      const labels = [...name.matchAll(/(\w+)="/g)].map(([, label]) => label);
      assert.ok(
        labels.every((label) => label === 'outcome' || label === 'le'),
        name,
      );
      assert.doesNotMatch(name, /[0-9a-f]{8}-[0-9a-f]{4}|127\.0\.0\.1|users\.example/);
    }
    await service.call('DELETE', `/webhooks/${webhook.id}`);
  });

  test('shows the backlog and how long the oldest has been due', async () => {
    const webhook = await idle.makeWebhook(receiver.url('/waits'));
    let metrics = await readMetrics(idle);
    assert.equal(metrics.get('posthorn_delivery_backlog'), 0);
    assert.equal(metrics.get('posthorn_delivery_oldest_pending_seconds'), 0);
    await idle.makeEvent();
    const old = await idle.makeEvent();
    await idle.sql`update delivery_queue set next_attempt_at = now() - interval '1 hour' where event_id = ${old}`;
    await clearDeliveries(idle.sql, idle.sql`event_id <> ${old}`);
    await idle.makeEvent();
    metrics = await readMetrics(idle);
    assert.equal(metrics.get('posthorn_delivery_backlog'), 2);
    const age = metrics.get('posthorn_delivery_oldest_pending_seconds') ?? 0;
    assert.ok(age >= 3600 && age < 3700, String(age));
    await idle.call('DELETE', `/webhooks/${webhook.id}`);
    await clearDeliveries(idle.sql, idle.sql`true`);
  });
});

describe('the backlog', () => {
  const { sql } = idle;

  test('is what is pending for enabled webhooks, ready or scheduled, counted up to a bound', async () => {
    const on = await idle.makeWebhook('https://example.com/');
    const also = await idle.makeWebhook('https://example.com/');
    const off = await idle.makeWebhook('https://example.com/');
    for (let index = 0; index < 6; index++) await idle.makeEvent();
    await sql`
      update delivery_queue set ready = false, next_attempt_at = now() + interval '1 hour'
      where id in (select id from deliveries where webhook_id = ${also.id} order by id limit 2)`;
    await endDeliveries(
      sql,
      sql`id in (select id from deliveries where webhook_id = ${on.id} order by id limit 1)`,
    );
    await idle.call('PATCH', `/webhooks/${off.id}`, { body: { enabled: false } });
    assert.equal(await countBacklog(sql), 5 + 6);
    assert.equal(await countBacklog(sql, 4), 4);
    await sql`update delivery_queue set next_attempt_at = now() - interval '1 day' where webhook_id = ${off.id}`;
    assert.ok((await readOldestPending(sql)) < 3600, 'what waits for a disabled webhook is not overdue');
    for (const { id } of [on, also, off]) await idle.call('DELETE', `/webhooks/${id}`);
    await clearDeliveries(sql, sql`true`);
    assert.equal(await countBacklog(sql), 0);
    assert.equal(await readOldestPending(sql), 0);
  });
});

describe('a process', () => {
  async function value(loop: ReturnType<typeof startTestDelivery>, name: 'underWay' | 'pausedWebhooks') {
    return (await loop.metrics[name].get()).values[0]?.value;
  }

  test('shows its tries under way', async () => {
    const held: (() => void)[] = [];
    receiver.behaveAt('/held', (_request, response) => held.push(() => response.writeHead(204).end()));
    const webhook = await idle.makeWebhook(receiver.url('/held'));
    for (let index = 0; index < 3; index++) await idle.makeEvent();
    const loop = startTestDelivery(idle.databaseUrl);
    await receiver.received(3, at('/held'));
    assert.equal(await value(loop, 'underWay'), 3);
    for (const answer of held) answer();
    await waitFor('their end', async () => (await value(loop, 'underWay')) === 0);
    await loop.stop();
    await idle.call('DELETE', `/webhooks/${webhook.id}`);
  });

  test('pauses a webhook that only fails, and takes it up again when a probe succeeds', async () => {
    receiver.behaveAt('/paused', answer(500));
    const webhook = await idle.makeWebhook(receiver.url('/paused'));
    for (let index = 0; index < 30; index++) await idle.makeEvent();
    const limits = {
      ...deliveryLimits,
      perLane: 2,
      breakerFailures: 4,
      breakerPauseMs: 200,
      maxBreakerPauseMs: 5000,
    };
    const loop = startTestDelivery(idle.databaseUrl, { limits, scheduleSeconds: [3600] });
    await waitFor('the breaker', async () => (await value(loop, 'pausedWebhooks')) === 1);
    const tried = receiver.requests.filter(at('/paused')).length;
    assert.ok(tried < 30, `${tried} were tried and the rest given back`);
    receiver.behaveAt('/paused', answer(200));
    await waitFor('the probe', async () => (await value(loop, 'pausedWebhooks')) === 0);
    await waitFor('all the others', async () => {
      const { body } = await idle.call('GET', `/webhooks/${webhook.id}/deliveries?status=delivered`);
      return body.length >= 30 - tried - 8;
    });
    await loop.stop();
  });
});

describe('the log', () => {
  test('has one line for each failed try and for each end, with what names it', async () => {
    const [bad, good] = [
      await service.makeWebhook(receiver.url('/bad-line')),
      await service.makeWebhook(receiver.url('/good-line')),
    ];
    receiver.behaveAt('/bad-line', answer(418, {}, 'a teapot with a secret'));
    const eventId = await service.makeEvent();
    const failed = await service.findDelivery(eventId, bad, ({ attemptCount }) => attemptCount === 1);
    await service.findDelivery(eventId, good);
    const about = (webhook: TestWebhook) =>
      service.logged.filter((line) => line.eventId === eventId && line.webhookId === webhook.id);
    const [ended, ...more] = await waitFor('the end', () => (about(good).length > 0 ? about(good) : null));
    assert.deepEqual([ended?.msg, more], ['delivered', []]);
    const lines = about(bad);
    assert.equal(lines.length, 1);
    const [line] = lines;
    assert.equal(line?.level, 'warn');
    assert.deepEqual([line?.webhookId, line?.deliveryId, line?.error], [bad.id, failed.id, 'http_error']);
    assert.match(String(line?.msg), /418/);
    const text = JSON.stringify(service.logged);
    assert.ok(!text.includes('a teapot with a secret'));
    assert.ok(!text.includes(bad.secret));
    assert.ok(!text.includes(good.secret));
  });
});
