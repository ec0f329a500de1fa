/** Bodies that are fetched ahead: row by row, in the midst of the driver's reading, which must not suffer from it. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { only } from '../src/db/client.ts';
import { newId } from '../src/lib/ids.ts';
import { Bodies } from '../src/webhooks/bodies.ts';
import { startTestService } from './harness.ts';

const service = await startTestService({ POSTHORN_ROLES: 'api' });

test('bodies are each whole, wherever they lie', async () => {
  const texts = Array.from({ length: 40 }, (_, n) => JSON.stringify({ n, text: 'é'.repeat(n * 100) }));
  const ids: string[] = [];
  for (const data of texts) ids.push(await service.makeEvent({ data }));
  const bodies = new Bodies({ sql: service.sql, completeData: ({ data }) => data });
  await bodies.prefetch(ids);
  const told = ids.map((id) => String(bodies.get(id)));
  const expected = texts.map((text) => `{"event":"message.received","data":${text}}`);
  assert.deepEqual(told, expected);
});

test('a cached body keeps no other memory than its own', async () => {
  const event = (bytes: number) => service.makeEvent({ data: JSON.stringify({ text: 'x'.repeat(bytes) }) });
  const bodies = new Bodies({ sql: service.sql, completeData: ({ data }) => data });
  const ids = [await event(100), await event(40_000), await event(100)];
  await bodies.prefetch(ids);
  for (const id of ids) {
    const body = bodies.get(id);
    assert.equal(body?.buffer.byteLength, body?.byteLength);
  }
});

test('a body that cannot be built fails the read ahead, after the others, and nothing else', async () => {
  const ids = [await service.makeEvent(), await service.makeEvent(), await service.makeEvent()];
  let calls = 0;
  const bodies = new Bodies({
    sql: service.sql,
    completeData: ({ data }) => {
      calls += 1;
      if (calls === 1) throw new Error('The body cannot be built');
      return data;
    },
  });
  await assert.rejects(bodies.prefetch(ids), /cannot be built/);
  assert.equal(calls, 3);
  assert.equal(ids.filter((id) => bodies.get(id)).length, 2);
  assert.equal((await service.sql`select 1 as one`)[0]?.one, 1);
});

test('a large body that waits for memory stops waiting when its signal aborts, and holds nothing', async () => {
  const bodies = new Bodies({ sql: service.sql, completeData: ({ data }) => data });
  // Larger than a webhook's share of the memory, so that the second waits for the first.
  const data = JSON.stringify({ text: 'x'.repeat(9_000_000) });
  const ids = [await service.makeEvent({ data }), await service.makeEvent({ data })] as const;
  const [webhookId, leaseEnd] = ['a webhook', new AbortController()];
  const first = await bodies.load(ids[0], webhookId);
  const second = bodies.load(ids[1], webhookId, leaseEnd.signal);
  leaseEnd.abort(new Error('The lease has ended'));
  first?.done?.();
  await assert.rejects(second, /The lease has ended/);
  const third = await bodies.load(ids[1], webhookId);
  assert.equal(third?.body.length, data.length + '{"event":"message.received","data":}'.length);
  third?.done?.();
});

describe('the size of an event counts the raw message as JSON writes it', () => {
  const raws: [what: string, raw: Buffer][] = [
    ['text', Buffer.alloc(50_000, 'a line of text\r\n')],
    ['control characters, which JSON writes as six', Buffer.alloc(50_000, '\x01')],
    ['quotes and backslashes', Buffer.alloc(50_000, '"\\')],
    ['letters of several bytes', Buffer.alloc(50_000, 'é€😀!')],
    ['bytes that are not UTF-8, which are sent as base64', Buffer.alloc(50_000, 0xff)],
  ];
  for (const [what, body] of raws) {
    test(what, async () => {
      const value = `${newId()}@in.example`;
      assert.equal((await service.call('POST', '/identities', { body: { value } })).status, 201);
      const headers = { 'content-type': 'message/rfc822' };
      const raw = Buffer.concat([Buffer.from('Subject: x\r\n\r\n'), body]);
      const query = `recipient=${value}`;
      const sent = await service.call('POST', `/inbound?${query}`, { body: raw, headers });
      assert.equal(sent.status, 202, sent.text);
      const { id, bytes } = only(
        await service.sql<{ id: string; bytes: number }[]>`
          select id, bytes from events where message_id = ${sent.body.messageIds[0]}`,
      );
      const { text } = await service.call('GET', `/events/${id}`);
      const difference = Buffer.byteLength(text) - bytes;
      // The links, and what surrounds the data.
      assert.ok(
        difference > 0 && difference < 1000,
        `${bytes} bytes are counted, and ${difference} more sent`,
      );
    });
  }
});
