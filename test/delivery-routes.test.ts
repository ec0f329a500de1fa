/** The routes of events, deliveries and tests: shapes, filters, pages, and whose they are. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { Webhook } from 'standardwebhooks';
import { newId } from '../src/lib/ids.ts';
import { endDeliveries, setCreated } from './delivery-rows.ts';
import { assertProblem, startTestService, type TestWebhook } from './harness.ts';
import { answer, hang, reset, startReceiver } from './receiver.ts';

const service = await startTestService({ POSTHORN_RETRY_SCHEDULE: '3600' });
const { sql, call, makeWebhook, makeEvent, findDelivery, user } = service;
const stranger = await service.makeUser();
const receiver = await startReceiver();
after(() => receiver.close());

const iso = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;
const deliveryFields = [
  ...['id', 'eventId', 'webhookId', 'event', 'status'],
  ...['attemptCount', 'nextAttemptAt', 'createdAt', 'completedAt'],
];
const attemptFields = [
  ...['id', 'startedAt', 'durationMs', 'responseStatus'],
  ...['responseHeaders', 'responseBody', 'error', 'errorDetail'],
];

/** Every page of a list, by its links. */
async function walk(first: string, as = user): Promise<{ id: string; status?: string }[][]> {
  const pages = [];
  for (let path: string | undefined = first; path; ) {
    const { status, body, headers, text } = await call('GET', path, { as });
    assert.equal(status, 200, text);
    pages.push(body);
    path = /^<(.*)>; rel="next"$/.exec(headers.get('link') ?? '')?.[1];
  }
  return pages;
}

