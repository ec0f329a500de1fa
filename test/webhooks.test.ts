/** Webhooks: the record, its secret, and what PATCH and DELETE do. What is refused is in webhook-faults.test.ts. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { test } from 'node:test';
import { makeSealer } from '../src/lib/secrets.ts';
import { secretContext } from '../src/webhooks/secret.ts';
import { assertProblem, startTestService, type TestUser, waitFor } from './harness.ts';

const secretKey = randomBytes(32);
const service = await startTestService({ POSTHORN_SECRET_KEY: secretKey.toString('base64') });
const { user, call, sql } = service;
const other = await service.makeUser();
const identity = (await call('POST', '/identities', { body: { value: 'w.example' } })).body;

const fields = [
  'id',
  'ownerId',
  'identityId',
  'url',
  'events',
  'enabled',
  'description',
  'disabledReason',
  'createdAt',
  'updatedAt',
];
const isoTime = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

async function make(given: Record<string, unknown> = {}, as: TestUser = user) {
  const defaults = { url: 'https://example.com/h', events: ['message.received'], ownerId: as.userId };
  const answer = await call('POST', '/webhooks', { as, body: { ...defaults, ...given } });
  assert.equal(answer.status, 201, answer.text);
  const { secret, ...record } = answer.body;
  return { secret, record, answer };
}

async function get(id: string) {
  const answer = await call('GET', `/webhooks/${id}`);
  assert.equal(answer.status, 200, answer.text);
  return answer.body;
}

async function readSecret(id: string): Promise<string> {
  const answer = await call('GET', `/webhooks/${id}/secret`);
  assert.equal(answer.status, 200, answer.text);
  assert.deepEqual(Object.keys(answer.body), ['secret']);
  return answer.body.secret;
}

/** updated_at to the microsecond, which answers do not show. */
async function readUpdatedAt(id: string): Promise<string> {
  const [row] = await sql<{ at: string }[]>`select updated_at::text as at from webhooks where id = ${id}`;
  return row?.at ?? '';
}

test('a record has exactly its ten fields, and ISO 8601 times', async () => {
  const { record } = await make();
  assert.deepEqual(Object.keys(await get(record.id)), fields);
  assert.match(record.createdAt, isoTime);
  assert.match(record.updatedAt, isoTime);
});

test('creation answers the record and its secret, and where it is', async () => {
  const { answer, record } = await make();
  assert.deepEqual(Object.keys(answer.body), [...fields, 'secret']);
  assert.equal(answer.headers.get('location'), `/webhooks/${record.id}`);
  assert.deepEqual(await get(record.id), record);
});

test('what is left out at creation gets its default', async () => {
  const { record } = await make();
  const { identityId, enabled, description, disabledReason, createdAt, updatedAt } = record;
  assert.deepEqual(
    { identityId, enabled, description, disabledReason },
    {
      identityId: null,
      enabled: true,
      description: null,
      disabledReason: null,
    },
  );
  assert.equal(updatedAt, createdAt);
});

test('what is supplied at creation is kept as it is', async () => {
  const given = {
    url: 'https://Example.com:8443/a%20b?c=d&e',
    events: ['message.bounced', 'message.received'],
    identityId: identity.id,
    enabled: false,
    description: '',
  };
  const { record } = await make(given);
  assert.deepEqual({ ...record, ...given }, record);
});

test('an id in upper case is the same id', async () => {
  const { record } = await make({
    ownerId: user.userId.toUpperCase(),
    identityId: identity.id.toUpperCase(),
  });
  assert.deepEqual([record.ownerId, record.identityId], [user.userId, identity.id]);
});

test('a secret is whsec_ and 32 bytes in base64, and no two are the same', async () => {
  const secrets = [(await make()).secret, (await make()).secret];
  for (const secret of secrets) {
    assert.match(secret, /^whsec_[A-Za-z0-9+/]{43}=$/);
    assert.equal(Buffer.from(secret.slice(6), 'base64').length, 32);
  }
  assert.notEqual(secrets[0], secrets[1]);
});

test('the secret is in no other answer but those that are for it', async () => {
  const { record, secret } = await make();
  assert.equal(await readSecret(record.id), secret);
  const answers = [
    await call('GET', `/webhooks/${record.id}`),
    await call('GET', '/webhooks'),
    await call('PATCH', `/webhooks/${record.id}`, { body: { enabled: false } }),
  ];
  for (const answer of answers) {
    assert.equal(answer.status, 200);
    assert.doesNotMatch(answer.text, /secret|whsec_/);
  }
});

test('the secret may not be kept by a cache', async () => {
  const { record } = await make();
  const { headers } = await call('GET', `/webhooks/${record.id}/secret`);
  assert.equal(headers.get('cache-control'), 'no-store');
});

