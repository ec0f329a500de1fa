/** "Did you mean …?": finds the known word that is most similar to a mistyped one, in at most 64 × 64 steps per known word. */
const maxLength = 64;

export function suggest(given: string, known: readonly string[]): string | undefined {
  if (given.length > maxLength) return undefined;
  const near = known
    .filter((word) => word.length <= maxLength)
    .map((word) => ({ word, edits: countEdits(given.toLowerCase(), word.toLowerCase()) }))
    // With two edits a short word would match almost anything.
    .filter(({ word, edits }) => edits <= (Math.min(given.length, word.length) < 5 ? 1 : 2));
  return near.sort((one, other) => one.edits - other.edits)[0]?.word;
}

/** Damerau–Levenshtein distance (optimal string alignment): insert, delete, replace, or swap two neighbours. */
function countEdits(from: string, to: string): number {
  let beforeLast: number[] = [];
  let last = Array.from({ length: to.length + 1 }, (_, column) => column);
  for (let row = 1; row <= from.length; row++) {
    const current = [row];
    for (let column = 1; column <= to.length; column++) {
      const same = from[row - 1] === to[column - 1];
      const swapped = from[row - 1] === to[column - 2] && from[row - 2] === to[column - 1];
      current[column] = Math.min(
        at(last, column) + 1,
        at(current, column - 1) + 1,
        at(last, column - 1) + (same ? 0 : 1),
        swapped ? at(beforeLast, column - 2) + 1 : Number.POSITIVE_INFINITY,
      );
    }
    beforeLast = last;
    last = current;
  }
  return at(last, to.length);
}

function at(costs: readonly number[], column: number): number {
  return costs[column] ?? Number.POSITIVE_INFINITY;
}
