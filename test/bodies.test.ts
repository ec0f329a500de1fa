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
