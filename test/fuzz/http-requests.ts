/** Requests to the routes of the OpenAPI document, with bodies from their schemas, changed at random. */

import {
  dictionary,
  headerNames,
  headerTexts,
  hosts,
  methods,
  numbers,
  oddTexts,
  oddTimes,
  segments,
  types,
  urls,
} from './http-words.ts';
import { mutate } from './mutate.ts';
import type { Random } from './random.ts';

export interface Schema {
  type?: string | string[];
  format?: string;
  enum?: string[];
  items?: Schema;
  properties?: Record<string, Schema>;
  required?: string[];
}

export interface Operation {
  method: string;
  path: string;
  /** Of its body, if it takes one. */
  contentType: string | null;
  body: Schema | null;
  query: string[];
  isOperators: boolean;
}

/** Whose and which: all that a request can be about. */
export interface Account {
  apiKey: string;
  ids: string[];
  addresses: string[];
  /** Signed links, without the host. */
  links: string[];
}

export interface Request {
  method: string;
  target: string;
  headers: [string, string][];
  body: Buffer | null;
  /** Whose key is sent: one's own, the operator's, none that is good. */
  as: 'me' | 'operator' | 'nobody';
}

export interface Stage {
  operations: Operation[];
  me: Account;
  other: Account;
  adminToken: string;
}

export function makeRequest(random: Random, stage: Stage): Request {
  const operation = random.pick(stage.operations);
  const method = random.chance(0.88) ? operation.method : random.pick(methods);
  const as = random.pick<Request['as']>(
    operation.isOperators
      ? ['operator', 'operator', 'me']
      : ['me', 'me', 'me', 'me', 'me', 'operator', 'nobody'],
  );
  const takesBody = operation.contentType !== null && !['GET', 'HEAD'].includes(method);
  const body = takesBody || random.chance(0.05) ? makeBody(random, operation, stage) : null;
  const headers = makeHeaders(random, stage, as);
  if (body) {
    const type = random.chance(0.93) ? (operation.contentType ?? 'application/json') : random.pick(types);
    if (random.chance(0.97)) headers.push(['content-type', type]);
  }
  return { method, target: makeTarget(random, operation, stage), headers, body, as };
}

function makeHeaders(random: Random, { me, adminToken }: Stage, as: Request['as']): [string, string][] {
  const headers: [string, string][] = [['host', 'localhost']];
  const bad = [
    'Bearer',
    'Basic eA==',
    'Bearer ph_x',
    `Bearer ${'x'.repeat(500)}`,
    `bearer  ${me.apiKey.slice(0, -1)}`,
    '',
    `Bearer ${me.apiKey}x`,
  ];
  if (as === 'me') headers.push(['authorization', `Bearer ${me.apiKey}`]);
  else if (as === 'operator') headers.push(['authorization', `Bearer ${adminToken}`]);
  else if (random.chance(0.7)) headers.push(['authorization', random.pick(bad)]);
  if (random.chance(0.15))
    headers.push(['idempotency-key', random.chance(0.8) ? `k${random.below(4)}` : random.pick(headerTexts)]);
  if (random.chance(0.25))
    for (const name of random.some(2, () => random.pick(headerNames)))
      headers.push([name, random.pick(headerTexts)]);
  return headers;
}

function makeId(random: Random, { me, other }: Stage): string {
  if (random.chance(0.85)) return random.pick(random.chance(0.75) ? me.ids : other.ids);
  return random.chance(0.8) ? random.pick(segments) : 'x'.repeat(random.size(9000) + 1);
}

function makeTarget(random: Random, { path, query }: Operation, stage: Stage): string {
  if (random.chance(0.04)) return makeLink(random, stage);
  const filled = path.replaceAll(/\{(\w+)\}/g, (_, name) =>
    name === 'n' ? String(random.below(3)) : makeId(random, stage),
  );
  const bent = random.chance(0.06) ? bend(random, filled) : filled;
  const names = [
    ...query,
    ...query,
    ...query,
    'limit',
    'cursor',
    'nope',
    '__proto__',
    'constructor',
    '%zz',
    '',
  ];
  const isAsked = random.chance(query.length > 0 ? 0.6 : 0.1);
  const pairs = isAsked ? random.some(3, () => makePair(random, random.pick(names), stage)) : [];
  const asked = pairs.length > 0 ? `${bent}?${pairs.join(random.chance(0.95) ? '&' : ';')}` : bent;
  if (random.chance(0.94)) return asked;
  const host = random.chance(0.7)
    ? random.pick(hosts)
    : `http://${random.bytes(random.size(4000)).toString('hex')}`;
  return `${host}${asked}`;
}