test('rotation answers a new secret, and every replaced one is kept, with its time', async () => {
  const { record, secret } = await make();
  const replaced = [secret];
  for (let round = 0; round < 2; round++) {
    const answer = await call('POST', `/webhooks/${record.id}/secret/rotate`);
    assert.equal(answer.status, 200, answer.text);
    assert.deepEqual(Object.keys(answer.body), ['secret']);
    assert.ok(!replaced.includes(answer.body.secret));
    assert.equal(await readSecret(record.id), answer.body.secret);
    replaced.push(answer.body.secret);
  }
  const rows = await sql<{ secret: Buffer; recent: boolean }[]>`
    select secret, retired_at > now() - interval '1 hour' as recent
    from retired_webhook_secrets where webhook_id = ${record.id} order by retired_at`;
  const sealer = makeSealer([secretKey]);
  assert.deepEqual(
    rows.map((row) => sealer.open(row.secret, secretContext(record.id))),
    replaced.slice(0, 2),
  );
  assert.ok(rows.every((row) => row.recent));
});

test('of simultaneous rotations none loses a secret', async () => {
  const { record, secret } = await make();
  const rotate = () => call('POST', `/webhooks/${record.id}/secret/rotate`);
  const answers = await Promise.all([rotate(), rotate(), rotate(), rotate()]);
  const issued = [secret, ...answers.map((answer) => answer.body.secret)];
  const rows = await sql<{ secret: Buffer }[]>`
    select secret from retired_webhook_secrets where webhook_id = ${record.id}`;
  const sealer = makeSealer([secretKey]);
  const kept = rows.map((row) => sealer.open(row.secret, secretContext(record.id)));
  assert.deepEqual([...kept, await readSecret(record.id)].sort(), issued.sort());
});

test('secrets are stored encrypted: their plain text is nowhere in the rows', async () => {
  const { record, secret } = await make();
  const { body } = await call('POST', `/webhooks/${record.id}/secret/rotate`);
  const [row] = await sql<{ row: string; secret: Buffer }[]>`
    select webhooks::text as row, secret from webhooks where id = ${record.id}`;
  const [retired] = await sql<{ row: string; secret: Buffer }[]>`
    select retired_webhook_secrets::text as row, secret from retired_webhook_secrets where webhook_id = ${record.id}`;
  assert.ok(row && retired);
  for (const plain of [secret, body.secret]) {
    for (const form of [plain, plain.slice(6), Buffer.from(plain.slice(6), 'base64')]) {
      for (const stored of [row, retired]) {
        assert.ok(!stored.secret.includes(form));
        assert.ok(!stored.row.includes(Buffer.from(form).toString('hex')));
        assert.ok(!stored.row.includes(String(form)));
      }
    }
  }
});

for (const [field, value] of [
  ['url', 'https://example.com/new'],
  ['events', ['message.sent', 'message.delivered']],
  ['identityId', identity.id],
  ['enabled', false],
  ['description', 'new'],
] as const) {
  test(`PATCH changes ${field} and nothing else`, async () => {
    const { record, secret } = await make({ description: 'old' });
    const before = await readUpdatedAt(record.id);
    const { body } = await call('PATCH', `/webhooks/${record.id}`, { body: { [field]: value } });
    assert.deepEqual(body, { ...record, [field]: value, updatedAt: body.updatedAt });
    assert.deepEqual(await get(record.id), body);
    assert.ok((await readUpdatedAt(record.id)) > before);
    assert.equal(await readSecret(record.id), secret);
  });
}

for (const field of ['identityId', 'description']) {
  test(`PATCH with ${field} null lifts it`, async () => {
    const { record } = await make({ identityId: identity.id, description: 'x' });
    const { body } = await call('PATCH', `/webhooks/${record.id}`, { body: { [field]: null } });
    assert.deepEqual(body, { ...record, [field]: null, updatedAt: body.updatedAt });
  });
}

test('PATCH takes ownerId only if it is unchanged', async () => {
  const { record } = await make();
  const same = await call('PATCH', `/webhooks/${record.id}`, { body: { ownerId: user.userId } });
  assert.deepEqual([same.status, same.body], [200, record]);
  const body = { ownerId: other.userId, enabled: false };
  assertProblem(await call('PATCH', `/webhooks/${record.id}`, { body }), 403, 'owner_mismatch');
  assert.deepEqual(await get(record.id), record);
});

test('PATCH {} changes nothing, updatedAt included', async () => {
  const { record } = await make();
  const before = await readUpdatedAt(record.id);
  const answer = await call('PATCH', `/webhooks/${record.id}`, { body: {} });
  assert.deepEqual([answer.status, answer.body], [200, record]);
  assert.equal(await readUpdatedAt(record.id), before);
});

