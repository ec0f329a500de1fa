/** Bodies that are fetched ahead: row by row, in the midst of the driver's reading, which must not suffer from it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
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

test('small bodies share memory, and a large one between them neither takes part nor parts them', async () => {
  const event = (bytes: number) => service.makeEvent({ data: JSON.stringify({ text: 'x'.repeat(bytes) }) });
  const bodies = new Bodies({ sql: service.sql, completeData: ({ data }) => data });
  const ids = [await event(100), await event(40_000), await event(100)];
  // One by one, since a query for several gives them in no order.
  for (const id of ids) await bodies.prefetch([id]);
  const [first, large, second] = ids.map((id) => bodies.get(id));
  assert.ok(first && large && second);
  assert.equal(first.buffer, second.buffer);
  assert.notEqual(large.buffer, first.buffer);
  assert.equal(large.buffer.byteLength, large.byteLength);
});

test('one that cannot be told fails the fetch, after the others, and nothing else', async () => {
  const ids = [await service.makeEvent(), await service.makeEvent(), await service.makeEvent()];
  let calls = 0;
  const bodies = new Bodies({
    sql: service.sql,
    completeData: ({ data }) => {
      calls += 1;
      if (calls === 1) throw new Error('It cannot be told');
      return data;
    },
  });
  await assert.rejects(bodies.prefetch(ids), /cannot be told/);
  assert.equal(calls, 3);
  assert.equal(ids.filter((id) => bodies.get(id)).length, 2);
  assert.equal((await service.sql`select 1 as one`)[0]?.one, 1);
});
