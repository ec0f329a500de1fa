/** The scope of an API key: which routes it opens, route by route, and that nothing goes around it. */
import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import { describe, test } from 'node:test';
import { newId } from '../src/lib/ids.ts';
import { createApiKey, type KeyScope, keyScopes } from '../src/store/api-keys.ts';
import { type Answer, assertProblem, callUrl, startTestService, type TestUser } from './harness.ts';

const adminToken = randomBytes(20).toString('hex');
const service = await startTestService({ POSTHORN_ADMIN_TOKEN: adminToken, POSTHORN_ROLES: 'api' });
const { user, call, sql } = service;

async function makeKey(scope: KeyScope): Promise<TestUser> {
  const { apiKey } = await createApiKey(sql, user.userId, { scope });
  return { ...user, apiKey };
}
const keys = { full: await makeKey('full'), send: await makeKey('send'), read: await makeKey('read') };

/** Every route that takes an API key, and the scopes that may use it. A new route needs a decision here. */
const decided: Record<string, KeyScope[]> = {
  'GET /me': ['full', 'send', 'read'],

  'GET /identities': ['full', 'read'],
  'POST /identities': ['full'],
  'GET /identities/{id}': ['full', 'read'],
  'PATCH /identities/{id}': ['full'],
  'DELETE /identities/{id}': ['full'],
  'GET /identities/{id}/dns': ['full', 'read'],
  'GET /identities/{id}/dns.zone': ['full', 'read'],
  'POST /identities/{id}/verify': ['full'],
  'POST /identities/{id}/dkim/rotate': ['full'],

  'GET /webhooks': ['full', 'read'],
  'POST /webhooks': ['full'],
  'GET /webhooks/{id}': ['full', 'read'],
  'PATCH /webhooks/{id}': ['full'],
  'DELETE /webhooks/{id}': ['full'],
  'GET /webhooks/{id}/secret': ['full'],
  'POST /webhooks/{id}/secret/rotate': ['full'],
  'POST /webhooks/{id}/test': ['full'],
  'POST /webhooks/{id}/replay': ['full'],
  'GET /webhooks/{id}/replays/{replayId}': ['full', 'read'],
  'GET /webhooks/{id}/deliveries': ['full', 'read'],

  'GET /deliveries': ['full', 'read'],
  'GET /deliveries/{id}': ['full', 'read'],
  'POST /deliveries/{id}/redeliver': ['full'],
  'GET /events': ['full', 'read'],
  'GET /events/{id}': ['full', 'read'],
  'GET /events/stream': ['full', 'read'],
  'GET /stats': ['full', 'read'],
  'GET /event-types': ['full', 'read'],

  'GET /messages': ['full', 'read', 'send'],
  'POST /messages': ['full', 'send'],
  'GET /messages/{id}': ['full', 'read', 'send'],
  'DELETE /messages/{id}': ['full'],
  'POST /messages/{id}/cancel': ['full', 'send'],
  'GET /messages/{id}/attempts': ['full', 'read', 'send'],
  'GET /messages/{id}/raw': ['full', 'read', 'send'],
  'GET /messages/{id}/attachments/{n}': ['full', 'read'],
  'POST /inbound': ['full'],

  'GET /identities/{id}/mailboxes': ['full', 'read'],
  'POST /identities/{id}/sync': ['full'],
  'GET /suppressions': ['full', 'read'],
  'POST /suppressions': ['full'],
  'DELETE /suppressions/{address}': ['full'],

  'GET /smtp-accounts': ['full', 'read'],
  'POST /smtp-accounts': ['full'],
  'GET /smtp-accounts/{id}': ['full', 'read'],
  'PATCH /smtp-accounts/{id}': ['full'],
  'DELETE /smtp-accounts/{id}': ['full'],
  'POST /smtp-accounts/{id}/verify': ['full'],

  'GET /providers': ['full', 'read'],
  'POST /providers': ['full'],
  'GET /providers/{id}': ['full', 'read'],
  'PATCH /providers/{id}': ['full'],
  'DELETE /providers/{id}': ['full'],
  'POST /providers/{id}/verify': ['full'],

  'GET /api-keys': ['full', 'read'],
  'POST /api-keys': ['full'],
  'GET /api-keys/{id}': ['full', 'read'],
  'DELETE /api-keys/{id}': ['full'],

  'GET /sessions': ['full', 'read'],
  'GET /sessions/current': ['full', 'read'],
  'DELETE /sessions/current': ['full', 'read'],
  // Signing out is for every session; with `read`, only of itself.
  'DELETE /sessions/{id}': ['full', 'read'],
};

