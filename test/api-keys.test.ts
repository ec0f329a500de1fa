/** API keys: how they are made, what they open, and that nothing else opens it. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { test } from 'node:test';
import { isApiKey, makeApiKey } from '../src/lib/api-key.ts';
import { newId } from '../src/lib/ids.ts';
import { createApiKey } from '../src/store/api-keys.ts';
import {
  type Answer,
  assertProblem,
  callUrl,
  startTestService,
  type TestService,
  waitFor,
} from './harness.ts';

const adminToken = 'the operator token of this test file, long enough'.replaceAll(' ', '-');
const service = await startTestService({ POSTHORN_ADMIN_TOKEN: adminToken });
const { user, call, sql } = service;
const other = await service.makeUser();

const recordFields = ['id', 'name', 'scope', 'prefix', 'suffix', 'createdAt', 'expiresAt', 'lastUsedAt'];
const isoTime = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;
/** Every key that a test here has sent or been given, for the test of the log at the end. */
const keysSeen: string[] = [user.apiKey, other.apiKey, adminToken];

async function make(body: Record<string, unknown> = {}, as = user) {
  const answer = await call('POST', '/api-keys', { as, body });
  assert.equal(answer.status, 201, answer.text);
  keysSeen.push(answer.body.apiKey);
  return answer.body;
}

/** Who that key is, as `GET /me` tells. */
function whoIs(apiKey: string, at: TestService = service): Promise<Answer> {
  keysSeen.push(apiKey);
  return callUrl('GET', `${at.url}/me`, { as: { ...user, apiKey } });
}

function mistype(key: string): string {
  const last = key.at(-1) === 'a' ? 'b' : 'a';
  return `${key.slice(0, -1)}${last}`;
}

test('a key is shown once, at its making: ph_ and 38 characters that check out', async () => {
  const answer = await call('POST', '/api-keys', { body: { name: 'ci' } });
  const { apiKey, ...record } = answer.body;
  keysSeen.push(apiKey);
  assert.equal(answer.status, 201);
  assert.deepEqual(Object.keys(answer.body), [...recordFields, 'apiKey']);
  assert.match(apiKey, /^ph_[0-9A-Za-z]{38}$/);
  assert.ok(isApiKey(apiKey));
  assert.deepEqual([record.prefix, record.suffix], [apiKey.slice(0, 8), apiKey.slice(-4)]);
  assert.match(record.createdAt, isoTime);
  assert.equal(answer.headers.get('location'), `/api-keys/${record.id}`);
  assert.deepEqual((await whoIs(apiKey)).body, { userId: user.userId });

  const one = await call('GET', `/api-keys/${record.id}`);
  const list = await call('GET', '/api-keys');
  assert.deepEqual(Object.keys(one.body), recordFields);
  assert.deepEqual({ ...one.body, lastUsedAt: null }, record);
  assert.deepEqual({ ...list.body[0], lastUsedAt: null }, record);
  for (const { text } of [one, list]) assert.ok(!text.includes(apiKey));
});

test('only the hash of a key, its first 8 and its last 4 characters are stored', async () => {
  const { id, apiKey } = await make();
  const [row] = await sql<{ row: string }[]>`select api_keys::text as row from api_keys where id = ${id}`;
  assert.ok(row?.row.includes(apiKey.slice(0, 8)));
  for (const part of [apiKey, apiKey.slice(0, 9), apiKey.slice(8, 37)]) {
    assert.ok(!row?.row.includes(part));
    assert.ok(!row?.row.includes(Buffer.from(part).toString('hex')));
  }
});

test('name and expiry are optional, null or given', async () => {
  const expiresAt = '2099-12-31T23:30:00+01:00';
  for (const [body, expected] of [
    [{}, { name: null, expiresAt: null }],
    [
      { name: null, expiresAt: null },
      { name: null, expiresAt: null },
    ],
    [{ name: '🦉'.repeat(100) }, { name: '🦉'.repeat(100), expiresAt: null }],
    [
      { name: 'ci', expiresAt },
      { name: 'ci', expiresAt: '2099-12-31T22:30:00.000Z' },
    ],
  ] as const) {
    const made = await make(body);
    assert.deepEqual({ name: made.name, expiresAt: made.expiresAt }, expected);
  }
});

