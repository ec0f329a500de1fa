/** `GET /events/stream`: every event once, in an order behind which nothing appears. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { newId } from '../src/lib/ids.ts';
import { renumberRestored } from '../src/store/event-stream.ts';
import { assertProblem, startTestService, type TestUser, waitFor } from './harness.ts';
import { startReceiver } from './receiver.ts';

const service = await startTestService();
const { call, sql } = service;

interface Streamed {
  id: string;
  event: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests read any field of an event.
  body: any;
}

/** Reads until the test ends, or `close`. */
async function open(as: TestUser, query = '', headers: Record<string, string> = {}) {
  const ending = new AbortController();
  const response = await fetch(`${service.url}/events/stream${query}`, {
    headers: { authorization: `Bearer ${as.apiKey}`, ...headers },
    signal: ending.signal,
  });
  const events: Streamed[] = [];
  let isEnded = false;
  const reading = (async () => {
    let text = '';
    for await (const chunk of response.body ?? []) {
      text += Buffer.from(chunk).toString();
      const blocks = text.split('\n\n');
      text = blocks.pop() ?? '';
      for (const block of blocks.filter((one) => one.startsWith('id: '))) {
        const [id = '', event = '', data = ''] = block
          .split('\n')
          .map((line) => line.slice(line.indexOf(' ') + 1));
        events.push({ id, event, body: JSON.parse(data) });
      }
    }
  })()
    .catch(() => {})
    .finally(() => {
      isEnded = true;
    });
  const close = async () => {
    ending.abort();
    await reading;
  };
  after(close);
  const got = (count: number) => waitFor(`${count} events`, () => (events.length >= count ? events : null));
  return { status: response.status, headers: response.headers, events, got, close, isEnded: () => isEnded };
}

const make = (ownerId: string, more: object = {}) => service.makeEvent({ ownerId, ...more });

test('a stream has the events of its owner from now on, and no test events', async () => {
  const [owner, stranger] = [await service.makeUser(), await service.makeUser()];
  await make(owner.userId);
  const stream = await open(owner);
  assert.equal(stream.status, 200);
  assert.match(stream.headers.get('content-type') ?? '', /^text\/event-stream/);
  assert.equal(stream.headers.get('cache-control'), 'no-store');
  await make(stranger.userId);
  const id = await make(owner.userId, { data: '{"n":\n1}' });
  const [first] = await stream.got(1);
  assert.deepEqual(first, {
    id,
    event: 'message.received',
    body: { event: 'message.received', data: { n: 1 } },
  });
  assert.equal(stream.events.length, 1);
});

test('the data is what a webhook gets', async () => {
  const owner = await service.makeUser();
  const receiver = await startReceiver();
  after(() => receiver.close());
  await service.makeWebhook(receiver.url(), {}, owner);
  const value = 'stream@received.example';
  await call('POST', '/identities', { as: owner, body: { value } });
  const stream = await open(owner);
  const headers = { 'content-type': 'message/rfc822' };
  await call('POST', `/inbound?recipient=${value}`, {
    as: owner,
    headers,
    body: 'Subject: Hi\r\n\r\nHello\r\n',
  });
  const [[streamed], [posted]] = await Promise.all([stream.got(1), receiver.received(1)]);
  assert.deepEqual(streamed?.body, JSON.parse(String(posted?.body)));
  assert.equal(streamed?.id, posted?.headers['webhook-id']);
});

test('an event that is committed after a later one is not missed', async () => {
  const owner = await service.makeUser();
  const stream = await open(owner);
  const insert = (at: typeof sql, id: string) => at`
    insert into events (id, owner_id, event, data) values (${id}, ${owner.userId}, 'message.received', '{}')`;
  const [early, late] = [newId(), newId()];
  await sql.begin(async (slow) => {
    // It has its number before the other, and is committed after it.
    await insert(slow as typeof sql, early);
    await insert(sql, late);
    await sql`select pg_notify('posthorn_events', '')`;
    assert.equal(stream.events.length, 0);
  });
  const events = await stream.got(2);
  assert.deepEqual(
    events.map(({ id }) => id),
    [early, late],
  );
});

