/** The interface that was asked for, statement by statement: each test begins with the place in the seed it holds. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { makeApiKey } from '../src/lib/api-key.ts';
import { newId } from '../src/lib/ids.ts';
import { assertProblem, callUrl, startTestService } from './harness.ts';
import { insertProvider } from './insert.ts';

// Without checks of DNS: during a check an identity shows as pending.
const service = await startTestService({ POSTHORN_ROLES: 'api,smtp,deliver' });
const { user, call } = service;

const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const seedTime = /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\+00$/;
const identityFields = [
  'id',
  'owner_id',
  'kind',
  'public_id',
  'value',
  'incoming_domain',
  'domain_identity_id',
  'dns_records',
  'meta',
  'provider_id',
  'smtp_account_id',
  'status',
  'created_at',
  'updated_at',
];
/** Method and path of section 4, in its order. */
const endpoints = [
  ['GET', '/me'],
  ['GET', '/identities'],
  ['GET', '/identities/{id}'],
  ['PATCH', '/identities/{id}'],
  ['DELETE', '/identities/{id}'],
  ['POST', '/webhooks'],
  ['GET', '/webhooks'],
  ['GET', '/webhooks/{id}'],
  ['PATCH', '/webhooks/{id}'],
  ['DELETE', '/webhooks/{id}'],
] as const;

let made = 0;
async function makeIdentity(given: Record<string, unknown> = {}, as = user) {
  made += 1;
  const answer = await call('POST', '/identities', { as, body: { value: `seed${made}.example`, ...given } });
  assert.equal(answer.status, 201, answer.text);
  return answer.body;
}

const newWebhook = () => ({
  url: 'https://example.com/h',
  events: ['message.received'],
  ownerId: user.userId,
});
async function makeWebhook(given: Record<string, unknown> = {}) {
  const answer = await call('POST', '/webhooks', { body: { ...newWebhook(), ...given } });
  assert.equal(answer.status, 201, answer.text);
  return answer.body;
}

const domain = await makeIdentity({ value: 'seed.example' });
const email = await makeIdentity({ value: 'ada@seed.example' });

test('seed 1: the path prefix is part of the base URL', async () => {
  const prefixed = await startTestService({ POSTHORN_BASE_PATH: '/api/v2' });
  const origin = new URL(prefixed.url).origin;
  const under = await callUrl('GET', `${origin}/api/v2/me`, { as: prefixed.user });
  const outside = await callUrl('GET', `${origin}/me`, { as: prefixed.user });
  assert.deepEqual([under.status, outside.status], [200, 404]);
});

test('seed 2.1: GET /me answers exactly userId, a UUID: the user who owns the API key', async () => {
  const answer = await call('GET', '/me');
  assert.deepEqual(answer.body, { userId: user.userId });
  assert.match(answer.body.userId, uuid);
});

test('seed 2.2: an identity has exactly the fourteen fields, in this order', async () => {
  const { body } = await call('GET', `/identities/${email.id}`);
  assert.deepEqual(Object.keys(body), identityFields);
});

test('seed 2.2: identity.id is a UUID', () => {
  assert.match(email.id, uuid);
  assert.notEqual(email.id, domain.id);
});

test('seed 2.2: identity.owner_id is the owning user', () => {
  assert.equal(email.owner_id, user.userId);
});

test('seed 2.2: identity.kind is email for an address, and another value for a domain', () => {
  assert.deepEqual([email.kind, domain.kind], ['email', 'domain']);
});

test('seed 2.2: identity.public_id is a short string, another one for each identity', () => {
  assert.match(email.public_id, /^[\w-]{10}$/);
  assert.notEqual(email.public_id, domain.public_id);
});

test('seed 2.2: identity.value is the address or the domain name', () => {
  assert.deepEqual([email.value, domain.value], ['ada@seed.example', 'seed.example']);
});

test('seed 2.2: identity.incoming_domain is a boolean flag', async () => {
  assert.equal(domain.incoming_domain, false);
  assert.equal((await makeIdentity({ incoming_domain: true })).incoming_domain, true);
});

