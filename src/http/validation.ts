/**
 * Validates requests against their schemas and reports every error at once, in words for the author of the request.
 * Values are never coerced, dropped or filled in. The one exception: integers in a query, which arrive as text.
 */
import { Ajv, type ErrorObject, type ValidateFunction } from 'ajv';
import type { FastifyRequest, FastifySchemaCompiler } from 'fastify';
import type { Sql } from '../db/client.ts';
import { cutGiven } from '../lib/cut-given.ts';
import { isUuid } from '../lib/ids.ts';
import { parseJson } from '../lib/json.ts';
import { suggest } from '../lib/suggest.ts';
import { readAddressOrDomain } from '../net/address-or-domain.ts';
import { type FieldError, type Pointer, Problem } from '../problems.ts';
import { isOwned, type ReferencedTable } from '../store/references.ts';
import { findUrlFault, type UrlRules } from '../webhooks/url.ts';
import { readCursor } from './pagination.ts';

/** Null for a valid value; otherwise the rest of the sentence that begins with the name of the field. */
type FormatCheck = (text: string) => string | null;

function makeFormats(options: UrlRules): Record<string, FormatCheck> {
  return {
    uuid: (text) => (isUuid(text) ? null : 'must be a UUID.'),
    'uuid-list': (text) =>
      isUuidList(text) ? null : `must be up to ${maxListedIds} UUIDs, separated by commas.`,
    text: (text) => (text.includes('\0') ? 'must not contain NUL characters (U+0000).' : null),
    'date-time': (text) =>
      isTimestamp(text) ? null : 'must be a time in RFC 3339 format, such as 2026-01-31T12:00:00Z.',
    'json-object': (text) =>
      isJsonObject(text) ? null : 'must be a JSON object, or a string with the JSON text of an object.',
    'webhook-url': (text) => findUrlFault(text, options),
    'identity-value': (text) => {
      const read = readAddressOrDomain(text);
      return 'fault' in read ? `is not an email address or a domain. ${read.fault}` : null;
    },
    'email-address': (text) => {
      const read = readAddressOrDomain(text);
      const isEmail = !('fault' in read) && read.kind === 'email';
      return isEmail ? null : 'must be an email address, such as ada@example.com.';
    },
    line: (text) =>
      // biome-ignore lint/suspicious/noControlCharactersInRegex: the expression finds control characters.
      /[\u0000-\u001f\u007f]/.test(text) ? 'must not contain control characters or line breaks.' : null,
    cursor: (text) =>
      readCursor(text)
        ? null
        : 'is not a valid cursor. Use the URL in the `Link` header of the previous page.',
  };
}

const maxListedIds = 50;

function isUuidList(text: string): boolean {
  const ids = text.split(',');
  return ids.length <= maxListedIds && ids.every(isUuid);
}

export interface Validation {
  compiler: FastifySchemaCompiler<Record<string, unknown>>;
  /** Throws 404 for a malformed id in the path. At most `maxErrors` are described; `more`: how many others there are. */
  findFieldErrors(request: FastifyRequest): { errors: FieldError[]; more: number };
}

export function makeValidation(options: UrlRules): Validation {
  const formats = makeFormats(options);
  const settings = {
    allErrors: true,
    verbose: true,
    allowUnionTypes: true,
    strictTypes: false,
    formats: Object.fromEntries(
      Object.entries(formats).map(([name, check]) => [name, (text: string) => check(text) === null]),
    ),
  };
  const ajv = new Ajv(settings).addVocabulary(['x-read-only', 'documentedAs']);
  for (const [keyword, isAllowed] of Object.entries(choices))
    ajv.addKeyword({
      ...{ keyword, type: 'object', schemaType: 'array' },
      validate: (fields: string[], given: object) => isAllowed(countGiven(fields, given)),
    });

  return {
    compiler: ({ schema, httpPart }) => {
      const validate = compileLater(() => ajv.compile(schema));
      return httpPart === 'querystring' ? parseIntegersFirst(schema, validate) : validate;
    },
    findFieldErrors(request) {
      const error = request.validationError;
      if (!error) return { errors: [], more: 0 };
      if (error.validationContext === 'params') throw new Problem('not_found');
      const noun = error.validationContext === 'querystring' ? 'query parameter' : 'field';
      const all = error.validation as unknown as ErrorObject[];
      // Not all: to find a word that a misspelt name is near to takes 60 µs, and a body can have 10,000 unknown names.
      const errors = all.slice(0, maxErrors).map((found) => toFieldError(found, formats, noun));
      return { errors, more: all.length - errors.length };
    },
  };
}

/** At the first request: to compile all schemas at the start would take a quarter of it, and a process uses few of them. */
function compileLater(compile: () => ValidateFunction): ValidateFunction {
  let compiled: ValidateFunction | undefined;
  const validate = (data: unknown) => {
    compiled ??= compile();
    const isValid = compiled(data);
    later.errors = compiled.errors ?? null;
    return isValid;
  };
  const later = validate as unknown as ValidateFunction;
  return later;
}

