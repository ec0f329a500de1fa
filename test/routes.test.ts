/** Walks every route that is registered, so that a new one is held to the same rules without being named here. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import diagnostics from 'node:diagnostics_channel';
import { after, describe, test } from 'node:test';
import type { FastifyInstance } from 'fastify';
import { readConfig } from '../src/config.ts';
import { makeConfirmationLinks } from '../src/contract/confirmation-links.ts';
import { makeLinks } from '../src/contract/links.ts';
import { identifier } from '../src/db/sql.ts';
import { requireAccessRule } from '../src/http/access.ts';
import { buildApp } from '../src/http/app.ts';
import { EventStreams } from '../src/http/event-streams.ts';
import { makeApp } from '../src/http/fastify.ts';
import { makeLookup } from '../src/identities/lookup.ts';
import { makeVerifyParts } from '../src/identities/verify.ts';
import { makeApiKey } from '../src/lib/api-key.ts';
import { isUuid, newId } from '../src/lib/ids.ts';
import { makeLog } from '../src/lib/log.ts';
import { makeMetrics } from '../src/lib/metrics.ts';
import { makeSealer } from '../src/lib/secrets.ts';
import { Verifications } from '../src/mailboxes/verifications.ts';
import { makeMailWork } from '../src/mailwork/mailwork.ts';
import { AccessTokens } from '../src/net/access-tokens.ts';
import { makeEgress } from '../src/net/egress.ts';
import { makeSns } from '../src/providers/sns.ts';
import { MailLog } from '../src/receiving/mail-log.ts';
import { MessageRecorder } from '../src/receiving/record.ts';
import { AccountServers } from '../src/sending/account-servers.ts';
import { makeWays } from '../src/sending/way.ts';
import { recordEvent } from '../src/store/events.ts';
import { Poster } from '../src/webhooks/post.ts';
import { type Answer, assertProblem, callUrl, startTestService, type TestUser } from './harness.ts';
import { makeImapThreads } from './imap-threads.ts';

const adminToken = randomBytes(20).toString('hex');
const metricsToken = randomBytes(20).toString('hex');
const tokens = { POSTHORN_ADMIN_TOKEN: adminToken, POSTHORN_METRICS_TOKEN: metricsToken };
const service = await startTestService({ ...tokens, POSTHORN_ROLES: 'api' });

interface Operation {
  security?: Record<string, unknown>[];
  requestBody?: { content: Record<string, { example?: unknown }> };
}
interface Route {
  method: string;
  path: string;
  /** The bearer it wants, as the document names it; undefined for a public one. */
  scheme: string | undefined;
  takesBody: boolean;
  example: unknown;
  contentType: string | undefined;
}

