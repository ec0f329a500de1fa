/** The rows that store functions hand out are what their interfaces say: key for key, type for type. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { connect, transaction } from '../src/db/client.ts';
import { hashApiKey } from '../src/lib/api-key.ts';
import { newId } from '../src/lib/ids.ts';
import * as apiKeys from '../src/store/api-keys.ts';
import * as idempotency from '../src/store/idempotency.ts';
import * as identities from '../src/store/identities.ts';
import * as sealedSecrets from '../src/store/sealed-secrets.ts';
import * as users from '../src/store/users.ts';
import * as webhooks from '../src/store/webhooks.ts';
import { makeDatabase } from './harness.ts';

const database = await makeDatabase();
const sql = connect(database.url, { max: 2, applicationName: 'posthorn rows test' });
after(async () => {
  await sql.end();
  await database.drop();
});

const text = () => randomBytes(6).toString('hex');
async function addUser(): Promise<string> {
  return (await users.ensureUser(sql, `${text()}@users.example`)).user.userId;
}
const owner = await addUser();

/** The name of a field's type, so that an interface and its table below cannot drift apart. */
type NameOf<T> = [T] extends [string]
  ? 'string'
  : [T] extends [string | null]
    ? 'string|null'
    : [T] extends [boolean]
      ? 'boolean'
      : [T] extends [number]
        ? 'number'
        : [T] extends [number | null]
          ? 'number|null'
          : [T] extends [Buffer]
            ? 'Buffer'
            : [T] extends [string[]]
              ? 'string[]'
              : never;
type Shape<T> = { [K in keyof T]-?: NameOf<T[K]> };

function nameOf(value: unknown): string {
  if (value === null) return 'null';
  if (Buffer.isBuffer(value)) return 'Buffer';
  if (Array.isArray(value)) return `${[...new Set(value.map(nameOf))].join('|')}[]`;
  return typeof value;
}

function assertShape<T extends object>(row: T | undefined, shape: Shape<T>): asserts row is T {
  assert.ok(row);
  assert.deepEqual(Object.keys(row).sort(), Object.keys(shape).sort());
  for (const [key, wanted] of Object.entries<string>(shape)) {
    const found = nameOf(row[key as keyof T]);
    assert.ok(wanted === found || wanted.split('|').includes(found), `${key} is ${found}, not ${wanted}`);
  }
}