function bend(random: Random, path: string): string {
  return random.pick([
    `/${path}`,
    `${path}/`,
    path.replace('/', '//'),
    path.toUpperCase(),
    `${path}/../me`,
    `/.${path}`,
    path.replace(/[a-z]/, (letter) => `%${letter.charCodeAt(0).toString(16)}`),
    `${path}%00`,
    `${path};a=b`,
    `${path}#x`,
    `${path}${'/a'.repeat(random.size(3000))}`,
    path.slice(1),
    '*',
    '',
  ]);
}

function makePair(random: Random, name: string, stage: Stage): string {
  const odd = () => encodeURIComponent(random.pick(oddTexts).toWellFormed());
  const value = random.pick<() => string>([
    name === 'limit'
      ? () =>
          random.pick(['1', '1', '2', '0', '-1', '1001', '1e3', '0x1', '01', ' 1', '99999999999999999999'])
      : odd,
    name === 'since' ? () => encodeURIComponent(random.pick(oddTimes)) : odd,
    name === 'recipient'
      ? () => encodeURIComponent(random.pick([...stage.me.addresses, ...stage.other.addresses]))
      : odd,
    name === 'recipient'
      ? () => encodeURIComponent(random.pick(stage.me.addresses))
      : () => makeId(random, stage),
    name === 'cursor'
      ? () =>
          Buffer.from(
            `${random.pick(['0', '1', '9'.repeat(16), '-1', 'x'])} ${makeId(random, stage)}`,
          ).toString('base64url')
      : odd,
    () =>
      random.pick([
        'email',
        'domain',
        'pending',
        'verified',
        'message.received',
        'failed',
        'delivered',
        ...stage.me.addresses,
      ]),
  ])();
  return `${name}=${value}`;
}

/** One's own as it is; another's with something of it changed, since whole it is good for anyone. */
function makeLink(random: Random, { me, other }: Stage): string {
  if (random.chance(0.5)) return random.pick(me.links);
  const link = random.pick([...other.links, ...me.links]);
  const [mine = '', theirs = ''] = [random.pick(me.ids), random.pick(other.ids)];
  return random.pick<() => string>([
    () => link.replace(/signature=./, (start) => `${start.slice(0, -1)}${start.endsWith('A') ? 'B' : 'A'}`),
    () => link.replace(/expires=\d/, (start) => `${start.slice(0, -1)}${start.endsWith('1') ? '2' : '1'}`),
    () => link.replace(/[\w-]{36}/, link.includes(theirs) ? mine : theirs),
    () => link.replace(/&?signature=[^&]*/, ''),
    () => `${link.slice(0, -1)}`,
    () => link.replace(/&signature=([^&]*)/, '&signature=x&signature=$1'),
  ])();
}

function makeBody(random: Random, operation: Operation, stage: Stage): Buffer {
  if (operation.contentType !== 'application/json') return makeMail(random);
  const text = JSON.stringify(
    random.chance(0.9) && operation.body ? makeObject(random, operation.body, stage) : makeAny(random),
  );
  const kind = random.below(40);
  if (kind === 0) return Buffer.from(`${text}${' '.repeat(70_000)}`);
  if (kind === 1)
    return Buffer.from(
      text.replace(/\}$/, `,"meta":${'['.repeat(90)}${']'.repeat(random.between(80, 120))}}`),
    );
  if (kind < 5)
    return mutate(random, Buffer.from(text), { dictionary, others: [Buffer.from(text)], most: 70_000 });
  return Buffer.from(text);
}

function makeMail(random: Random): Buffer {
  const whole = Buffer.from(
    'From: ada@example.com\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nhi\r\n--b\r\nContent-Type: image/png\r\n\r\nx\r\n--b--\r\n',
  );
  return random.chance(0.5) ? whole : mutate(random, whole, { dictionary, others: [whole], most: 5000 });
}

function makeObject(random: Random, schema: Schema, stage: Stage): Record<string, unknown> {
  const body: Record<string, unknown> = {};
  for (const [name, property] of Object.entries(schema.properties ?? {})) {
    const isWanted = schema.required?.includes(name) ? random.chance(0.96) : random.chance(0.4);
    if (isWanted)
      body[name] = random.chance(0.85) ? makeValue(random, name, property, stage) : makeAny(random);
  }
  if (random.chance(0.08))
    body[random.pick([...oddTexts, 'id', 'ownerId', 'owner_id', 'status'])] = makeAny(random);
  return body;
}

function makeValue(random: Random, name: string, schema: Schema, stage: Stage): unknown {
  const type = random.pick([schema.type ?? 'object'].flat());
  if (schema.enum) return random.pick(schema.enum);
  if (name === 'ownerId') return random.pick(random.chance(0.9) ? stage.me.ids.slice(0, 1) : stage.other.ids);
  switch (type) {
    case 'boolean':
      return random.chance(0.5);
    case 'integer':
      return random.pick(numbers);
    case 'array':
      return random.some(3, () => makeValue(random, '', schema.items ?? {}, stage));
    case 'null':
      return null;
    case 'object':
      return Object.fromEntries(random.some(3, () => [random.pick(oddTexts), makeAny(random)]));
    default:
      return makeString(random, schema.format ?? '', stage);
  }
}

