/** Provisioning with the operator's token: users and their keys, without a terminal. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { isApiKey } from '../src/lib/api-key.ts';
import { newId } from '../src/lib/ids.ts';
import { assertProblem, callUrl, startTestService } from './harness.ts';

const token = 'a-token-of-the-operator-that-is-long-enough';
const service = await startTestService({ POSTHORN_ADMIN_TOKEN: token });

const userFields = ['userId', 'email', 'createdAt'];
/** Every route there is for the operator. */
const routes = [
  ['POST', '/admin/users', { email: 'x@users.example' }],
  ['GET', `/admin/users/${service.user.userId}`, undefined],
  ['POST', `/admin/users/${service.user.userId}/api-keys`, {}],
] as const;

function callAdmin(method: string, path: string, body?: unknown, authorization = `Bearer ${token}`) {
  return service.call(method, path, { as: null, body, headers: { authorization } });
}

async function makeUser(email: string) {
  const answer = await callAdmin('POST', '/admin/users', { email });
  assert.equal(answer.status, 201, answer.text);
  return answer.body;
}

async function countKeys(): Promise<number> {
  return (await service.sql`select from api_keys`).count;
}

test('without a token in the settings the routes do not exist, whatever is sent', async () => {
  const plain = await startTestService();
  for (const [method, path, body] of routes) {
    for (const authorization of [undefined, `Bearer ${token}`, 'Bearer ', `Bearer ${plain.user.apiKey}`]) {
      const headers: Record<string, string> = authorization === undefined ? {} : { authorization };
      const answer = await callUrl(method, `${plain.url}${path}`, { body, headers });
      assertProblem(answer, 404, 'route_not_found');
    }
  }
});

for (const [method, path, body] of routes) {
  const name = `${method} ${path.replace(service.user.userId, '{id}')}`;

  test(`${name} without a token is 401`, async () => {
    const answer = await service.call(method, path, { as: null, body });
    assertProblem(answer, 401, 'missing_token');
    assert.equal(answer.headers.get('www-authenticate'), 'Bearer');
  });

  for (const [what, authorization] of [
    ['a wrong token', `Bearer ${token.toUpperCase()}`],
    ['a part of the token', `Bearer ${token.slice(0, -1)}`],
    ['more than the token', `Bearer ${token}x`],
    ['the token without its scheme', token],
    ["a user's key", `Bearer ${service.user.apiKey}`],
  ] as const) {
    test(`${name} with ${what} is 401, and makes nothing`, async () => {
      const before = await countKeys();
      const answer = await callAdmin(method, path, body, authorization);
      assertProblem(answer, 401, 'invalid_token');
      assert.equal(answer.headers.get('www-authenticate'), 'Bearer');
      assert.equal(await countKeys(), before);
      const [made] = await service.sql`select from users where email = 'x@users.example'`;
      assert.equal(made, undefined);
    });
  }
}

test("the operator's token opens no user's route", async () => {
  for (const path of ['/me', '/identities', '/webhooks', '/api-keys']) {
    assertProblem(await callAdmin('GET', path), 401, 'invalid_api_key');
  }
});

test('a user is made once: 201 with its Location, then 200 with the same user, whatever the case', async () => {
  const first = await callAdmin('POST', '/admin/users', { email: 'Ada.L@Example.COM' });
  assert.equal(first.status, 201, first.text);
  assert.deepEqual(Object.keys(first.body), userFields);
  assert.equal(first.body.email, 'Ada.L@example.com');
  assert.equal(first.headers.get('location'), `/admin/users/${first.body.userId}`);
  for (const email of ['Ada.L@Example.COM', 'ada.l@example.com', 'ADA.L@EXAMPLE.com.']) {
    const again = await callAdmin('POST', '/admin/users', { email });
    assert.deepEqual([again.status, again.body], [200, first.body], email);
    assert.equal(again.headers.get('location'), null);
  }
  const rows = await service.sql`select from users where lower(email) = 'ada.l@example.com'`;
  assert.equal(rows.count, 1);
});

test('of many simultaneous creations one makes the user and all answer it', async () => {
  const body = { email: 'race@users.example' };
  const answers = await Promise.all(Array.from({ length: 8 }, () => callAdmin('POST', '/admin/users', body)));
  assert.deepEqual(answers.map(({ status }) => status).sort(), [...Array(7).fill(200), 201]);
  assert.equal(new Set(answers.map((answer) => answer.body.userId)).size, 1);
});

test('a user can be read where its Location says', async () => {
  const user = await makeUser('read@users.example');
  const answer = await callAdmin('GET', `/admin/users/${user.userId}`);
  assert.deepEqual([answer.status, answer.body], [200, user]);
});

test("a user's key is shown once, and works as that user's", async () => {
  const user = await makeUser('keys@users.example');
  const answer = await callAdmin('POST', `/admin/users/${user.userId}/api-keys`, {
    name: 'made by the operator',
  });
  assert.equal(answer.status, 201, answer.text);
  const { apiKey, id, name } = answer.body;
  assert.ok(isApiKey(apiKey));
  assert.equal(name, 'made by the operator');
  const as = { userId: user.userId, email: user.email, apiKey };
  assert.deepEqual((await service.call('GET', '/me', { as })).body, { userId: user.userId });
  const { body } = await service.call('GET', '/api-keys', { as });
  assert.deepEqual(
    body.map((key: { id: string }) => key.id),
    [id],
  );
});

for (const [what, id] of [
  ['an unknown user', newId()],
  ['the id that stands for the operator', '00000000-0000-0000-0000-000000000000'],
  ['what is no id', 'ada@users.example'],
]) {
  test(`${what} is 404, to read and to make a key for`, async () => {
    assertProblem(await callAdmin('GET', `/admin/users/${id}`), 404, 'not_found');
    assertProblem(await callAdmin('POST', `/admin/users/${id}/api-keys`, {}), 404, 'not_found');
  });
}

for (const [body, expected] of [
  [{}, ['/email required']],
  [{ email: 5 }, ['/email wrong_type']],
  [{ email: null }, ['/email wrong_type']],
  [{ email: '' }, ['/email invalid_value']],
  [{ email: 'users.example' }, ['/email invalid_value']],
  [{ email: 'a b@users.example' }, ['/email invalid_value']],
  [{ email: 'a\0@users.example' }, ['/email invalid_value']],
  [{ email: 'a@users.example', userId: newId() }, ['/userId unknown_field']],
  [{ emial: 'a@users.example' }, ['/email required', '/emial unknown_field']],
  [[], [' wrong_type']],
] as const) {
  test(`POST /admin/users refuses ${JSON.stringify(body)}`, async () => {
    const { errors } = assertProblem(await callAdmin('POST', '/admin/users', body), 400, 'invalid_body');
    assert.deepEqual(errors?.map(({ pointer, code }) => `${pointer} ${code}`).sort(), expected);
  });
}

test('POST /admin/users/{id}/api-keys refuses what POST /api-keys refuses, all of it at once', async () => {
  const { userId } = await makeUser('faults@users.example');
  const body = { name: 'a'.repeat(101), expiresAt: '2020-01-01T00:00:00Z', ownerId: service.user.userId };
  const { errors } = assertProblem(
    await callAdmin('POST', `/admin/users/${userId}/api-keys`, body),
    400,
    'invalid_body',
  );
  assert.deepEqual(errors?.map(({ pointer, code }) => `${pointer} ${code}`).sort(), [
    '/expiresAt out_of_range',
    '/name too_long',
    '/ownerId unknown_field',
  ]);
});
