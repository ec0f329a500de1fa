/** Memory that a worker can read without a copy, for messages that are large enough for a worker. */

/** A message of this size takes 1 ms of work or more, which is worth the way to a worker and back. */
export const largeBytes = 64 * 1024;

/** Zeros for a large message: pages that are never written cost nothing. */
export function allocateMessage(bytes: number): Buffer {
  return bytes < largeBytes ? Buffer.allocUnsafeSlow(bytes) : allocateShared(bytes);
}

function allocateShared(bytes: number): Buffer {
  return Buffer.from(new SharedArrayBuffer(bytes));
}

/** Returns `bytes` when they are shared already, otherwise a shared copy. */
export function shareBytes(bytes: Uint8Array): Uint8Array {
  if (bytes.buffer instanceof SharedArrayBuffer) return bytes;
  const shared = allocateShared(bytes.length);
  shared.set(bytes);
  return shared;
}
