/** Checks every response: it is documented or a known problem, and has no data of another user. */
import assert from 'node:assert/strict';
import { Ajv, type ValidateFunction } from 'ajv';
import { problems } from '../../src/problems.ts';
import type { Request } from './http-requests.ts';
import type { WireAnswer } from './http-wire.ts';

interface Documented {
  responses: Record<string, { content?: Record<string, { schema: Record<string, unknown> }> }>;
}
export type Paths = Record<string, Record<string, Documented>>;

const inside =
  /\bselect .* from\b|\binsert into\b|violates|constraint|relation "|syntax error|SQLSTATE|PostgresError|node_modules|\.ts:\d|\n\s+at /i;

export class Oracle {
  readonly #paths: Paths;
  readonly #ajv = new Ajv({ strict: false, allErrors: true, validateFormats: false });
  readonly #validators = new Map<unknown, ValidateFunction>();

  constructor(paths: Paths) {
    this.#paths = paths;
  }

  /**
   * `request` is null where the framing was broken, so that nobody knows what was asked. What is `theirs` may be told only to
   * who wrote it in `sent`.
   */
  check(answer: WireAnswer, request: Request | null, sent: string, theirs: readonly string[]): void {
    const { status, headers, body } = answer;
    const text = body.toString();
    assert.ok(status < 500, `${status} ${text}`);
    if (status >= 400) this.#checkProblem(answer, text, request?.method === 'HEAD');
    else if (request) this.#checkDocumented(answer, text, request);
    const told = `${[...headers].join('\n')}\n${text}`;
    for (const word of theirs)
      assert.ok(!told.includes(word) || sent.includes(word), `${word}, which is another's, was told`);
  }

  #checkProblem({ status, headers }: WireAnswer, text: string, isHead: boolean): void {
    assert.match(
      headers.get('content-type') ?? '',
      /^application\/problem\+json/,
      `${status} is no problem document: ${text}`,
    );
    assert.ok(headers.get('x-request-id'), `${status} has no request id`);
    if (isHead) return;
    const problem = JSON.parse(text);
    const entry = Object.entries(problems).find(([code]) => code === problem.code)?.[1];
    assert.equal(entry?.status, status, `the code ${problem.code} is not in the catalogue with ${status}`);
    assert.equal(problem.status, status);
    assert.equal(problem.requestId, headers.get('x-request-id'));
    assert.doesNotMatch(`${problem.title} ${problem.detail}`, inside, 'something of the inside was told');
  }

  #checkDocumented({ status, headers }: WireAnswer, text: string, { method, target }: Request): void {
    if (method === 'OPTIONS') {
      assert.equal(status, 204);
      return;
    }
    const found = this.#find(method === 'HEAD' ? 'get' : method.toLowerCase(), target);
    // The pages of the dashboard are no operations. Fastify takes `*` for `/`.
    if (!found && /^\/?(\*|app(\/[^?#]*)?)?([?#]|$)/.test(target) && headers.has('content-security-policy'))
      return;
    assert.ok(found, `${status} for ${method} ${target.slice(0, 200)}, which is not documented`);
    const response = found.responses[status];
    assert.ok(response, `${status} is not documented for ${method} ${target.slice(0, 200)}`);
    if (method === 'HEAD' || status === 204 || status === 304) return;
    const type = headers.get('content-type')?.split(';')[0] ?? '';
    const schema = response.content?.[type]?.schema;
    const isBinary = Object.values(response.content ?? {}).some(({ schema }) => schema.format === 'binary');
    assert.ok(schema || isBinary, `${type} is not documented for ${method} ${target.slice(0, 200)}`);
    if (!schema || !/json/.test(type)) return;
    const validate = this.#compile(schema);
    assert.ok(validate(JSON.parse(text)), `${this.#ajv.errorsText(validate.errors)} in ${text}`);
  }

  #find(method: string, target: string): Documented | undefined {
    const [path = ''] = target.replace(/^[a-z]+:\/\/[^/?#]*/i, '').split(/[?#;]/, 1);
    const given = decodeURIComponent(path).split('/');
    const matches = (wanted: string[]) =>
      wanted.length === given.length && wanted.every((part, n) => part === given[n] || part.startsWith('{'));
    const found = Object.entries(this.#paths).filter(([pattern]) => matches(pattern.split('/')));
    return found.map(([, methods]) => methods[method]).find(Boolean);
  }

  #compile(schema: Record<string, unknown>): ValidateFunction {
    const known = this.#validators.get(schema);
    if (known) return known;
    const validate = this.#ajv.compile(close(schema) as object);
    this.#validators.set(schema, validate);
    return validate;
  }
}

/** Nothing may be there that is not named. */
function close(schema: unknown): unknown {
  if (Array.isArray(schema)) return schema.map(close);
  if (typeof schema !== 'object' || schema === null) return schema;
  const closed = Object.fromEntries(Object.entries(schema).map(([key, value]) => [key, close(value)]));
  return closed.type === 'object' && closed.properties ? { ...closed, additionalProperties: false } : closed;
}
