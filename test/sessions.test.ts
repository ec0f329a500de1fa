/** Sessions: what the cookie of a browser opens, on which requests it counts, and when it ends. */
import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { newId } from '../src/lib/ids.ts';
import { createApiKey } from '../src/store/api-keys.ts';
import { openBrowser, samePage, signIn } from './browser-session.ts';
import { assertProblem, callUrl, startTestService, type TestUser, waitFor } from './harness.ts';

const adminToken = randomBytes(20).toString('hex');
const service = await startTestService({
  POSTHORN_ADMIN_TOKEN: adminToken,
  POSTHORN_CORS_ORIGINS: 'https://app.example',
  POSTHORN_ROLES: 'api',
});
const { user, call, sql, url } = service;
const fields = ['id', 'scope', 'apiKeyId', 'userAgent', 'createdAt', 'lastUsedAt', 'expiresAt'];

const open = (as: TestUser = user) => openBrowser(url, { apiKey: as.apiKey });

test('signing in with a key gives a cookie, a CSRF token, and the same rights', async () => {
  const answer = await signIn(url, { apiKey: user.apiKey }, { 'user-agent': 'a browser' });
  assert.equal(answer.status, 201, answer.text);
  assert.deepEqual(Object.keys(answer.body), [...fields, 'csrfToken']);
  assert.equal(answer.body.scope, 'full');
  assert.equal(answer.body.userAgent, 'a browser');
  assert.equal(answer.headers.get('location'), '/sessions/current');
  assert.equal(answer.headers.get('cache-control'), 'no-store');
  assert.equal(answer.headers.get('ratelimit'), null);
  assert.ok(!answer.text.includes(user.apiKey));

  const browser = await open();
  assert.match(
    browser.setCookie,
    /^posthorn_session=[\w-]{43}; Max-Age=604800; Path=\/; HttpOnly; SameSite=Strict$/,
  );
  assert.deepEqual((await browser.call('GET', '/me')).body, { userId: user.userId });
  const value = `${randomBytes(6).toString('hex')}.example`;
  assert.equal((await browser.call('POST', '/identities', { body: { value } })).status, 201);
  const current = await browser.call('GET', '/sessions/current');
  assert.equal(current.body.csrfToken, browser.csrfToken);
  assert.equal(current.body.id, browser.id);
  assert.equal(current.headers.get('cache-control'), 'no-store');
});

test('behind https the cookie is Secure and no other host can set it; a base path limits it', async () => {
  for (const [settings, expected] of [
    [{ POSTHORN_PUBLIC_URL: 'https://mail.example.com' }, /^__Host-posthorn_session=.*; Path=\/;.*; Secure$/],
    [
      { POSTHORN_PUBLIC_URL: 'https://mail.example.com', POSTHORN_BASE_PATH: '/api/v2' },
      /^__Secure-posthorn_session=.*; Path=\/api\/v2;.*; Secure$/,
    ],
  ] as const) {
    const secure = await startTestService({ DATABASE_URL: service.databaseUrl, ...settings });
    const browser = await openBrowser(secure.url, { apiKey: user.apiKey });
    assert.match(browser.setCookie, expected);
    assert.equal((await browser.call('GET', '/me')).status, 200);
    await secure.stop();
  }
});

test('neither the cookie nor the CSRF token is stored, only a hash', async () => {
  const { cookie, csrfToken, id } = await open();
  const token = cookie.slice(cookie.indexOf('=') + 1);
  const [{ row } = {}] = await sql`
    select to_jsonb(s) || jsonb_build_object('token_hash', encode(token_hash, 'hex')) as row from sessions s where id = ${id}`;
  assert.equal(row.token_hash, createHash('sha256').update(token).digest('hex'));
  assert.ok(!JSON.stringify(row).includes(token) && !JSON.stringify(row).includes(csrfToken));
  assert.ok(!JSON.stringify(service.logged).includes(token));
});

