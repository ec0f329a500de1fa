import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { backoff } from '../src/lib/backoff.ts';
import { makeLog } from '../src/lib/log.ts';
import { type Loop, startLoop } from '../src/lib/loop.ts';
import { waitFor } from './harness.ts';

/** Longer than any test may take: what happens in spite of it was not the poll. */
const neverMs = 3_600_000;

function start(
  t: TestContext,
  pollMs: number,
  work: () => Promise<boolean | number>,
  more: Partial<Parameters<typeof startLoop>[0]> = {},
) {
  const lines: string[] = [];
  const stream = { write: (line: string) => lines.push(line) } as unknown as NodeJS.WritableStream;
  const loop = startLoop({
    name: 'sweep',
    pollMs,
    work,
    ...more,
    log: makeLog({ level: 'debug', json: true, stream }),
  });
  t.after(() => loop.stop());
  return { loop, lines };
}

/** Work that waits to be let through, one round at a time. */
function makeGate() {
  const waiting: ((more: boolean) => void)[] = [];
  return {
    waiting,
    work: () => new Promise<boolean>((resolve) => waiting.push(resolve)),
    async finish(more: boolean) {
      (await waitFor('work under way', () => waiting.shift()))(more);
    },
  };
}

async function isStopped(loop: Loop): Promise<boolean> {
  const running = Symbol('running');
  // A few turns of the event loop: enough for anything that is already decided.
  const turns = (async () => {
    for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
    return running;
  })();
  return (await Promise.race([loop.stop(), turns])) !== running;
}

test('works at once, and again at once while there is more', async (t) => {
  let rounds = 0;
  start(t, neverMs, async () => ++rounds < 5);
  await waitFor('five rounds', () => rounds === 5);
  assert.equal(rounds, 5);
});

test('sleeps when there is no more, until it is woken', async (t) => {
  let rounds = 0;
  const { loop } = start(t, neverMs, async () => ++rounds < 0);
  await waitFor('the first round', () => rounds === 1);
  for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
  assert.equal(rounds, 1);
  loop.wake();
  await waitFor('the second round', () => rounds === 2);
});

test('looks again after the poll interval without being woken', async (t) => {
  let rounds = 0;
  start(t, 5, async () => ++rounds < 0);
  await waitFor('three rounds', () => rounds >= 3);
});

test('a wake during the work is not lost', async (t) => {
  const gate = makeGate();
  const { loop } = start(t, neverMs, gate.work);
  await waitFor('work under way', () => gate.waiting.length === 1);
  loop.wake();
  await gate.finish(false);
  await waitFor('the round that the wake asked for', () => gate.waiting.length === 1);
  await gate.finish(false);
});

test('many wakes during the work are one more round', async (t) => {
  const gate = makeGate();
  const { loop } = start(t, neverMs, gate.work);
  await waitFor('work under way', () => gate.waiting.length === 1);
  for (let n = 0; n < 10; n++) loop.wake();
  await gate.finish(false);
  await gate.finish(false);
  assert.equal(await isStopped(loop), true, 'asleep, and not in a third round');
});

test('work that fails is logged with its cause and tried again after the interval', async (t) => {
  let rounds = 0;
  const { lines } = start(t, 5, async () => {
    rounds += 1;
    if (rounds < 3) throw new Error('no luck');
    return false;
  });
  await waitFor('the third round', () => rounds >= 3);
  const logged = lines.map((line) => JSON.parse(line));
  assert.equal(logged.length, 2);
  assert.equal(logged[0].level, 'error');
  assert.equal(logged[0].msg, 'sweep failed; retrying in 5 ms');
  assert.equal(logged[0].err.message, 'no luck');
});

test('failures in a row are retried later and later, up to a limit, until work was done', async (t) => {
  const outcomes = ['fails', 'fails', 'none', 'fails', 'fails', 'done', 'fails'];
  const { lines } = start(
    t,
    1,
    async () => {
      const outcome = outcomes.shift() ?? 'none';
      if (outcome === 'fails') throw new Error('no luck');
      return outcome === 'done';
    },
    { maxRetryMs: 5 },
  );
  await waitFor('five failures', () => lines.length === 5);
  const waits = lines.map((line) => /retrying in (\d+) ms/.exec(line)?.[1]);
  assert.deepEqual(waits, ['1', '2', '4', '5', '1'], 'finding nothing to do does not end the row');
});

test('a backoff doubles from its first wait up to its limit, however many failures there were', () => {
  const waits = [0, 1, 2, 3, 4, 5, 6, 7, 2000].map((failures) => backoff(failures, 5, 300));
  assert.deepEqual(waits, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
});

test('work that throws before it awaits is a failure like any other', async (t) => {
  let rounds = 0;
  const { lines } = start(t, 5, () => {
    rounds += 1;
    if (rounds === 1) throw new Error('at once');
    return Promise.resolve(false);
  });
  await waitFor('the second round', () => rounds >= 2);
  assert.equal(lines.length, 1);
});

test('failing does not make it spin: the next try waits for the interval or a wake', async (t) => {
  let rounds = 0;
  const { loop, lines } = start(t, neverMs, async () => {
    rounds += 1;
    throw new Error('no luck');
  });
  await waitFor('the failure', () => lines.length === 1);
  for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
  assert.equal(rounds, 1);
  loop.wake();
  await waitFor('the second try', () => rounds === 2);
});

test('stop waits for the work under way, and nothing follows it', async (t) => {
  const gate = makeGate();
  const { loop } = start(t, 1, gate.work);
  await waitFor('work under way', () => gate.waiting.length === 1);
  assert.equal(await isStopped(loop), false);
  await gate.finish(true);
  await loop.stop();
  assert.equal(gate.waiting.length, 0, 'not even though there was more');
});

test('stop ends the sleep, and can be called again', async (t) => {
  let rounds = 0;
  const { loop } = start(t, neverMs, async () => ++rounds < 0);
  await waitFor('the first round', () => rounds === 1);
  await loop.stop();
  await loop.stop();
  loop.wake();
  for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
  assert.equal(rounds, 1);
});

test('work that can wait rests before the next piece: a wake does not end the rest, a stop does', async (t) => {
  const gate = makeGate();
  const { loop } = start(t, neverMs, gate.work, { restFactor: 1e12 });
  await gate.finish(true);
  loop.wake();
  for (let turn = 0; turn < 20; turn += 1) await new Promise((resolve) => setImmediate(resolve));
  assert.equal(gate.waiting.length, 0, 'it rests although there is more');
  await loop.stop();
});

test('work that rested goes on by itself', async (t) => {
  let rounds = 0;
  start(t, neverMs, async () => ++rounds < 3, { restFactor: 1 });
  await waitFor('three rounds', () => rounds === 3);
});

test('work that says when there is more is done again then, before the poll interval is over', async (t) => {
  let rounds = 0;
  start(t, neverMs, async () => (++rounds < 3 ? 2 : neverMs));
  await waitFor('three rounds', () => rounds === 3);
  for (let turn = 0; turn < 20; turn += 1) await new Promise((resolve) => setImmediate(resolve));
  assert.equal(rounds, 3, 'and not earlier');
});
