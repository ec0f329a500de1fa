/** Secure random bytes in small amounts: asked of the system for many at a time, since each asking costs more than using them. */
import { randomBytes } from 'node:crypto';

const stockBytes = 4096;
let stock = Buffer.alloc(0);
let used = 0;

/** Handed out once, and nobody else's afterwards. Small amounts only. */
export function takeRandom(bytes: number): Buffer {
  if (used + bytes > stock.length) {
    stock = randomBytes(stockBytes);
    used = 0;
  }
  used += bytes;
  return stock.subarray(used - bytes, used);
}
