/** The same message sent again by a client that missed the 250: acknowledged, and neither stored nor announced twice. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { startDns } from './dns.ts';
import { startTestService } from './harness.ts';
import { startReceiver } from './receiver.ts';
import { connectSmtp, toWire } from './smtp-client.ts';

const dns = await startDns();
const service = await startTestService({ POSTHORN_DNS_SERVERS: dns.address });
const { sql, call } = service;
const receiver = await startReceiver();
after(async () => {
  await receiver.close();
  await dns.close();
});
await service.makeWebhook(receiver.url());

async function makeIdentity(as = service.user): Promise<{ id: string; value: string }> {
  const value = `a${randomBytes(5).toString('hex')}@repeat.example`;
  const answer = await call('POST', '/identities', { as, body: { value } });
  assert.equal(answer.status, 201);
  return answer.body;
}

function write(subject = 'again'): string {
  return `Subject: ${subject}\r\nMessage-ID: <${randomBytes(8).toString('hex')}@sender.example>\r\n\r\nBody\r\n`;
}

/** Gives the id in the 250. */
async function send(raw: string | Buffer, to: string[], from = 'ada@sender.example'): Promise<string> {
  const client = await connectSmtp(service.smtpPort);
  const routed = await client.envelope(from, ...to);
  assert.equal(routed.status, 250, routed.full);
  const taken = await client.data(toWire(raw));
  client.close();
  assert.equal(taken.status, 250, taken.full);
  return taken.lines[0]?.split(' ').at(-1) ?? '';
}

/** How many rows an identity has of each kind. */
async function count({ id }: { id: string }) {
  const [row] = await sql`
    select (select count(*)::int from messages where identity_id = ${id}) as messages,
      (select count(*)::int from events where identity_id = ${id}) as events,
      (select count(*)::int from deliveries join events on events.id = event_id where identity_id = ${id}) as deliveries,
      (select count(*)::int from messages where identity_id = ${id} and raw_id is null)
        + (select count(*)::int from raw_chunks where raw_id in (select raw_id from messages where identity_id = ${id})) as raws`;
  return { ...row };
}

const times = (n: number) => ({ messages: n, events: n, deliveries: n, raws: n });

/** Everything queued so far has been POSTed once this one has; says how many were of this identity. */
async function countPosts({ id }: { id: string }): Promise<number> {
  const last = await send(write('last'), [(await makeIdentity()).value]);
  await receiver.received(1, ({ body }) => body.includes(last));
  return receiver.requests.filter(({ body }) => JSON.parse(body.toString()).data.message.identity.id === id)
    .length;
}

/** As if it had come so long ago. */
async function age(id: string, interval: string): Promise<void> {
  const aged = await sql`
    update messages set created_at = now() - ${interval}::text::interval,
      received_on = ((now() - ${interval}::text::interval) at time zone 'utc')::date
    where id = ${id}`;
  assert.equal(aged.count, 1);
}

