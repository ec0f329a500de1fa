/**
 * Random requests over every route of the OpenAPI document: whatever comes, the service answers with a success or a
 * catalogued problem, and never with a 5xx or something of its inside. A failure prints the seed that repeats it.
 */
import assert from 'node:assert/strict';
import { randomBytes, randomInt } from 'node:crypto';
import { Agent, request } from 'node:http';
import { after, test } from 'node:test';
import { problems } from '../src/problems.ts';
import { startTestService } from './harness.ts';

const seed = Number(process.env.FUZZ_SEED ?? randomInt(2 ** 31));
const rounds = 1500;
const adminToken = randomBytes(20).toString('hex');
const service = await startTestService({ POSTHORN_ADMIN_TOKEN: adminToken });
const agent = new Agent({ keepAlive: true, maxSockets: 8 });
after(() => agent.destroy());

/** mulberry32: a number in [0, 1), the same ones for the same seed. */
let state = seed;
function random(): number {
  state = (state + 0x6d2b79f5) | 0;
  let t = Math.imul(state ^ (state >>> 15), 1 | state);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
}
const below = (limit: number) => Math.floor(random() * limit);
const chance = (share: number) => random() < share;
function pick<T>(items: readonly T[]): T {
  return items[below(items.length)] as T;
}
const some = <T>(most: number, make: () => T) => Array.from({ length: below(most + 1) }, make);

// biome-ignore format: a list to add to
const oddTexts = [
  '', ' ', '\0', '\u202e', '💌', 'é', "'; drop table users; --", '{{7*7}}', '../../etc/passwd', '%', '%s', '\\', '"',
  'null', 'true', '0', '-1', '1e999', 'a@b', '@', 'a@b.example', 'xn--a.example', '*.example', 'x'.repeat(300),
  'https://example.com/h', 'https://user:pw@example.com', 'http://[::1]:99999/', '{}', '[]', '{"a":{}}',
  '2999-01-01T00:00:00Z', '9999-12-31T23:59:59-23:59', '0000-00-00T00:00:00Z', 'message.received', '__proto__',
];
const oddNumbers = [0, -0, 1, -1, 0.5, 1e21, 2 ** 31, 2 ** 53, -(2 ** 63), 1001];

function randomValue(depth = 0): unknown {
  const kinds = depth > 3 ? 5 : 7;
  switch (below(kinds)) {
    case 0:
      return null;
    case 1:
      return chance(0.5);
    case 2:
      return pick(oddNumbers);
    case 3:
    case 4:
      return pick(oddTexts);
    case 5:
      return some(4, () => randomValue(depth + 1));
    default:
      return Object.fromEntries(some(4, () => [pick(oddTexts), randomValue(depth + 1)]));
  }
}

