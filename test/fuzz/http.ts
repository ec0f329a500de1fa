/**
 * Random requests to the API of the whole service. A case has two users with one of everything each; the first user sends a few
 * dozen requests about both. Every response is as documented or a known problem, never a 5xx, and never has data of the other
 * user.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { dereference } from '../../src/http/openapi-document.ts';
import type { TestUser } from '../harness.ts';
import { Oracle } from './http-oracle.ts';
import {
  type Account,
  breakFraming,
  makeRequest,
  type Operation,
  type Request,
  type Schema,
  type Stage,
  writeRequest,
} from './http-requests.ts';
import { type WireAnswer, WireConnection } from './http-wire.ts';
import type { Random } from './random.ts';
import { expect, type FuzzedService, startFuzzedService } from './service.ts';
import type { Case, Fuzzed, Target } from './target.ts';

const exchanges = 30;
const maxBodyBytes = 64 * 1024;
/** The longest wait for a response, on a busy machine. */
const patienceMs = 120_000;
/** The longest wait for a response to a request that may be incomplete. */
const brokenPatienceMs = 1000;

export const http: Target = {
  about: 'requests of any bytes to the API',
  async open(settings) {
    const service = await startFuzzedService(settings);
    const document = dereference((await service.call('GET', '/openapi.json', {})).body);
    // A stream does not end.
    const operations = listOperations(document.paths).filter(({ path }) => !path.endsWith('/stream'));
    const oracle = new Oracle(document.paths);
    const run = async (one: Case) => {
      const world = await makeWorld(service, one.random, operations);
      const outcomes = await new Attack(service, oracle, world, one).run();
      service.assertNoErrors();
      return outcomes;
    };
    return { lanes: 4, run, close: () => service.stop() } satisfies Fuzzed;
  },
};

interface Documented {
  requestBody?: { content: Record<string, { schema: Schema }> };
  parameters?: { name: string; in: string }[];
}

function listOperations(paths: Record<string, Record<string, Documented>>): Operation[] {
  return Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, { requestBody, parameters = [] }]) => {
      const [contentType = null] = Object.keys(requestBody?.content ?? {});
      return {
        path,
        method: method.toUpperCase(),
        contentType,
        body: (contentType && requestBody?.content[contentType]?.schema) || null,
        query: parameters.filter((one) => one.in === 'query').map(({ name }) => name),
        isOperators: path.startsWith('/admin'),
      };
    }),
  );
}

interface World {
  stage: Stage;
  /** Data that only the other user may see. */
  theirs: string[];
  other: TestUser;
  /** What the other user has and must keep. */
  otherPaths: string[];
}

async function makeWorld(service: FuzzedService, random: Random, operations: Operation[]): Promise<World> {
  const withDomain = random.chance(0.1);
  const [me, other] = await Promise.all([populate(service, withDomain), populate(service, withDomain)]);
  const { adminToken } = service;
  return {
    stage: { operations, me: me.account, other: other.account, adminToken },
    theirs: [...other.secrets, ...other.account.ids],
    other: other.user,
    otherPaths: other.paths,
  };
}

/** A user with one of everything, and two of what is listed. The user's own data contains a secret word. */
async function populate(service: FuzzedService, withDomain: boolean) {
  const user = await service.makeUser();
  const word = `w${randomBytes(8).toString('hex')}`;
  const post = async (path: string, body: object) =>
    expect(await service.call('POST', path, { as: user, body }), 201).body;
  const addresses = [`${word}@fuzz.example`, `also.${word}@fuzz.example`];
  const identities = [];
  for (const value of addresses) identities.push(await post('/identities', { value, meta: { note: word } }));
  if (withDomain)
    identities.push(await post('/identities', { value: `${word}.example`, incoming_domain: true }));
  const hook = { url: `http://127.0.0.1:9/${word}`, events: ['message.received'], ownerId: user.userId };
  const webhooks = [await post('/webhooks', hook), await post('/webhooks', { ...hook, enabled: false })];
  const key = await post('/api-keys', { name: word });
  const mail = {
    as: user,
    body: `From: ada@example.com\r\nSubject: ${word}\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\n${word}\r\n--b\r\nContent-Disposition: attachment; filename=${word}.txt\r\n\r\n${word}\r\n--b--\r\n`,
    headers: { 'content-type': 'message/rfc822' },
  };
  const taken = expect(await service.call('POST', `/inbound?recipient=${addresses[0]}`, mail), 202).body;
  const [event] = expect(await service.call('GET', '/events', { as: user }), 200).body;
  const { data } = expect(await service.call('GET', `/events/${event.id}`, { as: user }), 200).body;
  const [delivery] = expect(
    await service.call('GET', `/webhooks/${webhooks[0].id}/deliveries`, { as: user }),
    200,
  ).body;
  const links: string[] = [
    data.rawEmailUrl,
    ...data.message.attachments.map(({ url }: { url: string }) => url),
  ];
  const ids = [user.userId, key.id, event.id, delivery?.id, ...taken.messageIds].filter(Boolean);
  const account: Account = {
    apiKey: user.apiKey,
    ids: [...ids, ...[...identities, ...webhooks].map(({ id }) => id)],
    addresses,
    links: links.map((link) => link.slice(service.url.length)),
  };
  const secrets = [word, user.apiKey, key.apiKey, ...webhooks.map(({ secret }) => secret)];
  const paths = [
    ...identities.map(({ id }) => `/identities/${id}`),
    ...webhooks.map(({ id }) => `/webhooks/${id}`),
    `/api-keys/${key.id}`,
  ];
  return { user, account, secrets, paths };
}