describe('the cookie counts', () => {
  const path = '/me';
  for (const [what, headers, expected] of [
    ['on a request of our page', samePage, 200],
    ['not on a request of another site', { 'sec-fetch-site': 'cross-site' }, 401],
    ['not on a request of a sibling domain', { 'sec-fetch-site': 'same-site' }, 401],
    ['not on an address that a person typed', { 'sec-fetch-site': 'none' }, 401],
    ['not on a request that does not say where it is from', {}, 401],
    ['on a request with our origin', { origin: url }, 200],
    ['not with a foreign origin', { origin: 'https://evil.example' }, 401],
    ['not under CORS', { origin: 'https://app.example' }, 401],
    ['not under CORS, whatever the origin says', { origin: url, 'sec-fetch-site': 'cross-site' }, 401],
    ['not beside an Authorization header', { ...samePage, authorization: 'Bearer nonsense' }, 401],
    ['not beside an empty Authorization header', { ...samePage, authorization: '' }, 401],
  ] as const) {
    test(what, async () => {
      const { cookie } = await open();
      const answer = await callUrl('GET', `${url}${path}`, { headers: { cookie, ...headers } });
      assert.equal(answer.status, expected, answer.text);
      assert.equal(answer.headers.get('access-control-allow-credentials'), null);
    });
  }

  test('not on the routes of the operator', async () => {
    const browser = await open();
    const body = { email: 'eve@example.com' };
    assertProblem(await browser.call('POST', '/admin/users', { body }), 401, 'missing_token');
  });

  test('only if it is one of ours', async () => {
    for (const value of ['', 'x', randomBytes(32).toString('base64url'), '%00', 'a'.repeat(5000)]) {
      const headers = { ...samePage, cookie: `other=1; posthorn_session=${value}` };
      assertProblem(await callUrl('GET', `${url}/me`, { headers }), 401, 'invalid_session');
    }
  });
});

describe('CSRF', () => {
  const write = { body: { value: 'never.example' } };

  test('every write of a session needs the CSRF token of this session', async () => {
    const [browser, other] = [await open(), await open()];
    for (const given of ['', 'x', 'é'.repeat(43), other.csrfToken, browser.cookie.split('=')[1] ?? '']) {
      const headers = { 'x-csrf-token': encodeURI(given) };
      for (const [method, path] of [
        ['POST', '/identities'],
        ['PATCH', `/identities/${newId()}`],
        ['DELETE', `/sessions/${browser.id}`],
      ] as const) {
        assertProblem(await browser.call(method, path, { ...write, headers }), 403, 'invalid_csrf_token');
      }
    }
    assert.equal((await sql`select from identities where value = 'never.example'`).count, 0);
    assert.equal((await browser.call('GET', '/me', { headers: { 'x-csrf-token': '' } })).status, 200);
  });

  test('a request with a key needs none', async () => {
    const value = `${randomBytes(6).toString('hex')}.example`;
    assert.equal((await call('POST', '/identities', { body: { value } })).status, 201);
  });

  test('a page of another site cannot sign a browser in', async () => {
    for (const site of ['cross-site', 'same-site']) {
      const answer = await signIn(url, { apiKey: user.apiKey }, { 'sec-fetch-site': site });
      assertProblem(answer, 403, 'cross_origin');
      assert.equal(answer.headers.get('set-cookie'), null);
    }
    const form = { 'content-type': 'text/plain', 'sec-fetch-site': 'none' };
    const answer = await callUrl('POST', `${url}/sessions`, { body: '{}', headers: form });
    assertProblem(answer, 415, 'unsupported_media_type');
  });
});

test('fixation: a sign-in makes a new session, and the one that the browser had has ended', async () => {
  const before = await open();
  assert.equal((await before.call('GET', '/me')).status, 200);
  const chosen = `posthorn_session=${randomBytes(32).toString('base64url')}`;
  const unknown = await openBrowser(url, { apiKey: user.apiKey }, { cookie: chosen });
  assert.notEqual(unknown.cookie, chosen);
  const again = await openBrowser(url, { apiKey: user.apiKey }, { cookie: before.cookie });
  assert.notEqual(again.cookie, before.cookie);
  assert.notEqual(again.id, before.id);
  assert.equal((await again.call('GET', '/me')).status, 200);
  assertProblem(await before.call('GET', '/me'), 401, 'invalid_session');
});