function makeString(random: Random, format: string, stage: Stage): string {
  if (random.chance(0.1)) return random.pick(oddTexts);
  if (format === 'uuid') return makeId(random, stage);
  if (format === 'date-time') return random.pick(oddTimes);
  if (format === 'webhook-url') return random.chance(0.6) ? 'http://127.0.0.1:9/hooks' : random.pick(urls);
  if (format === 'json-object') return random.pick(['{}', '{"a":1}', '[]', '{', '{"a":1e999}']);
  const name = `n${random.below(1e6)}`;
  if (/value|address/.test(format))
    return random.pick([
      `${name}@fuzz.example`,
      `${name}@fuzz.example`,
      `"${name} x"@a.example`,
      `${name}@bücher.example`,
      `${name}+t@Fuzz.Example.`,
      'a@b',
      ...stage.me.addresses,
    ]);
  return name;
}

function makeAny(random: Random, depth = 0): unknown {
  switch (random.below(depth > 3 ? 5 : 7)) {
    case 0:
      return null;
    case 1:
      return random.chance(0.5);
    case 2:
      return random.pick(numbers);
    case 5:
      return random.some(4, () => makeAny(random, depth + 1));
    case 6:
      return Object.fromEntries(random.some(4, () => [random.pick(oddTexts), makeAny(random, depth + 1)]));
    default:
      return random.pick([...oddTexts, ...oddTimes, ...urls]);
  }
}

/** On the wire, with the framing that it should have. */
export function writeRequest(random: Random, { method, target, headers, body }: Request): Buffer {
  const isChunked = body !== null && random.chance(0.15);
  const framing = isChunked ? ['transfer-encoding: chunked'] : body ? [`content-length: ${body.length}`] : [];
  // Of a line, what is no line end: others would be other requests.
  const line = (text: string) => text.replaceAll(/[\r\n]/g, '');
  const head = [
    `${method} ${line(target)} HTTP/1.1`,
    ...headers.map(([name, value]) => `${name}: ${line(value)}`),
    ...framing,
  ];
  return Buffer.concat([
    Buffer.from(`${head.join('\r\n')}\r\n\r\n`),
    isChunked ? chunk(random, body) : (body ?? Buffer.alloc(0)),
  ]);
}

function chunk(random: Random, body: Buffer): Buffer {
  const chunks: Buffer[] = [];
  for (let at = 0; at < body.length; ) {
    const piece = body.subarray(at, at + random.between(1, body.length));
    chunks.push(
      Buffer.from(`${piece.length.toString(16)}${random.chance(0.1) ? ';x=y' : ''}\r\n`),
      piece,
      Buffer.from('\r\n'),
    );
    at += piece.length;
  }
  return Buffer.concat([...chunks, Buffer.from('0\r\n\r\n')]);
}

/** The same with a framing that lies, or with bytes that are no HTTP. */
export function breakFraming(random: Random, wire: Buffer): Buffer {
  const text = wire.toString('latin1');
  const tricks = [
    'content-length: 5',
    'content-length: 0',
    'content-length: -1',
    'content-length: 1e3',
    'content-length: 99999999999',
    'transfer-encoding: chunked',
    'transfer-encoding: x',
    'Transfer-Encoding : chunked',
    ' folded',
    'no colon',
    'a\0: b',
    'content-length: 3\r\ncontent-length: 4',
    'expect: 100-continue',
    'expect: x',
    'connection: upgrade\r\nupgrade: h2c',
    'connection: close',
    `x: ${'y'.repeat(20_000)}`,
  ];
  const broken = random.pick<() => string>([
    () => text.replace('\r\n', `\r\n${random.pick(tricks)}\r\n`),
    () => text.replace('\r\n', `\r\n${random.pick(tricks)}\r\n`),
    () =>
      text.replace(
        'HTTP/1.1',
        random.pick(['HTTP/1.0', 'HTTP/2.0', 'HTTP/0.9', 'http/1.1', '', 'HTTP/1.1 x']),
      ),
    () =>
      text.replace(
        /content-length: \d+/,
        (told) => `content-length: ${random.below(2 * Number(told.slice(16)) + 2)}`,
      ),
    () => text.replaceAll('\r\n', random.pick(['\n', '\r', '\r\n'])),
    () => text.slice(0, random.below(text.length)),
    () => 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
    () => `\x16\x03\x01${text}`,
    () =>
      mutate(random, wire, {
        dictionary: [...dictionary, '\r\n', '\r\n\r\n', 'GET /me HTTP/1.1\r\n\r\n'],
        others: [wire],
        most: wire.length + 2000,
      }).toString('latin1'),
  ]);
  return Buffer.from(broken(), 'latin1');
}
