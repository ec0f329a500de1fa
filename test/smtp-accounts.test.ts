/** SMTP accounts over the API: what may be given and changed, what is never shown, and who may refer to them. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { describe, test } from 'node:test';
import { assertProblem, startTestService, type TestUser } from './harness.ts';

const service = await startTestService({ POSTHORN_ROLES: 'api' });
const { call } = service;
const stranger = await service.makeUser();

const smtp = { host: '127.0.0.1', port: 2500, username: 'ada', password: 'correct horse' };
const imap = { ...smtp, port: 1430 };
const oauth2 = {
  ...{ clientId: 'client', clientSecret: 'hush', refreshToken: 'refresh-1' },
  ...{ tokenUrl: 'http://127.0.0.1:9/token', scope: 'mail' },
};

async function make(given: object = {}, as: TestUser = service.user) {
  const made = await call('POST', '/smtp-accounts', { as, body: { label: 'Post', smtp, ...given } });
  assert.equal(made.status, 201, made.text);
  return made.body;
}
const patch = (id: string, body: object) => call('PATCH', `/smtp-accounts/${id}`, { body });
const address = () => `a${randomBytes(6).toString('hex')}@mail.example`;

describe('what is shown', () => {
  test('POST answers 201 with the record, its place and no secret; GET and the list show the same', async () => {
    const answer = await call('POST', '/smtp-accounts', {
      body: { label: 'Post', smtp, imap: { host: 'localhost', port: 993, username: 'ada', oauth2 } },
    });
    assert.equal(answer.status, 201, answer.text);
    const { id, ownerId, createdAt, updatedAt, ...rest } = answer.body;
    assert.equal(answer.headers.get('location'), `/smtp-accounts/${id}`);
    assert.equal(ownerId, service.user.userId);
    const unknown = { state: 'unknown', checkedAt: null, error: null };
    assert.deepEqual(rest, {
      label: 'Post',
      smtp: { host: '127.0.0.1', port: 2500, secure: false, username: 'ada', oauth2: null },
      imap: {
        ...{ host: 'localhost', port: 993, secure: true, username: 'ada' },
        oauth2: { clientId: 'client', tokenUrl: oauth2.tokenUrl, scope: 'mail' },
      },
      send: unknown,
      receive: unknown,
    });
    const listed = await call('GET', '/smtp-accounts?limit=1');
    assert.deepEqual(listed.body, [answer.body]);
    assert.deepEqual((await call('GET', `/smtp-accounts/${id}`)).body, answer.body);
    assert.doesNotMatch(answer.text + listed.text, /correct horse|hush|refresh-1/);
    const stored = await service.sql`select * from mail_servers where account_id = ${id}`;
    assert.doesNotMatch(
      JSON.stringify(stored.map((row) => ({ ...row, secret: row.secret.toString('latin1') }))),
      /correct horse|hush|refresh-1/,
    );
  });

  for (const [port, secure] of [
    [465, true],
    [993, true],
    [587, false],
    [25, false],
    [2525, false],
    [143, false],
  ] as const) {
    test(`secure is ${secure} by default on port ${port}`, async () => {
      assert.equal((await make({ smtp: { ...smtp, port } })).smtp.secure, secure);
    });
  }

  test('a public host may be called on the ports of mail servers', async () => {
    for (const port of [25, 465, 587, 2525, 143, 993])
      assert.equal((await make({ smtp: { ...smtp, host: '8.8.8.8', port } })).smtp.port, port);
  });

  test("another user's account is 404 everywhere, and is not listed", async () => {
    const { id } = await make({}, stranger);
    for (const [method, path, body] of [
      ['GET', `/smtp-accounts/${id}`],
      ['PATCH', `/smtp-accounts/${id}`, { label: 'Mine' }],
      ['DELETE', `/smtp-accounts/${id}`],
      ['POST', `/smtp-accounts/${id}/verify`],
    ] as const) {
      assertProblem(await call(method, path, body ? { body } : {}), 404, 'not_found');
    }
    assert.ok(!(await call('GET', '/smtp-accounts')).text.includes(id));
    const refused = await call('POST', '/identities', { body: { value: address(), smtp_account_id: id } });
    assertProblem(refused, 400, 'invalid_body');
    assert.equal(refused.body.errors[0].pointer, '/smtp_account_id');
  });

  test('a key with the scope send cannot read accounts', async () => {
    const key = await call('POST', '/api-keys', { body: { scope: 'send' } });
    const as = { ...service.user, apiKey: key.body.apiKey };
    assertProblem(await call('GET', '/smtp-accounts', { as }), 403, 'scope_insufficient');
  });
});

describe('what is refused', () => {
  const faults: [string, object, string, string][] = [
    ['neither a password nor oauth2', { ...smtp, password: undefined }, '/smtp/password', 'required'],
    ['both a password and oauth2', { ...smtp, oauth2 }, '/smtp/oauth2', 'mismatch'],
    ['a line break in the password', { ...smtp, password: 'a\r\nQUIT' }, '/smtp/password', 'invalid_value'],
    ['an unknown field', { ...smtp, user: 'ada' }, '/smtp/user', 'unknown_field'],
    ['a host that is no name', { ...smtp, host: 'a b' }, '/smtp/host', 'invalid_value'],
    ...[
      '127.0.0.1:2525',
      'smtp.example.com:587',
      ...['a.example/c', 'a.example#x', 'a.example?x', 'a.example\\x', 'ho%73t.example', 'u@a.example'],
      '[::1]:25',
      '::1::',
      'a..example',
      '-a.example',
      `${'a'.repeat(64)}.example`,
      '.',
    ].map((host): [string, object, string, string] => [
      `the host ${host}`,
      { ...smtp, host },
      '/smtp/host',
      'invalid_value',
    ]),
    ['a private address', { ...smtp, host: '10.0.0.1', port: 587 }, '/smtp/host', 'target_refused'],
    ['a port of another service', { ...smtp, host: '8.8.8.8', port: 22 }, '/smtp/port', 'target_refused'],
    [
      'a token server on another port',
      { ...smtp, password: undefined, oauth2: { ...oauth2, tokenUrl: 'https://8.8.8.8:8443/' } },
      '/smtp/oauth2/tokenUrl',
      'invalid_value',
    ],
    [
      'a token server without TLS',
      { ...smtp, password: undefined, oauth2: { ...oauth2, tokenUrl: 'http://8.8.8.8/' } },
      '/smtp/oauth2/tokenUrl',
      'invalid_value',
    ],
    [
      'a token URL that is none',
      { ...smtp, password: undefined, oauth2: { ...oauth2, tokenUrl: 'ftp://tokens.example/' } },
      '/smtp/oauth2/tokenUrl',
      'invalid_value',
    ],
  ];
  for (const [title, server, pointer, code] of faults) {
    test(title, async () => {
      const refused = await call('POST', '/smtp-accounts', { body: { label: 'Post', smtp: server } });
      assertProblem(refused, 400, 'invalid_body');
      const found = refused.body.errors.map((error: { pointer: string; code: string }) => [
        error.pointer,
        error.code,
      ]);
      assert.deepEqual(found, [[pointer, code]], refused.text);
    });
  }
});

describe('PATCH', () => {
  async function secretOf(id: string, side: string) {
    const [row] =
      await service.sql`select secret, version from mail_servers where account_id = ${id} and side = ${side}`;
    return row;
  }

  test('the label alone leaves the servers and their state alone; {} changes nothing', async () => {
    const made = await make();
    const before = await secretOf(made.id, 'smtp');
    const { body } = await patch(made.id, { label: 'Other' });
    assert.deepEqual({ ...body, updatedAt: '' }, { ...made, label: 'Other', updatedAt: '' });
    assert.deepEqual(await secretOf(made.id, 'smtp'), before);
    assert.deepEqual((await patch(made.id, {})).body, body);
  });

  test('a change that sends the secret nowhere else keeps the secret', async () => {
    const made = await make({ imap: { ...imap, password: undefined, oauth2 } });
    const before = await secretOf(made.id, 'smtp');
    const changed = await patch(made.id, { smtp: { secure: true }, imap: { oauth2: { scope: 'other' } } });
    assert.equal(changed.status, 200, changed.text);
    assert.equal(changed.body.smtp.secure, true);
    assert.equal(changed.body.imap.oauth2.scope, 'other');
    assert.equal((await secretOf(made.id, 'smtp'))?.version, before?.version + 1);
  });

  for (const [title, change] of [
    ['host', { host: 'localhost' }],
    ['port', { port: 2501 }],
    ['username', { username: 'eve' }],
    ['secure turned off', { secure: false }],
  ] as const) {
    test(`${title}: the password must be given again, and then it is`, async () => {
      const { id } = await make({ smtp: { ...smtp, secure: true } });
      const refused = await patch(id, { smtp: change });
      assertProblem(refused, 400, 'secret_required');
      assert.equal(refused.body.errors[0].pointer, '/smtp/password');
      const taken = await patch(id, { smtp: { ...change, password: 'battery staple' } });
      assert.equal(taken.status, 200, taken.text);
    });
  }

  test('a change of one side asks for the secret of that side alone', async () => {
    const { id } = await make({ imap });
    const refused = await patch(id, { imap: { host: 'localhost' } });
    assertProblem(refused, 400, 'secret_required');
    assert.equal(refused.body.errors[0].pointer, '/imap/password');
    const before = await secretOf(id, 'smtp');
    assert.equal((await patch(id, { imap: { host: 'localhost', password: 'new' } })).status, 200);
    assert.deepEqual(await secretOf(id, 'smtp'), before);
  });

  test('tokenUrl: the refresh token and the client secret must be given again', async () => {
    const { id } = await make({ smtp: { ...smtp, password: undefined, oauth2 } });
    const tokenUrl = 'http://127.0.0.1:10/token';
    const refused = await patch(id, { smtp: { oauth2: { tokenUrl, refreshToken: 'new' } } });
    assertProblem(refused, 400, 'secret_required');
    assert.deepEqual(
      refused.body.errors.map(({ pointer }: { pointer: string }) => pointer),
      ['/smtp/oauth2/clientSecret'],
    );
    const given = { tokenUrl, refreshToken: 'new', clientSecret: null };
    assert.equal((await patch(id, { smtp: { oauth2: given } })).status, 200);
  });

  test('imap is added whole, and null removes it', async () => {
    const { id } = await make();
    const refused = await patch(id, { imap: { host: '127.0.0.1' } });
    assertProblem(refused, 400, 'invalid_body');
    assert.equal(refused.body.errors.length, 3, refused.text);
    assert.equal((await patch(id, { imap })).body.imap.port, 1430);
    assert.equal((await patch(id, { imap: null })).body.imap, null);
  });

  test('a new port that is not allowed for the stored host is refused', async () => {
    const { id } = await make({ smtp: { ...smtp, host: '8.8.8.8', port: 587 } });
    const refused = await patch(id, { smtp: { port: 22, password: 'x' } });
    assertProblem(refused, 400, 'invalid_body');
    assert.equal(refused.body.errors[0].pointer, '/smtp/port');
  });

  test('what the service decides is read-only', async () => {
    const { id } = await make();
    const refused = await patch(id, { send: { state: 'ok' } });
    assertProblem(refused, 400, 'invalid_body');
    assert.equal(refused.body.errors[0].code, 'read_only');
  });
});

describe('identities', () => {
  const connect = (smtp_account_id: string, value = address()) =>
    call('POST', '/identities', { body: { value, smtp_account_id } });

  test('an account that only sends serves many; DELETE is 409 and names them until none refers to it', async () => {
    const { id } = await make();
    const made = [await connect(id), await connect(id)];
    const refused = await call('DELETE', `/smtp-accounts/${id}`);
    assertProblem(refused, 409, 'in_use');
    for (const { body } of made) assert.ok(refused.body.detail.includes(body.value), refused.text);
    const grown = await patch(id, { imap });
    assertProblem(grown, 409, 'in_use');
    for (const { body } of made)
      assert.equal(
        (await call('PATCH', `/identities/${body.id}`, { body: { smtp_account_id: null } })).status,
        200,
      );
    assert.equal((await call('DELETE', `/smtp-accounts/${id}`)).status, 204);
    assertProblem(await call('GET', `/smtp-accounts/${id}`), 404, 'not_found');
  });

  test('an account with imap serves one address; domains may send through it', async () => {
    const { id } = await make({ imap });
    const first = await connect(id);
    assert.equal(first.status, 201, first.text);
    assertProblem(await connect(id), 409, 'in_use');
    const other = await call('POST', '/identities', { body: { value: address() } });
    const refused = await call('PATCH', `/identities/${other.body.id}`, { body: { smtp_account_id: id } });
    assertProblem(refused, 409, 'in_use');
    assert.ok(refused.body.detail.includes(first.body.value));
    assert.equal((await connect(id, `d${randomBytes(6).toString('hex')}.example`)).status, 201);
    const again = await call('PATCH', `/identities/${first.body.id}`, { body: { smtp_account_id: id } });
    assert.equal(again.status, 200);
  });

  test('of addresses that refer to an account with imap at the same moment, one wins', async () => {
    const { id } = await make({ imap });
    const answers = await Promise.all(Array.from({ length: 6 }, () => connect(id)));
    assert.deepEqual(answers.map(({ status }) => status).sort(), [201, 409, 409, 409, 409, 409]);
  });
});

test('an owner has at most POSTHORN_MAX_ACCOUNTS: 409 beyond, also of many at once; a deleted one makes room', async () => {
  const limited = await startTestService({ POSTHORN_MAX_ACCOUNTS: '3', POSTHORN_ROLES: 'api' });
  const create = (as: TestUser) =>
    limited.call('POST', '/smtp-accounts', { as, body: { label: 'Post', smtp } });
  const answers = await Promise.all(Array.from({ length: 20 }, () => create(limited.user)));
  const made = answers.filter(({ status }) => status === 201);
  assert.equal(made.length, 3);
  for (const refused of answers.filter(({ status }) => status !== 201)) {
    const { detail } = assertProblem(refused, 409, 'too_many_accounts');
    assert.match(detail, /3 SMTP accounts/);
  }
  assert.equal((await create(await limited.makeUser())).status, 201, 'another owner has a limit of its own');
  await limited.call('DELETE', `/smtp-accounts/${made[0]?.body.id}`);
  assert.equal((await create(limited.user)).status, 201);
  assertProblem(await create(limited.user), 409, 'too_many_accounts');
});