test('a stream resumes after an event, without a gap and without a repeat', async () => {
  const owner = await service.makeUser();
  const ids: string[] = [];
  for (let n = 0; n < 70; n += 1) ids.push(await make(owner.userId));
  const [first = '', , third = ''] = ids;
  for (const [query, headers, from] of [
    [`?after=${first}`, {}, 1],
    ['', { 'last-event-id': third.toUpperCase() }, 3],
    [`?after=${first}`, { 'last-event-id': third }, 3],
  ] as const) {
    const stream = await open(owner, query, headers);
    const more = await make(owner.userId);
    ids.push(more);
    const events = await stream.got(ids.length - from);
    assert.deepEqual(
      events.map(({ id }) => id),
      ids.slice(from),
    );
    await stream.close();
  }
});

test('a reader that resumes after many large events gets all of them on one connection', async () => {
  const owner = await service.makeUser();
  const first = await make(owner.userId);
  const data = JSON.stringify({ text: 'x'.repeat(150_000) });
  const ids: string[] = [];
  for (let n = 0; n < 30; n += 1) ids.push(await make(owner.userId, { data }));
  const stream = await open(owner, `?after=${first}`);
  await waitFor('the events, or a cut', () => stream.events.length === ids.length || stream.isEnded());
  assert.equal(stream.isEnded(), false);
  assert.deepEqual(
    stream.events.map(({ id }) => id),
    ids,
  );
});

test('an unknown event is 410, also that of another owner', async () => {
  const [owner, stranger] = [await service.makeUser(), await service.makeUser()];
  const id = await make(stranger.userId);
  for (const after of [newId(), id]) {
    assertProblem(await call('GET', `/events/stream?after=${after}`, { as: owner }), 410, 'event_gone');
  }
  const headers = { 'last-event-id': 'not an id' };
  assertProblem(await call('GET', '/events/stream', { as: owner, headers }), 410, 'event_gone');
});

test('after a deleted identity its events are a place to resume from, and are not sent', async () => {
  const owner = await service.makeUser();
  const { body: identity } = await call('POST', '/identities', {
    as: owner,
    body: { value: 'gone@gone.example' },
  });
  const headers = { 'content-type': 'message/rfc822' };
  const before = await make(owner.userId);
  const stream = await open(owner, `?after=${before}`);
  const deliver = () =>
    call('POST', '/inbound?recipient=gone@gone.example', {
      as: owner,
      headers,
      body: `Subject: ${newId()}\r\n\r\n`,
    });
  await deliver();
  await deliver();
  const [first] = await stream.got(2);
  await call('DELETE', `/identities/${identity.id}`, { as: owner });
  await waitFor('the purge', async () => {
    const { count } = await sql`select from events where identity_id = ${identity.id}`;
    return count === 0;
  });
  const resumed = await open(owner, `?after=${first?.id}`);
  const id = await make(owner.userId);
  assert.deepEqual(
    (await resumed.got(1)).map((event) => event.id),
    [id],
  );
});

test('after a deleted message its event is a place to resume from, and is not sent', async () => {
  const owner = await service.makeUser();
  await call('POST', '/identities', { as: owner, body: { value: 'one@gone.example' } });
  const first = await make(owner.userId);
  const headers = { 'content-type': 'message/rfc822' };
  const body = 'Subject: Gone\r\n\r\nGone\r\n';
  const taken = await call('POST', '/inbound?recipient=one@gone.example', { as: owner, headers, body });
  const [event] = (await call('GET', '/events?limit=1', { as: owner })).body;
  const deleted = await call('DELETE', `/messages/${taken.body.messageIds[0]}`, { as: owner });
  assert.equal(deleted.status, 204, deleted.text);
  const last = await make(owner.userId);
  for (const after of [first, event.id]) {
    const resumed = await open(owner, `?after=${after}`);
    assert.deepEqual(
      (await resumed.got(1)).map(({ id }) => id),
      [last],
    );
    await resumed.close();
  }
});

