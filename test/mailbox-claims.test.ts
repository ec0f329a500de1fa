/** Which connections to mailboxes are claimed, and what that costs. No service runs here: the test claims the connections. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import { connect } from '../src/db/client.ts';
import { newId } from '../src/lib/ids.ts';
import { makeSealer } from '../src/lib/secrets.ts';
import { findDueWork } from '../src/store/due-work.ts';
import { createIdentity, updateIdentity } from '../src/store/identities.ts';
import {
  claimConnections,
  connectNow,
  listLeased,
  releaseConnection,
} from '../src/store/imap-connections.ts';
import { createSmtpAccount, updateSmtpAccount } from '../src/store/smtp-accounts.ts';
import { ensureUser } from '../src/store/users.ts';
import { makeDatabase } from './harness.ts';

const database = await makeDatabase();
const sql = connect(database.url, { max: 1, applicationName: 'posthorn claims' });
// No limit of time: on a busy machine 20,000 rows take long.
const other = connect(database.url, {
  ...{ max: 1, applicationName: 'posthorn claims, other', statementTimeoutMs: 0 },
});
after(async () => {
  await sql.end();
  await other.end();
  await database.drop();
});
const sealer = makeSealer([randomBytes(32)]);
const server = {
  ...{ host: 'imap.example.com', port: 993, secure: true, username: 'ada' },
  login: { password: 'secret' },
};
const failure = {
  error: { code: 'timeout', message: 'It took too long.', response: null },
  ...{ isLoginRefused: false, retrySeconds: 900 },
} as const;
const refusal = { ...failure, isLoginRefused: true };

const makeOwner = async () => (await ensureUser(other, `${newId()}@users.example`)).user.userId;

async function connectMailbox(ownerId: string) {
  const accountId = newId();
  await createSmtpAccount(
    other,
    sealer,
    ownerId,
    { id: accountId, label: '', smtp: server, imap: server },
    100,
  );
  const id = newId();
  const value = `${id}@home.example`;
  await createIdentity(other, ownerId, {
    ...{ id, kind: 'email', value, valueKey: value, domain: 'home.example', incomingDomain: false },
    ...{ providerId: null, smtpAccountId: accountId, meta: '{}', proof: null },
  });
  return { ownerId, accountId, id };
}

/** Accounts, identities and connections of an owner, all of them due. */
async function connectMany(ownerId: string, count: number): Promise<void> {
  await other`
    with made as materialized (
      select uuidv7() as id, uuidv7() as account_id, n from generate_series(1, ${count}::int) n
    ), accounts as (
      insert into smtp_accounts (id, owner_id, label) select account_id, ${ownerId}, '' from made
    ), servers as (
      insert into mail_servers (owner_id, account_id, side, host, port, secure, username, secret)
      select ${ownerId}, account_id, 'imap', 'imap.example.com', 993, true, 'ada', ${Buffer.alloc(1)} from made
    ), named as (
      insert into identities (id, owner_id, kind, public_id, value, value_key, smtp_account_id)
      select id, ${ownerId}, 'email', id::text, id || '@many.example', id || '@many.example', account_id from made
    )
    insert into imap_connections (identity_id, owner_id, next_try_at)
    select id, ${ownerId}, now() - n * interval '1 second' from made`;
}

/** Rows of these tables that were read, by whatever index. */
async function countReads(): Promise<number> {
  await sql`select pg_stat_force_next_flush()`;
  await sql`select 1`;
  const [{ reads } = { reads: 0 }] = await other<{ reads: number }[]>`
    select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::int + (
      select sum(idx_tup_read)::int from pg_stat_user_indexes where relname = 'imap_connections'
    ) as reads
    from pg_stat_user_tables where relname in ('imap_connections', 'identities', 'mail_servers', 'smtp_accounts')`;
  return reads;
}

const idsOf = (claimed: { identityId: string }[]) => claimed.map(({ identityId }) => identityId);

async function emptyTables(): Promise<void> {
  await other`delete from identities`;
}

test('a check costs the same however many connections are due, also with plans from before they were', async (t) => {
  for (const table of ['imap_connections', 'identities', 'mail_servers'])
    await other.script(`alter table ${table} set (autovacuum_enabled = false)`);
  await other.script('vacuum analyze imap_connections');
  const token = newId();
  const statements = {
    claim: () => claimConnections(sql, token, 20),
    'list leased': () => listLeased(sql, [token]),
    'ask for due work': () => findDueWork(sql),
  };
  for (let n = 0; n < 8; n += 1) for (const run of Object.values(statements)) await run();
  await connectMany(await makeOwner(), 20_000);
  for (const [name, run] of Object.entries(statements))
    await t.test(name, async () => {
      await run();
      const before = await countReads();
      await run();
      const reads = (await countReads()) - before;
      assert.ok(reads < 8000, `${reads} rows were read`);
    });
  assert.equal((await listLeased(sql, [token])).length, 40);
  await emptyTables();
});