describe('GET /webhooks/{id}/deliveries', () => {
  test('shows exactly the fields of the contract, in their order', async () => {
    const webhook = await makeWebhook(receiver.url('/listed'));
    const eventId = await makeEvent();
    await findDelivery(eventId, webhook);
    const { body } = await call('GET', `/webhooks/${webhook.id}/deliveries`);
    assert.equal(body.length, 1);
    const [{ id, createdAt, completedAt, ...rest }] = body;
    assert.deepEqual(Object.keys(body[0]), deliveryFields);
    assert.match(createdAt, iso);
    assert.match(completedAt, iso);
    assert.match(id, /^[0-9a-f-]{36}$/);
    assert.deepEqual(rest, {
      ...{ eventId, webhookId: webhook.id, event: 'message.received', status: 'delivered' },
      ...{ attemptCount: 1, nextAttemptAt: null },
    });
  });

  test('filters by status, event and since', async () => {
    const webhook = await makeWebhook(receiver.url('/mixed'), {
      events: ['message.received', 'message.sent'],
    });
    const good = await makeEvent();
    await findDelivery(good, webhook);
    receiver.behaveAt('/mixed', answer(500));
    const bad = await makeEvent({ event: 'message.sent' });
    const pending = await findDelivery(bad, webhook, ({ attemptCount }) => attemptCount === 1);
    assert.match(pending.nextAttemptAt, iso);
    assert.equal(pending.completedAt, null);
    const found = async (query: string) => {
      const { status, body, text } = await call('GET', `/webhooks/${webhook.id}/deliveries?${query}`);
      assert.equal(status, 200, text);
      return body.map(({ eventId }: { eventId: string }) => eventId);
    };
    assert.deepEqual(await found(''), [bad, good]);
    assert.deepEqual(await found('status=pending'), [bad]);
    assert.deepEqual(await found('status=delivered'), [good]);
    assert.deepEqual(await found('status=failed'), []);
    assert.deepEqual(await found('event=message.sent'), [bad]);
    assert.deepEqual(await found('event=message.received&status=pending'), []);
    await setCreated(sql, sql`now() - interval '1 day'`, sql`event_id = ${good}`);
    const hourAgo = new Date(Date.now() - 3_600_000).toISOString();
    assert.deepEqual(await found(`since=${hourAgo}`), [bad]);
  });

  test('pending and ended ones are in one order, across pages', async () => {
    const webhook = await makeWebhook(receiver.url('/ordered'), { enabled: false });
    const delivery = sql`
      gen_random_uuid(), ${user.userId}::uuid, gen_random_uuid(), ${webhook.id}::uuid,
      case n % 2 when 0 then 'message.received' else 'message.sent' end, now() - (n / 4) * interval '1 minute'`;
    await sql`
      insert into delivery_queue (id, owner_id, event_id, webhook_id, event, created_at, ready, next_attempt_at)
      select ${delivery}, false, 'infinity' from generate_series(1, 20) n`;
    await sql`
      insert into ended_deliveries (id, owner_id, event_id, webhook_id, event, created_at, attempt_count, status)
      select ${delivery}, 1, case n % 3 when 0 then 'failed' when 1 then 'delivered' else 'cancelled' end
      from generate_series(1, 20) n`;
    const rows = await sql`
      select id from deliveries where webhook_id = ${webhook.id} order by created_at desc, id desc`;
    const listed = (await walk(`/webhooks/${webhook.id}/deliveries?limit=7`)).flat();
    assert.deepEqual(
      listed.map(({ id }) => id),
      rows.map(({ id }) => id),
    );
    assert.equal(new Set(listed.map(({ status }) => status)).size, 4);
  });

  test('pages of 50, up to 200, stable under inserts', async () => {
    const webhook = await makeWebhook(receiver.url('/paged'), { enabled: false });
    const add = (count: number) => sql`
      insert into ended_deliveries (id, owner_id, event_id, webhook_id, event, status, attempt_count)
      select delivery_id(event_id, ${webhook.id}), ${user.userId}, event_id, ${webhook.id}, 'message.received', 'failed', 0
      from (select gen_random_uuid() as event_id from generate_series(1, ${count}::int)) events`;
    await add(120);
    const list = `/webhooks/${webhook.id}/deliveries`;
    const pages = await walk(list);
    assert.deepEqual(
      pages.map((page) => page.length),
      [50, 50, 20],
    );
    assert.equal(new Set(pages.flat().map(({ id }) => id)).size, 120);
    assert.equal((await call('GET', `${list}?limit=200`)).body.length, 120);
    assertProblem(await call('GET', `${list}?limit=201`), 400, 'invalid_query');
    assertProblem(await call('GET', `${list}?limit=0`), 400, 'invalid_query');

    const first = await call('GET', `${list}?limit=100&status=failed`);
    await add(10);
    const next = /^<(.*)>/.exec(first.headers.get('link') ?? '')?.[1] ?? '';
    const rest = (await call('GET', next)).body;
    assert.deepEqual(
      [...first.body, ...rest].map(({ id }) => id).sort(),
      pages
        .flat()
        .map(({ id }) => id)
        .sort(),
    );
  });

  const bad = ['status=done', 'event=message.unknown', 'since=yesterday', 'cursor=nonsense', 'unknown=1'];
  for (const query of bad) {
    test(`400 for ?${query}`, async () => {
      const webhook = await makeWebhook(receiver.url('/bad'), { enabled: false });
      assertProblem(await call('GET', `/webhooks/${webhook.id}/deliveries?${query}`), 400, 'invalid_query');
    });
  }
});