test('after a restore into another cluster, streams resume after old events and get the new ones', async () => {
  const owner = await service.makeUser();
  const [deleted, restored] = [newId(), await make(owner.userId)];
  const xmax = sql`pg_snapshot_xmax(pg_current_snapshot())`;
  // As from a cluster that has counted further, and to the very next number.
  await sql`
    insert into event_positions (id, owner_id, xact, created_at)
    values (${deleted}, ${owner.userId}, (${xmax}::text::bigint + 1000000)::text::xid8, now())`;
  await sql`update events set xact = (${xmax}::text::bigint + 2)::text::xid8 where id = ${restored}`;
  while (await renumberRestored(sql));
  const added = await make(owner.userId);
  const next = [
    { after: deleted, expected: [restored, added] },
    { after: restored, expected: [added] },
  ];
  for (const { after, expected } of next) {
    const resumed = await open(owner, `?after=${after}`);
    assert.deepEqual(
      (await resumed.got(expected.length)).map(({ id }) => id),
      expected,
    );
    await resumed.close();
  }
});

test('a stream reads no key from the URL', async () => {
  const owner = await service.makeUser();
  for (const name of ['key', 'api_key', 'apiKey', 'token', 'access_token']) {
    const response = await fetch(`${service.url}/events/stream?${name}=${owner.apiKey}`);
    assert.equal(response.status, 401, name);
  }
});

test('a stream has the mail that another process accepted', async () => {
  const second = await startTestService({ DATABASE_URL: service.databaseUrl });
  const owner = await service.makeUser();
  await call('POST', '/identities', { as: owner, body: { value: 'two@process.example' } });
  const stream = await open(owner);
  const headers = { 'content-type': 'message/rfc822' };
  const body = 'Subject: From the other process\r\n\r\n';
  const taken = await second.call('POST', '/inbound?recipient=two@process.example', {
    as: owner,
    headers,
    body,
  });
  assert.equal(taken.status, 202, taken.text);
  const [event] = await stream.got(1);
  assert.equal(event?.body.data.message.id, taken.body.messageIds[0]);
  await second.stop();
});

test('filters: the name of the event, and the identity', async () => {
  const owner = await service.makeUser();
  const { body: identity } = await call('POST', '/identities', {
    as: owner,
    body: { value: 'f@filter.example' },
  });
  const named = await open(owner, '?event=message.bounced');
  const ofIdentity = await open(owner, `?identity_id=${identity.id}`);
  await make(owner.userId);
  const bounced = await make(owner.userId, { event: 'message.bounced' });
  const own = await make(owner.userId, { identityId: identity.id });
  assert.deepEqual(
    (await named.got(1)).map(({ id }) => id),
    [bounced],
  );
  assert.deepEqual(
    (await ofIdentity.got(1)).map(({ id }) => id),
    [own],
  );
  assertProblem(await call('GET', '/events/stream?event=nothing', { as: owner }), 400, 'invalid_query');
});

test('an owner has at most 20 streams; a closed one makes room', async () => {
  const owner = await service.makeUser();
  const streams = await Promise.all(Array.from({ length: 20 }, () => open(owner)));
  assertProblem(await call('GET', '/events/stream', { as: owner }), 429, 'too_many_streams');
  await streams[0]?.close();
  await waitFor('room', async () => {
    const again = await open(owner);
    return again.status === 200;
  });
});

test('a revoked key ends its streams, and no others', async () => {
  const owner = await service.makeUser();
  const { body: key } = await call('POST', '/api-keys', { as: owner, body: { name: 'short' } });
  const [revoked, kept] = [await open({ ...owner, apiKey: key.apiKey }), await open(owner)];
  await call('DELETE', `/api-keys/${key.id}`, { as: owner });
  await waitFor('the end of the stream', () => revoked.isEnded());
  assert.equal(kept.isEnded(), false);
});
