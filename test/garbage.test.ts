/** Bytes that are no longer needed are collected before there are many of them, though V8's own heap does not grow by them. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { runInNewContext } from 'node:vm';
import { countDropped } from '../src/lib/garbage.ts';

const piece = 256 * 1024;
const pieces = 400;

test('a hundred MB that pass by in pieces leave a few behind at any time', () => {
  const before = process.memoryUsage().arrayBuffers;
  let most = 0;
  for (let n = 0; n < pieces; n++) {
    Buffer.allocUnsafeSlow(piece);
    countDropped(piece);
    most = Math.max(most, process.memoryUsage().arrayBuffers - before);
  }
  assert.ok(most < 16e6, `${most} bytes were held`);
});

test('nothing else gets to collect', () => {
  assert.equal(runInNewContext('typeof gc'), 'undefined');
});