const document = (await service.call('GET', '/openapi.json')).body;
const routes: Route[] = Object.entries(document.paths as Record<string, Record<string, Operation>>).flatMap(
  ([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => ({
      method: method.toUpperCase(),
      path,
      scheme: Object.keys(Object.assign({}, ...(operation.security ?? [])))[0],
      takesBody: operation.requestBody !== undefined,
      contentType: Object.keys(operation.requestBody?.content ?? {})[0],
      example: Object.values(operation.requestBody?.content ?? {})[0]?.example,
    })),
);
const paths = [...new Set(routes.map((route) => route.path))];
const withId = routes.filter((route) => route.path.includes('{'));
/** Also of a route whose parameter takes the last part of this path: `/sessions/{id}` takes `/sessions/current`. */
const methodsOf = (path: string) =>
  routes
    .filter((route) => [path, path.replace(/[^/{}]+$/, '{id}')].includes(route.path))
    .map(({ method }) => method);

/** Puts ids in the place of the parameters, in turn; a single one in the place of all. */
function fill(path: string, ids: string | string[]): string {
  let next = 0;
  return path.replaceAll(/\{\w+\}/g, () => (typeof ids === 'string' ? ids : (ids[next++] ?? '')));
}

function call(route: Route, path: string, bearer: string | null): Promise<Answer> {
  return callUrl(route.method, `${service.url}${path}`, {
    ...(route.example === undefined ? {} : { body: route.example }),
    headers: {
      ...(route.contentType ? { 'content-type': route.contentType } : {}),
      ...(bearer === null ? {} : { authorization: `Bearer ${bearer}` }),
    },
  });
}

interface Maker {
  table: string;
  /** The column of the id; by default `id`. */
  by?: string;
  /** Makes one, and gives the ids of its path, its own last. */
  make(owner: TestUser): Promise<string[]>;
}

async function post(path: string, owner: TestUser, body: object): Promise<string> {
  const made = await service.call('POST', path, { as: owner, body });
  assert.ok(made.status < 300, made.text);
  return (made.body as { id: string }).id;
}

const makeWebhook = (owner: TestUser) =>
  post('/webhooks', owner, {
    url: 'https://127.0.0.1:9/hooks',
    events: ['message.received'],
    ownerId: owner.userId,
  });
const makeEvent = (owner: TestUser) =>
  recordEvent(service.sql, {
    ownerId: owner.userId,
    event: 'message.received',
    identityId: null,
    data: '{}',
  });

const mailWithAttachment = [
  'From: ada@example.com',
  'Content-Type: multipart/mixed; boundary=b',
  '',
  '--b\r\nContent-Disposition: attachment; filename=a.txt\r\n\r\nhello\r\n--b--\r\n',
].join('\r\n');

async function makeMessage(owner: TestUser): Promise<string> {
  const value = `a@${randomBytes(8).toString('hex')}.example`;
  await post('/identities', owner, { value });
  const taken = await service.call('POST', `/inbound?recipient=${value}`, {
    as: owner,
    body: mailWithAttachment,
    headers: { 'content-type': 'message/rfc822' },
  });
  assert.equal(taken.status, 202, taken.text);
  return taken.body.messageIds[0];
}

async function makeMailbox(owner: TestUser): Promise<string> {
  const server = { host: '127.0.0.1', port: 143, username: 'ada', password: 'secret' };
  const account = { label: 'a test', smtp: { ...server, port: 25 }, imap: server };
  const smtp_account_id = await post('/smtp-accounts', owner, account);
  const value = `a@${randomBytes(8).toString('hex')}.example`;
  return post('/identities', owner, { value, smtp_account_id });
}

/** How to make what a path's last id names, by the segment before it. `admin` is the operator's, who has no owner. */
const makers: Record<string, Maker> = {
  identities: {
    table: 'identities',
    make: async (owner) => [
      await post('/identities', owner, { value: `a${randomBytes(8).toString('hex')}.example` }),
    ],
  },
  sync: { table: 'identities', make: async (owner) => [await makeMailbox(owner)] },
  webhooks: { table: 'webhooks', make: async (owner) => [await makeWebhook(owner)] },
  'api-keys': {
    table: 'api_keys',
    make: async (owner) => [await post('/api-keys', owner, { name: 'a test' })],
  },
  sessions: {
    table: 'sessions',
    make: async (owner) => [await post('/sessions', owner, { apiKey: owner.apiKey })],
  },
  events: { table: 'events', make: async (owner) => [(await makeEvent(owner)).id] },
  deliveries: {
    table: 'deliveries',
    async make(owner) {
      const webhookId = await makeWebhook(owner);
      const { id: eventId } = await makeEvent(owner);
      const [row] = await service.sql<{ id: string }[]>`select delivery_id(${eventId}, ${webhookId}) as id`;
      return [row?.id ?? ''];
    },
  },
  messages: { table: 'messages', make: async (owner) => [await makeMessage(owner)] },
  /** Of `POST /messages/{id}/cancel`: a message that waits. */
  cancel: {
    table: 'messages',
    async make(owner) {
      const value = `a@${randomBytes(8).toString('hex')}.example`;
      const identityId = await post('/identities', owner, { value });
      const sendAt = new Date(Date.now() + 86_400_000).toISOString();
      const content = { to: 'bob@dest.example', subject: 'Hello', text: 'Hello' };
      return [await post('/messages', owner, { identityId, sendAt, ...content })];
    },
  },
  suppressions: {
    table: 'suppressions',
    by: 'address',
    async make(owner) {
      const address = `a@${randomBytes(8).toString('hex')}.example`;
      await post('/suppressions', owner, { address });
      return [address];
    },
  },
  providers: {
    table: 'providers',
    make: async (owner) => [
      await post('/providers', owner, { kind: 'postmark', credentials: { serverToken: 'a-token' } }),
    ],
  },
  'smtp-accounts': {
    table: 'smtp_accounts',
    async make(owner) {
      const smtp = { host: '127.0.0.1', port: 9, username: 'ada', password: 'secret' };
      return [await post('/smtp-accounts', owner, { label: 'Post', smtp })];
    },
  },
  attachments: { table: 'messages', make: async (owner) => [await makeMessage(owner), '0'] },
  replays: {
    table: 'replays',
    async make(owner) {
      const webhookId = await makeWebhook(owner);
      return [
        webhookId,
        await post(`/webhooks/${webhookId}/replay`, owner, { since: '2026-01-31T00:00:00Z' }),
      ];
    },
  },
};

async function make(path: string, owner: TestUser) {
  const named = /([^/]+)\/\{\w+\}[^{]*$/.exec(path)?.[1] ?? '';
  const segment = /\/(cancel|sync)$/.exec(path)?.[1] ?? named;
  const maker = makers[segment];
  assert.ok(maker, `No test knows how to make what ${path} names: add ${segment} to makers in this file.`);
  const ids = await maker.make(owner);
  const read = async () => {
    const { table, by = 'id' } = maker;
    const id = ids.findLast((one) => by !== 'id' || isUuid(one)) ?? '';
    const rows = await service.sql`
      select to_jsonb(t) as row from ${identifier(table)} t where ${identifier(by)}::text = ${id}`;
    return rows.map(({ row }) => row);
  };
  return { ids, read };
}

async function collectRoutes(): Promise<string[]> {
  const found: string[] = [];
  const listen = (message: unknown) =>
    (message as { fastify: FastifyInstance }).fastify.addHook('onRoute', ({ method, url }) => {
      for (const name of [method].flat()) found.push(`${name} ${url.replaceAll(/:(\w+)/g, '{$1}')}`);
    });
  diagnostics.subscribe('fastify.initialization', listen);
  const secretKey = randomBytes(32);
  const config = readConfig({
    DATABASE_URL: service.databaseUrl,
    POSTHORN_SECRET_KEY: secretKey.toString('base64'),
    ...tokens,
  });
  const log = makeLog({ level: 'silent', json: true });
  const sealer = makeSealer([secretKey]);
  const egress = makeEgress(config);
  const poster = new Poster({ egress });
  const links = makeLinks([secretKey], () => '');
  const confirmationLinks = makeConfirmationLinks([secretKey], () => '');
  const mailWork = makeMailWork({ ...config, log });
  const wakeDelivery = () => {};
  const shared = { sql: service.sql, mailWork, tracer: null, metrics: makeMetrics() };
  const recorder = new MessageRecorder({ ...config, groupSql: service.sql, offerDeliveries: null });
  const mail = { ...config, ...shared, recorder, mailLog: new MailLog(log), wakeDelivery };
  const accessTokens = new AccessTokens({ egress, allowHttp: true });
  const accountParts = {
    sql: service.sql,
    sealer,
    log,
    egress,
    tokens: accessTokens,
    heloName: 'mx.example',
    production: false,
  };
  const accounts = new AccountServers(accountParts);
  const way = {
    kind: 'capture',
    isOwn: false,
    destinationOf: () => '',
    send: async () => assert.fail(),
    close() {},
  } as const;
  const ways = makeWays(way, accounts);
  const submit = {
    ...{
      ...shared,
      work: mailWork,
      log,
      maxMessageBytes: 1024,
      sendRatePerMinute: 0,
      wakeDelivery,
    },
    ...{
      ways,
      wakeSending: () => {},
      wakeAfterEvents: () => {},
    },
  };
  const parts = {
    ...{
      ...shared,
      config,
      sealer,
      log,
      egress,
      poster,
      links,
      confirmationLinks,
      mail,
      submit,
      wakeDelivery,
    },
    verifyAccounts: {
      sql: service.sql,
      sealer,
      tokens: accessTokens,
      accounts,
      imap: { egress, threads: makeImapThreads(), production: false },
    },
    verifications: new Verifications(),
    verification: makeVerifyParts({
      ...{ sql: service.sql, sealer, log },
      mailHost: 'mx.example',
      lookup: makeLookup(config),
    }),
  };
  const streams = new EventStreams({ sql: service.sql, log, writeBody: () => '' });
  const app = await buildApp({
    ...parts,
    userAgent: 'Posthorn/test',
    wakePurge: () => {},
    wakeSync: () => {},
    isReady: () => true,
    wakeSettling: () => {},
    streams,
    reports: { sql: service.sql, log, wakeAfterEvents: () => {} },
    sns: makeSns({ egress }),
    readBaseUrl: () => '',
  });
  await streams.stop();
  diagnostics.unsubscribe('fastify.initialization', listen);
  await app.close();
  return found;
}

test('every registered route is in the OpenAPI document, and nothing else is', async () => {
  // The files of the dashboard and of /docs, and the page of a confirmation mail are no operations.
  const pages = ['/', '/app', '/app/*', '/confirm/{token}', '/docs/{file}'];
  // Only providers call these, each in a form of its own.
  const hooks = ['inbound', 'inbound/mime', 'events'].map((name) => `/hooks/{secret}/${name}`);
  const hidden = [...pages, ...hooks];
  const registered = (await collectRoutes()).filter((route) => !hidden.includes(route.split(' ')[1] ?? ''));
  const named = routes.map(({ method, path }) => `${method} ${path}`);
  assert.ok(named.length > 15);
  const lacking = routes.filter(({ takesBody, example }) => takesBody && example === undefined);
  assert.deepEqual(lacking, [], 'a body needs an example, which these tests send');
  assert.deepEqual(registered.filter((route) => !route.startsWith('HEAD ')).sort(), named.sort());
  const heads = registered.filter((route) => route.startsWith('HEAD '));
  const gets = named.filter((route) => route.startsWith('GET '));
  assert.deepEqual(heads.sort(), gets.map((route) => route.replace('GET', 'HEAD')).sort());
});

describe('access', () => {
  test('the public routes are these and no others', () => {
    const open = routes.filter(({ scheme }) => scheme === undefined);
    assert.deepEqual(open.map(({ method, path }) => `${method} ${path}`).sort(), [
      'GET /docs',
      'GET /health/live',
      'GET /health/ready',
      'GET /openapi.json',
      'POST /sessions',
    ]);
  });

  const refusals: [string, string | null, 'missing' | 'invalid'][] = [
    ['no key', null, 'missing'],
    ['a key that is not one', 'nonsense', 'invalid'],
    ['a well-formed key that was never issued', makeApiKey(), 'invalid'],
  ];
  for (const route of routes) {
    test(`${route.method} ${route.path} lets in whom it says`, async () => {
      const path = fill(route.path, newId());
      if (route.scheme === undefined) {
        // Signing in is public, but the key of the example is none.
        const expected = route.path === '/sessions' ? 401 : 200;
        assert.equal((await call(route, path, null)).status, expected);
        return;
      }
      const noun = route.scheme === 'apiKey' ? 'api_key' : 'token';
      // The bearer of another door's key is nobody here.
      const other = route.scheme === 'apiKey' ? adminToken : service.user.apiKey;
      for (const [what, bearer, fault] of [
        ...refusals,
        ['the key of another door', other, 'invalid'] as const,
      ]) {
        const answer = await call(route, path, bearer);
        assertProblem(answer, 401, `${fault}_${noun}`);
        assert.equal(answer.headers.get('www-authenticate'), 'Bearer', what);
        assert.equal(answer.headers.get('cache-control'), 'no-store');
      }
    });
  }

  test('the operator and metrics tokens open only their own door', async () => {
    const doors = routes.filter(({ scheme }) => scheme === 'operatorToken' || scheme === 'metricsToken');
    assert.ok(doors.length >= 4);
    for (const route of doors) {
      const [right, wrong] = [adminToken, metricsToken];
      const bearers = route.scheme === 'operatorToken' ? [right, wrong] : [wrong, right];
      const answers = await Promise.all(
        bearers.map((bearer) => call(route, fill(route.path, newId()), bearer)),
      );
      assert.notEqual(answers[0]?.status, 401, `${route.method} ${route.path}`);
      assert.equal(answers[1]?.status, 401, `${route.method} ${route.path}`);
    }
  });

  test('a route without an access rule does not register', async () => {
    const app = makeApp(makeLog({ level: 'silent', json: true }));
    after(() => app.close());
    requireAccessRule(app);
    assert.throws(
      () => app.get('/open-by-mistake', async () => 'secrets'),
      /GET \/open-by-mistake.*no access rule/,
    );
    app.get('/fine', { config: { access: 'public' } }, async () => 'fine');
    assert.ok(app.hasRoute({ method: 'GET', url: '/fine' }));
  });
});

describe('ids in the path', () => {
  const malformed = [
    '1',
    'not-a-uuid',
    '%00',
    '%zz',
    'a%2Fb',
    `${newId()}0`,
    'x'.repeat(1000),
    '..%2f..%2fme',
  ];

  for (const route of withId) {
    const bearer = route.scheme === 'operatorToken' ? adminToken : service.user.apiKey;
    const name = `${route.method} ${route.path}`;

    test(`${name}: malformed and unknown ids are 404`, async () => {
      for (const id of [...malformed, newId(), '00000000-0000-0000-0000-000000000000']) {
        const answer = await call(route, fill(route.path, id), bearer);
        assertProblem(answer, 404, 'not_found');
        assert.equal(answer.body.errors, undefined);
      }
    });

    if (route.scheme === 'operatorToken') continue;

    test(`${name}: another owner's is 404, told as an unknown one is, and stays as it was`, async () => {
      const [owner, stranger] = [await service.makeUser(), await service.makeUser()];
      const { ids, read } = await make(route.path, owner);
      const before = await read();
      assert.equal(before.length, 1);

      const foreign = await call(route, fill(route.path, ids), stranger.apiKey);
      const unknown = await call(route, fill(route.path, newId()), stranger.apiKey);
      assertProblem(foreign, 404, 'not_found');
      const { requestId: _one, ...told } = foreign.body;
      const { requestId: _other, ...toldUnknown } = unknown.body;
      assert.deepEqual(told, toldUnknown);
      assert.deepEqual(await read(), before);

      const own = await call(route, fill(route.path, ids), owner.apiKey);
      assert.ok(own.status < 300, `its owner must be able to do the same: ${own.text}`);
    });
  }

  test('lists show nothing of another owner', async () => {
    const [owner, stranger] = [await service.makeUser(), await service.makeUser()];
    for (const segment of Object.keys(makers).filter((name) => paths.includes(`/${name}`))) {
      const { ids: made } = await make(`/${segment}/{id}`, owner);
      const id = made.at(-1);
      const ids = (answer: Answer) =>
        answer.body.map((row: { id?: string; address: string }) => row.id ?? row.address);
      assert.ok(ids(await service.call('GET', `/${segment}`, { as: owner })).includes(id));
      assert.ok(!ids(await service.call('GET', `/${segment}`, { as: stranger })).includes(id));
    }
  });
});

describe('methods', () => {
  const parse = (allow: string | null) => (allow ?? '').split(', ').sort();

  for (const path of paths) {
    const methods = [...new Set(methodsOf(path))];
    const allowed = [...methods, ...(methods.includes('GET') ? ['HEAD'] : []), 'OPTIONS'].sort();
    const at = `${service.url}${fill(path, newId())}`;

    test(`${path}: other methods are 405 with Allow, OPTIONS is 204 with Allow`, async () => {
      for (const method of ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'PROPFIND']) {
        if (allowed.includes(method)) continue;
        const answer = await callUrl(method, at, { as: service.user });
        assert.equal(answer.status, 405, `${method} ${path}`);
        if (method !== 'HEAD') assertProblem(answer, 405, 'method_not_allowed');
        assert.deepEqual(parse(answer.headers.get('allow')), allowed);
      }
      const options = await callUrl('OPTIONS', at, {});
      assert.equal(options.status, 204);
      assert.equal(options.text, '');
      assert.deepEqual(parse(options.headers.get('allow')), allowed);
    });
  }

  test('another method is 405 whatever body comes with it', async () => {
    for (const body of ['{', 'x'.repeat(100_000)]) {
      const answer = await service.call('PUT', '/me', { body, headers: { 'content-type': 'text/plain' } });
      assertProblem(answer, 405, 'method_not_allowed');
    }
  });

  test('HEAD answers as GET does, without the body', async () => {
    // A stream does not end, and a key has no current session.
    const others = ['/events/stream', '/sessions/current'];
    for (const route of routes.filter(({ method, path }) => method === 'GET' && !others.includes(path))) {
      const needsId = route.path.includes('{') && route.scheme === 'apiKey';
      const ids = needsId ? (await make(route.path, service.user)).ids : service.user.userId;
      const bearer = { operatorToken: adminToken, metricsToken }[route.scheme ?? ''] ?? service.user.apiKey;
      const headers = { authorization: `Bearer ${bearer}` };
      const at = `${service.url}${fill(route.path, ids)}`;
      const [get, head] = [await callUrl('GET', at, { headers }), await callUrl('HEAD', at, { headers })];
      assert.equal(get.status, 200, `${route.path} ${get.text}`);
      assert.equal(head.status, 200, route.path);
      assert.equal(head.text, '');
      assert.equal(head.headers.get('content-type'), get.headers.get('content-type'));
      // Bytes that never change may be kept, if the cache asks again each time.
      const wanted = /\/(raw|attachments\/\{n\})$/.test(route.path) ? 'private, no-cache' : 'no-store';
      if (route.scheme) assert.equal(get.headers.get('cache-control'), wanted, route.path);
    }
  });
});
