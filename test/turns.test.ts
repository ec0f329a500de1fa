/** Requests that come together are started by turns: at most a few in one turn of the event loop, and callers alternate. */
import assert from 'node:assert/strict';
import { AsyncLocalStorage } from 'node:async_hooks';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import net from 'node:net';
import { describe, test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { makeTurns } from '../src/lib/turns.ts';
import { startTestService, waitFor } from './harness.ts';

describe('turns', () => {
  test('so many start in each turn of the event loop, and callers alternate', async () => {
    const { start } = makeTurns(2);
    const started: string[] = [];
    for (const name of ['a1', 'a2', 'a3', 'a4', 'a5', 'b1', 'b2', 'c1'])
      start(name.slice(0, 1), () => started.push(name));
    const turns = [[...started]];
    while (started.length < 8) {
      const before = started.length;
      await nextTurn();
      turns.push(started.slice(before));
    }
    assert.deepEqual(turns, [
      ['a1', 'a2'],
      ['a3', 'b1'],
      ['c1', 'a4'],
      ['b2', 'a5'],
    ]);
  });

  test('one starts in a turn in which a connection came, because others may wait to be accepted', async () => {
    const { start, noteConnection } = makeTurns(3);
    const started: number[] = [];
    noteConnection();
    for (const n of [1, 2, 3, 4, 5, 6]) start('a', () => started.push(n));
    assert.equal(started.length, 1);
    await nextTurn();
    assert.equal(started.length, 2);
    await nextTurn();
    assert.equal(started.length, 5);
  });

  test('a request that waited keeps its own context', async () => {
    const { start } = makeTurns(1);
    const context = new AsyncLocalStorage<string>();
    const seen: (string | undefined)[] = [];
    for (const name of ['a', 'b', 'c'])
      context.run(name, () => start(name, () => seen.push(context.getStore())));
    while (seen.length < 3) await nextTurn();
    assert.deepEqual(seen, ['a', 'b', 'c']);
  });
});

test('of 400 pipelined requests that wait for the same key, few are handled in one turn of the event loop', async () => {
  const service = await startTestService({ POSTHORN_ROLES: 'api' });
  const { apiKey } = await service.makeUser();
  const { port } = new URL(service.url);
  const request = `GET /me HTTP/1.1\r\nhost: x\r\nauthorization: Bearer ${apiKey}\r\n\r\n`;
  let [come, handled, inThisTurn, most] = [0, 0, 0, 0];
  const countCome = () => {
    come += 1;
  };
  const countHandled = () => {
    handled += 1;
    inThisTurn += 1;
    most = Math.max(most, inThisTurn);
  };
  const [requests, handlers] = ['http.server.request.start', 'tracing:fastify.request.handler:start'];
  subscribe(requests, countCome);
  subscribe(handlers, countHandled);
  let isCounting = true;
  const countTurns = async () => {
    while (isCounting) {
      await nextTurn();
      inThisTurn = 0;
    }
  };
  // Before the lock: PostgreSQL releases it before the commit is answered.
  const turns = countTurns();
  const sockets = Array.from({ length: 40 }, () => net.connect(Number(port), '127.0.0.1').resume());
  await service.sql.begin(async (sql) => {
    await sql`lock table api_keys in access exclusive mode`;
    for (const socket of sockets) socket.write(request.repeat(10));
    await waitFor('all requests', () => come === 400);
  });
  await waitFor('all answers', () => handled === 400);
  isCounting = false;
  await turns;
  unsubscribe(requests, countCome);
  unsubscribe(handlers, countHandled);
  for (const socket of sockets) socket.destroy();
  // In one turn: ten from the line, and perhaps ten that came when the line was empty.
  assert.ok(most <= 20, `${most} in one turn`);
});
