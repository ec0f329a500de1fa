/** `GET /deliveries`: the deliveries of all webhooks of a user, newest first, by every filter. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { newId } from '../src/lib/ids.ts';
import { assertProblem, startTestService, type TestUser, waitFor } from './harness.ts';
import { answer, startReceiver } from './receiver.ts';

const service = await startTestService({ POSTHORN_RETRY_SCHEDULE: '3600' });
const { call, user } = service;
const receiver = await startReceiver();
after(() => receiver.close());
receiver.behaveAt('/down', answer(500));

interface Item {
  id: string;
  [field: string]: unknown;
}

async function list(query = '', as: TestUser = user): Promise<Item[]> {
  const found = await call('GET', `/deliveries${query}`, { as });
  assert.equal(found.status, 200, found.text);
  return found.body;
}
const idsOf = (items: Item[]) => items.map(({ id }) => id);

async function receive(subject: string): Promise<string> {
  const headers = { 'content-type': 'message/rfc822' };
  const body = `Subject: ${subject}\r\n\r\nhello\r\n`;
  const taken = await call('POST', '/inbound?recipient=ada@listed.example', { headers, body });
  assert.equal(taken.status, 202, taken.text);
  return taken.body.messageIds[0];
}

await call('POST', '/identities', { body: { value: 'ada@listed.example' } });
const fine = await service.makeWebhook(receiver.url('/fine'));
const down = await service.makeWebhook(receiver.url('/down'));
const first = await receive('first');
const second = await receive('second');
const all = await waitFor('the first tries', async () => {
  const items = await list();
  return items.length === 4 && items.every(({ attemptCount }) => attemptCount === 1) ? items : null;
});

test('an item is a delivery with its message, the subject, and how the last attempt ended', async () => {
  const [delivered, waiting] = [fine, down].map(({ id }) =>
    all.find(({ webhookId, subject }) => webhookId === id && subject === 'first'),
  );
  assert.ok(delivered && waiting);
  const { body } = await call('GET', `/deliveries/${delivered.id}`);
  const { attempts, ...delivery } = body;
  assert.deepEqual(delivered, {
    ...delivery,
    ...{ messageId: first, subject: 'first', lastResponseStatus: 204, lastError: null },
  });
  assert.equal(waiting.status, 'pending');
  assert.deepEqual(
    [waiting.messageId, waiting.lastResponseStatus, waiting.lastError],
    [first, 500, (await call('GET', `/deliveries/${waiting.id}`)).body.attempts[0].error],
  );
  assert.equal(attempts.length, 1);
});

test('newest first, and pages neither repeat nor leave out', async () => {
  const times = all.map(({ createdAt }) => String(createdAt));
  assert.deepEqual(times, times.toSorted().reverse());
  const paged: Item[] = [];
  for (let at: string | undefined = '/deliveries?limit=1'; at; ) {
    const page = await call('GET', at);
    paged.push(...page.body);
    at = /<([^>]+)>; rel="next"/.exec(page.headers.get('link') ?? '')?.[1];
  }
  assert.deepEqual(idsOf(paged), idsOf(all));
});

describe('the filter', () => {
  const eventOf = (messageId: string) => all.find((item) => item.messageId === messageId)?.eventId;
  const cases: [string, string, (item: Item) => boolean][] = [
    ['webhook_id', `?webhook_id=${fine.id}`, ({ webhookId }) => webhookId === fine.id],
    ['message_id', `?message_id=${first}`, ({ messageId }) => messageId === first],
    [
      'message_id in upper case',
      `?message_id=${first.toUpperCase()}`,
      ({ messageId }) => messageId === first,
    ],
    ['message_id with several', `?message_id=${first},${newId()},${second}`, () => true],
    ['event_id', `?event_id=${eventOf(second)}`, ({ messageId }) => messageId === second],
    ['status', '?status=pending', ({ status }) => status === 'pending'],
    ['event', '?event=message.received', () => true],
    ['another event', '?event=message.bounced', () => false],
    ['since', '?since=2100-01-01T00:00:00Z', () => false],
    ['message_id and since', `?message_id=${first}&since=2100-01-01T00:00:00Z`, () => false],
    ['message_id and another event', `?message_id=${first}&event=message.bounced`, () => false],
    [
      'message_id, webhook_id, status and event',
      `?message_id=${first},${second}&webhook_id=${fine.id}&status=delivered&event=message.received&since=2020-01-01T00:00:00Z`,
      ({ webhookId }) => webhookId === fine.id,
    ],
    ['message_id and the event of another', `?message_id=${first}&event_id=${eventOf(second)}`, () => false],
    ['webhook_id of none', `?webhook_id=${newId()}`, () => false],
  ];
  for (const [name, query, isWanted] of cases) {
    test(name, async () => assert.deepEqual(idsOf(await list(query)), idsOf(all.filter(isWanted))));
    test(`${name}, page by page`, async () => {
      const wanted = all.filter(isWanted);
      const [page, next] = [await call('GET', `/deliveries${query}&limit=1`), wanted.length > 1];
      assert.deepEqual(idsOf(page.body), idsOf(wanted.slice(0, 1)));
      const link = /<([^>]+)>; rel="next"/.exec(page.headers.get('link') ?? '')?.[1];
      assert.equal(link !== undefined, next);
      if (link) assert.deepEqual(idsOf((await call('GET', link)).body), idsOf(wanted.slice(1, 2)));
    });
  }

  for (const query of [
    'message_id=',
    'message_id=x',
    `message_id=${newId()},`,
    `message_id=${Array.from({ length: 51 }, newId).join(',')}`,
    `message_id=${newId()}&message_id=${newId()}`,
    'webhook_id=1',
    'event_id=1',
    'status=lost',
    'event=x',
    'since=yesterday',
    'identity_id=1',
  ])
    test(`${query.slice(0, 60)} is 400`, async () => {
      assertProblem(await call('GET', `/deliveries?${query}`), 400, 'invalid_query');
    });

  test('message_id takes 50 ids', async () => {
    const ids = [first, ...Array.from({ length: 49 }, newId)];
    assert.equal((await list(`?message_id=${ids.join(',')}`)).length, 2);
  });
});

test('another user sees none of it, by any filter', async () => {
  const stranger = await service.makeUser();
  const [one] = all;
  for (const query of ['', `?webhook_id=${fine.id}`, `?message_id=${first}`, `?event_id=${one?.eventId}`])
    assert.deepEqual(await list(query, stranger), []);
});

test('a subject that nobody could store as text is shown, and a long one is cut', async () => {
  const odd = await receive('=?utf-8?Q?a=00b?=');
  const long = await receive('x'.repeat(5000));
  const shown = await waitFor('the deliveries', async () => {
    const items = await list(`?message_id=${odd},${long}&webhook_id=${fine.id}`);
    return items.length === 2 ? items : null;
  });
  const { body } = await call('GET', `/messages/${odd}`);
  assert.equal(shown.find(({ messageId }) => messageId === odd)?.subject, body.subject);
  const cut = String(shown.find(({ messageId }) => messageId === long)?.subject);
  assert.ok(cut.length <= 1024 && cut.startsWith('xxxx'), `${cut.length}`);
});

test('of a deleted message the log stays without the subject; of a deleted webhook nothing stays', async () => {
  const hook = await service.makeWebhook(receiver.url('/soon'));
  const message = await receive('soon deleted');
  const [{ id, eventId } = { id: '' }] = await waitFor('the delivery', async () => {
    const items = await list(`?webhook_id=${hook.id}&status=delivered`);
    return items.length === 1 ? items : null;
  });
  assert.equal((await call('DELETE', `/messages/${message}`)).status, 204);
  const [kept] = await list(`?event_id=${eventId}&webhook_id=${hook.id}`);
  assert.deepEqual(
    [kept?.id, kept?.subject, kept?.messageId, kept?.lastResponseStatus],
    [id, null, null, 204],
  );
  assert.equal((await call('DELETE', `/webhooks/${hook.id}`)).status, 204);
  for (const query of ['', `?webhook_id=${hook.id}`, `?event_id=${eventId}`])
    assert.ok(!idsOf(await list(query)).includes(id));
});
