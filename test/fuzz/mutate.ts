/** Damages bytes at random: flips bits, removes, doubles and moves pieces, inserts tokens and pieces of other inputs. */
import type { Random } from './random.ts';

/** Changes `bytes` a few times, with tokens of the `dictionary` and pieces of `others`. No longer than `most`. */
export function mutate(
  random: Random,
  bytes: Buffer,
  { dictionary, others, most }: { dictionary: readonly string[]; others: readonly Buffer[]; most: number },
): Buffer {
  let changed = bytes;
  for (let left = 1 + random.size(16); left > 0; left--) {
    const at = random.below(changed.length + 1);
    const length = random.size(Math.max(2, changed.length - at));
    const [head, piece, tail] = [
      changed.subarray(0, at),
      changed.subarray(at, at + length),
      changed.subarray(at + length),
    ];
    const token = Buffer.from(random.pick(dictionary), 'latin1');
    const change = random.pick<() => Buffer[]>([
      () => [head, flipBit(random, piece), tail],
      () => [head, flipBit(random, piece), tail],
      () => [head, token, piece, tail],
      () => [head, token, piece, tail],
      () => [head, token, piece, tail],
      () => [head, token, tail],
      () => [head, tail],
      () => [head, piece, piece, tail],
      () => [piece, head, tail],
      () => [head, random.bytes(random.size(20)), tail],
      () => [head, takePiece(random, random.pick(others)), tail],
      () => [head, takePiece(random, random.pick(others)), piece, tail],
      () => (random.chance(0.2) ? [head] : [head, piece, tail]),
      () => (random.chance(0.1) ? [head, repeat(random, token, most), tail] : [head, token, piece, tail]),
      () => (random.chance(0.1) ? [head, repeat(random, piece, most), tail] : [head, piece, tail]),
    ]);
    changed = Buffer.concat(change()).subarray(0, most);
  }
  return changed;
}

function flipBit(random: Random, piece: Buffer): Buffer {
  const flipped = Buffer.from(piece);
  const at = random.below(piece.length);
  if (piece.length > 0) flipped[at] = (piece[at] ?? 0) ^ (1 << random.below(8));
  return flipped;
}

function takePiece(random: Random, from: Buffer): Buffer {
  const start = random.below(from.length + 1);
  return from.subarray(start, start + random.size(from.length + 1 - start + 1));
}

/** What is cheap once may be dear a thousand times. */
function repeat(random: Random, piece: Buffer, most: number): Buffer {
  if (piece.length === 0) return piece;
  return Buffer.alloc(Math.min(random.size(most + 2) + 1, most), piece);
}
