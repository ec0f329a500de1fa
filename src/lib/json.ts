/** Strict JSON: refuses what `JSON.parse` would silently change, and what is nested too deep to store. */

/** PostgreSQL and `JSON.stringify` recurse; both run out of stack at some thousands of levels. */
const maxDepth = 100;

/** Perhaps half of a surrogate pair, or a number that is too large. */
const suspicious = /\\u[dD][89a-fA-F]|\d[eE]\+?\d\d|\d{300}/;

/** Throws a SyntaxError that says what is wrong. `maxValues`: a document with about more values is a RangeError. */
export function parseJson(text: string, maxValues = Number.POSITIVE_INFINITY): unknown {
  const { depth, values } = measure(text);
  if (depth > maxDepth) throw new SyntaxError(`The document is nested deeper than ${maxDepth} levels`);
  if (values > maxValues) throw new RangeError(`The document has more than ${maxValues} values`);
  return suspicious.test(text) ? JSON.parse(text, refuseChanged) : JSON.parse(text);
}

/** Stops where the document is too deep. */
function measure(text: string): { depth: number; values: number } {
  let depth = 0;
  let values = 0;
  let quoted = false;
  for (let i = 0; i < text.length; i++) {
    const character = text[i];
    if (character === '"') quoted = !quoted;
    else if (quoted) i += character === '\\' ? 1 : 0;
    else if (character === '[' || character === '{') {
      depth += 1;
      values += 1;
    } else if (character === ']' || character === '}') depth -= 1;
    else if (character === ',') values += 1;
    if (depth > maxDepth) break;
  }
  return { depth, values };
}

function refuseChanged(key: string, value: unknown): unknown {
  // Half of a pair has no UTF-8 form: another string would be stored.
  if (!key.isWellFormed() || (typeof value === 'string' && !value.isWellFormed())) {
    throw new SyntaxError('A string contains half of a surrogate pair (\\ud800 to \\udfff)');
  }
  // `JSON.stringify` would write null.
  if (value === Number.POSITIVE_INFINITY || value === Number.NEGATIVE_INFINITY) {
    throw new SyntaxError('A number is too large for a double');
  }
  return value;
}