describe('rows are what their interfaces say', () => {
  const page = { limit: 10, after: null };
  const iso = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

  test('users', async () => {
    const shape: Shape<users.User> = { userId: 'string', email: 'string', createdAt: 'string' };
    const { user, created } = await users.ensureUser(sql, `${text()}@users.example`);
    assert.equal(created, true);
    assertShape(user, shape);
    assert.match(user.createdAt, iso);
    for (const row of [
      await users.findUser(sql, user.userId),
      await users.findUserByEmail(sql, user.email),
    ]) {
      assert.deepEqual({ ...row }, { ...user });
    }
    assertShape((await users.listUsers(sql)).at(-1), shape);
    assert.equal(await users.createFirstUser(sql, 'first@users.example'), undefined);
  });

  test('API keys', async () => {
    const shape: Shape<apiKeys.ApiKey> = {
      id: 'string',
      name: 'string|null',
      scope: 'string',
      prefix: 'string',
      suffix: 'string',
      createdAt: 'string',
      expiresAt: 'string|null',
      lastUsedAt: 'string|null',
    };
    const ownerId = await addUser();
    const plain = await apiKeys.createApiKey(sql, ownerId);
    const full = await apiKeys.createApiKey(sql, ownerId, { name: 'ci', expiresAt: '2999-01-01T00:00:00Z' });
    await apiKeys.touchApiKey(sql, ownerId, full.id);
    for (const made of [plain, full]) {
      assertShape(made, { ...shape, apiKey: 'string' });
      assertShape(await apiKeys.findApiKey(sql, ownerId, made.id), shape);
    }
    const listed = await apiKeys.listApiKeys(sql, ownerId, page);
    for (const row of listed.rows) assertShape(row, { ...shape, position: 'string' });
    assert.match(listed.rows[0]?.lastUsedAt ?? '', iso);
    await apiKeys.revokeApiKey(sql, ownerId, plain.id);
    for (const row of await apiKeys.listAllApiKeys(sql, ownerId)) {
      assertShape(row, { ...shape, revokedAt: 'string|null' });
      assert.equal(row.revokedAt === null, row.id === full.id);
    }
    const active = await apiKeys.findActiveKey(sql, hashApiKey(full.apiKey));
    assertShape(active, {
      id: 'string',
      ownerId: 'string',
      scope: 'string',
      expiresIn: 'number|null',
      stale: 'boolean',
    });
    assert.ok(active.expiresIn && active.expiresIn > 1e9);
    assert.equal(await apiKeys.findKeyOwner(sql, full.id), ownerId);
  });

  test('identities', async () => {
    const shape: Shape<identities.Identity> = {
      id: 'string',
      owner_id: 'string',
      kind: 'string',
      public_id: 'string',
      value: 'string',
      incoming_domain: 'boolean',
      domain_identity_id: 'string|null',
      dns_records: 'string',
      meta: 'string',
      provider_id: 'string|null',
      smtp_account_id: 'string|null',
      status: 'string',
      created_at: 'string',
      updated_at: 'string',
    };
    const ownerId = await addUser();
    const domain = `${text()}.example`;
    const none = {
      domain,
      incomingDomain: true,
      providerId: null,
      smtpAccountId: null,
      meta: '{"a":[1]}',
      proof: null,
    };
    const made = await identities.createIdentity(sql, ownerId, {
      ...none,
      id: newId(),
      kind: 'domain',
      value: domain,
      valueKey: domain,
    });
    assertShape(made, shape);
    assert.match(made.created_at, /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\+00$/);
    const value = `a@${domain}`;
    const address = await identities.createIdentity(sql, ownerId, {
      ...none,
      id: newId(),
      kind: 'email',
      value,
      valueKey: value,
    });
    assert.equal(address?.domain_identity_id, made.id);
    assertShape(await identities.findIdentity(sql, ownerId, made.id), shape);
    assertShape(await identities.updateIdentity(sql, ownerId, made.id, { meta: '{}' }), shape);
    const listed = await identities.listIdentities(sql, ownerId, {}, { limit: 1, after: null });
    for (const row of listed.rows) assertShape(row, { ...shape, position: 'string' });
    assertShape(listed.next ?? undefined, { at: 'string', id: 'string' });
  });

  test('webhooks', async () => {
    const shape: Shape<webhooks.Webhook> = {
      id: 'string',
      ownerId: 'string',
      identityId: 'string|null',
      url: 'string',
      events: 'string[]',
      enabled: 'boolean',
      description: 'string|null',
      disabledReason: 'string|null',
      createdAt: 'string',
      updatedAt: 'string',
    };
    const given = { id: newId(), url: 'https://example.com/', events: ['message.received', 'message.sent'] };
    const sealedSecret = randomBytes(40);
    const rest = { identityId: null, enabled: true, description: 'x', sealedSecret };
    assertShape(await webhooks.createWebhook(sql, owner, { ...given, ...rest }, 1000), shape);
    await sql`update webhooks set disabled_reason = 'gone' where id = ${given.id}`;
    const found = await webhooks.findWebhook(sql, owner, given.id);
    assertShape(found, shape);
    assert.equal(found.disabledReason, 'gone');
    assertShape(await webhooks.updateWebhook(sql, owner, given.id, { description: null }), shape);
    const listed = await webhooks.listWebhooks(sql, owner, page);
    for (const row of listed.rows) assertShape(row, { ...shape, position: 'string' });
    assert.deepEqual(await webhooks.findSealedSecret(sql, owner, given.id), sealedSecret);
    for (const row of await sealedSecrets.countSealedByKey(sql))
      assertShape(row, { keyId: 'string', count: 'number' });
    const [sealed] = await sealedSecrets.listSealedByOtherKeys(sql, '00000000', 1);
    assertShape(sealed, { table: 'string', id: 'string', part: 'string|null', sealed: 'Buffer' });
  });

  test('kept answers', async () => {
    const scope = { ownerId: owner, path: '/identities', key: text() };
    const answer = { requestHash: randomBytes(32), status: 201, location: null, body: randomBytes(9) };
    assert.equal(await transaction(sql, (sql) => idempotency.lockKey(sql, scope)), true);
    await idempotency.saveResponse(sql, scope, answer);
    const kept = await idempotency.findResponse(sql, scope);
    const shape: Shape<idempotency.StoredResponse> = {
      requestHash: 'Buffer',
      status: 'number',
      location: 'string|null',
      body: 'Buffer',
    };
    assertShape(kept, shape);
    assert.deepEqual({ ...kept }, answer);
  });
});
