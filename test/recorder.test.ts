/** The recorder of a queue: however many outcomes wait, one statement gets a bounded number of them. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Recorder } from '../src/queue/recorder.ts';
import { makeTestLog } from './harness.ts';

test('outcomes that waited for the database are recorded in batches of at most 256, each once and in order', async () => {
  const batches: number[][] = [];
  const firstIsSlow = Promise.withResolvers<void>();
  const recorder = new Recorder<{ id: string }>(
    {
      name: 'jobs',
      async record(outcomes) {
        batches.push(outcomes.map(({ id }) => Number(id)));
        if (batches.length === 1) await firstIsSlow.promise;
        return outcomes.map(({ id }) => id);
      },
      afterRecord: async () => {},
      isUnavailable: () => false,
      log: makeTestLog().log,
    },
    () => {},
  );
  for (let id = 0; id < 3000; id += 1) recorder.add({ id: String(id) });
  firstIsSlow.resolve();
  await recorder.drained();
  assert.ok(Math.max(...batches.map((batch) => batch.length)) <= 256);
  assert.deepEqual(
    batches.flat(),
    Array.from({ length: 3000 }, (_, id) => id),
  );
});