/** Decimal integers only. The coercion of ajv would also accept `0x10` and, beyond any maximum, `1e999`. */
function parseIntegersFirst(schema: Record<string, unknown>, validate: ValidateFunction): ValidateFunction {
  const properties = Object.entries((schema.properties ?? {}) as Record<string, { type?: unknown }>);
  const integers = properties.filter(([, { type }]) => type === 'integer').map(([name]) => name);
  const parseAndValidate = (query: Record<string, unknown>) => {
    for (const name of integers) {
      const text = query[name];
      if (typeof text === 'string' && /^-?\d{1,15}$/.test(text)) query[name] = Number(text);
    }
    const isValid = validate(query);
    wrapped.errors = validate.errors ?? null;
    return isValid;
  };
  const wrapped = Object.assign(parseAndValidate, validate) as ValidateFunction;
  return wrapped;
}

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Fields of the body that contain an id, and the table in which the owner must have a row with that id. */
    references?: Record<string, ReferencedTable>;
    /** Checks of the body that a schema cannot express. The body may be invalid by its schema as well. */
    findFieldErrors?: (
      body: Record<string, unknown>,
      request: FastifyRequest,
    ) => FieldError[] | Promise<FieldError[]>;
  }
}

const referenceNouns: Record<ReferencedTable, string> = {
  identities: 'identity',
  providers: 'provider',
  smtp_accounts: 'SMTP account',
};

/** Where to find the id that is missing or is no id. */
const referenceHints: Partial<Record<ReferencedTable, string>> = {
  identities: 'Take the `id` from GET /identities.',
};

/**
 * Throws one problem with the errors of the schema, of the route's own check and of references to rows that the owner does
 * not have. Returns no promise when no query is needed: this runs for every request.
 */
export function refuseInvalid(
  request: FastifyRequest,
  validation: Validation,
  sql: Sql,
): Promise<void> | undefined {
  const { references, findFieldErrors } = request.routeOptions.config;
  const body = (Buffer.isBuffer(request.body) ? {} : (request.body ?? {})) as Record<string, unknown>;
  // A body that is not JSON has no fields: its route reads it.
  const own = Buffer.isBuffer(request.body)
    ? undefined
    : request.routeOptions.schema?.body
      ? findFieldErrors?.(body, request)
      : refuseEveryField(body);
  const referencing = Object.entries(references ?? {}).filter(([field]) => typeof body[field] === 'string');
  const hasOwn = own !== undefined && (!Array.isArray(own) || own.length > 0);
  if (!request.validationError && !hasOwn && referencing.length === 0) return undefined;

  return (async () => {
    const found = validation.findFieldErrors(request);
    const errors = [
      ...found.errors.map((error) => addReferenceHint(error, references)),
      ...((await own) ?? []),
    ];
    for (const [field, table] of referencing) {
      const id = String(body[field]);
      if (!isUuid(id) || (await isOwned(sql, request.ownerId, table, id))) continue;
      const message = `No ${referenceNouns[table]} with the id "${id}".`;
      errors.push({ pointer: `/${field}`, code: 'unknown_reference', message });
    }
    if (errors.length === 0) return;
    const inQuery = request.validationError?.validationContext === 'querystring';
    throw new Problem(inQuery ? 'invalid_query' : 'invalid_body', { errors: cutErrors(errors, found.more) });
  })();
}

/** An answer must not be many times as long as the request. */
const maxErrors = 100;

function cutErrors(errors: readonly FieldError[], notDescribed: number): FieldError[] {
  const more = Math.max(0, errors.length - maxErrors) + notDescribed;
  if (more === 0) return [...errors];
  const message = `There are ${more} more errors. Fix these first.`;
  return [...errors.slice(0, maxErrors), { pointer: '', code: 'more_errors', message }];
}

function addReferenceHint(error: FieldError, references: Record<string, ReferencedTable> = {}): FieldError {
  const table = references[error.pointer.slice(1)];
  const hint = table && referenceHints[table];
  return hint ? { ...error, message: `${error.message} ${hint}` } : error;
}

/** For a route without a body: it would otherwise ignore the fields without a word. */
function refuseEveryField(body: Record<string, unknown>): FieldError[] {
  return Object.keys(body).map((field) => ({
    pointer: child('', field),
    code: 'unknown_field',
    message: `Unknown field "${cutGiven(field)}": this route takes no body. Send the request without a body.`,
  }));
}

