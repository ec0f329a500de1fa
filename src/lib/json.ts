/** Strict JSON: refuses what `JSON.parse` would silently change, and what is nested too deep to store. */

/** PostgreSQL and `JSON.stringify` recurse; both run out of stack at some thousands of levels. */
export const maxDepth = 100;

/** Perhaps half of a surrogate pair, or a number with more digits than a double keeps. */
const suspicious = /\\u[dD][89a-fA-F]|\d[eE]|[\d.]{16}/;

/** Throws a SyntaxError that says what is wrong. `maxValues`: a document with about more values is a RangeError. */
export function parseJson(text: string, maxValues = Number.POSITIVE_INFINITY): unknown {
  const { depth, values, keys } = measureJson(text, maxValues);
  if (depth > maxDepth) throw new SyntaxError(`The document is nested deeper than ${maxDepth} levels`);
  if (values > maxValues) throw new RangeError(`The document has more than ${maxValues} values`);
  const parsed: unknown = suspicious.test(text) ? parseWithSource(text, refuseChanged) : JSON.parse(text);
  // `JSON.parse` keeps the last of two values with the same key.
  if (countKeys(parsed) !== keys) throw new SyntaxError('An object has the same key twice');
  return parsed;
}

type Reviver = (key: string, value: unknown, context: { source?: string }) => unknown;
/** TypeScript does not know the third argument of the reviver yet: the text of a number. */
const parseWithSource = JSON.parse as (text: string, reviver: Reviver) => unknown;

function countKeys(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0;
  const own = Array.isArray(value) ? 0 : Object.keys(value).length;
  return Object.values(value).reduce((sum: number, one) => sum + countKeys(one), own);
}

const codeOf = (character: string) => character.charCodeAt(0);
const [quote, backslash, comma, colon] = ['"', '\\', ',', ':'].map(codeOf);
const opening = ['[', '{'].map(codeOf);
const closing = [']', '}'].map(codeOf);

/** Without memory, unlike parsing. Stops where the document is too deep or has more values. */
export function measureJson(
  text: string,
  maxValues: number,
): { depth: number; values: number; keys: number } {
  let depth = 0;
  let values = 0;
  let keys = 0;
  for (let i = 0; i < text.length && depth <= maxDepth && values <= maxValues; i++) {
    const code = text.charCodeAt(i);
    if (code === quote) i = findStringEnd(text, i + 1);
    else if (code === comma) values += 1;
    else if (code === colon) keys += 1;
    else if (opening.includes(code)) {
      depth += 1;
      values += 1;
    } else if (closing.includes(code)) depth -= 1;
  }
  return { depth, values, keys };
}

/** The next quote with an even number of backslashes before it. */
function findStringEnd(text: string, start: number): number {
  for (let end = text.indexOf('"', start); end !== -1; end = text.indexOf('"', end + 1)) {
    let first = end;
    while (first > start && text.charCodeAt(first - 1) === backslash) first -= 1;
    if ((end - first) % 2 === 0) return end;
  }
  return text.length;
}

function refuseChanged(key: string, value: unknown, { source }: { source?: string }): unknown {
  // Half of a pair has no UTF-8 form: another string would be stored.
  if (!key.isWellFormed() || (typeof value === 'string' && !value.isWellFormed())) {
    throw new SyntaxError('A string contains half of a surrogate pair (\\ud800 to \\udfff)');
  }
  // `JSON.stringify` would write null.
  if (value === Number.POSITIVE_INFINITY || value === Number.NEGATIVE_INFINITY) {
    throw new SyntaxError('A number is too large for a double');
  }
  if (typeof value === 'number' && isChanged(value, source ?? '')) {
    throw new SyntaxError('A number has more digits than a double keeps: send it as a string');
  }
  return value;
}

/** 17 digits tell any double. So a fraction with as many may be a double that a program wrote with all its digits, and is not. */
const digitsOfDouble = 17;

function isChanged(value: number, source: string): boolean {
  const given = digitsOf(source);
  if (given === digitsOf(String(value))) return false;
  const isInteger = /^-?\d+$/.test(source);
  return isInteger || given.length > digitsOfDouble || value === 0;
}

/** Significant digits: without sign, point, exponent, and zeros at both ends. */
function digitsOf(number: string): string {
  const digits = number.replace(/e.*/i, '').replace(/[-.]/g, '');
  // Not with /0+$/: that takes quadratic time, 8 s for a number of 60,000 digits.
  let end = digits.length;
  while (digits[end - 1] === '0') end -= 1;
  return digits.slice(0, end).replace(/^0+/, '');
}