describe('the same message again', () => {
  test('gets the id of the first, is stored once and announced once', async () => {
    const identity = await makeIdentity();
    const raw = write();
    const first = await send(raw, [identity.value]);
    for (let n = 0; n < 3; n++) assert.equal(await send(raw, [identity.value]), first);
    assert.deepEqual(await count(identity), times(1));
    assert.equal(await countPosts(identity), 1);
  });

  test('ten times at the same moment is stored once and announced once', async () => {
    const identity = await makeIdentity();
    for (const raw of [write(), `${write()}${'x'.repeat(3_000_000)}\r\n`]) {
      const before = await count(identity);
      const ids = await Promise.all(Array.from({ length: 10 }, () => send(raw, [identity.value])));
      assert.equal(new Set(ids).size, 1);
      const { messages, events } = await count(identity);
      assert.deepEqual([messages, events], [before.messages + 1, before.events + 1]);
      const stored = await call('GET', `/messages/${ids[0]}/raw`);
      assert.equal(stored.text.length, raw.length);
    }
    assert.equal(await countPosts(identity), 2);
  });

  test('ten times at the same moment to three identities is stored once for each', async () => {
    const identities = [
      await makeIdentity(),
      await makeIdentity(await service.makeUser()),
      await makeIdentity(),
    ];
    const raw = write();
    const orders = [
      [0, 1, 2],
      [2, 1, 0],
      [1, 0, 2],
    ];
    const all = Array.from({ length: 9 }, (_, n) =>
      send(
        raw,
        (orders[n % 3] as number[]).map((index) => identities[index]?.value ?? ''),
      ),
    );
    await Promise.all(all);
    for (const identity of identities) assert.equal((await count(identity)).messages, 1);
  });

  test('over HTTP gives the same id: 202', async () => {
    const { value } = await makeIdentity();
    const headers = { 'content-type': 'message/rfc822' };
    const body = write();
    const answers = [];
    for (let n = 0; n < 2; n++)
      answers.push(await call('POST', `/inbound?recipient=${value}`, { body, headers }));
    assert.deepEqual(
      answers.map(({ status }) => status),
      [202, 202],
    );
    assert.deepEqual(answers[1]?.body, answers[0]?.body);
  });

  test('a minute less than a day later is a repeat; more than a day later is a new message', async () => {
    const identity = await makeIdentity();
    const raw = write();
    const first = await send(raw, [identity.value]);
    for (const later of ['1 minute', '12 hours', '23 hours 59 minutes']) {
      await age(first, later);
      assert.equal(await send(raw, [identity.value]), first, later);
    }
    await age(first, '24 hours 1 minute');
    const second = await send(raw, [identity.value]);
    assert.notEqual(second, first);
    assert.deepEqual(await count(identity), times(2));
    assert.equal(await send(raw, [identity.value]), second, 'and that one is what repeats are held against');
    assert.equal(await countPosts(identity), 2);
  });

  test('after midnight is a repeat', async () => {
    const identity = await makeIdentity();
    const raw = write();
    const first = await send(raw, [identity.value]);
    await sql`
      update messages set received_on = received_on - 1, created_at = now() - interval '1 second' where id = ${first}`;
    assert.equal(await send(raw, [identity.value]), first);
    assert.deepEqual(await count(identity), times(1));
  });

  test('is new for an identity that did not have it, with its bytes', async () => {
    const [known, late] = [await makeIdentity(), await makeIdentity()];
    const raw = write();
    const first = await send(raw, [known.value]);
    // Known is in the same envelope as before, as far as it is told.
    await send(raw, [known.value, late.value]);
    assert.deepEqual([(await count(known)).messages, (await count(late)).messages], [1, 1]);
    const [message] = (await call('GET', `/messages?identity_id=${late.id}`)).body;
    assert.notEqual(message.id, first);
    assert.equal((await call('GET', `/messages/${message.id}/raw`)).text, raw);
    assert.equal(await countPosts(late), 1);
  });

  test('after the identity was deleted and created again is new', async () => {
    const identity = await makeIdentity();
    const raw = write();
    await send(raw, [identity.value]);
    await call('DELETE', `/identities/${identity.id}`);
    const { body: again } = await call('POST', '/identities', { body: { value: identity.value } });
    // Another spelling: the route of the first is cached for a second.
    await send(raw, [identity.value.toUpperCase()]);
    assert.equal((await count(again)).messages, 1);
  });
});

describe('what is not a repeat', () => {
  const cases: [string, (raw: string, to: string) => [string, string[], string?]][] = [
    ['another byte', (raw, to) => [`${raw}.\r\n`, [to]]],
    ['another sender', (raw, to) => [raw, [to], 'bob@sender.example']],
    ['no sender', (raw, to) => [raw, [to], '']],
    ['another tag', (raw, to) => [raw, [to.replace('@', '+t@')]]],
    ['one more recipient of the identity', (raw, to) => [raw, [to, to.replace('@', '+t@')]]],
    ['another Message-ID', (raw, to) => [raw.replace('Message-ID: <', 'Message-ID: <x'), [to]]],
  ];
  for (const [name, change] of cases) {
    test(`${name}: stored and announced`, async () => {
      const identity = await makeIdentity();
      const raw = write();
      const first = await send(raw, [identity.value]);
      assert.notEqual(await send(...change(raw, identity.value)), first);
      assert.deepEqual(await count(identity), times(2));
    });
  }

  test('messages without a Message-ID are all stored, at once and one by one', async () => {
    const identity = await makeIdentity();
    const raw = 'Subject: no id\r\n\r\nBody\r\n';
    await Promise.all(Array.from({ length: 4 }, () => send(raw, [identity.value])));
    await send(raw, [identity.value]);
    assert.deepEqual(await count(identity), times(5));
    assert.equal(await countPosts(identity), 5);
  });
});