test('seed 2.2: identity.domain_identity_id refers to a domain identity', () => {
  assert.equal(email.domain_identity_id, domain.id);
  assert.equal(domain.domain_identity_id, null);
});

test('seed 2.2: identity.dns_records is JSON carried as a string, and null is the text null', () => {
  assert.equal(email.dns_records, 'null');
});

test('seed 2.2: identity.meta is JSON carried as a string, and an empty object is {}', async () => {
  assert.equal(email.meta, '{}');
  const { meta } = await makeIdentity({ meta: { team: ['a', { b: null }] } });
  assert.equal(typeof meta, 'string');
  assert.deepEqual(JSON.parse(meta), { team: ['a', { b: null }] });
});

test('seed 2.2: identity.provider_id is null or the UUID of a provider', async () => {
  const id = await insertProvider(service.sql, user.userId);
  assert.equal(email.provider_id, null);
  assert.equal((await makeIdentity({ provider_id: id })).provider_id, id);
});

test('seed 2.2: identity.smtp_account_id is null or the UUID of an SMTP account', async () => {
  const id = newId();
  await service.sql`insert into smtp_accounts (id, owner_id, label) values (${id}, ${user.userId}, 'm')`;
  assert.equal(email.smtp_account_id, null);
  assert.equal((await makeIdentity({ smtp_account_id: id })).smtp_account_id, id);
});

for (const field of ['created_at', 'updated_at']) {
  test(`seed 2.2: identity.${field} has the form YYYY-MM-DD HH:MM:SS.ffffff+00`, async () => {
    const identity = await makeIdentity();
    assert.match(identity[field], seedTime);
    // Six digits even where the last ones are zeroes, and UTC.
    await service.sql`
      update identities set created_at = '2026-01-31 12:00:00.5+02', updated_at = '2026-01-31 12:00:00.5+02'
      where id = ${identity.id}`;
    const { body } = await call('GET', `/identities/${identity.id}`);
    assert.equal(body[field], '2026-01-31 10:00:00.500000+00');
  });
}

test('seed 2.2: identity.created_at is the time of creation, updated_at of the last update', async () => {
  const before = await makeIdentity();
  assert.equal(before.updated_at, before.created_at);
  const { body } = await call('PATCH', `/identities/${before.id}`, { body: { meta: { a: 1 } } });
  assert.equal(body.created_at, before.created_at);
  assert.ok(body.updated_at > before.updated_at);
});

test('seed 2.2: deleting an identity cascades to its mailboxes and to worker synchronisation state', async () => {
  const { id } = await makeIdentity();
  const { sql } = service;
  await sql`
    insert into mailbox_sync (mailbox_id, owner_id, path)
    select id, owner_id, kind from mailboxes where identity_id = ${id}`;
  const mailboxes = await sql`select id from mailboxes where identity_id = ${id}`;
  const left = async () => ({
    mailboxes: (await sql`select from mailboxes where identity_id = ${id}`).count,
    sync: (
      await sql`select from mailbox_sync where mailbox_id = any (${mailboxes.map((row) => row.id)}::uuid[])`
    ).count,
  });
  assert.deepEqual(await left(), { mailboxes: 4, sync: 4 });
  assert.equal((await call('DELETE', `/identities/${id}`)).status, 204);
  assert.deepEqual(await left(), { mailboxes: 0, sync: 0 });
});

for (const field of ['url', 'events', 'ownerId']) {
  test(`seed 2.3: webhook.${field} is required on creation`, async () => {
    const { [field]: _, ...rest } = newWebhook() as Record<string, unknown>;
    const { errors } = assertProblem(await call('POST', '/webhooks', { body: rest }), 400, 'invalid_body');
    assert.deepEqual(
      errors?.map(({ pointer, code }) => ({ pointer, code })),
      [{ pointer: `/${field}`, code: 'required' }],
    );
  });
}

