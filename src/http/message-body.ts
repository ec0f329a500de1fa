/** Reads the body of a request that is a message. Guarantee: a client that is slower than the limits gets a 408 and is cut. */
import { finished, type Readable } from 'node:stream';
import { errorCodes } from 'fastify';
import { MovableTimer } from '../lib/movable-timer.ts';
import { Pace, type PaceLimits } from '../lib/pace.ts';
import { allocateMessage } from '../lib/shared-bytes.ts';
import { Problem } from '../problems.ts';

/** Into one buffer: a list of chunks and the copy of all would need the memory twice. Rejects when `cut` aborts. */
export function readMessageBody(
  body: Readable,
  maxBytes: number,
  limits: PaceLimits,
  cut?: AbortSignal,
): Promise<Buffer> {
  const { promise, resolve, reject } = Promise.withResolvers<Buffer>();
  const raw = allocateMessage(maxBytes);
  let length = 0;
  const startedAt = performance.now();
  const pace = new Pace(limits, startedAt);
  const timer = new MovableTimer(() => reject(tooSlow()));
  timer.arm(pace.leftMs(startedAt));
  const take = (chunk: Buffer) => {
    if (length + chunk.length > maxBytes) return reject(new errorCodes.FST_ERR_CTP_BODY_TOO_LARGE());
    length += chunk.copy(raw, length);
    const now = performance.now();
    if (pace.advance(length, now)) timer.arm(pace.leftMs(now));
  };
  const stopWaiting = finished(body, { writable: false }, (error) =>
    error ? reject(error) : resolve(raw.subarray(0, length)),
  );
  body.on('data', take);
  cut?.addEventListener('abort', () => reject(cut.reason));
  return promise.finally(() => {
    timer.clear();
    stopWaiting();
    // Not destroyed: the client could not read the answer.
    body.off('data', take).pause();
  });
}

function tooSlow(): Problem {
  // Else the server would read the rest of the body, as slowly as it comes.
  return new Problem('request_timeout', { headers: { connection: 'close' } });
}