describe('scopes', () => {
  const keyOf = async (scope: 'full' | 'read' | 'send') => createApiKey(sql, user.userId, { scope });

  test('a session has the scope of its key', async () => {
    const { apiKey, id } = await keyOf('read');
    const browser = await openBrowser(url, { apiKey });
    const { body } = await browser.call('GET', '/sessions/current');
    assert.deepEqual([body.scope, body.apiKeyId], ['read', id]);
    assert.equal((await browser.call('GET', '/identities')).status, 200);
    assertProblem(await browser.call('POST', '/api-keys', { body: {} }), 403, 'scope_insufficient');
  });

  test('a send key makes no session', async () => {
    const { apiKey } = await keyOf('send');
    const answer = await signIn(url, { apiKey });
    assertProblem(answer, 403, 'scope_insufficient');
    assert.equal(answer.headers.get('set-cookie'), null);
  });

  test('a read session can end itself, and no other', async () => {
    const [{ apiKey }, other] = [await keyOf('read'), await open()];
    const browser = await openBrowser(url, { apiKey });
    assertProblem(await browser.call('DELETE', `/sessions/${other.id}`), 404, 'not_found');
    assert.equal((await other.call('GET', '/me')).status, 200);
    assert.equal((await browser.call('DELETE', `/sessions/${browser.id}`)).status, 204);
  });
});

describe('a session ends', () => {
  const ended = (browser: Awaited<ReturnType<typeof open>>) =>
    waitFor('the end of the session', async () => (await browser.call('GET', '/me')).status === 401);

  test('when it is signed out, at once, and the cookie goes', async () => {
    const [browser, other] = [await open(), await open()];
    const answer = await browser.call('DELETE', `/sessions/${browser.id}`);
    assert.equal(answer.status, 204);
    assert.match(answer.headers.get('set-cookie') ?? '', /^posthorn_session=; Max-Age=0; Path=\/;/);
    assertProblem(await browser.call('GET', '/me'), 401, 'invalid_session');
    assert.equal((await other.call('GET', '/me')).status, 200);
    const remote = await call('DELETE', `/sessions/${other.id}`);
    assert.deepEqual([remote.status, remote.headers.get('set-cookie')], [204, null]);
    assertProblem(await other.call('GET', '/me'), 401, 'invalid_session');
  });

  test('when its key is revoked, at once, and no other session with it', async () => {
    const { apiKey, id } = await createApiKey(sql, user.userId);
    const [browser, other] = [await openBrowser(url, { apiKey }), await open()];
    assert.equal((await browser.call('GET', '/me')).status, 200);
    assert.equal((await call('DELETE', `/api-keys/${id}`)).status, 204);
    assertProblem(await browser.call('GET', '/me'), 401, 'invalid_session');
    assert.equal((await other.call('GET', '/me')).status, 200);
  });

  for (const [what, change] of [
    [
      '12 hours after its last use',
      (id: string) => sql`
      update sessions set last_used_at = now() - interval '12 hours' where id = ${id}`,
    ],
    [
      '7 days after the sign-in',
      (id: string) => sql`
      update sessions set created_at = now() - interval '7 days' where id = ${id}`,
    ],
    [
      'with its key',
      (id: string) => sql`
      update api_keys set expires_at = now() from sessions where sessions.id = ${id} and key_id = api_keys.id`,
    ],
  ] as const) {
    test(what, async () => {
      const { apiKey } = await createApiKey(sql, user.userId);
      const browser = await openBrowser(url, { apiKey });
      await change(browser.id);
      await ended(browser);
      const listed = await call('GET', '/sessions');
      assert.ok(!listed.body.some(({ id }: { id: string }) => id === browser.id));
      // The row goes with the next sign-in.
      await open();
      assert.equal((await sql`select from sessions where id = ${browser.id}`).count, 0);
    });
  }

  test('and not before: a use begins the 12 hours again, but not the 7 days', async () => {
    const browser = await open();
    await sql`
      update sessions set last_used_at = now() - interval '11 hours 59 minutes', created_at = now() - interval '6 days 23 hours'
      where id = ${browser.id}`;
    assert.equal((await browser.call('GET', '/me')).status, 200);
    const { body } = await waitFor('the note of its use', async () => {
      const answer = await browser.call('GET', '/sessions/current');
      return Date.parse(answer.body.lastUsedAt) > Date.now() - 3_600_000 ? answer : null;
    });
    assert.equal(Date.parse(body.expiresAt) - Date.parse(body.createdAt), 7 * 86_400_000);
  });

  test('and its event streams with it; a stream of another session goes on', async () => {
    const [browser, other] = [await open(), await open()];
    const watch = async ({ cookie }: typeof browser) => {
      const ending = new AbortController();
      after(() => ending.abort());
      const response = await fetch(`${url}/events/stream`, {
        headers: { ...samePage, cookie },
        signal: ending.signal,
      });
      assert.equal(response.status, 200);
      let isEnded = false;
      response.text().then(
        () => {},
        () => {
          isEnded = true;
        },
      );
      return () => isEnded;
    };
    const [isCut, isOtherCut] = [await watch(browser), await watch(other)];
    assert.equal((await browser.call('DELETE', `/sessions/${browser.id}`)).status, 204);
    await waitFor('the end of the stream', isCut);
    assert.equal(isOtherCut(), false);
  });
});

