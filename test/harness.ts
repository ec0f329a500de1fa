/**
 * The whole service on a port of its own, on a database of its own, for one test file; and a client that says what came
 * back. Nothing of ours is replaced: real PostgreSQL, real sockets.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { Writable } from 'node:stream';
import { after } from 'node:test';
import { readConfig } from '../src/config.ts';
import { connect, type Pool } from '../src/db/client.ts';
import { identifier } from '../src/db/sql.ts';
import { makeLog } from '../src/lib/log.ts';
import { makeMetrics } from '../src/lib/metrics.ts';
import { makeSealer } from '../src/lib/secrets.ts';
import { startService } from '../src/main.ts';
import { makeEgress } from '../src/net/egress.ts';
import { createApiKey } from '../src/store/api-keys.ts';
import { type NewEvent, recordEvent } from '../src/store/events.ts';
import { ensureUser } from '../src/store/users.ts';
import { type DeliveryParts, startDelivery } from '../src/webhooks/deliver.ts';
import { Poster } from '../src/webhooks/post.ts';

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
  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers freely.
  body: any;
}

export interface CallOptions {
  /** Whose key to send; null sends none. */
  as?: TestUser | null;
  /** Sent as JSON, unless it is a string or bytes: those go as they are. */
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
  sql: Pool;
  databaseUrl: string;
  /** Made at start; whom calls are made as, unless they say otherwise. */
  user: TestUser;
  /** Every line logged so far, parsed. */
  logged: Record<string, unknown>[];
  makeUser(): Promise<TestUser>;
  call(method: string, path: string, options?: CallOptions): Promise<Answer>;
  /** A webhook of the user's for message.received, unless told otherwise. */
  makeWebhook(url: string, more?: Record<string, unknown>, as?: TestUser): Promise<TestWebhook>;
  /** Records an event as whoever receives mail does, and wakes delivery. Of the user's, unless told otherwise. */
  makeEvent(given?: Partial<NewEvent>): Promise<string>;
  /** A delivery with its attempts, once it looks as wanted; without a wish, once it is no longer pending. */
  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers freely.
  findDelivery(eventId: string, webhook: TestWebhook, wanted?: (delivery: any) => boolean): Promise<any>;
  stop(): Promise<void>;
}

/** One for all services of a file: those on one database have to open each other's secrets. */
const secretKey = randomBytes(32).toString('base64');

/**
 * Starts the service with these settings on top of the test's own; it is stopped after the file's tests. With the
 * DATABASE_URL of another service it is a second process-alike beside that one: its `user` is the same, with a key more.
 */
export async function startTestService(settings: Record<string, string> = {}): Promise<TestService> {
  const shared = settings.DATABASE_URL;
  const database = shared ? { url: shared, drop: async () => {} } : await makeDatabase();
  const { log, logged } = makeTestLog();
  const config = readConfig({
    DATABASE_URL: database.url,
    POSTHORN_SECRET_KEY: secretKey,
    POSTHORN_RATE_LIMIT: '0',
    PORT: '0',
    POSTHORN_SMTP_PORT: '0',
    // Nobody listens there, which is known at once: no test waits for the DNS of its machine.
    POSTHORN_DNS_SERVERS: '127.0.0.1:9',
    ...settings,
  });
  const service = await startService(config, log);
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
    ...{ url, smtpPort: service.smtpPort ?? 0, sql, databaseUrl: database.url, user, logged },
    ...{ makeUser, call, makeWebhook, makeEvent, findDelivery, stop },
  };
}

/** Of services whose deliveries a test makes itself, with `startTestDelivery`. */
export const deliveryKey = randomBytes(32).toString('base64');

/** The delivery loop by itself, on its own connections, beside a service that has the role `api` and `deliveryKey`. */
export function startTestDelivery(
  databaseUrl: string,
  given: Partial<DeliveryParts> & { timeoutMs?: number; ca?: string; dnsServers?: string[] } = {},
) {
  const { timeoutMs = 15_000, ca, dnsServers = null, ...parts } = given;
  const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers });
  const sql = connect(databaseUrl, { max: 4, applicationName: 'posthorn test delivery' });
  const logged: Record<string, unknown>[] = [];
  const metrics = makeMetrics();
  const loop = startDelivery({
    sql,
    sealer: makeSealer([Buffer.from(deliveryKey, 'base64')]),
    poster: new Poster({ egress, timeoutMs, ...(ca ? { ca } : {}) }),
    completeData: ({ data }) => data,
    scheduleSeconds: [],
    userAgent: 'Posthorn/test',
    log: makeLog({ level: 'info', json: true, stream: collectLines(logged) }),
    metrics,
    ...parts,
  });
  let stopped: Promise<void> | undefined;
  const stop = () => {
    stopped ??= loop.stop().finally(() => sql.end({ timeoutMs: 1000 }));
    return stopped;
  };
  after(stop);
  return { wake: () => loop.wake(), stop, logged, metrics };
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

/** Asserts a problem document with that code, and returns it. */
export function assertProblem(answer: Answer, status: number, code: string) {
  assert.equal(answer.status, status, answer.text);
  assert.match(answer.headers.get('content-type') ?? '', /^application\/problem\+json/);
  assert.equal(answer.body.code, code, answer.text);
  assert.equal(answer.body.status, status);
  assert.equal(answer.body.requestId, answer.headers.get('x-request-id'));
  for (const field of ['type', 'title', 'detail']) assert.equal(typeof answer.body[field], 'string', field);
  return answer.body as { detail: string; errors?: { pointer: string; code: string; message: string }[] };
}

/** Waits for a condition, looking again whenever the event loop turns; fails after a deadline. */
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

/** The same server, another database. */
export function databaseUrl(url: string, name: string): string {
  const changed = new URL(url);
  changed.pathname = `/${name}`;
  return changed.href;
}

/** A database of its own, cloned from the migrated template or, on wish, empty. */
export async function makeDatabase(
  options: { empty?: boolean } = {},
): Promise<{ url: string; drop(): Promise<void> }> {
  const { TEST_DATABASE_URL: server, TEST_TEMPLATE: template } = process.env;
  if (!server || !template) throw new Error('Run tests with: npm test [-- test/some.test.ts]');
  const name = `posthorn_test_${randomBytes(6).toString('hex')}`;
  const admin = () => connect(server, { max: 1, applicationName: 'posthorn tests' });
  const maker = admin();
  // Postgres refuses to clone a database that another clone is reading at that moment.
  await maker`select pg_advisory_lock(hashtext('posthorn test clone'))`;
  await maker`create database ${identifier(name)} template ${identifier(options.empty ? 'template0' : template)}`;
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

function collectLines(lines: Record<string, unknown>[]): Writable {
  return new Writable({
    write(chunk, _encoding, done) {
      for (const line of String(chunk).split('\n')) if (line) lines.push(JSON.parse(line));
      done();
    },
  });
}