interface Operation {
  security?: object[];
  'x-scopes'?: KeyScope[];
  requestBody?: { content: Record<string, { example?: unknown }> };
}

const document = (await call('GET', '/openapi.json')).body;
const routes = Object.entries(document.paths as Record<string, Record<string, Operation>>)
  .flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, { security = [], 'x-scopes': scopes = [], requestBody }]) => ({
      name: `${method.toUpperCase()} ${path}`,
      method: method.toUpperCase(),
      path: path.replaceAll(/\{\w+\}/g, newId),
      scopes,
      takesKey: security.some((one) => 'apiKey' in one),
      content: Object.entries(requestBody?.content ?? {})[0],
    })),
  )
  .filter(({ takesKey }) => takesKey);

test('every route that takes a key has a decision on its scopes, and the document names them', () => {
  const documented = Object.fromEntries(routes.map(({ name, scopes }) => [name, scopes]));
  assert.deepEqual(documented, decided);
});

describe('a key with the scope', () => {
  for (const { name, method, path, content: [type, { example } = {}] = [] } of routes) {
    for (const scope of keyScopes) {
      const isAllowed = decided[name]?.includes(scope) ?? false;
      test(`${scope} ${isAllowed ? 'may' : 'may not'} ${name}`, async () => {
        const options = {
          as: keys[scope],
          ...(example === undefined ? {} : { body: example }),
          ...(type === undefined ? {} : { headers: { 'content-type': type } }),
        };
        // A stream does not end.
        const isStream = isAllowed && path.endsWith('/stream');
        const answer = await call(isStream ? 'HEAD' : method, path, options);
        if (isAllowed) assert.notEqual(answer.body?.code, 'scope_insufficient', answer.text);
        else assertProblem(answer, 403, 'scope_insufficient');
        if (method !== 'GET') return;
        const head = await call('HEAD', path, options);
        assert.equal(head.status, answer.status);
      });
    }
  }
});

test('a refusal names the scope of the key and those that the route accepts, and may not be cached', async () => {
  const answer = await call('GET', '/events', { as: keys.send });
  const { detail } = assertProblem(answer, 403, 'scope_insufficient');
  assert.equal(detail, 'The API key has the scope `send`. Use a key with the scope `full` or `read`.');
  assert.equal(answer.headers.get('cache-control'), 'no-store');
});

test('a key keeps its scope while it is cached, and keys of one owner do not share it', async () => {
  const read = await makeKey('read');
  for (const _ of [1, 2, 3]) {
    assert.equal((await call('GET', '/identities', { as: read })).status, 200);
    assertProblem(await call('POST', '/identities', { as: read, body: {} }), 403, 'scope_insufficient');
    assertProblem(await call('POST', '/identities', { as: keys.full, body: {} }), 400, 'invalid_body');
  }
  const send = await makeKey('send');
  const answers = await Promise.all([1, 2, 3, 4].map(() => call('GET', '/identities', { as: send })));
  for (const answer of answers) assertProblem(answer, 403, 'scope_insufficient');
});

test('a refused request changes nothing, and its body is not even read', async () => {
  const value = `s${randomBytes(6).toString('hex')}.example`;
  for (const body of [{ value }, '{', 'x'.repeat(100_000)]) {
    assertProblem(await call('POST', '/identities', { as: keys.read, body }), 403, 'scope_insufficient');
  }
  assert.equal((await sql`select from identities where value = ${value}`).count, 0);
});

test('a refused request counts towards the rate limit', async () => {
  const limited = await startTestService({ DATABASE_URL: service.databaseUrl, POSTHORN_RATE_LIMIT: '2' });
  const answer = await callUrl('POST', `${limited.url}/identities`, { as: keys.read, body: {} });
  assertProblem(answer, 403, 'scope_insufficient');
  assert.match(answer.headers.get('ratelimit') ?? '', /^"default";r=1;/);
  await limited.stop();
});

