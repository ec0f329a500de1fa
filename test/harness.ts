/**
 * The whole service on its own port and its own database, for one test file, and an HTTP client for it. Nothing is mocked:
 * real PostgreSQL, real sockets.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { Writable } from 'node:stream';
import { after } from 'node:test';
import { readConfig } from '../src/config.ts';
import { connect, type Pool } from '../src/db/client.ts';
import { identifier } from '../src/db/sql.ts';
import { type MakeKeyPair, makeRsaKeyPair } from '../src/identities/dkim.ts';
import { makeLog } from '../src/lib/log.ts';
import type { StartOptions } from '../src/main.ts';
import { createApiKey } from '../src/store/api-keys.ts';
import { type NewEvent, recordEvent } from '../src/store/events.ts';
import { ensureUser } from '../src/store/users.ts';

export interface TestUser {
  userId: string;
  email: string;
  apiKey: string;
}

export interface Answer {
  status: number;
  headers: Headers;
  text: string;
  /** The parsed JSON; undefined for an empty body or another content type. */
  // biome-ignore lint/suspicious/noExplicitAny: tests read any field of a response.
  body: any;
}

export interface CallOptions {
  /** The user whose API key is sent; null sends no key. */
  as?: TestUser | null;
  /** Sent as JSON; a string or bytes are sent unchanged. */
  body?: unknown;
  headers?: Record<string, string>;
}

export interface TestWebhook {
  id: string;
  secret: string;
}

export interface TestService {
  url: string;
  smtpPort: number;
  submissionPort: number;
  /** TLS from the start. */
  submissionsPort: number;
  sql: Pool;
  databaseUrl: string;
  /** Created at the start. The default user of all calls. */
  user: TestUser;
  /** All log lines so far, parsed. */
  logged: Record<string, unknown>[];
  makeUser(): Promise<TestUser>;
  call(method: string, path: string, options?: CallOptions): Promise<Answer>;
  /** Creates a webhook; by default for message.received, of `user`. */
  makeWebhook(url: string, more?: Record<string, unknown>, as?: TestUser): Promise<TestWebhook>;
  /** Records an event as received mail does, and wakes the delivery loop; by default of `user`. */
  makeEvent(given?: Partial<NewEvent>): Promise<string>;
  /** Waits until a delivery matches (by default: is no longer pending), and returns it with its attempts. */
  // biome-ignore lint/suspicious/noExplicitAny: tests read any field of a response.
  findDelivery(eventId: string, webhook: TestWebhook, wanted?: (delivery: any) => boolean): Promise<any>;
  stop(): Promise<void>;
}

/** The same for all services of a file: services on one database decrypt each other's secrets. */
const secretKey = randomBytes(32).toString('base64');

/** Twelve keys in turn, which are made when they are first needed: a new key for every domain took a tenth of the whole run. */
const keyPairs: ReturnType<MakeKeyPair>[] = [];
let keyPairsTaken = 0;
const takeKeyPair: MakeKeyPair = () => {
  const turn = keyPairsTaken++ % 12;
  keyPairs[turn] ??= makeRsaKeyPair();
  return keyPairs[turn];
};

/**
 * Starts the service with the default settings of tests and these; the service stops after the tests of the file. With the
 * DATABASE_URL of another service it acts as a second process on the same database: same `user`, another API key.
 */
export async function startTestService(
  settings: Record<string, string> = {},
  options: Pick<StartOptions, 'providerServers' | 'syncTimes'> = {},
): Promise<TestService> {
  const shared = settings.DATABASE_URL;
  const database = shared ? { url: shared, drop: async () => {} } : await makeDatabase();
  const { log, logged } = makeTestLog();
  const config = readConfig({
    DATABASE_URL: database.url,
    POSTHORN_SECRET_KEY: secretKey,
    POSTHORN_RATE_LIMIT: '0',
    PORT: '0',
    POSTHORN_SMTP_PORT: '0',
    POSTHORN_SUBMISSION_PORT: '0',
    POSTHORN_SUBMISSIONS_PORT: '0',
    // No DNS server listens there, so a query fails at once and no test waits for the DNS of the machine.
    POSTHORN_DNS_SERVERS: '127.0.0.1:9',
    ...settings,
  });
  // Only here: many test files need no service, and loading the service takes half a second of a core.
  const { startService } = await import('../src/main.ts');
  const service = await startService(config, log, { makeKeyPair: takeKeyPair, ...options });
  const url = `${service.url}${config.basePath}`;
  const sql = connect(database.url, { max: 2, applicationName: 'posthorn test' });

  let stopped = false;
  async function stop(): Promise<void> {
    if (stopped) return;
    stopped = true;
    await service.stop();
    await sql.end();
    await database.drop();
  }
  after(stop);

  let users = 0;
  async function makeUser(): Promise<TestUser> {
    users += 1;
    const { user } = await ensureUser(sql, `user${users}@users.example`);
    const { apiKey } = await createApiKey(sql, user.userId);
    return { userId: user.userId, email: user.email, apiKey };
  }

  const user = await makeUser();
  const call: TestService['call'] = (method, path, options = {}) =>
    callUrl(method, `${url}${path}`, { as: user, ...options });

  const makeWebhook: TestService['makeWebhook'] = async (to, more = {}, as = user) => {
    const given = { url: to, events: ['message.received'], ownerId: as.userId, ...more };
    const answer = await call('POST', '/webhooks', { as, body: given });
    assert.equal(answer.status, 201, answer.text);
    return answer.body;
  };
  const makeEvent: TestService['makeEvent'] = async (given = {}) => {
    const plain = { ownerId: user.userId, event: 'message.received', identityId: null, data: '{"a":1}' };
    const { id } = await recordEvent(sql, { ...plain, ...given });
    await sql`select pg_notify('posthorn_ready', '')`;
    return id;
  };
  const findDelivery: TestService['findDelivery'] = async (eventId, webhook, wanted) => {
    const [{ id } = {}] = await sql`select delivery_id(${eventId}, ${webhook.id}) as id`;
    return waitFor(`delivery ${id}`, async () => {
      const { status, body } = await call('GET', `/deliveries/${id}`);
      const looks = wanted ?? ((delivery) => delivery.status !== 'pending');
      return status === 200 && looks(body) ? body : null;
    });
  };
  return {
    ...{ url, smtpPort: service.smtpPort ?? 0 },
    ...{ submissionPort: service.submissionPort ?? 0, submissionsPort: service.submissionsPort ?? 0 },
    ...{ sql, databaseUrl: database.url, user, logged },
    ...{ makeUser, call, makeWebhook, makeEvent, findDelivery, stop },
  };
}