describe('GET /deliveries/{id}', () => {
  test('adds the attempts, oldest first, in exactly their fields', async () => {
    receiver.behaveAt('/twice', answer(500, { 'x-a': 'b' }, 'oh'));
    const webhook = await makeWebhook(receiver.url('/twice'));
    const eventId = await makeEvent();
    const failed = await findDelivery(eventId, webhook, ({ attemptCount }) => attemptCount === 1);
    receiver.behaveAt('/twice', answer(202, {}, 'ah'));
    await call('POST', `/deliveries/${failed.id}/redeliver`);
    const delivery = await findDelivery(eventId, webhook);
    assert.deepEqual(Object.keys(delivery), [...deliveryFields, 'attempts']);
    assert.deepEqual(delivery.attempts.map(Object.keys), [attemptFields, attemptFields]);
    const [first, second] = delivery.attempts;
    assert.deepEqual(first, failed.attempts[0]);
    assert.match(first.startedAt, iso);
    assert.ok(Number.isInteger(first.durationMs));
    assert.equal(first.responseHeaders['x-a'], 'b');
    assert.deepEqual([first.responseStatus, first.responseBody, first.error], [500, 'oh', 'http_error']);
    assert.deepEqual([second.responseStatus, second.responseBody, second.error], [202, 'ah', null]);
    assert.deepEqual([first.errorDetail, second.errorDetail], ['status 500', null]);
  });

  test('`errorDetail` says what happened, also of the try of a test', async () => {
    const closed = await startReceiver();
    await closed.close();
    const webhook = await makeWebhook(closed.url());
    const { attempts } = await findDelivery(await makeEvent(), webhook, (one) => one.attemptCount === 1);
    const told = `ECONNREFUSED 127.0.0.1:${closed.port}`;
    assert.deepEqual([attempts[0].error, attempts[0].errorDetail], ['connect_failed', told]);
    const { body } = await call('POST', `/webhooks/${webhook.id}/test`);
    assert.deepEqual([body.attempt.error, body.attempt.errorDetail], ['connect_failed', told]);
  });

  test('a try without an answer has nulls for it', async () => {
    receiver.behaveAt('/nothing', reset());
    const webhook = await makeWebhook(receiver.url('/nothing'));
    const { attempts } = await findDelivery(await makeEvent(), webhook, (one) => one.attemptCount === 1);
    const { responseStatus, responseHeaders, responseBody, error } = attempts[0];
    assert.deepEqual([responseStatus, responseHeaders, responseBody], [null, null, null]);
    assert.equal(error, 'connection_lost');
  });
});

describe('POST /deliveries/{id}/redeliver', () => {
  for (const status of ['pending', 'delivered', 'failed', 'cancelled']) {
    test(`of one that is ${status}: 202, the same row, tries append, the schedule starts anew`, async () => {
      const path = `/again-${status}`;
      receiver.behaveAt(path, answer(500));
      const webhook = await makeWebhook(receiver.url(path));
      const eventId = await makeEvent();
      const { id } = await findDelivery(eventId, webhook, ({ attemptCount }) => attemptCount === 1);
      // Two tries are all that the schedule has: without a new start this one would be the last.
      await sql`
        update delivery_queue set ready = false, tries = 1, next_attempt_at = now() + interval '1 hour' where id = ${id}`;
      if (status !== 'pending') await endDeliveries(sql, sql`id = ${id}`, status);
      const again = await call('POST', `/deliveries/${id}/redeliver`);
      assert.equal(again.status, 202, again.text);
      assert.deepEqual(Object.keys(again.body), deliveryFields);
      assert.deepEqual([again.body.id, again.body.status, again.body.completedAt], [id, 'pending', null]);
      assert.match(again.body.nextAttemptAt, iso);
      const tried = await findDelivery(eventId, webhook, ({ attemptCount }) => attemptCount === 2);
      assert.equal(tried.status, 'pending', 'there is another try to come');
      assert.equal(tried.attempts.length, 2);
      const { count } =
        await sql`select from deliveries where event_id = ${eventId} and webhook_id = ${webhook.id}`;
      assert.equal(count, 1);
    });
  }

  test('tells the processes that deliver', async () => {
    const webhook = await makeWebhook(receiver.url('/told'));
    const { id } = await findDelivery(await makeEvent(), webhook);
    const told = new Promise<void>((resolve) => {
      sql
        .listen('posthorn_ready', () => resolve())
        .then(({ stop }) => {
          told.then(stop);
          return call('POST', `/deliveries/${id}/redeliver`);
        });
    });
    await told;
  });
});

