/**
 * Holds requests against their schemas and tells every fault at once, in words for the person who wrote the request.
 * Nothing is coerced, dropped or filled in; only query parameters, which are text by nature, are read as numbers.
 */
import { Ajv, type ErrorObject, type ValidateFunction } from 'ajv';
import type { FastifyRequest, FastifySchemaCompiler } from 'fastify';
import type { Sql } from '../db/client.ts';
import { isUuid } from '../lib/ids.ts';
import { parseJson } from '../lib/json.ts';
import { suggest } from '../lib/suggest.ts';
import { readAddressOrDomain } from '../net/address-or-domain.ts';
import { type Fault, Problem } from '../problems.ts';
import { isOwned, type ReferencedTable } from '../store/references.ts';
import { findUrlFault } from '../webhooks/url.ts';
import { readCursor } from './pagination.ts';

/** What a format refuses, as the end of the sentence "`/field` …"; null when nothing is wrong. */
type FindFault = (text: string) => string | null;

function makeFormats(options: { allowHttp: boolean }): Record<string, FindFault> {
  return {
    uuid: (text) => (isUuid(text) ? null : 'must be a UUID.'),
    text: (text) => (text.includes('\0') ? 'must not hold NUL characters.' : null),
    'date-time': (text) =>
      isTimestamp(text) ? null : 'must be a time such as 2026-01-31T12:00:00Z (RFC 3339).',
    'json-object': (text) => (isJsonObject(text) ? null : 'must be a JSON object, or the text of one.'),
    'webhook-url': (text) => findUrlFault(text, options),
    'identity-value': (text) => {
      const read = readAddressOrDomain(text);
      return 'fault' in read ? `is not an address or domain: ${read.fault}` : null;
    },
    'email-address': (text) => {
      const read = readAddressOrDomain(text);
      return 'fault' in read || read.kind !== 'email'
        ? 'must be an email address such as ada@example.com.'
        : null;
    },
    cursor: (text) =>
      readCursor(text) ? null : 'is not a cursor of this list; take it from the Link header.',
  };
}

export interface Validation {
  compiler: FastifySchemaCompiler<Record<string, unknown>>;
  /** Faults of what fastify found invalid; a malformed id in the path is thrown as 404. */
  findFaults(request: FastifyRequest): Fault[];
}

export function makeValidation(options: { allowHttp: boolean }): Validation {
  const formats = makeFormats(options);
  const settings = {
    allErrors: true,
    verbose: true,
    allowUnionTypes: true,
    strictTypes: false,
    formats: Object.fromEntries(
      Object.entries(formats).map(([name, find]) => [name, (text: string) => find(text) === null]),
    ),
  };
  const ajv = new Ajv(settings).addVocabulary(['x-read-only']);

  return {
    compiler: ({ schema, httpPart }) => {
      const validate = ajv.compile(schema);
      return httpPart === 'querystring' ? readNumbersFirst(schema, validate) : validate;
    },
    findFaults(request) {
      const error = request.validationError;
      if (!error) return [];
      if (error.validationContext === 'params') throw new Problem('not_found');
      return (error.validation as unknown as ErrorObject[]).flatMap((found) => toFault(found, formats) ?? []);
    },
  };
}

/** Whole numbers in decimal and nothing else: ajv's own reading takes `0x10` and, past all limits, `1e999`. */
function readNumbersFirst(schema: Record<string, unknown>, validate: ValidateFunction): ValidateFunction {
  const properties = Object.entries((schema.properties ?? {}) as Record<string, { type?: unknown }>);
  const numbers = properties.filter(([, { type }]) => type === 'integer').map(([name]) => name);
  const read = (query: Record<string, unknown>) => {
    for (const name of numbers) {
      const text = query[name];
      if (typeof text === 'string' && /^-?\d{1,15}$/.test(text)) query[name] = Number(text);
    }
    const valid = validate(query);
    reading.errors = validate.errors ?? null;
    return valid;
  };
  const reading = Object.assign(read, validate) as ValidateFunction;
  return reading;
}

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Fields of the body that name rows, and the table in which the owner must have them. */
    references?: Record<string, ReferencedTable>;
    /** Faults of the body that a schema cannot tell. It may have faults of the schema's as well. */
    findFaults?: (body: Record<string, unknown>) => Fault[] | Promise<Fault[]>;
  }
}

/**
 * Schema faults, the route's own, and references to what is not the owner's, together. Undefined, without a promise, where
 * nothing has to be asked: this is every request's path.
 */
