/** Identities: what is made, linked, changed, refused and deleted. Lists are in identity-list.test.ts. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { newId } from '../src/lib/ids.ts';
import { assertProblem, startTestService, type TestUser } from './harness.ts';
import { insertProvider } from './insert.ts';

const service = await startTestService();
const { user, call, sql } = service;
const other = await service.makeUser();

const uuidv7 = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;

let made = 0;
function freshDomain(): string {
  made += 1;
  return `d${made}.example`;
}

function post(body: unknown, as: TestUser = user) {
  return call('POST', '/identities', { as, body });
}

async function make(given: Record<string, unknown> = {}, as: TestUser = user) {
  const answer = await post({ value: freshDomain(), ...given }, as);
  assert.equal(answer.status, 201, answer.text);
  return answer.body;
}

async function get(id: string, as: TestUser = user) {
  const answer = await call('GET', `/identities/${id}`, { as });
  assert.equal(answer.status, 200, answer.text);
  return answer.body;
}

function patch(id: string, body: unknown) {
  return call('PATCH', `/identities/${id}`, { body });
}

const makeProvider = (ownerId: string) => insertProvider(sql, ownerId);

async function makeSmtpAccount(ownerId: string): Promise<string> {
  const id = newId();
  await sql`insert into smtp_accounts (id, owner_id, label) values (${id}, ${ownerId}, 'mail.example')`;
  return id;
}

test('a new identity answers 201, its Location and the object, under a UUIDv7', async () => {
  const answer = await post({ value: freshDomain() });
  assert.equal(answer.status, 201);
  assert.match(answer.body.id, uuidv7);
  assert.equal(answer.headers.get('location'), `/identities/${answer.body.id}`);
  assert.deepEqual(await get(answer.body.id), answer.body);
});

for (const [given, value, kind] of [
  ['UPPER.Example', 'upper.example', 'domain'],
  ['dot.example.', 'dot.example', 'domain'],
  ['Bücher.example', 'xn--bcher-kva.example', 'domain'],
  ['Ada.Lovelace@Case.EXAMPLE', 'Ada.Lovelace@case.example', 'email'],
  ['grüße@Bücher.example.', 'grüße@xn--bcher-kva.example', 'email'],
] as const) {
  test(`${given} is kept as ${value}, and its kind follows: ${kind}`, async () => {
    const identity = await make({ value: given });
    assert.deepEqual([identity.value, identity.kind], [value, kind]);
  });
}

test('a kind that agrees with the value is accepted', async () => {
  assert.equal((await make({ kind: 'domain' })).kind, 'domain');
  assert.equal((await make({ value: `a@${freshDomain()}`, kind: 'email' })).kind, 'email');
});

for (const [value, kind] of [
  ['mismatch.example', 'email'],
  ['a@mismatch.example', 'domain'],
]) {
  test(`${value} as ${kind} is refused at /kind`, async () => {
    const { errors } = assertProblem(await post({ value, kind }), 400, 'invalid_body');
    assert.deepEqual(
      errors?.map(({ pointer, code }) => [pointer, code]),
      [['/kind', 'mismatch']],
    );
  });
}

test('a mismatch of kind and value is told together with the other faults', async () => {
  const body = { value: 'mismatch.example', kind: 'email', incoming_domain: 'yes', provider_id: newId() };
  const { errors } = assertProblem(await post(body), 400, 'invalid_body');
  assert.deepEqual(errors?.map(({ pointer }) => pointer).sort(), [
    '/incoming_domain',
    '/kind',
    '/provider_id',
  ]);
});

for (const [body, pointer, code] of [
  [{}, '/value', 'required'],
  [{ value: 5 }, '/value', 'wrong_type'],
  [{ value: 'not a domain' }, '/value', 'invalid_value'],
  [{ value: 'k.example', kind: 'mailbox' }, '/kind', 'unknown_value'],
  [{ value: 'k.example', incoming_domain: 'true' }, '/incoming_domain', 'wrong_type'],
  [{ value: 'k.example', status: 'verified' }, '/status', 'unknown_field'],
  [{ value: 'k.example', owner_id: other.userId }, '/owner_id', 'unknown_field'],
  [['k.example'], '', 'wrong_type'],
] as const) {
  test(`POST /identities refuses ${JSON.stringify(body)} at "${pointer}"`, async () => {
    const { errors } = assertProblem(await post(body), 400, 'invalid_body');
    assert.deepEqual(
      errors?.map((error) => [error.pointer, error.code]),
      [[pointer, code]],
    );
  });
}

test('an unknown field is refused with the field that was meant', async () => {
  const { errors } = assertProblem(await post({ vlaue: 'x.example' }), 400, 'invalid_body');
  const fault = errors?.find(({ pointer }) => pointer === '/vlaue');
  assert.match(fault?.message ?? '', /Did you mean "value"\?/);
});

for (const [first, second] of [
  ['twice.example', 'TWICE.example.'],
  ['Ada@twice2.example', 'aDA@Twice2.example'],
] as const) {
  test(`${second} after ${first} is a conflict for the same owner, and not for another`, async () => {
    await make({ value: first });
    assertProblem(await post({ value: second }), 409, 'identity_exists');
    assert.equal((await make({ value: second }, other)).owner_id, other.userId);
  });
}

test('of many simultaneous creations of one value one wins and the others are conflicts', async () => {
  const value = freshDomain();
  const statuses = (await Promise.all(Array.from({ length: 8 }, () => post({ value })))).map(
    ({ status }) => status,
  );
  assert.deepEqual(statuses.sort(), [201, ...Array(7).fill(409)]);
});

test('an identity of either kind gets its four mailboxes when it is made', async () => {
  for (const value of [freshDomain(), `a@${freshDomain()}`]) {
    const { id } = await make({ value });
    const rows = await sql`select kind, owner_id from mailboxes where identity_id = ${id} order by kind`;
    assert.deepEqual(
      [...rows],
      ['inbox', 'sent', 'spam', 'trash'].map((kind) => ({ kind, owner_id: user.userId })),
    );
  }
});

test('an address points to the identity of its domain, whichever came first', async () => {
  const domain = freshDomain();
  const before = await make({ value: `before@${domain}` });
  assert.equal(before.domain_identity_id, null);
  const { id } = await make({ value: domain });
  const after = await make({ value: `after@${domain.toUpperCase()}` });
  assert.equal(after.domain_identity_id, id);
  assert.equal((await get(before.id)).domain_identity_id, id);
});

test('an address and its domain made at the same moment are linked', async () => {
  for (let round = 0; round < 10; round++) {
    const domain = freshDomain();
    const [address, { id }] = await Promise.all([make({ value: `a@${domain}` }), make({ value: domain })]);
    assert.equal((await get(address.id)).domain_identity_id, id);
  }
});

test('an address never points to the domain of another owner, nor to a parent or another domain', async () => {
  const domain = freshDomain();
  const mine = await make({ value: `mine@${domain}` });
  const under = await make({ value: `mine@sub.${domain}` });
  await make({ value: domain }, other);
  const late = await make({ value: `late@${domain}` });
  for (const { id } of [mine, under, late]) assert.equal((await get(id)).domain_identity_id, null);
  const { id } = await make({ value: domain });
  assert.equal((await get(mine.id)).domain_identity_id, id);
  assert.equal((await get(under.id)).domain_identity_id, null);
});

test('deleting a domain unlinks its addresses, takes back the status they had from it, and leaves the others', async () => {
  const domain = await make();
  const address = await make({ value: `a@${domain.value}` });
  const elsewhere = await make({ value: `a@${freshDomain()}` });
  await sql`update identities set status = 'verified' where id = any (${[address.id, elsewhere.id]}::uuid[])`;
  assert.equal((await call('DELETE', `/identities/${domain.id}`)).status, 204);
  const { domain_identity_id, status } = await get(address.id);
  assert.deepEqual({ domain_identity_id, status }, { domain_identity_id: null, status: 'unverified' });
  assert.equal((await get(elsewhere.id)).status, 'verified');
});

test('an address made while its domain is being deleted is made all the same', async () => {
  for (let round = 0; round < 20; round++) {
    const domain = await make();
    const [deleted, created] = await Promise.all([
      call('DELETE', `/identities/${domain.id}`),
      post({ value: `a@${domain.value}` }),
    ]);
    assert.deepEqual([deleted.status, created.status], [204, 201], created.text);
    assert.equal((await get(created.body.id)).domain_identity_id, null);
  }
});

test('deleting an identity removes its mailboxes, their sync state and the webhooks restricted to it, and no others', async () => {
  const [gone, kept] = [await make(), await make()];
  const webhook = { url: 'https://example.com/', events: ['message.received'], ownerId: user.userId };
  const restricted = async (identityId?: string) =>
    (await call('POST', '/webhooks', { body: { ...webhook, ...(identityId ? { identityId } : {}) } })).body
      .id;
  const webhooks = [await restricted(gone.id), await restricted(kept.id), await restricted()];
  const ids = [gone.id, kept.id];
  await sql`
    insert into mailbox_sync (mailbox_id, owner_id)
    select id, owner_id from mailboxes where identity_id = any (${ids}::uuid[])`;

  assert.equal((await call('DELETE', `/identities/${gone.id}`)).status, 204);

  const mailboxes =
    await sql`select distinct identity_id from mailboxes where identity_id = any (${ids}::uuid[])`;
  assert.deepEqual([...mailboxes], [{ identity_id: kept.id }]);
  assert.equal((await sql`select from mailbox_sync`).count, 4);
  const statuses = webhooks.map(async (id) => (await call('GET', `/webhooks/${id}`)).status);
  assert.deepEqual(await Promise.all(statuses), [404, 200, 200]);
  assertProblem(await call('DELETE', `/identities/${gone.id}`), 404, 'not_found');
});

test('a deleted value can be made again', async () => {
  const { id, value } = await make();
  await call('DELETE', `/identities/${id}`);
  assert.notEqual((await make({ value })).id, id);
});

const readOnly = [
  'id',
  'owner_id',
  'kind',
  'public_id',
  'value',
  'domain_identity_id',
  'dns_records',
  'status',
  'created_at',
  'updated_at',
];
for (const field of readOnly) {
  test(`PATCH refuses ${field}: it is read-only, even at its own value`, async () => {
    const before = await make();
    for (const value of [before[field], null, 'verified', other.userId]) {
      const body = { [field]: value, incoming_domain: true };
      const { errors } = assertProblem(await patch(before.id, body), 400, 'invalid_body');
      assert.deepEqual(
        errors?.map(({ pointer, code }) => [pointer, code]),
        [[`/${field}`, 'read_only']],
      );
      assert.ok(errors?.[0]?.message.includes(`"${field}"`));
    }
    assert.deepEqual(await get(before.id), before);
  });
}

test('PATCH names every read-only field at once, beside unknown ones', async () => {
  const { id } = await make();
  const body = { ...(await get(id)), incoming_domian: true };
  const { errors } = assertProblem(await patch(id, body), 400, 'invalid_body');
  const pointers = errors?.filter(({ code }) => code === 'read_only').map(({ pointer }) => pointer.slice(1));
  assert.deepEqual(pointers?.sort(), [...readOnly].sort());
  const unknown = errors?.find(({ code }) => code === 'unknown_field');
  assert.match(unknown?.message ?? '', /Did you mean "incoming_domain"\?/);
});

for (const [how, given, kept] of [
  ['an object', { b: 1, a: [true, null, { c: 'x' }] }, '{"b":1,"a":[true,null,{"c":"x"}]}'],
  ['the JSON text of one', ' {"b": 1,\n"a": 2} ', '{"b":1,"a":2}'],
  ['an empty object', {}, '{}'],
  ['nested Unicode', { ключ: { 日本: '🦉é' } }, '{"ключ":{"日本":"🦉é"}}'],
  ['NUL characters, as an object', { a: 'x\0y' }, '{"a":"x\\u0000y"}'],
  ['NUL characters, as text', '{"a":"x\\u0000y"}', '{"a":"x\\u0000y"}'],
  ['a key named __proto__', JSON.parse('{"__proto__":{"a":1}}'), '{"__proto__":{"a":1}}'],
] as const) {
  test(`meta takes ${how}, at creation and in PATCH`, async () => {
    const created = await make({ meta: given });
    assert.equal(created.meta, kept);
    const { id } = await make({ meta: { old: true } });
    assert.equal((await patch(id, { meta: given })).body.meta, kept);
    assert.equal((await get(id)).meta, kept);
  });
}

for (const given of [null, 5, true, [], '', '[]', 'null', '"text"', '{"a":', 'not JSON']) {
  test(`meta refuses ${JSON.stringify(given)}`, async () => {
    const { id } = await make();
    for (const answer of [
      await post({ value: freshDomain(), meta: given }),
      await patch(id, { meta: given }),
    ]) {
      const { errors } = assertProblem(answer, 400, 'invalid_body');
      assert.deepEqual([...new Set(errors?.map(({ pointer }) => pointer))], ['/meta']);
    }
  });
}

test('meta nested deeper than anything could keep is refused, as an object and as text', async () => {
  const { id } = await make();
  const deep = `{"a":${'['.repeat(15_000)}${']'.repeat(15_000)}}`;
  assert.equal((await patch(id, `{"meta":${deep}}`)).status, 400);
  assert.equal((await patch(id, { meta: deep })).status, 400);
  const fine = `{"a":${'['.repeat(50)}${']'.repeat(50)},"b":"${'[{'.repeat(500)}"}`;
  assert.equal((await patch(id, `{"meta":${fine}}`)).body.meta, fine);
  assert.equal((await patch(id, { meta: fine })).body.meta, fine);
});

for (const [field, makeRow] of [
  ['provider_id', makeProvider],
  ['smtp_account_id', makeSmtpAccount],
] as const) {
  test(`${field} takes a row of the owner's, at creation and in PATCH, and null lifts it`, async () => {
    const row = await makeRow(user.userId);
    assert.equal((await make({ [field]: row }))[field], row);
    const { id } = await make();
    assert.equal((await patch(id, { [field]: row })).body[field], row);
    assert.equal((await patch(id, { [field]: null })).body[field], null);
  });

  test(`${field} refuses another owner's row, an unknown one and what is no UUID, by pointer`, async () => {
    const { id } = await make();
    for (const value of [await makeRow(other.userId), newId(), 'x', 5]) {
      for (const answer of [
        await post({ value: freshDomain(), [field]: value }),
        await patch(id, { [field]: value }),
      ]) {
        const { errors } = assertProblem(answer, 400, 'invalid_body');
        assert.deepEqual(
          errors?.map(({ pointer }) => pointer),
          [`/${field}`],
          `${value}`,
        );
      }
    }
    assert.equal((await get(id))[field], null);
  });
}

test('PATCH {} changes nothing, updated_at included', async () => {
  const before = await make({ meta: { a: 1 } });
  const answer = await patch(before.id, {});
  assert.equal(answer.status, 200);
  assert.deepEqual(answer.body, before);
  assert.deepEqual(await get(before.id), before);
});

test('PATCH takes application/merge-patch+json, and POST does not', async () => {
  const { id } = await make();
  const headers = { 'content-type': 'application/merge-patch+json' };
  const answer = await call('PATCH', `/identities/${id}`, { headers, body: { incoming_domain: true } });
  assert.equal(answer.body.incoming_domain, true, answer.text);
  const posted = await call('POST', '/identities', { headers, body: { value: freshDomain() } });
  assertProblem(posted, 415, 'unsupported_media_type');
});
