/** The events of outgoing mail: their schemas, their webhooks, replays, and how long a message is kept. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { Ajv } from 'ajv';
import { identifier } from '../src/db/sql.ts';
import { purgeOld } from '../src/store/purge.ts';
import { startTestService, waitFor } from './harness.ts';
import { openOutbox } from './outbox.ts';
import { startReceiver } from './receiver.ts';

const service = await startTestService({ POSTHORN_SEND_SCHEDULE: '3600' });
const { call, sql, user, makeWebhook } = service;
const { makeIdentity, send, findEnded, findMessage, events } = openOutbox(service);
const receiver = await startReceiver();
after(() => receiver.close());
const identityId = await makeIdentity('ada@sender.example');
const names = ['message.sent', 'message.delivered', 'message.bounced', 'message.complained'];

const { body: types } = await call('GET', '/event-types');
const ajv = new Ajv({ strict: false, validateFormats: false });
// biome-ignore lint/suspicious/noExplicitAny: the body of any event.
function assertValid(body: any): void {
  const type = types.find(({ name }: { name: string }) => name === body.event);
  assert.equal(type?.availability, 'supported', body.event);
  const validate = ajv.compile(type.schema);
  assert.ok(validate(body), JSON.stringify(validate.errors));
}

test('a webhook gets the events of its identity; GET /events/{id} has the same data', async () => {
  const other = await makeIdentity('grace@sender.example');
  await makeWebhook(receiver.url('/own'), { events: names, identityId });
  await makeWebhook(receiver.url('/other'), { events: names, identityId: other });
  const { id } = await send({
    ...{ identityId, to: ['a@dest.example', 'b@bounce.test'], metadata: { order: '7' } },
    attachments: [{ filename: 'a.txt', content: 'aGk=' }],
  });
  await findEnded(id);
  const posted = await receiver.received(3, ({ url }) => url === '/own');
  const bodies = posted.map(({ body }) => JSON.parse(body.toString()));
  assert.deepEqual(bodies.map(({ event }) => event).sort(), [
    'message.bounced',
    'message.delivered',
    'message.sent',
  ]);
  for (const body of bodies) {
    assertValid(body);
    assert.equal('text' in body.data.message || 'headers' in body.data.message, false);
    assert.deepEqual(body.data.message.sending.metadata, { order: '7' });
  }
  for (const [n, { headers }] of posted.entries()) {
    const { body } = await call('GET', `/events/${headers['webhook-id']}`);
    assert.deepEqual({ event: body.event, data: body.data }, bodies[n]);
    assert.equal(body.identityId, identityId);
  }
  assert.equal(receiver.requests.filter(({ url }) => url === '/other').length, 0);
  const filtered = await call('GET', `/events?event=message.bounced&identity_id=${identityId}`);
  assert.equal(filtered.body.length, 1);
});

test('a sample of each event reaches the webhook, valid and marked', async () => {
  const webhook = await makeWebhook(receiver.url('/test'), { events: ['message.received'] });
  for (const event of [undefined, 'message.received', ...names]) {
    const body = event === undefined ? {} : { body: { event } };
    const answer = await call('POST', `/webhooks/${webhook.id}/test`, body);
    assert.equal(answer.status, 200, answer.text);
    assert.equal(answer.body.delivered, true);
    // Other webhooks may get requests of the tests before meanwhile.
    const request = receiver.requests.findLast(({ url }) => url === '/test');
    const sample = JSON.parse(request?.body.toString() ?? '');
    assert.equal(sample.event, event ?? 'message.received');
    assert.equal(sample.data.test, true);
    assertValid(sample);
  }
  const unknown = await call('POST', `/webhooks/${webhook.id}/test`, { body: { event: 'message.lost' } });
  assert.equal(unknown.status, 400, unknown.text);
});

test('a replay sends the events of outgoing mail again', async () => {
  const since = new Date(Date.now() - 3_600_000).toISOString();
  const { id } = await send({ identityId, to: 'replay@dest.example' });
  await findEnded(id);
  const webhook = await makeWebhook(receiver.url('/replay'), { events: ['message.delivered'] });
  const answer = await call('POST', `/webhooks/${webhook.id}/replay`, { body: { since } });
  assert.equal(answer.status, 202, answer.text);
  const isOurs = ({ url, body }: { url: string; body: Buffer }) =>
    url === '/replay' && body.toString().includes('replay@dest.example');
  const [posted] = await receiver.received(1, isOurs);
  const { event, data } = JSON.parse(posted?.body.toString() ?? '');
  assert.equal(event, 'message.delivered');
  assert.equal(data.message.id, id);
});

describe('the retention of a message that was sent', () => {
  const days = 30;
  const purge = async () => {
    while (await purgeOld(sql, days));
  };
  const age = async (id: string, what: 'created' | 'ended', by: string) => {
    if (what === 'ended')
      await sql`update outgoing set ended_at = ended_at - ${by}::text::interval where id = ${id}`;
    else {
      await sql`update messages set created_at = created_at - ${by}::text::interval where id = ${id}`;
      await sql`update outgoing set created_at = created_at - ${by}::text::interval where id = ${id}`;
    }
  };
  const exists = async (id: string) => (await call('GET', `/messages/${id}`)).status === 200;

  test('starts when its last recipient has ended', async () => {
    const { id } = await send({ identityId, to: 'quiet@dest.example' }, { as: user });
    await findEnded(id);
    await waitFor('the deliveries', async () => {
      const [row] =
        await sql`select from delivery_queue join events on events.id = event_id where message_id = ${id}`;
      return row === undefined;
    });
    await age(id, 'created', '60 days');
    await age(id, 'ended', '29 days');
    await purge();
    assert.equal(await exists(id), true);
    await age(id, 'ended', '2 days');
    await sql`
      delete from ended_deliveries where event_id in (select id from events where message_id = ${id})`;
    // The purge of the service may be at work, and then ours does nothing.
    await waitFor('the purge', async () => {
      await purge();
      return !(await exists(id));
    });
    for (const table of ['outgoing', 'recipients', 'send_attempts', 'events', 'messages']) {
      const column = ['outgoing', 'messages'].includes(table) ? 'id' : 'message_id';
      const rows = await sql`select from ${identifier(table)} where ${identifier(column)} = ${id}`;
      assert.equal(rows.count, 0, table);
    }
  });

  test('never ends while it waits to be sent', async () => {
    const { id } = await send({ identityId, to: ['a@dest.example', 'b@defer.test'] });
    await waitFor(
      'one recipient',
      async () => (await findMessage(id)).sending.recipients[0].status === 'delivered',
    );
    await age(id, 'created', '90 days');
    await purge();
    assert.equal(await exists(id), true);
  });

  test('waits for pending deliveries of its events', async () => {
    const owner = await service.makeUser();
    const own = await makeIdentity('kept@sender.example', { as: owner });
    receiver.behaveAt('/away', (_request, response) => response.writeHead(500).end());
    await makeWebhook(receiver.url('/away'), { events: ['message.sent'] }, owner);
    const { id } = await send({ identityId: own }, { as: owner });
    await receiver.received(1, ({ url }) => url === '/away');
    await waitFor('the end', async () => {
      const [row] = await sql`select from outgoing where id = ${id} and ended_at is not null`;
      return row;
    });
    await age(id, 'ended', '90 days');
    await purge();
    assert.equal((await call('GET', `/messages/${id}`, { as: owner })).status, 200);
  });
});

test('by capture: put off, with the next attempt by the schedule', async () => {
  const { id } = await send({ identityId, to: 'a@defer.test' });
  const recipient = await waitFor('the try', async () => {
    const [found] = (await findMessage(id)).sending.recipients;
    return found.attemptCount === 1 ? found : null;
  });
  assert.equal(recipient.status, 'queued');
  assert.equal(recipient.lastResponse.code, 451);
  assert.deepEqual(await events(id), []);
});