export async function callUrl(
  method: string,
  url: string,
  { as, body, headers }: CallOptions,
): Promise<Answer> {
  const raw = typeof body === 'string' || body instanceof Uint8Array;
  const response = await fetch(url, {
    method,
    redirect: 'manual',
    headers: {
      ...(as ? { authorization: `Bearer ${as.apiKey}` } : {}),
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      ...headers,
    },
    ...(body === undefined
      ? {}
      : { body: raw ? (body as string | Uint8Array<ArrayBuffer>) : JSON.stringify(body) }),
  });
  const text = await response.text();
  const isJson = /[/+]json/.test(response.headers.get('content-type') ?? '');
  return {
    status: response.status,
    headers: response.headers,
    text,
    body: isJson && text ? JSON.parse(text) : undefined,
  };
}

/** Asserts that the response is a problem document with this code, and returns the document. */
export function assertProblem(answer: Answer, status: number, code: string) {
  assert.equal(answer.status, status, answer.text);
  assert.match(answer.headers.get('content-type') ?? '', /^application\/problem\+json/);
  assert.equal(answer.body.code, code, answer.text);
  assert.equal(answer.body.status, status);
  assert.equal(answer.body.requestId, answer.headers.get('x-request-id'));
  for (const field of ['type', 'title', 'detail']) assert.equal(typeof answer.body[field], 'string', field);
  return answer.body as { detail: string; errors?: { pointer: string; code: string; message: string }[] };
}

/** Waits for a condition, which is checked again and again; fails after a deadline. */
export async function waitFor<T>(
  what: string,
  look: () => T | Promise<T>,
  deadlineMs = 120_000,
): Promise<NonNullable<T>> {
  const end = performance.now() + deadlineMs;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (performance.now() > end) throw new Error(`Waited ${deadlineMs} ms for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

export function templateName(): string {
  return `posthorn_template_${randomBytes(4).toString('hex')}`;
}

/** The URL of another database on the same server. */
export function databaseUrl(url: string, name: string): string {
  const changed = new URL(url);
  changed.pathname = `/${name}`;
  return changed.href;
}

/** Creates a database: a clone of the migrated template, or an empty one. */
export async function makeDatabase(
  options: { empty?: boolean } = {},
): Promise<{ url: string; drop(): Promise<void> }> {
  const { TEST_DATABASE_URL: server, TEST_TEMPLATE: template } = process.env;
  if (!server || !template) throw new Error('Run tests with: npm test [-- test/some.test.ts]');
  const name = `posthorn_test_${randomBytes(6).toString('hex')}`;
  const admin = () => connect(server, { max: 1, applicationName: 'posthorn tests' });
  const maker = admin();
  // PostgreSQL refuses to clone a database while another clone of it is being made.
  await maker`select pg_advisory_lock(hashtext('posthorn test clone'))`;
  // As files: through the WAL, which is the default, a clone takes 0.2 s of a core instead of 0.03.
  await maker`create database ${identifier(name)} template ${identifier(options.empty ? 'template0' : template)} strategy file_copy`;
  await maker.end();
  return {
    url: databaseUrl(server, name),
    async drop() {
      const sql = admin();
      await sql`drop database if exists ${identifier(name)} with (force)`;
      await sql.end();
    },
  };
}

export function makeTestLog() {
  const logged: Record<string, unknown>[] = [];
  return { logged, log: makeLog({ level: 'debug', json: true, stream: collectLines(logged) }) };
}

export function collectLines(lines: Record<string, unknown>[]): Writable {
  return new Writable({
    write(chunk, _encoding, done) {
      for (const line of String(chunk).split('\n')) if (line) lines.push(JSON.parse(line));
      done();
    },
  });
}
