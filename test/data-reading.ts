/** Shared by the tests of SMTP data: cuts a wire into chunks and reads them. */
import { tmpdir } from 'node:os';
import { DataReader, type MessageRoom } from '../src/smtp/data.ts';
import { Budget, openSpoolFile } from '../src/smtp/spool.ts';

/** Cuts into chunks of these lengths, repeated. */
export function split(bytes: Buffer, lengths: number[]): Buffer[] {
  const pieces: Buffer[] = [];
  let at = 0;
  for (let n = 0; at < bytes.length; n += 1) {
    const length = Math.max(1, lengths[n % lengths.length] ?? bytes.length);
    pieces.push(bytes.subarray(at, at + length));
    at += length;
  }
  return pieces;
}

/** Room in memory and in files, with what is in use. */
export function makeRoom(limits: Partial<Pick<MessageRoom, 'maxBytes' | 'inMemoryBytes'>> = {}) {
  const memory = new Budget(10_000_000);
  const disk = new Budget(100_000_000);
  const open = () => openSpoolFile(tmpdir());
  return {
    ...{ maxBytes: 1_000_000, inMemoryBytes: 2_000_000, ...limits },
    memory,
    disk: Object.assign(disk, { open }),
  };
}

export async function read(pieces: Buffer[], limits: Parameters<typeof makeRoom>[0] = {}) {
  const room = makeRoom(limits);
  const reader = new DataReader(room);
  for (const [index, piece] of pieces.entries()) {
    const rest = reader.push(piece);
    if (rest === null) {
      if (reader.mustSpill) await reader.spill();
      continue;
    }
    const after = Buffer.concat([rest, ...pieces.slice(index + 1)]);
    return { raw: reader.isRefused ? null : await reader.load(), after, reader, room };
  }
  return { raw: null, after: null, reader, room };
}

/** On the wire every message ends with a line end. */
export function withLineEnd(raw: Buffer): Buffer {
  return raw.length === 0 || raw.toString('latin1').endsWith('\r\n')
    ? raw
    : Buffer.concat([raw, Buffer.from('\r\n')]);
}
