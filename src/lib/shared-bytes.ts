/** Memory that a thread can read without a copy of its own: for messages large enough to be worked on in one. */

/** From here on a message is worth the way to a thread and back: about 5 ms of work. */
export const largeBytes = 256 * 1024;

export function allocateShared(bytes: number): Buffer {
  return Buffer.from(new SharedArrayBuffer(bytes));
}

/** The same bytes where they are shared already, else a copy that is. */
export function shareBytes(bytes: Uint8Array): Uint8Array {
  if (bytes.buffer instanceof SharedArrayBuffer) return bytes;
  const shared = allocateShared(bytes.length);
  shared.set(bytes);
  return shared;
}