describe('POST /webhooks/{id}/test', () => {
  async function tryOut(webhook: TestWebhook) {
    const answered = await call('POST', `/webhooks/${webhook.id}/test`);
    assert.equal(answered.status, 200, answered.text);
    assert.deepEqual(Object.keys(answered.body), ['delivered', 'attempt']);
    assert.deepEqual(Object.keys(answered.body.attempt), attemptFields);
    return answered.body;
  }

  test('sends one signed sample at once, to this webhook alone, with "test": true inside data', async () => {
    const webhook = await makeWebhook(receiver.url('/sample'));
    const samples = () => receiver.requests.filter(({ body }) => body.includes('"test":true'));
    const before = samples().length;
    receiver.behaveAt('/sample', answer(201, {}, 'thanks'));
    const { delivered, attempt } = await tryOut(webhook);
    assert.equal(delivered, true);
    assert.deepEqual([attempt.responseStatus, attempt.responseBody, attempt.error], [201, 'thanks', null]);
    assert.equal(samples().length, before + 1);
    const request = samples().at(-1);
    assert.ok(request);
    const sent = new Webhook(webhook.secret).verify(request.body, request.headers as Record<string, string>);
    const { event, data, ...more } = sent as { event: string; data: { test: unknown } };
    assert.deepEqual(more, {});
    assert.equal(event, 'message.received');
    assert.equal(data.test, true);

    const [listed] = (await call('GET', `/webhooks/${webhook.id}/deliveries`)).body;
    assert.deepEqual([listed.status, listed.attemptCount], ['delivered', 1]);
    assert.equal(listed.eventId, request.headers['webhook-id']);
    assert.deepEqual((await call('GET', `/deliveries/${listed.id}`)).body.attempts, [attempt]);
    assert.deepEqual((await call('GET', `/events/${listed.eventId}`)).body.data, data);
  });

  test('the body may name the event: every supported event has a sample, no other is sent', async () => {
    const webhook = await makeWebhook(receiver.url('/named'));
    const send = (body?: unknown) => call('POST', `/webhooks/${webhook.id}/test`, { body });
    const sent = () =>
      receiver.requests
        .filter(({ url }) => url === '/named')
        .map(({ body }) => JSON.parse(String(body)).event);
    const known = (await call('GET', '/event-types')).body as { name: string; availability: string }[];
    const supported = known
      .filter(({ availability }) => availability === 'supported')
      .map(({ name }) => name);
    const others = known.map(({ name }) => name).filter((name) => !supported.includes(name));

    for (const body of [undefined, {}, ...supported.map((event) => ({ event }))])
      assert.equal((await send(body)).body.delivered, true);
    assert.deepEqual(sent(), ['message.received', 'message.received', ...supported]);

    for (const event of [...others, 'message.recieved', 'toString', '']) {
      const { errors = [] } = assertProblem(await send({ event }), 400, 'invalid_body');
      assert.deepEqual(
        errors.map(({ pointer, code }) => [pointer, code]),
        [['/event', 'unknown_value']],
      );
      for (const name of supported) assert.ok(errors[0]?.message.includes(name), errors[0]?.message);
    }
    for (const body of [{ event: null }, { event: [] }, { evnt: 'message.received' }, [], 5])
      assertProblem(await send(body), 400, 'invalid_body');
    assert.equal(sent().length, 2 + supported.length, 'nothing was sent for a refused body');
  });

  test('works while the webhook is disabled, and leaves it so', async () => {
    const webhook = await makeWebhook(receiver.url('/disabled'), { enabled: false });
    assert.equal((await tryOut(webhook)).delivered, true);
    assert.equal((await call('GET', `/webhooks/${webhook.id}`)).body.enabled, false);
  });

  test('is 200 whatever came back, and never tried again', async () => {
    const webhook = await makeWebhook(receiver.url('/broken'));
    for (const [behaviour, error] of [
      [answer(500), 'http_error'],
      [answer(302, { location: '/' }), 'redirect'],
      [answer(410), 'gone'],
      [reset(), 'connection_lost'],
    ] as const) {
      receiver.behaveAt('/broken', behaviour);
      const { delivered, attempt } = await tryOut(webhook);
      assert.deepEqual([delivered, attempt.error], [false, error]);
    }
    const listed = (await call('GET', `/webhooks/${webhook.id}/deliveries`)).body;
    assert.deepEqual(
      listed.map((one: Record<string, unknown>) => [one.status, one.attemptCount, one.nextAttemptAt]),
      Array.from({ length: 4 }, () => ['failed', 1, null]),
    );
  });
});

