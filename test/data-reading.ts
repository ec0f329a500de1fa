/** Shared by the tests of SMTP data: cuts a wire into chunks and reads them. */
import { Budget, DataReader } from '../src/smtp/data.ts';

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

export function read(pieces: Buffer[], maxBytes = 1_000_000) {
  const budget = new Budget(10_000_000);
  const reader = new DataReader(maxBytes, budget);
  for (const [index, piece] of pieces.entries()) {
    const rest = reader.push(piece);
    if (rest === null) continue;
    const after = Buffer.concat([rest, ...pieces.slice(index + 1)]);
    return { raw: Buffer.from(reader.message()), after, reader, budget };
  }
  return { raw: null, after: null, reader, budget };
}

/** On the wire every message ends with a line end. */
export function withLineEnd(raw: Buffer): Buffer {
  return raw.length === 0 || raw.toString('latin1').endsWith('\r\n')
    ? raw
    : Buffer.concat([raw, Buffer.from('\r\n')]);
}
