import assert from 'node:assert/strict';
import { test } from 'node:test';
import { captureMail } from '../src/sending/capture.ts';

test('capture replies by the domain of the recipient, in any case of letters', async () => {
  const { signal } = new AbortController();
  const codeOf = async (rcptTo: string) => (await captureMail(rcptTo, { signal, slowMs: 1 })).response?.code;
  assert.equal(await codeOf('a@dest.example'), 250);
  assert.equal(await codeOf('a@SLOW.test'), 250);
  assert.equal(await codeOf('a@Bounce.Test'), 550);
  assert.equal(await codeOf('a@defer.test'), 451);
  assert.equal(await codeOf('a@sub.bounce.test'), 250);
});

test('slow.test takes its time, and a stop ends the wait without an outcome', async () => {
  const stopping = new AbortController();
  let isDone = false;
  const trying = captureMail('a@slow.test', { signal: stopping.signal, slowMs: 3_600_000 }).finally(() => {
    isDone = true;
  });
  const other = await captureMail('a@dest.example', { signal: stopping.signal, slowMs: 3_600_000 });
  assert.deepEqual([other.kind, isDone], ['accepted', false]);
  stopping.abort();
  const { kind, error } = await trying;
  assert.deepEqual([kind, error], ['failed', 'stopped']);
});