test('seed 2.3: webhook.url is an HTTPS URL, kept as it was given', async () => {
  assert.equal(
    (await makeWebhook({ url: 'https://example.com/Hooks?a=1' })).url,
    'https://example.com/Hooks?a=1',
  );
});

test('seed 2.3: webhook.events is an array of event names', async () => {
  assert.deepEqual((await makeWebhook()).events, ['message.received']);
});

test('seed 2.3: webhook.ownerId is the user id tied to the key, obtainable from GET /me', async () => {
  const { userId } = (await call('GET', '/me')).body;
  assert.equal((await makeWebhook({ ownerId: userId })).ownerId, userId);
});

test('seed 2.3: webhook.identityId is optional and restricts to one identity', async () => {
  assert.equal((await makeWebhook({ identityId: email.id })).identityId, email.id);
  assert.equal((await makeWebhook()).identityId, null);
});

test('seed 2.3: webhook.enabled is optional and true by default', async () => {
  assert.equal((await makeWebhook()).enabled, true);
  assert.equal((await makeWebhook({ enabled: false })).enabled, false);
});

test('seed 2.3: webhook.description is an optional free-form label', async () => {
  assert.equal((await makeWebhook({ description: 'Höhe: 3 "x"' })).description, 'Höhe: 3 "x"');
  assert.equal((await makeWebhook()).description, null);
});

test('seed 3: an identity begins as unverified', async () => {
  assert.equal((await makeIdentity()).status, 'unverified');
});

test('seed 3: a webhook is enabled or not, and can be switched either way', async () => {
  const { id } = await makeWebhook();
  for (const enabled of [false, true]) {
    assert.equal((await call('PATCH', `/webhooks/${id}`, { body: { enabled } })).body.enabled, enabled);
    assert.equal((await call('GET', `/webhooks/${id}`)).body.enabled, enabled);
  }
});

test('seed 4: GET /identities answers the identities, each in the identity object format', async () => {
  const answer = await call('GET', '/identities');
  assert.ok(Array.isArray(answer.body));
  for (const identity of answer.body) assert.deepEqual(Object.keys(identity), identityFields);
  assert.deepEqual(
    answer.body.find((identity: { id: string }) => identity.id === email.id),
    email,
  );
});

test('seed 4: GET /identities/{id} answers one identity object', async () => {
  const answer = await call('GET', `/identities/${email.id}`);
  assert.equal(answer.status, 200);
  assert.deepEqual(answer.body, email);
});

test('seed 4: PATCH /identities/{id} changes only the supplied fields and answers the updated identity', async () => {
  const before = await makeIdentity({ meta: { a: 1 } });
  const answer = await call('PATCH', `/identities/${before.id}`, { body: { incoming_domain: true } });
  assert.equal(answer.status, 200);
  assert.deepEqual(answer.body, { ...before, incoming_domain: true, updated_at: answer.body.updated_at });
  assert.deepEqual((await call('GET', `/identities/${before.id}`)).body, answer.body);
});

test('seed 4: DELETE /identities/{id} deletes the identity for good', async () => {
  const { id } = await makeIdentity();
  const answer = await call('DELETE', `/identities/${id}`);
  assert.deepEqual([answer.status, answer.text], [204, '']);
  assertProblem(await call('GET', `/identities/${id}`), 404, 'not_found');
  const { body } = await call('GET', '/identities');
  assert.ok(!body.some((identity: { id: string }) => identity.id === id));
});

test('seed 4: POST /webhooks answers the created webhook', async () => {
  const answer = await call('POST', '/webhooks', { body: newWebhook() });
  assert.equal(answer.status, 201);
  assert.match(answer.body.id, uuid);
  assert.equal(answer.headers.get('location'), `/webhooks/${answer.body.id}`);
});

test("seed 4: GET /webhooks answers all the user's webhooks", async () => {
  const mine = await makeWebhook();
  const { secret: _, ...record } = mine;
  const { body } = await call('GET', '/webhooks');
  assert.deepEqual(
    body.find((webhook: { id: string }) => webhook.id === mine.id),
    record,
  );
  const [{ count }] = await service.sql`select count(*)::int from webhooks where owner_id = ${user.userId}`;
  assert.equal(body.length, count);
});