export function refuseFaults(
  request: FastifyRequest,
  validation: Validation,
  sql: Sql,
): Promise<void> | undefined {
  const { references, findFaults } = request.routeOptions.config;
  const body = (Buffer.isBuffer(request.body) ? {} : (request.body ?? {})) as Record<string, unknown>;
  const own = request.routeOptions.schema?.body ? findFaults?.(body) : findSurplus(body);
  const named = Object.entries(references ?? {}).filter(([field]) => typeof body[field] === 'string');
  const quiet = own === undefined || (Array.isArray(own) && own.length === 0);
  if (!request.validationError && quiet && named.length === 0) return undefined;
  return refuseAll(request, validation, sql, own, named);
}

/** A route that takes no body refuses what it would otherwise drop in silence. */
function findSurplus(body: Record<string, unknown>): Fault[] {
  return Object.keys(body).map((field) => ({
    pointer: child('', field),
    code: 'unknown_field',
    message: `"${field}" is not a field here; this route takes no body.`,
  }));
}

async function refuseAll(
  request: FastifyRequest,
  validation: Validation,
  sql: Sql,
  own: Fault[] | Promise<Fault[]> | undefined,
  named: [field: string, table: ReferencedTable][],
): Promise<void> {
  const faults = [...validation.findFaults(request), ...((await own) ?? [])];
  const body = request.body as Record<string, string>;
  for (const [field, table] of named) {
    const id = body[field] ?? '';
    if (!isUuid(id) || (await isOwned(sql, request.ownerId, table, id))) continue;
    const message = `"${field}" names nothing of yours.`;
    faults.push({ pointer: `/${field}`, code: 'unknown_reference', message });
  }
  if (faults.length === 0) return;
  const inQuery = request.validationError?.validationContext === 'querystring';
  throw new Problem(inQuery ? 'invalid_query' : 'invalid_body', { faults });
}

function toFault(error: ErrorObject, formats: Record<string, FindFault>): Fault | null {
  const at = error.instancePath;
  const name = at === '' ? 'The body' : `"${at.slice(1)}"`;
  const fault = (code: string, message: string, pointer = at): Fault => ({ pointer, code, message });
  const { params } = error;

  switch (error.keyword) {
    case 'required':
      return fault('required', `"${params.missingProperty}" is required.`, child(at, params.missingProperty));
    case 'additionalProperties':
      return unknownField(error, at);
    case 'type':
      return fault('wrong_type', `${name} must be ${typeNames(params.type)}.`);
    case 'format':
      return fault(
        'invalid_value',
        `${name} ${formats[params.format]?.(String(error.data)) ?? 'is not valid.'}`,
      );
    case 'enum':
      return fault('unknown_value', `${name} ${unknownValue(error.data, params.allowedValues)}`);
    case 'maxLength':
      return fault('too_long', `${name} must have at most ${params.limit} characters.`);
    case 'minLength':
    case 'minItems':
      return fault('too_short', `${name} must not be empty.`);
    case 'maxItems':
      return fault('too_long', `${name} must have at most ${params.limit} items.`);
    case 'uniqueItems':
      return fault('repeated', `${name} must not hold the same item twice.`);
    case 'minimum':
    case 'maximum':
      return fault('out_of_range', `${name} must be ${params.comparison} ${params.limit}.`);
    default:
      return fault('invalid_value', `${name} ${error.message}.`);
  }
}

function unknownField(error: ErrorObject, at: string): Fault {
  const field: string = error.params.additionalProperty;
  const schema = error.parentSchema as { properties?: object; 'x-read-only'?: string[] };
  const pointer = child(at, field);
  if (schema['x-read-only']?.includes(field)) {
    return { pointer, code: 'read_only', message: `"${field}" cannot be changed.` };
  }
  const near = suggest(field, Object.keys(schema.properties ?? {}));
  const hint = near ? ` Did you mean "${near}"?` : '';
  return { pointer, code: 'unknown_field', message: `"${field}" is not a field here.${hint}` };
}

function unknownValue(given: unknown, allowed: string[]): string {
  const near = typeof given === 'string' ? suggest(given, allowed) : undefined;
  return `must be one of ${allowed.join(', ')}.${near ? ` Did you mean ${near}?` : ''}`;
}

function typeNames(types: string | string[]): string {
  const article = (type: string) =>
    type === 'null' ? type : `${/^[aeiou]/.test(type) ? 'an' : 'a'} ${type}`;
  return [types].flat().map(article).join(' or ');
}

function child(pointer: string, key: string): string {
  return `${pointer}/${key.replaceAll('~', '~0').replaceAll('/', '~1')}`;
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
  // An offset can carry it past what has four digits for its year.
  if (!form || !(instant >= firstInstant && instant <= lastInstant)) return false;
  // PostgreSQL takes offsets of less than 16 hours.
  if (Number(/[+-](\d\d):\d\d$/.exec(text)?.[1] ?? 0) > 15) return false;
  // Date.parse takes 31 February for 3 March.
  const days = new Date(Date.UTC(Number(text.slice(0, 4)), Number(form[1]), 0)).getUTCDate();
  return Number(form[2]) <= days;
}