describe('other users', () => {
  test('see and end none of it', async () => {
    const [owner, stranger] = [await service.makeUser(), await service.makeUser()];
    const [browser, foreign] = [await open(owner), await open(stranger)];
    const listed = await foreign.call('GET', '/sessions');
    assert.deepEqual(
      listed.body.map(({ id }: { id: string }) => id),
      [foreign.id],
    );
    assertProblem(await foreign.call('DELETE', `/sessions/${browser.id}`), 404, 'not_found');
    assert.deepEqual((await browser.call('GET', '/me')).body, { userId: owner.userId });
  });

  test('the CSRF token of another user is no CSRF token', async () => {
    const [browser, foreign] = [await open(), await open(await service.makeUser())];
    const headers = { 'x-csrf-token': foreign.csrfToken };
    assertProblem(await browser.call('POST', '/api-keys', { body: {}, headers }), 403, 'invalid_csrf_token');
  });

  test('a list has no more than 100 sessions of a user: the oldest end', async () => {
    const owner = await service.makeUser();
    const first = await open(owner);
    await sql`
      insert into sessions (id, owner_id, token_hash) select gen_random_uuid(), ${owner.userId}, sha256(n::text::bytea)
      from generate_series(1, 99) n`;
    const last = await open(owner);
    const { body } = await call('GET', '/sessions', { as: owner });
    assert.equal(body.length, 100);
    assert.equal(body[0].id, last.id);
    assertProblem(await first.call('GET', '/me'), 401, 'invalid_session');
  });
});

test('a session ends itself as the current one', async () => {
  const { apiKey } = await createApiKey(sql, user.userId, { scope: 'read' });
  for (const browser of [await open(), await openBrowser(url, { apiKey })]) {
    const ended = await browser.call('DELETE', '/sessions/current');
    assert.equal(ended.status, 204, ended.text);
    assert.match(ended.headers.get('set-cookie') ?? '', /Max-Age=0/);
    assertProblem(await browser.call('GET', '/me'), 401, 'invalid_session');
  }
});

test('a key has no current session', async () => {
  assertProblem(await call('DELETE', '/sessions/current'), 404, 'not_found');
  assertProblem(await call('GET', '/sessions/current'), 404, 'not_found');
});

describe('a body', () => {
  for (const body of [{}, { apiKey: 'a', token: 'b' }, { apiKey: 5 }, { key: 'a' }]) {
    test(`${JSON.stringify(body)} is 400`, async () => {
      assertProblem(await callUrl('POST', `${url}/sessions`, { body }), 400, 'invalid_body');
    });
  }
});