describe('GET /events', () => {
  test('lists without the data, newest first; one event has its data as it was recorded', async () => {
    const owner = await service.makeUser();
    const first = await makeEvent({ ownerId: owner.userId, data: '{"b":[1,null],"a":"é"}' });
    const second = await makeEvent({ ownerId: owner.userId, event: 'message.bounced' });
    const { body } = await call('GET', '/events', { as: owner });
    assert.deepEqual(
      body.map(({ id }: { id: string }) => id),
      [second, first],
    );
    for (const event of body)
      assert.deepEqual(Object.keys(event), ['id', 'event', 'identityId', 'createdAt']);
    const one = (await call('GET', `/events/${first}`, { as: owner })).body;
    assert.deepEqual(Object.keys(one), ['id', 'event', 'identityId', 'createdAt', 'data']);
    assert.match(one.createdAt, iso);
    assert.deepEqual(one.data, { b: [1, null], a: 'é' });
  });

  test('filters by event, identity and since; pages of 50', async () => {
    const owner = await service.makeUser();
    const made = await call('POST', '/identities', { as: owner, body: { value: 'a@events.example' } });
    const identityId = made.body.id;
    const theirs = await makeEvent({ ownerId: owner.userId, identityId });
    const sent = await makeEvent({ ownerId: owner.userId, event: 'message.sent' });
    const found = async (query: string) =>
      (await call('GET', `/events?${query}`, { as: owner })).body.map(({ id }: { id: string }) => id);
    assert.deepEqual(await found(`identity_id=${identityId}`), [theirs]);
    assert.deepEqual(await found('event=message.sent'), [sent]);
    assert.deepEqual(await found(`identity_id=${newId()}`), []);
    await sql`update events set created_at = now() - interval '1 day' where id = ${theirs}`;
    assert.deepEqual(await found(`since=${new Date(Date.now() - 3_600_000).toISOString()}`), [sent]);
    await sql`
      insert into events (id, owner_id, event, data)
      select gen_random_uuid(), ${owner.userId}, 'message.sent', '{}' from generate_series(1, 60)`;
    assert.deepEqual(
      (await walk('/events', owner)).map((page) => page.length),
      [50, 12],
    );
    assertProblem(await call('GET', '/events?limit=201'), 400, 'invalid_query');
    assertProblem(await call('GET', '/events?identity_id=x'), 400, 'invalid_query');
  });
});

test("another owner's are 404, never told apart from what does not exist", async () => {
  const webhook = await makeWebhook(receiver.url('/mine'));
  receiver.behaveAt('/never', hang());
  const eventId = await makeEvent();
  const { id } = await findDelivery(eventId, webhook);
  const missing = newId();
  for (const [method, route] of [
    ['GET', (of: string) => `/webhooks/${of}/deliveries`],
    ['POST', (of: string) => `/webhooks/${of}/test`],
    ['GET', (of: string) => `/deliveries/${of}`],
    ['POST', (of: string) => `/deliveries/${of}/redeliver`],
    ['GET', (of: string) => `/events/${of}`],
  ] as const) {
    const given = route('').startsWith('/webhooks')
      ? webhook.id
      : route('').startsWith('/events')
        ? eventId
        : id;
    // Only of this webhook: those of the tests before may still get what was made for them.
    const countRequests = () => receiver.requests.filter(({ url }) => url === '/mine').length;
    const before = countRequests();
    const foreign = await call(method, route(given), { as: stranger });
    const none = await call(method, route(missing), { as: stranger });
    assertProblem(foreign, 404, 'not_found');
    assert.deepEqual({ ...foreign.body, requestId: '' }, { ...none.body, requestId: '' });
    assertProblem(await call(method, route('not-a-uuid')), 404, 'not_found');
    assert.equal(countRequests(), before);
    assert.equal((await call(method, route(given), { as: null })).status, 401);
  }
  assert.deepEqual((await call('GET', '/events', { as: stranger })).body, []);
});
