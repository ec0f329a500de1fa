/** What must never be false is held by the database itself, whoever writes. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { after, before, describe, test } from 'node:test';
import { connect, errorCode } from '../src/db/client.ts';
import { identifier } from '../src/db/sql.ts';
import { newId } from '../src/lib/ids.ts';
import { createApiKey } from '../src/store/api-keys.ts';
import { ensureUser } from '../src/store/users.ts';
import { makeDatabase } from './harness.ts';
import { insertProvider, insertRows } from './insert.ts';

const database = await makeDatabase();
const sql = connect(database.url, { max: 2, applicationName: 'posthorn schema test' });
after(async () => {
  await sql.end();
  await database.drop();
});

const unique = '23505';
const foreignKey = '23503';
const check = '23514';
const notNull = '23502';

async function assertRefused(code: string, constraint: RegExp, query: Promise<unknown>): Promise<void> {
  const error = await query.then(
    () => undefined,
    (thrown) => thrown,
  );
  assert.equal(errorCode(error), code, String(error ?? 'it was let through'));
  assert.match(error.constraint ?? error.column, constraint);
}

const text = () => randomBytes(6).toString('hex');
async function addUser(): Promise<string> {
  return (await ensureUser(sql, `${text()}@users.example`)).user.userId;
}

async function addIdentity(ownerId: string, more: Record<string, unknown> = {}): Promise<string> {
  const value = String(more.value ?? `${text()}.example`);
  const kind = value.includes('@') ? 'email' : 'domain';
  const row = {
    id: newId(),
    owner_id: ownerId,
    kind,
    public_id: text(),
    value,
    value_key: value.toLowerCase(),
  };
  await insertRows(sql, 'identities', [{ ...row, ...more }]);
  return row.id;
}

async function addWebhook(ownerId: string, more: Record<string, unknown> = {}): Promise<string> {
  const row = { id: newId(), owner_id: ownerId, url: 'https://example.com/', secret: Buffer.from('s') };
  await insertRows(sql, 'webhooks', [{ ...row, events: ['message.received'], ...more }]);
  return row.id;
}

async function addAccount(table: 'providers' | 'smtp_accounts', ownerId: string): Promise<string> {
  if (table === 'providers') return insertProvider(sql, ownerId);
  const id = newId();
  await insertRows(sql, table, [{ id, owner_id: ownerId, label: 'smtp.example' }]);
  return id;
}

let owner: string;
let stranger: string;
before(async () => {
  [owner, stranger] = [await addUser(), await addUser()];
});

describe('values are held once', () => {
  test('at most one owner has a value verified, in whatever case it is written', async () => {
    const value = `Ada@${text()}.example`;
    await addIdentity(owner, { value });
    await addIdentity(stranger, { value: value.toLowerCase(), status: 'verified' });
    const other = await addUser();
    const third = await addIdentity(other, { value, status: 'failed' });
    const holder = /identities_one_verified_holder/;
    await assertRefused(unique, holder, sql`update identities set status = 'verified' where id = ${third}`);
    await assertRefused(
      unique,
      holder,
      sql`update identities set status = 'verified' where owner_id = ${owner} and value = ${value}`,
    );
    await sql`update identities set status = 'pending' where owner_id = ${stranger}`;
    await sql`update identities set status = 'verified' where id = ${third}`;
  });

  test('an owner has a value once', async () => {
    const value = `Bob@${text()}.example`;
    await addIdentity(owner, { value });
    await assertRefused(
      unique,
      /identities_once_per_owner/,
      addIdentity(owner, { value: value.toLowerCase() }),
    );
  });

  test('so are public ids, addresses of users and hashes of keys', async () => {
    const public_id = text();
    await addIdentity(owner, { public_id });
    await assertRefused(unique, /public_id/, addIdentity(stranger, { public_id }));
    const email = `C${text()}@users.example`;
    await sql`insert into users (id, email) values (${newId()}, ${email})`;
    const again = sql`insert into users (id, email) values (${newId()}, ${email.toLowerCase()})`;
    await assertRefused(unique, /users_email_key/, again);
    const add = (hash: Buffer) => sql`
      insert into api_keys (id, owner_id, key_hash, prefix, suffix) values (${newId()}, ${owner}, ${hash}, 'p', 's')`;
    const hash = randomBytes(32);
    await add(hash);
    await assertRefused(unique, /key_hash/, add(hash));
    await assertRefused(check, /key_hash/, add(randomBytes(31)));
  });
});

describe('only known words are stored', () => {
  const refused: [string, () => Promise<unknown>, RegExp][] = [
    ['an identity of another kind', () => addIdentity(owner, { kind: 'phone' }), /kind/],
    ['an identity of another status', () => addIdentity(owner, { status: 'ok' }), /status/],
    [
      'a key of another scope',
      () => sql`
        insert into api_keys (id, owner_id, scope, key_hash, prefix, suffix)
        values (${newId()}, ${owner}, 'admin', ${randomBytes(32)}, 'p', 's')`,
      /scope/,
    ],
    ['a webhook without events', () => addWebhook(owner, { events: [] }), /events/],
    [
      'a webhook off for another reason',
      () => addWebhook(owner, { disabled_reason: 'bored' }),
      /disabled_reason/,
    ],
  ];
  for (const [what, add, constraint] of refused) {
    test(`${what} is refused`, () => assertRefused(check, constraint, add()));
  }

  test('a mailbox of another kind, and two of one kind, are refused', async () => {
    const identity_id = await addIdentity(owner);
    const add = (kind: string) =>
      insertRows(sql, 'mailboxes', [{ id: newId(), owner_id: owner, identity_id, kind }]);
    await assertRefused(check, /kind/, add('drafts'));
    await add('inbox');
    await assertRefused(unique, /identity_id_kind/, add('inbox'));
  });

  test('an SMTP port that is none is refused', async () => {
    const id = await addAccount('smtp_accounts', owner);
    const server = { owner_id: owner, account_id: id, side: 'smtp', host: 'smtp.example', port: 65_536 };
    const rest = { secure: true, username: 'ada', secret: Buffer.from('s') };
    await assertRefused(check, /port/, insertRows(sql, 'mail_servers', [{ ...server, ...rest }]));
  });

  test('what must be there must be there', async () => {
    const hook = await addWebhook(owner);
    await assertRefused(notNull, /secret/, sql`update webhooks set secret = null where id = ${hook}`);
    await assertRefused(notNull, /meta/, sql`update identities set meta = null where owner_id = ${owner}`);
  });
});

describe('references stay with one owner', () => {
  test("a webhook's identity is its owner's", async () => {
    const identity_id = await addIdentity(owner);
    await addWebhook(owner, { identity_id });
    await assertRefused(foreignKey, /identity_id/, addWebhook(stranger, { identity_id }));
    await assertRefused(foreignKey, /identity_id/, addWebhook(owner, { identity_id: newId() }));
    const hook = await addWebhook(stranger);
    await assertRefused(
      foreignKey,
      /identity_id/,
      sql`update webhooks set identity_id = ${identity_id} where id = ${hook}`,
    );
  });

  test("an address's domain identity is its owner's, and a domain has none", async () => {
    const domain_identity_id = await addIdentity(owner);
    const address = () => `${text()}@d.example`;
    await addIdentity(owner, { value: address(), domain_identity_id });
    const foreign = addIdentity(stranger, { value: address(), domain_identity_id });
    await assertRefused(foreignKey, /domain_identity/, foreign);
    await assertRefused(check, /check/, addIdentity(owner, { domain_identity_id }));
  });

  for (const [table, column] of [
    ['providers', 'provider_id'],
    ['smtp_accounts', 'smtp_account_id'],
  ] as const) {
    test(`so is what ${column} names`, async () => {
      const id = await addAccount(table, owner);
      await addIdentity(owner, { [column]: id });
      await assertRefused(foreignKey, new RegExp(column), addIdentity(stranger, { [column]: id }));
    });
  }
});

describe('deletions take along what hangs on them', () => {
  const count = async (table: string, column: string, id: string) =>
    (await sql`select from ${identifier(table)} where ${identifier(column)} = ${id}`).count;

  async function furnish(ownerId: string) {
    const domain = await addIdentity(ownerId);
    const address = await addIdentity(ownerId, { value: `${text()}@x.example`, domain_identity_id: domain });
    const mailbox = newId();
    const row = { id: mailbox, owner_id: ownerId, identity_id: domain, kind: 'inbox' };
    await insertRows(sql, 'mailboxes', [row]);
    await insertRows(sql, 'mailbox_sync', [{ mailbox_id: mailbox, owner_id: ownerId }]);
    const [restricted, free] = [
      await addWebhook(ownerId, { identity_id: domain }),
      await addWebhook(ownerId),
    ];
    const retired = { webhook_id: restricted, owner_id: ownerId, secret: Buffer.from('old') };
    await insertRows(sql, 'retired_webhook_secrets', [retired]);
    return { domain, address, mailbox, restricted, free };
  }

  test('seed 2.2: an identity takes its mailboxes, their sync state and the webhooks restricted to it', async () => {
    const { domain, address, mailbox, restricted, free } = await furnish(owner);
    await sql`delete from identities where id = ${domain}`;
    assert.equal(await count('mailboxes', 'id', mailbox), 0);
    assert.equal(await count('mailbox_sync', 'mailbox_id', mailbox), 0);
    assert.equal(await count('webhooks', 'id', restricted), 0);
    assert.equal(await count('retired_webhook_secrets', 'webhook_id', restricted), 0);
    assert.equal(await count('webhooks', 'id', free), 1);
    const [left] = await sql`select owner_id, domain_identity_id from identities where id = ${address}`;
    assert.deepEqual({ ...left }, { owner_id: owner, domain_identity_id: null });
  });

  test('a provider or SMTP account leaves its identities, without the reference', async () => {
    const provider_id = await addAccount('providers', owner);
    const smtp_account_id = await addAccount('smtp_accounts', owner);
    const id = await addIdentity(owner, { provider_id, smtp_account_id });
    await sql`delete from providers where id = ${provider_id}`;
    await sql`delete from smtp_accounts where id = ${smtp_account_id}`;
    const [left] = await sql`select owner_id, provider_id, smtp_account_id from identities where id = ${id}`;
    assert.deepEqual({ ...left }, { owner_id: owner, provider_id: null, smtp_account_id: null });
  });

  test('a user takes everything', async () => {
    const leaving = await addUser();
    await furnish(leaving);
    await addAccount('providers', leaving);
    await createApiKey(sql, leaving);
    await sql`delete from users where id = ${leaving}`;
    const tables = await sql<{ name: string }[]>`
      select table_name as name from information_schema.columns
      where table_schema = 'public' and column_name = 'owner_id' and table_name <> 'idempotency_records'`;
    assert.ok(tables.length >= 8);
    for (const { name } of tables) assert.equal(await count(name, 'owner_id', leaving), 0, name);
  });
});

test('no index does what another, of all rows, does as well', async () => {
  const repeated = await sql<{ index: string; other: string }[]>`
    select one.indexrelid::regclass::text as index, other.indexrelid::regclass::text as other
    from pg_index one join pg_index other on other.indrelid = one.indrelid and other.indexrelid <> one.indexrelid
    where one.indrelid::regclass::text = any (array(select tablename::text from pg_tables where schemaname = 'public'))
      and not one.indisunique and other.indpred is null and one.indexprs is null and other.indexprs is null
      and other.indkey::text || ' ' like one.indkey::text || ' %'`;
  assert.deepEqual([...repeated], []);
});

test('docs/scaling.md names each table that has an owner', async () => {
  const page = readFileSync(new URL('../docs/scaling.md', import.meta.url), 'utf8');
  const listed = page.slice(page.indexOf('| table | primary key |'), page.indexOf('So the first step'));
  const tables = await sql<{ name: string }[]>`
    select relname as name from pg_class join pg_attribute on attrelid = pg_class.oid and attname = 'owner_id'
    where relkind = 'r' and relnamespace = 'public'::regnamespace`;
  const missing = tables.filter(({ name }) => !listed.includes(`\`${name}\``));
  assert.deepEqual(missing, []);
});