describe('a stored answer', () => {
  const post = (path: string, as: TestUser, key: string, body?: unknown): Promise<Answer> =>
    call('POST', path, { as, body, headers: { 'idempotency-key': key } });
  const webhook = {
    url: 'https://127.0.0.1:9/hooks',
    events: ['message.received'],
    ownerId: user.userId,
  };

  test('is repeated to another full key of the owner, and not to one of another scope', async () => {
    const made = await call('POST', '/webhooks', { body: webhook });
    for (const [path, body] of [
      ['/webhooks', webhook],
      [`/webhooks/${made.body.id}/secret/rotate`, undefined],
      [`/webhooks/${made.body.id}/test`, undefined],
      ['/api-keys', {}],
    ] as const) {
      const key = randomUUID();
      const first = await post(path, user, key, body);
      assert.ok(first.status < 300, first.text);
      for (const as of [keys.read, keys.send]) {
        const answer = await post(path, as, key, body);
        assertProblem(answer, 403, 'scope_insufficient');
        assert.equal(answer.headers.get('idempotent-replayed'), null);
      }
      const again = await post(path, keys.full, key, body);
      assert.equal(again.text, first.text);
      assert.equal(again.headers.get('idempotent-replayed'), 'true');
    }
  });

  test('is not made of a refusal: the same key works for a full key afterwards', async () => {
    const [key, body] = [randomUUID(), { value: `k${randomBytes(6).toString('hex')}.example` }];
    assertProblem(await post('/identities', keys.read, key, body), 403, 'scope_insufficient');
    assert.equal((await post('/identities', keys.full, key, body)).status, 201);
  });
});

test('no answer to a read key has the secret of a webhook', async () => {
  const { id, secret } = await service.makeWebhook('https://127.0.0.1:9/hooks');
  assert.equal((await call('GET', `/webhooks/${id}/secret`, { as: keys.full })).body.secret, secret);
  assertProblem(await call('GET', `/webhooks/${id}/secret`, { as: keys.read }), 403, 'scope_insufficient');
  for (const path of ['/webhooks', `/webhooks/${id}`, `/webhooks/${id}/deliveries`]) {
    const answer = await call('GET', path, { as: keys.read });
    assert.equal(answer.status, 200, path);
    assert.ok(!answer.text.includes('whsec_'), path);
  }
});

describe('a new key', () => {
  for (const [given, scope] of [
    [{}, 'full'],
    [{ scope: 'full' }, 'full'],
    [{ scope: 'send' }, 'send'],
    [{ scope: 'read' }, 'read'],
  ] as const) {
    test(`of ${JSON.stringify(given)} is ${scope}, wherever it is shown`, async () => {
      const headers = { authorization: `Bearer ${adminToken}` };
      const path = `/admin/users/${user.userId}/api-keys`;
      for (const made of [
        await call('POST', '/api-keys', { body: given }),
        await call('POST', path, { as: null, body: given, headers }),
      ]) {
        assert.equal(made.status, 201, made.text);
        assert.equal(made.body.scope, scope);
        const { body: one } = await call('GET', `/api-keys/${made.body.id}`);
        assert.equal(one.scope, scope);
        const { body: list } = await call('GET', '/api-keys');
        assert.equal(list.find(({ id }: { id: string }) => id === made.body.id).scope, scope);

        const as = { ...user, apiKey: made.body.apiKey };
        assert.deepEqual((await call('GET', '/me', { as })).body, { userId: user.userId });
        const [reads, writes] = [
          await call('GET', '/identities', { as }),
          await call('POST', '/api-keys', { as, body: {} }),
        ];
        assert.equal(reads.status, scope === 'send' ? 403 : 200);
        assert.equal(writes.status, scope === 'full' ? 201 : 403);
      }
    });
  }
});

test('a signed link is not a key: it works whatever key is sent with it', async () => {
  const value = `a@${randomBytes(6).toString('hex')}.example`;
  await call('POST', '/identities', { body: { value } });
  const headers = { 'content-type': 'message/rfc822' };
  const taken = await call('POST', `/inbound?recipient=${value}`, {
    body: 'Subject: linked\r\n\r\nhello\r\n',
    headers,
  });
  const [id] = taken.body.messageIds;
  const [{ id: eventId }] = (await call('GET', '/events?limit=1')).body;
  const { data } = (await call('GET', `/events/${eventId}`, { as: keys.read })).body;
  for (const as of [null, keys.send, keys.read]) {
    assert.equal((await callUrl('GET', data.rawEmailUrl, { as })).status, 200);
  }
  assert.equal((await call('GET', `/messages/${id}/raw`, { as: keys.read })).status, 200);
  assertProblem(await call('GET', `/messages/${id}/raw`, { as: keys.send }), 404, 'not_found');
});
