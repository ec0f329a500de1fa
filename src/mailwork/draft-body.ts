/**
 * The JSON body of `POST /messages`: what a schema cannot check, and a body that is too large for the event loop. Of a large body
 * only the small fields leave the worker thread; its texts and attachments are read again from the bytes when the message is composed.
 */
import { createHash } from 'node:crypto';
import { cutGiven } from '../lib/cut-given.ts';
import { type JsonFault, readJson } from '../lib/json.ts';
import { type Draft, readDraft } from '../mime/draft.ts';
import type { FieldError } from '../problems.ts';

/** Far above what 50 recipients, 100 attachments and 100 headers need. */
export const maxJsonValues = 10_000;
/** All small fields at their limits have less, as JSON. */
const maxFieldsLength = 256 * 1024;
const maxSendAheadMs = 30 * 86_400_000;
const maxMetadataBytes = 2048;

/** Everything that a schema cannot say. */
export function findDraftErrors(given: Readonly<Record<string, unknown>>): FieldError[] {
  const { errors } = readDraft(given);
  const { sendAt, metadata } = given;
  const at = typeof sendAt === 'string' ? Date.parse(sendAt) : Number.NaN;
  if (at > Date.now() + maxSendAheadMs) {
    errors.push({ pointer: '/sendAt', code: 'too_late', message: '"sendAt" must be at most 30 days ahead.' });
  }
  const text = JSON.stringify(metadata ?? null);
  const size = metadata === undefined ? 0 : Buffer.byteLength(text);
  if (size > maxMetadataBytes) {
    const message = `"metadata" has ${size} bytes as JSON. The limit is ${maxMetadataBytes} bytes.`;
    errors.push({ pointer: '/metadata', code: 'too_long', message });
  }
  if (text.includes('\\u0000')) {
    const message = '"metadata" must not contain NUL characters (U+0000).';
    errors.push({ pointer: '/metadata', code: 'invalid_value', message });
  }
  return errors;
}

export type DraftBody =
  | { fault: JsonFault }
  | {
      /** The body, with an empty string for each text and each content of an attachment. */
      fields: unknown;
      /** Of `findDraftErrors`. */
      errors: FieldError[];
      /** Of the bytes. */
      hash: Uint8Array;
    };

export function readDraftBody(raw: Uint8Array): DraftBody {
  const read = readJson(raw, maxJsonValues);
  if ('fault' in read) return read;
  const { value } = read;
  const hash = createHash('sha256').update(raw).digest();
  if (!isObject(value)) return { fields: shrink(value), errors: [], hash };
  const errors = findDraftErrors(value);
  const fields = withoutTexts(value);
  if (JSON.stringify(fields).length <= maxFieldsLength) return { fields, errors, hash };
  // No valid body comes here, and what is cut away must not make it one.
  const message = `The body has more than ${maxFieldsLength} characters beside its texts and attachments.`;
  return { fields: shrink(fields), errors: [...errors, { pointer: '', code: 'too_long', message }], hash };
}

/** Of a body that `readDraftBody` found no fault in. */
export function readTexts(raw: Uint8Array): Pick<Draft, 'text' | 'html' | 'attachments'> {
  const read = readJson(raw, maxJsonValues);
  const { text, html, attachments } = readDraft(
    'value' in read && isObject(read.value) ? read.value : {},
  ).draft;
  return { text, html, attachments };
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function withoutTexts(given: Record<string, unknown>): Record<string, unknown> {
  const empty = (value: unknown) => (typeof value === 'string' ? '' : value);
  const change = ([name, value]: [string, unknown]): [string, unknown] => {
    if (name === 'text' || name === 'html') return [name, empty(value)];
    if (name !== 'attachments' || !Array.isArray(value)) return [name, value];
    return [
      name,
      value.map((one) => (isObject(one) && 'content' in one ? { ...one, content: empty(one.content) } : one)),
    ];
  };
  return Object.fromEntries(Object.entries(given).map(change));
}

/** Short enough to be told what is wrong with it, and as wrong as before by its schema. */
function shrink(value: unknown): unknown {
  if (typeof value === 'string') return cutGiven(value);
  if (Array.isArray(value)) return value.slice(0, 100).map(shrink);
  if (!isObject(value)) return value;
  const entries = Object.entries(value).slice(0, 100);
  return Object.fromEntries(entries.map(([name, inner]) => [cutGiven(name), shrink(inner)]));
}