for (const [body, expected] of [
  [{ name: 'a'.repeat(101) }, ['/name too_long']],
  [{ name: 'a\0b' }, ['/name invalid_value']],
  [{ name: 5 }, ['/name wrong_type']],
  [{ expiresAt: '2020-01-01T00:00:00Z' }, ['/expiresAt out_of_range']],
  [{ expiresAt: 'tomorrow' }, ['/expiresAt invalid_value']],
  [{ expiresAt: '2099-01-01' }, ['/expiresAt invalid_value']],
  [{ expiresAt: '2099-02-30T00:00:00Z' }, ['/expiresAt invalid_value']],
  [{ expiresAt: 4102444800 }, ['/expiresAt wrong_type']],
  [{ scope: 'admin' }, ['/scope unknown_value']],
  [{ scope: ['read'] }, ['/scope unknown_value', '/scope wrong_type']],
  [{ scope: null }, ['/scope unknown_value', '/scope wrong_type']],
  [{ label: 'ci' }, ['/label unknown_field']],
  [{ apiKey: makeApiKey() }, ['/apiKey unknown_field']],
  [{ name: 5, expiresAt: '2020-01-01T00:00:00Z' }, ['/expiresAt out_of_range', '/name wrong_type']],
] as const) {
  test(`POST /api-keys refuses ${JSON.stringify(body).slice(0, 60)}`, async () => {
    const { errors } = assertProblem(await call('POST', '/api-keys', { body }), 400, 'invalid_body');
    assert.deepEqual(errors?.map(({ pointer, code }) => `${pointer} ${code}`).sort(), expected);
  });
}

test("keys are listed newest first, in pages, and never another user's", async () => {
  const owner = await service.makeUser();
  const ids = [(await make({}, owner)).id, (await make({}, owner)).id].reverse();
  const first = await call('GET', '/api-keys?limit=2', { as: owner });
  assert.deepEqual(
    first.body.map((key: { id: string }) => key.id),
    ids,
  );
  const next = /^<([^>]+)>; rel="next"$/.exec(first.headers.get('link') ?? '')?.[1] ?? '';
  const second = await call('GET', next, { as: owner });
  assert.equal(second.body.length, 1);
  assert.equal(second.body[0].prefix, owner.apiKey.slice(0, 8));
});

test("another user's key cannot be read or revoked", async () => {
  const { id, apiKey } = await make();
  for (const method of ['GET', 'DELETE']) {
    assertProblem(await call(method, `/api-keys/${id}`, { as: other }), 404, 'not_found');
  }
  assert.equal((await whoIs(apiKey)).status, 200);
});

test('a revoked key stops at once in this process, and is gone from the answers', async () => {
  const { id, apiKey } = await make();
  assert.equal((await whoIs(apiKey)).status, 200);
  const answer = await call('DELETE', `/api-keys/${id}`);
  assert.deepEqual([answer.status, answer.text], [204, '']);
  assertProblem(await whoIs(apiKey), 401, 'invalid_api_key');
  assertProblem(await call('GET', `/api-keys/${id}`), 404, 'not_found');
  assertProblem(await call('DELETE', `/api-keys/${id}`), 404, 'not_found');
  const { body } = await call('GET', '/api-keys');
  assert.ok(!body.some((key: { id: string }) => key.id === id));
  assert.equal((await whoIs(user.apiKey)).status, 200);
});

test('a key can revoke itself', async () => {
  const { id, apiKey } = await make();
  assert.equal((await call('DELETE', `/api-keys/${id}`, { as: { ...user, apiKey } })).status, 204);
  assertProblem(await whoIs(apiKey), 401, 'invalid_api_key');
});