test('seed 4: GET /webhooks/{id} answers one webhook', async () => {
  const { secret: _, ...record } = await makeWebhook();
  const answer = await call('GET', `/webhooks/${record.id}`);
  assert.equal(answer.status, 200);
  assert.deepEqual(answer.body, record);
});

test('seed 4: PATCH /webhooks/{id} updates in part and answers the updated webhook', async () => {
  const { secret: _, ...before } = await makeWebhook();
  const answer = await call('PATCH', `/webhooks/${before.id}`, { body: { description: 'new' } });
  assert.equal(answer.status, 200);
  assert.deepEqual(answer.body, { ...before, description: 'new', updatedAt: answer.body.updatedAt });
});

test('seed 4: DELETE /webhooks/{id} deletes the webhook for good', async () => {
  const { id } = await makeWebhook();
  assert.equal((await call('DELETE', `/webhooks/${id}`)).status, 204);
  assertProblem(await call('GET', `/webhooks/${id}`), 404, 'not_found');
});

test('seed 4 rule 1: GET /me tells a valid key from an invalid one', async () => {
  assert.equal((await call('GET', '/me')).status, 200);
  const stranger = { ...user, apiKey: makeApiKey() };
  assertProblem(await call('GET', '/me', { as: stranger }), 401, 'invalid_api_key');
});

test('seed 4 rule 2: GET /identities answers only identities of the authenticated user', async () => {
  const other = await service.makeUser();
  const theirs = await makeIdentity({}, other);
  const listed = async (as: typeof user) =>
    (await call('GET', '/identities', { as })).body.map((identity: { id: string }) => identity.id);
  assert.deepEqual(await listed(other), [theirs.id]);
  assert.ok(!(await listed(user)).includes(theirs.id));
});

test('seed 4 rule 3: POST /webhooks requires url, events and ownerId, and nothing else', async () => {
  const { errors } = assertProblem(await call('POST', '/webhooks', { body: {} }), 400, 'invalid_body');
  assert.deepEqual(errors?.map(({ pointer }) => pointer).sort(), ['/events', '/ownerId', '/url']);
  await makeWebhook();
});

for (const [method, path] of endpoints) {
  test(`seed 5.1: ${method} ${path} requires the Authorization header`, async () => {
    const target = path.replace('{id}', email.id);
    const body = method === 'POST' || method === 'PATCH' ? newWebhook() : undefined;
    assertProblem(await call(method, target, { as: null, body }), 401, 'missing_api_key');
  });

  if (path.endsWith('{id}')) {
    test(`seed 5.3: ${method} ${path} does not act on what another user owns`, async () => {
      const other = await service.makeUser();
      const mine = path.startsWith('/identities') ? await makeIdentity() : await makeWebhook();
      const target = path.replace('{id}', mine.id);
      const body = method === 'PATCH' ? {} : undefined;
      assertProblem(await call(method, target, { as: other, body }), 404, 'not_found');
      assert.equal((await call('GET', target)).status, 200);
    });
  }
}

test('seed 5.2: the key identifies its owner, whose id GET /me answers', async () => {
  const other = await service.makeUser();
  assert.equal((await call('GET', '/me', { as: other })).body.userId, other.userId);
  assert.equal((await call('GET', '/me')).body.userId, user.userId);
});

for (const event of ['message.received', 'message.sent', 'message.delivered', 'message.bounced']) {
  test(`seed 6: ${event} is usable in the events of a webhook`, async () => {
    assert.deepEqual((await makeWebhook({ events: [event] })).events, [event]);
  });
}

test('seed 9: no version identifier appears in paths or headers', async () => {
  const answer = await call('GET', '/me');
  assert.equal(new URL(service.url).pathname, '/');
  assert.deepEqual(
    [...answer.headers.keys()].filter((name) => /version|^server$|powered/.test(name)),
    [],
  );
});
