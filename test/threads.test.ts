/** Worker threads that owners share: who gets one, and what a job that hangs or breaks its thread does to others. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { JobFailed, type ThreadLimits, Threads } from '../src/mailwork/threads.ts';

/** Answers a text with the same text; never answers `hang`; `break` ends the thread. */
const script = new URL(
  `data:text/javascript,${encodeURIComponent(`
    import { parentPort } from 'node:worker_threads';
    parentPort.on('message', (job) => {
      if (job === 'break') process.exit(1);
      if (job !== 'hang') parentPort.postMessage(job);
    });`)}`,
);

function start(t: TestContext, limits: Partial<ThreadLimits> = {}): Threads<string, string> {
  const usual = { threads: 2, timeoutMs: 2 ** 31 - 1, waitMs: 2 ** 31 - 1, idleMs: 30_000 };
  const threads = new Threads<string, string>(script, { ...usual, ...limits });
  t.after(() => threads.stop());
  return threads;
}

test('an owner whose jobs hang never has the last thread', async (t) => {
  const threads = start(t, { threads: 3 });
  const hanging = Array.from({ length: 5 }, () => threads.run({ ownerId: 'a' }, { job: 'hang' }));
  const ended = Promise.allSettled(hanging);
  for (const text of ['one', 'two', 'three'])
    assert.equal(await threads.run({ ownerId: 'b' }, { job: text }), text);
  await threads.stop();
  for (const { status } of await ended) assert.equal(status, 'rejected');
});

test('a job that breaks its thread fails alone', async (t) => {
  const threads = start(t);
  await assert.rejects(threads.run({ ownerId: 'a' }, { job: 'break' }), JobFailed);
  assert.equal(await threads.run({ ownerId: 'a' }, { job: 'next' }), 'next');
});

test('a job that takes too long fails', async (t) => {
  const threads = start(t, { timeoutMs: 1 });
  await assert.rejects(threads.run({ ownerId: 'a' }, { job: 'hang' }), JobFailed);
});

test('owners take turns, and within an owner its senders', async (t) => {
  const threads = start(t);
  const hanging = threads.run({ ownerId: 'other' }, { job: 'hang' });
  const ended = assert.rejects(hanging);
  const order: string[] = [];
  const run = async (ownerId: string, sender: string) => {
    await threads.run({ ownerId, sender }, { job: 'x' });
    order.push(`${ownerId}${sender}`);
  };
  // They share the one thread that is left.
  await Promise.all([run('a', '1'), run('a', '1'), run('a', '1'), run('a', '2'), run('b', '1')]);
  assert.deepEqual(order.slice(0, 3), ['a1', 'b1', 'a2']);
  await threads.stop();
  await ended;
});
