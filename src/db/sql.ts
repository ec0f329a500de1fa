/**
 * SQL as template literals: sql`select … where id = ${id}`. A value becomes a parameter, a fragment becomes part of the text.
 * No I/O here: `connection.ts` runs the statements.
 */
import { createHash } from 'node:crypto';

export type Value = string | number | bigint | boolean | null | Date | Uint8Array | readonly Value[];

export class Fragment {
  readonly strings: readonly string[];
  readonly values: readonly (Value | Fragment)[];

  constructor(strings: readonly string[], values: readonly (Value | Fragment)[]) {
    if (values.includes(undefined as never))
      throw new TypeError(`A parameter is undefined in: ${strings.join('?')}`);
    this.strings = strings;
    this.values = values;
  }
}

interface NamedText {
  /** Equal for equal texts: each connection prepares a text once. */
  name: string;
  text: string;
}

export interface Statement extends NamedText {
  values: Value[];
}

/** A table, column or database. */
export function identifier(name: string): Fragment {
  return new Fragment([quote(name)], []);
}

/** `a = $1, b = $2`, for UPDATE … SET. */
export function assignments(columns: Record<string, Value | Fragment>): Fragment {
  const names = Object.keys(columns).map((name, n) => `${n === 0 ? '' : ', '}${quote(name)} = `);
  return new Fragment([...names, ''], Object.values(columns));
}

/** The fragments with commas between them. */
export function list(fragments: readonly Fragment[]): Fragment {
  const commas = fragments.slice(1).map(() => ', ');
  return new Fragment(['', ...commas, ''], fragments);
}

function quote(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}

/** A text of 2 KB without fragments takes 0.1 µs with this cache, and 3 µs without. */
const plainTexts = new WeakMap<readonly string[], NamedText>();
/** Never cleared: the number of texts in the program is bounded. */
const namedTexts = new Map<string, NamedText>();

export function writeStatement(fragment: Fragment): Statement {
  const isPlain = !fragment.values.some((value) => value instanceof Fragment);
  const known = isPlain && plainTexts.get(fragment.strings);
  if (known) return { ...known, values: fragment.values as Value[] };
  const values: Value[] = [];
  const named = nameText(writeText(fragment, values));
  if (isPlain) plainTexts.set(fragment.strings, named);
  return { ...named, values };
}

/** Appends the values of the fragment to `values`; the position of a value there is its number in the text. */
function writeText(fragment: Fragment, values: Value[]): string {
  const { strings } = fragment;
  let text = strings[0] ?? '';
  for (const [n, value] of fragment.values.entries()) {
    text += value instanceof Fragment ? writeText(value, values) : `$${values.push(value)}`;
    text += strings[n + 1] ?? '';
  }
  return text;
}

function nameText(text: string): NamedText {
  let named = namedTexts.get(text);
  if (!named) {
    // A hash: PostgreSQL truncates names to 63 characters.
    named = { name: createHash('sha256').update(text).digest('base64url'), text };
    namedTexts.set(text, named);
  }
  return named;
}