test('a revoked key stops soon in another process as well, and the others go on', async () => {
  const second = await startTestService({ DATABASE_URL: service.databaseUrl });
  const { id, apiKey } = await make();
  assert.deepEqual((await whoIs(apiKey, second)).body, { userId: user.userId });
  await call('DELETE', `/api-keys/${id}`);
  await waitFor('the second process to refuse it', async () => (await whoIs(apiKey, second)).status === 401);
  assert.equal((await whoIs(user.apiKey, second)).status, 200);
  await second.stop();
});

test('an expired key is refused, also one that was fine a moment ago', async () => {
  const past = await createApiKey(sql, user.userId, { expiresAt: '2020-01-01T00:00:00Z' });
  assertProblem(await whoIs(past.apiKey), 401, 'invalid_api_key');
  const { apiKey } = await make({ expiresAt: new Date(Date.now() + 2000).toISOString() });
  await waitFor('it to expire', async () => (await whoIs(apiKey)).status === 401);
});

test('last_used_at is written, and at most once a minute', async () => {
  const { id, apiKey, lastUsedAt } = await make();
  assert.equal(lastUsedAt, null);
  const readUse = async () => {
    const [row] = await sql<{ at: string | null; fresh: boolean | null }[]>`
      select last_used_at::text as at, last_used_at > now() - interval '30 seconds' as fresh
      from api_keys where id = ${id}`;
    return row ?? assert.fail('the key is gone');
  };
  await whoIs(apiKey);
  const { at } = await waitFor('the first use to be written', async () =>
    (await readUse()).at ? readUse() : null,
  );

  /** A process that has not seen the key yet looks it up; when it has stopped, all it had to write is written. */
  async function useElsewhere(): Promise<void> {
    const elsewhere = await startTestService({ DATABASE_URL: service.databaseUrl });
    assert.equal((await whoIs(apiKey, elsewhere)).status, 200);
    await elsewhere.stop();
  }
  await useElsewhere();
  assert.equal((await readUse()).at, at);
  assert.match((await call('GET', `/api-keys/${id}`)).body.lastUsedAt, isoTime);

  await sql`update api_keys set last_used_at = now() - interval '50 seconds' where id = ${id}`;
  await useElsewhere();
  assert.equal((await readUse()).fresh, false);
  await sql`update api_keys set last_used_at = now() - interval '70 seconds' where id = ${id}`;
  await useElsewhere();
  assert.equal((await readUse()).fresh, true);
});

test('with the database away, a mistyped key is 401 and a whole one 503: only that one was looked up', async () => {
  const proxy = await startProxy(new URL(service.databaseUrl));
  const away = await startTestService({ DATABASE_URL: proxy.url });
  proxy.cut();
  const key = makeApiKey();
  const answer = await whoIs(key, away);
  assertProblem(answer, 503, 'database_unavailable');
  assert.match(answer.headers.get('retry-after') ?? '', /^\d+$/);
  assertProblem(await whoIs(mistype(key), away), 401, 'invalid_api_key');
  assertProblem(await whoIs('ph_x', away), 401, 'invalid_api_key');
  await away.stop();
  assert.ok(!JSON.stringify(away.logged).includes(key));
});

/** Stands before the database, until it is cut. */
async function startProxy(database: URL): Promise<{ url: string; cut(): void }> {
  const { hostname, port } = database;
  const sockets = new Set<Socket>();
  const proxy = createServer((near) => {
    const far = connect(Number(port), hostname);
    for (const socket of [near, far]) sockets.add(socket.on('error', () => {}));
    near.pipe(far).pipe(near);
  });
  proxy.listen(0, '127.0.0.1');
  await once(proxy, 'listening');
  const url = new URL(database);
  url.host = `127.0.0.1:${(proxy.address() as { port: number }).port}`;
  const cut = () => {
    proxy.close();
    for (const socket of sockets) socket.destroy();
  };
  return { url: url.href, cut };
}

