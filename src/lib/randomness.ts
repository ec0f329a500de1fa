/**
 * Secure random bytes in small amounts, for ids and nonces: made many at a time, since each making costs more than using them.
 * They lie side by side in memory, so what must stay secret asks `randomBytes` for its own.
 */
import { randomBytes } from 'node:crypto';

const stockBytes = 4096;
let stock = Buffer.alloc(0);
let used = 0;

/** Each is handed out once. */
export function takeRandom(bytes: number): Buffer {
  if (used + bytes > stock.length) {
    stock = randomBytes(Math.max(stockBytes, bytes));
    used = 0;
  }
  used += bytes;
  return stock.subarray(used - bytes, used);
}
