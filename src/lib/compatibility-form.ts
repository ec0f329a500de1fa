/**
 * NFKC in linear time. `normalize` sorts each run of combining marks, in quadratic time: 100,000 of them take 12 seconds, and a
 * stranger chooses how many a message has. In pieces, only marks at the end of a piece can stay unsorted, and no word is so long.
 */
const pieces = /\S{1,256}/gu;

export function toCompatibilityForm(text: string): string {
  return text.replace(pieces, (piece) => piece.normalize('NFKC'));
}