test('nothing tells an unknown key from a revoked, an expired or a mistyped one', async () => {
  const revoked = await make();
  await call('DELETE', `/api-keys/${revoked.id}`);
  const expired = await createApiKey(sql, user.userId, { expiresAt: '2020-01-01T00:00:00Z' });
  const keys = [makeApiKey(), revoked.apiKey, expired.apiKey, mistype(makeApiKey()), 'nonsense'];
  const answers = await Promise.all(keys.map((key) => whoIs(key)));
  const told = answers.map(({ status, headers, body }) => {
    const { requestId: _, ...rest } = body;
    const fields = [...headers].filter(
      ([name]) => !['date', 'x-request-id', 'content-length'].includes(name),
    );
    return { status, fields, rest };
  });
  for (const one of told) assert.deepEqual(one, told[0]);
  assert.equal(told[0]?.status, 401);
});

test('the refusal of a key says how to get another', async () => {
  const { detail } = assertProblem(await whoIs(makeApiKey()), 401, 'invalid_api_key');
  assert.match(detail, /npm run -s posthorn -- keys create --user <address>$/);
});

test('without a key after Bearer the refusal asks about the shell variable', async () => {
  for (const [path, code] of [
    ['/me', 'invalid_api_key'],
    ['/admin/users', 'invalid_token'],
  ] as const) {
    const method = path === '/me' ? 'GET' : 'POST';
    const answer = await call(method, path, { as: null, headers: { authorization: 'Bearer ' } });
    assert.match(assertProblem(answer, 401, code).detail, /nothing after `Bearer`.*shell variable empty\?$/);
  }
});

test('a refusal names the scheme: WWW-Authenticate: Bearer', async () => {
  const missing = await call('GET', '/me', { as: null });
  assertProblem(missing, 401, 'missing_api_key');
  for (const { headers } of [missing, await whoIs(makeApiKey())]) {
    assert.equal(headers.get('www-authenticate'), 'Bearer');
  }
});

for (const scheme of ['Bearer', 'bearer', 'BEARER', 'bEaReR', 'Bearer ']) {
  test(`"${scheme}" is a scheme that is taken`, async () => {
    const headers = { authorization: `${scheme} ${user.apiKey}` };
    assert.deepEqual((await call('GET', '/me', { as: null, headers })).body, { userId: user.userId });
  });
}

for (const [what, authorization] of [
  ['the key alone', user.apiKey],
  ['another scheme', `Basic ${Buffer.from(`x:${user.apiKey}`).toString('base64')}`],
  ['a scheme that begins alike', `BearerX ${user.apiKey}`],
  ['the scheme alone', 'Bearer'],
  ['two keys', `Bearer ${user.apiKey} ${user.apiKey}`],
  ['the key in other case', `Bearer ${user.apiKey.toUpperCase()}`],
  ['quotes', `Bearer "${user.apiKey}"`],
  ["the operator's token", `Bearer ${adminToken}`],
] as const) {
  test(`${what} in Authorization is refused`, async () => {
    const answer = await call('GET', '/me', { as: null, headers: { authorization } });
    assertProblem(answer, 401, 'invalid_api_key');
  });
}

test('a key in the query opens nothing', async () => {
  const answer = await call('GET', `/me?api_key=${user.apiKey}&access_token=${user.apiKey}`, { as: null });
  assertProblem(answer, 401, 'missing_api_key');
});

test('no key, token or secret is ever logged, down to debug', async () => {
  const webhook = { url: 'https://example.com/', events: ['message.received'], ownerId: user.userId };
  const { body } = await call('POST', '/webhooks', {
    body: webhook,
    headers: { 'idempotency-key': newId() },
  });
  const rotated = await call('POST', `/webhooks/${body.id}/secret/rotate`);
  const admin = await callUrl('POST', `${service.url}/admin/users/${user.userId}/api-keys`, {
    body: {},
    headers: { authorization: `Bearer ${adminToken}` },
  });
  await call('POST', '/api-keys', { body: `{"name": "${user.apiKey}"` });
  await call('GET', `/${user.apiKey}?key=${user.apiKey}`);
  const secrets = [...keysSeen, body.secret, rotated.body.secret, admin.body.apiKey];
  await waitFor('the last request to be logged', () =>
    service.logged.some((line) => line.route === '/admin/users/:id/api-keys'),
  );
  const log = JSON.stringify(service.logged);
  for (const secret of secrets.filter((text) => text.length > 10)) assert.ok(!log.includes(secret));
});
