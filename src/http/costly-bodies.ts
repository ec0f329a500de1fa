/**
 * Bodies that cost the server more than the client. Node calls back for each chunk of the chunked transfer coding (RFC 9112 §7.1),
 * so four connections that send chunks of one byte made the requests of others take 843 ms instead of 4 ms. Guarantees: after an
 * answer the server reads no more of a body that may be costly, and it reads no body in tiny chunks to its end.
 */
import type { Socket } from 'node:net';
import { type Readable, Transform } from 'node:stream';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { Problem } from '../problems.ts';

export interface BodyLimits {
  /** How long a client can read its answer after the server stopped reading. Then the connection is destroyed. */
  lingerMs: number;
  /** An unread body is costly if it is announced with more bytes, or in chunks. Others are read, and the connection stays open. */
  maxUnreadBytes: number;
  /** So many chunks can be small. After them, all chunks must have `minChunkBytes` on average. */
  freeChunks: number;
  minChunkBytes: number;
}

export const defaultBodyLimits: BodyLimits = {
  lingerMs: 1000,
  maxUnreadBytes: 64 * 1024,
  freeChunks: 1000,
  minChunkBytes: 64,
};

/** Call it before the answer is sent. */
export function stopReadingUnread({ raw }: FastifyRequest, reply: FastifyReply, limits: BodyLimits): void {
  if (raw.complete || !isCostly(raw.headers, limits)) return;
  reply.header('connection', 'close');
  const { socket } = raw;
  stopReading(socket);
  // Node calls it after the answer. Its own closes at once, and a client that is still sending then loses the answer.
  socket.destroySoon = () => endSlowly(socket, limits.lingerMs);
}

/** Sends what is written, reads nothing more, and destroys the socket when the client had time to read. */
export function endSlowly(socket: Socket, lingerMs: number): void {
  stopReading(socket);
  socket.end();
  const timer = setTimeout(() => socket.destroy(), lingerMs);
  socket.once('close', () => clearTimeout(timer));
}

function stopReading(socket: Socket): void {
  socket.pause();
  // After the answer Node reads the rest of the request.
  socket.on('resume', () => socket.pause());
}

function isCostly(headers: FastifyRequest['headers'], { maxUnreadBytes }: BodyLimits): boolean {
  return (
    headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > maxUnreadBytes
  );
}

/** The same bytes, with an error if the chunks are tiny. */
export function refuseTinyChunks(request: FastifyRequest, body: Readable, limits: BodyLimits): Readable {
  if (request.headers['transfer-encoding'] === undefined) return body;
  const { freeChunks, minChunkBytes } = limits;
  let chunks = 0;
  let bytes = 0;
  const checked = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      chunks += 1;
      bytes += chunk.length;
      if (chunks > freeChunks && bytes < chunks * minChunkBytes) done(tinyChunks(limits));
      else done(null, chunk);
    },
  });
  // A route may answer without reading the body.
  checked.on('error', () => {});
  body.on('error', (error) => checked.destroy(error));
  return body.pipe(checked);
}

function tinyChunks({ freeChunks, minChunkBytes }: BodyLimits): Problem {
  return new Problem('bad_request', {
    detail: `The body comes in chunks that are too small: after ${freeChunks} chunks the average must be ${minChunkBytes} bytes. Send larger chunks, or send the header \`Content-Length\`.`,
    headers: { connection: 'close' },
  });
}
