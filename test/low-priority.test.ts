/** A worker gives way to the main thread. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { getPriority } from 'node:os';
import { test } from 'node:test';
import { Worker } from 'node:worker_threads';

const module = new URL('../src/lib/low-priority.ts', import.meta.url);
const script = `
  const { readlinkSync } = require('node:fs');
  const { getPriority } = require('node:os');
  const { parentPort } = require('node:worker_threads');
  import(${JSON.stringify(module.href)}).then(({ lowerThreadPriority }) => {
    lowerThreadPriority();
    parentPort.postMessage(getPriority(Number(readlinkSync('/proc/thread-self').split('/').at(-1))));
  });`;

test('the priority of a worker is lowered, and that of the main thread is not', {
  skip: !existsSync('/proc/thread-self') && 'only Linux has priorities of threads',
}, async () => {
  const before = getPriority();
  const worker = new Worker(script, { eval: true });
  const [priority] = await once(worker, 'message');
  assert.equal(priority, Math.max(10, before));
  assert.equal(getPriority(), before);
  await worker.terminate();
});