interface Documented {
  requestBody?: { content: Record<string, { example?: unknown; schema: { properties?: object } }> };
  parameters?: { name: string; in: string }[];
}
interface Operation {
  path: string;
  method: string;
  example: unknown;
  fields: string[];
  query: string[];
}
const document = (await service.call('GET', '/openapi.json')).body;
const operations: Operation[] = Object.entries<Record<string, Documented>>(document.paths).flatMap(
  ([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => {
      const json = operation.requestBody?.content['application/json'];
      const parameters = operation.parameters ?? [];
      return {
        path,
        method: method.toUpperCase(),
        example: json?.example,
        fields: Object.keys(json?.schema.properties ?? {}),
        query: parameters.filter((parameter) => parameter.in === 'query').map(({ name }) => name),
      };
    }),
);

/** A user with one of each, whose ids are tried by themselves and by the other. */
async function populate() {
  const user = await service.makeUser();
  const make = async (path: string, body: object) =>
    (await service.call('POST', path, { as: user, body })).body.id as string;
  const identity = await make('/identities', { value: `f${randomBytes(5).toString('hex')}.example` });
  const url = 'https://example.com/h';
  const webhook = await make('/webhooks', { url, events: ['message.received'], ownerId: user.userId });
  return { user, ids: [user.userId, identity, webhook, await make('/api-keys', {})] };
}
const [me, other] = [await populate(), await populate()];
const owned = () => pick(chance(0.6) ? me.ids : other.ids);

function randomId(): string {
  if (chance(0.5)) return owned();
  const odd = [
    '%2e%2e',
    '%2F%2F',
    'a%2fb',
    '%00',
    '%zz',
    '%',
    '%ff',
    '.',
    '..',
    '',
    ':id',
    '{id}',
    '*',
    '%F0%9F%92%8C',
  ];
  return chance(0.7) ? pick(odd) : 'x'.repeat(below(9000));
}

function randomPath({ path, query }: Operation): string {
  const filled = path.replaceAll(/\{\w+\}/g, randomId);
  const names = [...query, 'limit', 'cursor', 'nope', '__proto__', '%zz'];
  const value = () => (chance(0.3) ? owned() : encodeURIComponent(pick(oddTexts)));
  const pairs = chance(0.5) ? some(4, () => `${pick(names)}=${value()}`) : [];
  const made = `${chance(0.05) ? '/' : ''}${filled}${chance(0.05) ? '/' : ''}`;
  return pairs.length > 0 ? `${made}?${pairs.join(chance(0.9) ? '&' : ';')}` : made;
}

/** The example with fields replaced, added or left out; names are often right, so that values get as far as they can. */
function mutated({ example, fields }: Operation): unknown {
  const body: Record<string, unknown> = { ...(example as object), ownerId: me.user.userId };
  if (!fields.includes('ownerId')) delete body.ownerId;
  for (const field of some(3, () => pick([...fields, ...fields, ...fields, ...oddTexts]))) {
    if (chance(0.15)) delete body[field];
    else body[field] = chance(0.15) ? owned() : randomValue();
  }
  return body;
}

function nested(levels: number): string {
  return '['.repeat(levels) + ']'.repeat(levels);
}

function randomBody(operation: Operation): string | Buffer {
  const kind = random();
  if (kind < 0.6) return JSON.stringify(mutated(operation));
  if (kind < 0.75) return JSON.stringify(randomValue());
  const text = JSON.stringify(mutated(operation));
  if (kind < 0.85) return text.slice(0, below(text.length));
  if (kind < 0.9) return `${text.slice(0, -1)},"meta":{"a":${nested(below(15_000))}}}`;
  if (kind < 0.93) return `${text}${' '.repeat(70_000)}`;
  return Buffer.from(some(200, () => below(256)));
}

const headerTexts = [
  '',
  'x',
  'é',
  'a b',
  'x'.repeat(300),
  '"',
  'null',
  '*/*',
  'gzip',
  '-1',
  'bytes=0-1',
  'Bearer',
];
function randomHeaders(): Record<string, string> {
  const headers: Record<string, string> = {};
  const who = random();
  if (who < 0.7) headers.authorization = `Bearer ${me.user.apiKey}`;
  else if (who < 0.85) headers.authorization = `Bearer ${adminToken}`;
  else if (who < 0.95)
    headers.authorization = pick(['Bearer', 'Basic eA==', 'Bearer ph_x', `Bearer ${'x'.repeat(500)}`]);
  if (chance(0.15)) headers['idempotency-key'] = chance(0.7) ? `k${below(20)}` : pick(headerTexts);
  const names = [
    'x-request-id',
    'accept',
    'accept-encoding',
    'origin',
    'range',
    'if-match',
    'cookie',
    'x-http-method-override',
  ];
  for (const name of some(2, () => pick(names))) headers[name] = pick(headerTexts);
  return headers;
}

interface Sent {
  method: string;
  path: string;
  headers: Record<string, string>;
  body: string | Buffer | undefined;
}

function randomRequest(): Sent {
  const operation = pick(operations);
  const method = chance(0.85)
    ? operation.method
    : pick(['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS', 'QUERY']);
  const headers = randomHeaders();
  const takesBody = !['GET', 'HEAD', 'OPTIONS'].includes(method);
  const body = takesBody && (operation.example || chance(0.2)) ? randomBody(operation) : undefined;
  if (body !== undefined) {
    const types = [
      'text/plain',
      'application/merge-patch+json',
      'multipart/form-data',
      'application/json; charset=x',
      ';',
    ];
    if (chance(0.9)) headers['content-type'] = 'application/json';
    else if (chance(0.8)) headers['content-type'] = pick(types);
  }
  return { method, path: randomPath(operation), headers, body };
}

/** With node:http rather than fetch, which would tidy up paths and headers. */
function send({ method, path, headers, body }: Sent) {
  return new Promise<{ status: number; type: string; text: string }>((resolve, reject) => {
    const length = body === undefined ? {} : { 'content-length': Buffer.byteLength(body) };
    const options = { agent, method, path, headers: { ...headers, ...length } };
    const sent = request(`${service.url}`, options, (response) => {
      let text = '';
      response.setEncoding('utf8').on('data', (chunk) => {
        text += chunk;
      });
      response.on('end', () =>
        resolve({ status: response.statusCode ?? 0, type: response.headers['content-type'] ?? '', text }),
      );
    });
    sent.on('error', reject);
    sent.end(body);
  });
}

const inside =
  /\bselect .* from\b|\binsert into\b|violates|constraint|relation "|syntax error|SQLSTATE|PostgresError|node_modules|\.ts:\d|\n\s+at /i;

function findFault(sent: Sent, answer: { status: number; type: string; text: string }): string | undefined {
  const { status, type, text } = answer;
  if (status >= 500) return 'a 5xx';
  if (status < 200 || (status >= 300 && status < 400)) return 'a status that nothing here has';
  if (status < 300)
    return inside.test(text) && !sent.path.includes('docs') ? 'something of the inside' : undefined;
  if (sent.method === 'HEAD') return undefined;
  if (!type.startsWith('application/problem+json')) return 'an error that is no problem document';
  const problem = JSON.parse(text);
  const entry = Object.entries(problems).find(([code]) => code === problem.code)?.[1];
  if (entry?.status !== status) return 'a code that is not in the catalogue with this status';
  // What a caller sent may be named in a message; nothing else may look like our inside.
  return inside.test(`${problem.title} ${problem.detail}`) ? 'something of the inside' : undefined;
}

test(`${rounds} random requests get no 5xx (FUZZ_SEED=${seed} repeats them)`, async () => {
  const statuses = new Map<number, number>();
  for (let round = 0; round < rounds; round += 8) {
    const batch = Array.from({ length: 8 }, randomRequest);
    const answers = await Promise.all(batch.map(send));
    for (const [index, answer] of answers.entries()) {
      const sent = batch[index] as Sent;
      const fault = findFault(sent, answer);
      const shown = JSON.stringify({ ...sent, body: String(sent.body ?? '').slice(0, 500) });
      const errors = service.logged.filter(({ level }) => Number(level) >= 50).map(({ err }) => err);
      assert.ok(
        !fault,
        `FUZZ_SEED=${seed}: ${fault}\n${shown}\n${answer.status} ${answer.text}\n${JSON.stringify(errors.at(-1))}`,
      );
      statuses.set(answer.status, (statuses.get(answer.status) ?? 0) + 1);
    }
  }
  // The net was cast wide: successes and every kind of refusal came up.
  for (const status of [200, 201, 400, 401, 404, 405, 413, 415]) {
    assert.ok(statuses.has(status), `FUZZ_SEED=${seed}: no ${status} among ${JSON.stringify([...statuses])}`);
  }
  assert.deepEqual((await service.call('GET', '/me', { as: other.user })).body, {
    userId: other.user.userId,
  });
  for (const path of [
    `/identities/${other.ids[1]}`,
    `/webhooks/${other.ids[2]}`,
    `/api-keys/${other.ids[3]}`,
  ]) {
    assert.equal(
      (await service.call('GET', path, { as: other.user })).status,
      200,
      `FUZZ_SEED=${seed}: ${path}`,
    );
  }
});