test('owners take turns, also those that do not fit into one claim', async () => {
  const owners = await Promise.all(Array.from({ length: 5 }, makeOwner));
  for (const owner of owners) await connectMany(owner, 10);
  const single = await connectMailbox(await makeOwner());
  const token = newId();
  const turns: string[] = [];
  for (let n = 0; n < 3; n += 1) {
    const claimed = await claimConnections(sql, token, 4, turns.at(-1));
    assert.equal(claimed.length, 4);
    turns.push(...claimed.map(({ ownerId }) => ownerId));
  }
  const everybody = [...owners, single.ownerId].sort();
  assert.deepEqual(turns.slice(0, 6).sort(), everybody, 'each has one before any has two');
  assert.ok(turns.slice(6).every((owner) => owner !== single.ownerId));
  assert.equal(new Set(turns.slice(6)).size, 5);
  await emptyTables();
});

test('a failure waits, but not after the account was changed, given to the identity, or verified', async (t) => {
  const mailbox = await connectMailbox(await makeOwner());
  const { ownerId, accountId, id } = mailbox;
  const token = newId();
  const claim = async () => idsOf(await claimConnections(sql, token, 20));
  const changes = {
    changed: () =>
      updateSmtpAccount(sql, sealer, ownerId, accountId, { imap: { ...server, username: newId() } }),
    given: () => updateIdentity(sql, ownerId, id, { smtp_account_id: accountId }),
    verified: () => connectNow(sql, ownerId, { accountId }),
  };
  for (const [name, change] of Object.entries(changes))
    for (const [when, outcome] of Object.entries({ outage: failure, 'refused login': refusal })) {
      await t.test(`${name} after: ${when}`, async () => {
        await other`update imap_connections set refused_logins = 2, failures = 3`;
        assert.deepEqual(await claim(), [id]);
        await other`update imap_connections set refused_logins = 2`;
        await releaseConnection(sql, { identityId: id, token }, outcome);
        assert.deepEqual(await claim(), []);
        await change();
        assert.deepEqual(await claim(), [id]);
        assert.deepEqual(await claim(), [], 'leased');
        await releaseConnection(sql, { identityId: id, token }, null);
      });
      await t.test(`${name} before it was recorded: ${when}`, async () => {
        assert.deepEqual(await claim(), [id]);
        await other`update imap_connections set refused_logins = 2`;
        await change();
        assert.deepEqual(await claim(), [], 'the lease stays');
        await releaseConnection(sql, { identityId: id, token }, outcome);
        assert.deepEqual(await claim(), [id]);
        await releaseConnection(sql, { identityId: id, token }, null);
      });
    }
  await emptyTables();
});

test('an identity without an IMAP server is no work, until it gets one', async () => {
  const { ownerId, accountId, id } = await connectMailbox(await makeOwner());
  const token = newId();
  const claim = async () => idsOf(await claimConnections(sql, token, 20));
  const isDue = async () => (await findDueWork(sql)).mailboxes;
  for (const [remove, giveBack] of [
    [
      () => updateSmtpAccount(sql, sealer, ownerId, accountId, { imap: null }),
      () => updateSmtpAccount(sql, sealer, ownerId, accountId, { imap: server }),
    ],
    [
      () => updateIdentity(sql, ownerId, id, { smtp_account_id: null }),
      () => updateIdentity(sql, ownerId, id, { smtp_account_id: accountId }),
    ],
  ] as const) {
    assert.equal(await isDue(), true);
    assert.deepEqual(await claim(), [id]);
    await remove();
    assert.equal((await listLeased(sql, [token])).length, 0);
    await releaseConnection(sql, { identityId: id, token }, null);
    assert.deepEqual(await claim(), []);
    assert.equal(await isDue(), false);
    await giveBack();
  }
  assert.deepEqual(await claim(), [id]);
  await emptyTables();
});

test('a server that is removed and given again is another one, also between two checks', async () => {
  const { ownerId, accountId, id } = await connectMailbox(await makeOwner());
  const token = newId();
  assert.deepEqual(idsOf(await claimConnections(sql, token, 20)), [id]);
  await updateSmtpAccount(sql, sealer, ownerId, accountId, { imap: null });
  await updateSmtpAccount(sql, sealer, ownerId, accountId, {
    imap: { ...server, host: 'other.example.com' },
  });
  assert.deepEqual(idsOf(await listLeased(sql, [token])), [], 'the connection to the first server is closed');
  await emptyTables();
});

test('an owner with thousands of mailboxes that are due does not keep another from becoming ready', async () => {
  await connectMany(await makeOwner(), 3000);
  const { id } = await connectMailbox(await makeOwner());
  assert.ok(idsOf(await claimConnections(sql, newId(), 20)).includes(id));
  await emptyTables();
});