function toFieldError(error: ErrorObject, formats: Record<string, FormatCheck>, noun: string): FieldError {
  const { params } = error;
  const pointer = error.instancePath.split('/').map(cutGiven).join('/') as Pointer;
  const name = pointer === '' ? 'The body' : `"${pointer.slice(1)}"`;
  const fieldError = (code: string, rest: string): FieldError => ({
    pointer,
    code,
    message: `${name} ${rest}`,
  });

  switch (error.keyword) {
    case 'required': {
      const missing = params.missingProperty;
      return { pointer: child(pointer, missing), code: 'required', message: `"${missing}" is required.` };
    }
    case 'additionalProperties':
      return describeUnknownField(error, pointer, noun);
    case 'type':
      return fieldError('wrong_type', `must be ${listTypes(params.type)}.`);
    case 'format':
      return fieldError('invalid_value', formats[params.format]?.(String(error.data)) ?? 'is not valid.');
    case 'enum':
      return fieldError('unknown_value', describeUnknownValue(error.data, params.allowedValues));
    case 'maxLength':
      return fieldError('too_long', `must have at most ${params.limit} characters.`);
    case 'minLength':
    case 'minItems':
      return fieldError('too_short', 'must not be empty.');
    case 'maxItems':
      return fieldError('too_long', `must have at most ${params.limit} items.`);
    case 'uniqueItems':
      return fieldError('repeated', 'must not contain the same item twice.');
    case 'minimum':
      return fieldError('out_of_range', `must be at least ${params.limit}.`);
    case 'maximum':
      return fieldError('out_of_range', `must be at most ${params.limit}.`);
    case 'exactlyOneOf':
    case 'atMostOneOf':
      return describeChoice(pointer, error.schema as string[], error.data as object);
    default:
      return fieldError('invalid_value', `${error.message}.`);
  }
}

/** The keywords of contract/forms.ts: how many of the fields an object may have. */
const choices = {
  exactlyOneOf: (count: number) => count === 1,
  atMostOneOf: (count: number) => count <= 1,
};

function countGiven(fields: readonly string[], given: object): number {
  return fields.filter((field) => Object.hasOwn(given, field)).length;
}

function describeChoice(pointer: Pointer, fields: string[], given: object): FieldError {
  const names = fields.map((field) => `"${field}"`).join(' or ');
  if (countGiven(fields, given) === 0)
    return { pointer: child(pointer, fields[0] ?? ''), code: 'required', message: `Give ${names}.` };
  const last = fields.findLast((field) => Object.hasOwn(given, field)) ?? '';
  return { pointer: child(pointer, last), code: 'mismatch', message: `Give ${names}, not both.` };
}

function describeUnknownField(error: ErrorObject, parent: Pointer, noun: string): FieldError {
  const field: string = error.params.additionalProperty;
  const schema = error.parentSchema as { properties?: object; 'x-read-only'?: string[] };
  const pointer = child(parent, field);
  if (schema['x-read-only']?.includes(field)) {
    const message = `"${field}" is read-only. Remove it from the body.`;
    return { pointer, code: 'read_only', message };
  }
  const known = Object.keys(schema.properties ?? {});
  const near = suggest(field, known);
  const others = known.length > 0 ? `Known: ${known.join(', ')}.` : 'This request takes none.';
  const hint = near ? `Did you mean "${near}"?` : others;
  return { pointer, code: 'unknown_field', message: `Unknown ${noun} "${cutGiven(field)}". ${hint}` };
}

function describeUnknownValue(given: unknown, allowed: string[]): string {
  const near = typeof given === 'string' ? suggest(given, allowed) : undefined;
  return `must be one of ${allowed.join(', ')}.${near ? ` Did you mean ${near}?` : ''}`;
}

function listTypes(types: string | string[]): string {
  const article = (type: string) =>
    type === 'null' ? type : `${/^[aeiou]/.test(type) ? 'an' : 'a'} ${type}`;
  return [types].flat().map(article).join(' or ');
}

function child(pointer: string, key: string): Pointer {
  return `${pointer}/${cutGiven(key).replaceAll('~', '~0').replaceAll('/', '~1')}` as Pointer;
}

function isJsonObject(text: string): boolean {
  try {
    const value = parseJson(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value);
  } catch {
    return false;
  }
}

const timestampForm = /^\d{4}-(\d\d)-(\d\d)T\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$/i;

const firstInstant = Date.parse('0001-01-01T00:00:00Z');
const lastInstant = Date.parse('9999-12-31T23:59:59.999Z');

function isTimestamp(text: string): boolean {
  const form = timestampForm.exec(text);
  const instant = Date.parse(text);
  // An offset can move the time out of the years 1 to 9999.
  if (!form || !(instant >= firstInstant && instant <= lastInstant)) return false;
  // PostgreSQL accepts offsets below 16 hours only.
  if (Number(/[+-](\d\d):\d\d$/.exec(text)?.[1] ?? 0) > 15) return false;
  // Date.parse reads 31 February as 3 March.
  const daysInMonth = new Date(Date.UTC(Number(text.slice(0, 4)), Number(form[1]), 0)).getUTCDate();
  return Number(form[2]) <= daysInMonth;
}
