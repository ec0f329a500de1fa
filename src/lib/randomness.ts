/**
 * Secure random bytes for ids and nonces, generated 4 KiB at a time, because a call of `randomBytes` is expensive.
 * Not for secrets: their bytes would share one buffer with public ids.
 */
import { randomBytes } from 'node:crypto';

const stockBytes = 4096;
let stock = Buffer.alloc(0);
let used = 0;

/** Returns every byte once. */
export function takeRandom(bytes: number): Buffer {
  if (used + bytes > stock.length) {
    stock = randomBytes(Math.max(stockBytes, bytes));
    used = 0;
  }
  used += bytes;
  return stock.subarray(used - bytes, used);
}
