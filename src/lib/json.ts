/**
 * Strict JSON: refuses what `JSON.parse` would silently change, what is nested too deep to store, and what is mostly blanks.
 * Guarantee: linear time.
 */

/** PostgreSQL and `JSON.stringify` recurse; both run out of stack at some thousands of levels. */
const maxDepth = 100;
/** Outside of strings. `JSON.parse` needs eight times as long for blanks as for text. */
const maxBlanks = 64 * 1024;

/** Perhaps half of a surrogate pair, or a number with more digits than a double keeps. */
const suspicious = /\\u[dD][89a-fA-F]|\d[eE]|[\d.]{16}/;

/** Throws a SyntaxError that says what is wrong. `maxValues`: a document with about more values is a RangeError. */
export function parseJson(text: string, maxValues = Number.POSITIVE_INFINITY): unknown {
  return parseMeasured(text, measureJson(Buffer.from(text), { maxValues, maxBlanks }));
}

function parseMeasured(text: string, keys: number): unknown {
  const parsed: unknown = suspicious.test(text) ? parseWithSource(text, refuseChanged) : JSON.parse(text);
  // `JSON.parse` keeps the last of two values with the same key.
  if (countKeys(parsed) !== keys) throw new SyntaxError('An object has the same key twice');
  return parsed;
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

export type JsonFault = { kind: 'too_many_values' | 'invalid_json'; message: string };

/** `parseJson` of bytes. A fault is a value, because errors lose their class on the way from a worker thread. */
export function readJson(
  bytes: Uint8Array,
  maxValues = Number.POSITIVE_INFINITY,
): { value: unknown } | { fault: JsonFault } {
  try {
    const keys = measureJson(asBuffer(bytes), { maxValues, maxBlanks });
    return { value: parseMeasured(utf8.decode(bytes), keys) };
  } catch (error) {
    if (error instanceof RangeError) return { fault: { kind: 'too_many_values', message: error.message } };
    const message = error instanceof SyntaxError ? error.message : 'The body is not valid UTF-8';
    return { fault: { kind: 'invalid_json', message } };
  }
}

type Reviver = (key: string, value: unknown, context: { source?: string }) => unknown;
/** TypeScript does not know the third argument of the reviver yet: the text of a number. */
const parseWithSource = JSON.parse as (text: string, reviver: Reviver) => unknown;

function countKeys(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0;
  const own = Array.isArray(value) ? 0 : Object.keys(value).length;
  return Object.values(value).reduce((sum: number, one) => sum + countKeys(one), own);
}

const [quote, backslash, comma, colon] = [0x22, 0x5c, 0x2c, 0x3a];
const [openBracket, closeBracket, openBrace, closeBrace] = [0x5b, 0x5d, 0x7b, 0x7d];
const [space, tab, lineFeed, carriageReturn] = [0x20, 0x09, 0x0a, 0x0d];

/**
 * Of JSON in UTF-8, where the characters that count are one byte each. Throws before memory is needed for the text and its values.
 * Returns how many keys all objects have together.
 */
export function measureJson(
  text: Buffer,
  { maxValues, maxBlanks = Number.POSITIVE_INFINITY }: { maxValues: number; maxBlanks?: number },
): number {
  let depth = 0;
  let values = 0;
  let keys = 0;
  let blanks = 0;
  for (let i = 0; i < text.length; i++) {
    switch (text[i]) {
      case quote:
        i = findStringEnd(text, i + 1);
        break;
      case space:
      case tab:
      case lineFeed:
      case carriageReturn:
        blanks += 1;
        if (blanks > maxBlanks)
          throw new SyntaxError(`The document has more than ${maxBlanks} blanks outside of strings`);
        break;
      case colon:
        keys += 1;
        break;
      case openBracket:
      case openBrace:
        depth += 1;
        values += 1;
        break;
      case closeBracket:
      case closeBrace:
        depth -= 1;
        break;
      case comma:
        values += 1;
        break;
    }
    if (depth > maxDepth) throw new SyntaxError(`The document is nested deeper than ${maxDepth} levels`);
    if (values > maxValues) throw new RangeError(`The document has more than ${maxValues} values`);
  }
  return keys;
}

/** The next quote with an even number of backslashes before it. */
function findStringEnd(text: Buffer, start: number): number {
  for (let end = text.indexOf(quote, start); end !== -1; end = text.indexOf(quote, end + 1)) {
    let first = end;
    while (first > start && text[first - 1] === backslash) first -= 1;
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

function asBuffer({ buffer, byteOffset, byteLength }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}
