/**
 * SQL as template literals: sql`select … where id = ${id}`. A value becomes a parameter, a fragment becomes part of the text.
 * No I/O here: `client.ts` runs what this file writes.
 */
import { createHash } from 'node:crypto';

export type Value = string | number | bigint | boolean | null | Date | Uint8Array | readonly Value[];

export class Fragment {
  readonly strings: readonly string[];
  readonly values: readonly (Value | Fragment)[];

  constructor(strings: readonly string[], values: readonly (Value | Fragment)[]) {
    this.strings = strings;
    this.values = values;
  }
}

export interface Statement {
  /** The same for the same text: each connection prepares a text once. */
  name: string;
  text: string;
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

function quote(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}

interface Text {
  name: string;
  text: string;
}

/** Texts of templates that hold no fragment: they are written once. */
const written = new WeakMap<readonly string[], Text>();
/** The program has a bounded number of texts, so nothing is ever removed. */
const names = new Map<string, Text>();

export function writeStatement(fragment: Fragment): Statement {
  if (fragment.values.some((value) => value instanceof Fragment)) {
    const values: Value[] = [];
    return { ...nameText(writeText(fragment, values)), values };
  }
  const values = fragment.values as Value[];
  if (values.includes(undefined as never)) throw missingValue(fragment);
  const known = written.get(fragment.strings) ?? writeOnce(fragment);
  return { name: known.name, text: known.text, values };
}

function writeOnce(fragment: Fragment): Text {
  const text = nameText(writeText(fragment, []));
  written.set(fragment.strings, text);
  return text;
}

/** Adds its values to `values`; the place of a value there is its number in the text. */
function writeText(fragment: Fragment, values: Value[]): string {
  const { strings } = fragment;
  let text = strings[0] ?? '';
  for (const [n, value] of fragment.values.entries()) {
    if (value === undefined) throw missingValue(fragment);
    text += value instanceof Fragment ? writeText(value, values) : `$${values.push(value)}`;
    text += strings[n + 1] ?? '';
  }
  return text;
}

function nameText(text: string): Text {
  let known = names.get(text);
  if (!known) {
    // PostgreSQL cuts names at 63 characters.
    known = { name: createHash('sha256').update(text).digest('base64url'), text };
    names.set(text, known);
  }
  return known;
}

function missingValue({ strings }: Fragment): Error {
  return new TypeError(`A parameter is undefined in: ${strings.join('?')}`);
}
