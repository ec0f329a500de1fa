/** A worker thread of threads.ts: does one job after the other. */
import { parentPort } from 'node:worker_threads';
import { type JobKind, jobs } from './jobs.ts';

interface Job {
  kind: JobKind;
  given: { raw?: Uint8Array };
}

parentPort?.on('message', async ({ kind, given }: Job) => {
  const { raw } = given;
  const bytes = raw && Buffer.from(raw.buffer, raw.byteOffset, raw.byteLength);
  const run = jobs[kind] as (given: unknown) => unknown;
  const { result, transfer } = makeTransferable(await run({ ...given, raw: bytes }), raw);
  parentPort?.postMessage(result, transfer);
  // The memory of a message that was moved here is not needed any more.
  if (raw?.buffer instanceof ArrayBuffer) raw.buffer.transfer(0);
});

/**
 * What a job made is moved and not copied: the content of an attachment, or the bytes of a composed message. A transfer moves the whole
 * buffer, and the main thread keeps it, so content that is a small part of a buffer, or of the message itself, is copied first.
 */
function makeTransferable(
  result: unknown,
  raw: Uint8Array | undefined,
): { result: unknown; transfer: ArrayBuffer[] } {
  for (const name of ['content', 'bytes'] as const) {
    const made = (result as Record<string, unknown> | null)?.[name];
    if (!(made instanceof Uint8Array) || made.buffer instanceof SharedArrayBuffer) continue;
    const isAlone = made.buffer !== raw?.buffer && made.length > 0.9 * made.buffer.byteLength;
    const moved = isAlone ? made : new Uint8Array(made);
    return {
      result: { ...(result as object), [name]: moved },
      transfer: [moved.buffer as ArrayBuffer],
    };
  }
  return { result, transfer: [] };
}