class Attack {
  readonly #service: FuzzedService;
  readonly #oracle: Oracle;
  readonly #world: World;
  readonly #one: Case;
  readonly #story: unknown[] = [];
  readonly #seen = new Set<string>();
  #connection: WireConnection | null = null;

  constructor(service: FuzzedService, oracle: Oracle, world: World, one: Case) {
    this.#service = service;
    this.#oracle = oracle;
    this.#world = world;
    this.#one = one;
  }

  async run(): Promise<string[]> {
    try {
      for (let n = 0; n < exchanges; n++) {
        if (this.#one.random.chance(0.12)) await this.#exchangeBroken();
        else await this.#exchange();
      }
      const { other, otherPaths } = this.#world;
      const me = await this.#service.call('GET', '/me', { as: other });
      assert.deepEqual(me.body, { userId: other.userId }, 'the other is not served');
      for (const path of otherPaths) expect(await this.#service.call('GET', path, { as: other }), 200);
    } finally {
      this.#connection?.close();
      this.#one.keep('story.json', JSON.stringify(this.#story, null, 2));
    }
    return [...this.#seen];
  }

  #connect(): WireConnection {
    if (!this.#connection || this.#connection.isOver)
      this.#connection = new WireConnection(Number(new URL(this.#service.url).port));
    return this.#connection;
  }

  /** Sends a few requests at once; the responses come in order. */
  async #exchange(): Promise<void> {
    const { random } = this.#one;
    const connection = this.#connect();
    const requests = random.times(random.chance(0.8) ? 1 : random.between(2, 4), () =>
      makeRequest(random, this.#world.stage),
    );
    this.#story.push(requests.map(show));
    const wire = Buffer.concat(requests.map((request) => writeRequest(random, request)));
    await connection.send(cut(random, wire));
    const answers = await connection.answers(
      requests.map(({ method }) => method),
      patienceMs,
    );
    assert.ok(answers, `no answer within ${patienceMs} ms; ${connection.unread.slice(0, 200)}`);
    for (const [n, answer] of answers.entries()) this.#check(answer, requests[n] as Request, wire);
    // One that cannot be read ends the connection, and with it those that came after; amid a download without a word. One
    // whose body is too large does so as well, and what was still on its way to the client may be lost with it.
    const mayBreakOff = requests.some(
      ({ target, body }) => target.includes('/raw') || (body?.length ?? 0) > maxBodyBytes,
    );
    const isCut = answers.at(-1)?.headers.get('connection') === 'close' || (mayBreakOff && connection.isOver);
    assert.ok(
      answers.length === requests.length || isCut,
      `${answers.length} answers to ${requests.length} requests`,
    );
    if (isCut) this.#drop();
  }

  /** On a separate connection, because these bytes may be any number of requests. */
  async #exchangeBroken(): Promise<void> {
    const { random } = this.#one;
    const connection = new WireConnection(Number(new URL(this.#service.url).port));
    try {
      const made = makeRequest(random, this.#world.stage);
      // Where its answers end could not be told, were it a HEAD.
      const request = made.method === 'HEAD' ? { ...made, method: 'GET' } : made;
      const wire = breakFraming(random, writeRequest(random, request));
      this.#story.push({ broken: wire.toString('latin1') });
      await connection.send(cut(random, wire));
      if (random.chance(0.8)) connection.halfClose();
      const answers = await connection.answers(['?', '?', '?'], brokenPatienceMs);
      for (const answer of answers ?? []) this.#check(answer, null, wire);
    } finally {
      connection.close();
    }
  }

  #check(answer: WireAnswer, request: Request | null, wire: Buffer): void {
    this.#story.push({
      status: answer.status,
      headers: [...answer.headers],
      body: answer.body.toString().slice(0, 2000),
    });
    this.#seen.add(describe(answer, request));
    // A chunked response may cut the word in two.
    const sent = `${wire.toString('latin1')}${request?.body?.toString('latin1') ?? ''}`;
    // The operator sees all users.
    const isOperators = sent.includes(this.#world.stage.adminToken);
    this.#oracle.check(answer, request, sent, isOperators ? [] : this.#world.theirs);
  }

  #drop(): void {
    this.#connection?.close();
    this.#connection = null;
  }
}

function show({ body, ...request }: Request) {
  return { ...request, body: body?.toString('latin1') };
}

function cut(random: Random, wire: Buffer): Buffer[] {
  if (random.chance(0.8)) return [wire];
  const at = random.below(wire.length + 1);
  return [wire.subarray(0, at), wire.subarray(at)];
}

/** The kind of the request and of the response. */
function describe({ status, body }: WireAnswer, request: Request | null): string {
  const code = /"code":"(\w+)"/.exec(body.toString('latin1', 0, 2000))?.[1] ?? '';
  const [path = ''] = request?.target.replaceAll(/[\w-]{36}/g, '{id}').split('?', 1) ?? ['broken'];
  return `${request?.method} ${path.slice(0, 40)} ${status} ${code}`;
}