for (const reason of ['gone', 'failing']) {
  test(`turning a webhook on clears disabledReason "${reason}"; nothing else does`, async () => {
    const { record } = await make();
    await sql`update webhooks set enabled = false, disabled_reason = ${reason} where id = ${record.id}`;
    assert.equal((await get(record.id)).disabledReason, reason);
    const patch = async (body: unknown) => (await call('PATCH', `/webhooks/${record.id}`, { body })).body;
    for (const body of [{}, { description: 'x' }, { enabled: false }]) {
      assert.equal((await patch(body)).disabledReason, reason);
    }
    const { enabled, disabledReason } = await patch({ enabled: true });
    assert.deepEqual({ enabled, disabledReason }, { enabled: true, disabledReason: null });
  });
}

test('a deleted webhook is gone, with its secrets', async () => {
  const { record } = await make();
  const { record: kept } = await make();
  for (const { id } of [record, kept]) await call('POST', `/webhooks/${id}/secret/rotate`);
  const answer = await call('DELETE', `/webhooks/${record.id}`);
  assert.deepEqual([answer.status, answer.text], [204, '']);
  for (const [method, path] of [
    ['GET', ''],
    ['DELETE', ''],
    ['GET', '/secret'],
    ['POST', '/secret/rotate'],
  ] as const) {
    assertProblem(await call(method, `/webhooks/${record.id}${path}`), 404, 'not_found');
  }
  const hasSecrets = async ({ id }: { id: string }) =>
    (await sql`select from retired_webhook_secrets where webhook_id = ${id}`).count > 0;
  await waitFor('the purge', async () => !(await hasSecrets(record)));
  assert.ok(await hasSecrets(kept));
});

test("another owner's webhook is not there: not to read, list, change, rotate or delete", async () => {
  const { record, secret } = await make();
  for (const [method, path, body] of [
    ['GET', '', undefined],
    ['PATCH', '', { enabled: false }],
    ['PATCH', '', {}],
    ['DELETE', '', undefined],
    ['GET', '/secret', undefined],
    ['POST', '/secret/rotate', undefined],
  ] as const) {
    const answer = await call(method, `/webhooks/${record.id}${path}`, { as: other, body });
    assertProblem(answer, 404, 'not_found');
  }
  assert.deepEqual((await call('GET', '/webhooks', { as: other })).body, []);
  assert.deepEqual(await get(record.id), record);
  assert.equal(await readSecret(record.id), secret);
});

test('webhooks are listed newest first, in pages', async () => {
  const owner = await service.makeUser();
  const ids: string[] = [];
  for (let i = 0; i < 3; i++) ids.unshift((await make({}, owner)).record.id);
  const first = await call('GET', '/webhooks?limit=2', { as: owner });
  const next = /^<([^>]+)>; rel="next"$/.exec(first.headers.get('link') ?? '')?.[1] ?? '';
  const second = await call('GET', next, { as: owner });
  const found = [...first.body, ...second.body].map((webhook) => webhook.id);
  assert.deepEqual(found, ids);
  assert.equal(second.headers.get('link'), null);
});

test('an id in capitals names the same webhook, and its secret still opens', async () => {
  const { record } = await make();
  const capitals = record.id.toUpperCase();
  const rotated = await call('POST', `/webhooks/${capitals}/secret/rotate`);
  assert.equal(rotated.status, 200);
  assert.deepEqual((await call('GET', `/webhooks/${record.id}/secret`)).body, rotated.body);
  assert.deepEqual((await call('GET', `/webhooks/${capitals}/secret`)).body, rotated.body);
});

test('an owner has at most POSTHORN_MAX_WEBHOOKS: 409 beyond, also of many at once; a deleted one makes room', async () => {
  const limited = await startTestService({ POSTHORN_MAX_WEBHOOKS: '3', POSTHORN_ROLES: 'api' });
  const create = (as: TestUser) =>
    limited.call('POST', '/webhooks', {
      as,
      body: { url: 'https://example.com/h', events: ['message.received'], ownerId: as.userId },
    });
  const answers = await Promise.all(Array.from({ length: 20 }, () => create(limited.user)));
  const made = answers.filter(({ status }) => status === 201);
  assert.equal(made.length, 3);
  for (const refused of answers.filter(({ status }) => status !== 201)) {
    const { detail } = assertProblem(refused, 409, 'too_many_webhooks');
    assert.match(detail, /3 webhooks/);
  }
  assert.equal((await create(await limited.makeUser())).status, 201, 'another owner has a limit of its own');
  await limited.call('DELETE', `/webhooks/${made[0]?.body.id}`);
  assert.equal((await create(limited.user)).status, 201);
  assertProblem(await create(limited.user), 409, 'too_many_webhooks');
});
