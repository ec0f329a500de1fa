/** What the store promises about SMTP accounts: encrypted secrets, states of the right version, tokens that are not overwritten. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import { connect, transaction } from '../src/db/client.ts';
import { newId } from '../src/lib/ids.ts';
import { makeSealer } from '../src/lib/secrets.ts';
import * as accounts from '../src/store/smtp-accounts.ts';
import { ensureUser } from '../src/store/users.ts';
import { makeDatabase } from './harness.ts';

const database = await makeDatabase();
const sql = connect(database.url, { max: 2, applicationName: 'posthorn account test' });
after(async () => {
  await sql.end();
  await database.drop();
});
const sealer = makeSealer([randomBytes(32)]);
const ownerId = (await ensureUser(sql, 'ada@users.example')).user.userId;
const strangerId = (await ensureUser(sql, 'eve@users.example')).user.userId;

const oauth2 = {
  ...{ clientId: 'client', clientSecret: 'hush', refreshToken: 'first' },
  ...{ tokenUrl: 'https://tokens.example/', scope: null },
};
const smtp = {
  ...{ host: 'smtp.example', port: 465, secure: true, username: 'ada' },
  login: { password: 'correct horse' },
};
const imap = { host: 'imap.example', port: 993, secure: true, username: 'ada', login: { oauth2 } };

async function make() {
  const given = { id: newId(), label: 'Post', smtp, imap };
  const made = await accounts.createSmtpAccount(sql, sealer, ownerId, given, 100);
  assert.ok(made);
  return made;
}

test('an account is found and listed without its secrets, by its owner alone', async () => {
  const made = await make();
  const { login, ...shown } = smtp;
  assert.deepEqual(made.smtp, { ...shown, oauth2: null });
  assert.deepEqual(made.imap?.oauth2, {
    clientId: 'client',
    tokenUrl: 'https://tokens.example/',
    scope: null,
  });
  assert.deepEqual(made.send, { state: 'unknown', checkedAt: null, error: null });
  assert.deepEqual(made.receive, made.send);
  assert.doesNotMatch(JSON.stringify(made), /correct horse|hush|first/);
  const page = await accounts.listSmtpAccounts(sql, ownerId, { limit: 1, after: null });
  assert.deepEqual(
    page.rows.map(({ position, ...row }) => row),
    [made],
  );
  assert.equal(await accounts.findSmtpAccount(sql, strangerId, made.id), undefined);
  assert.deepEqual((await accounts.listSmtpAccounts(sql, strangerId, { limit: 1, after: null })).rows, []);
});

test('both sides open with their secrets, for their owner alone', async () => {
  const { id: accountId } = await make();
  const open = (owner: string, side: accounts.ServerSide) =>
    accounts.findMailServer(sql, sealer, { ownerId: owner, accountId, side });
  assert.deepEqual((await open(ownerId, 'smtp'))?.server, smtp);
  assert.deepEqual((await open(ownerId, 'imap'))?.server, imap);
  assert.equal(await open(strangerId, 'smtp'), undefined);
});

test('a change makes a new version with an unknown state, and null removes the imap side', async () => {
  const { id } = await make();
  const ref = { ownerId, accountId: id, side: 'smtp' } as const;
  const first = (await accounts.findMailServer(sql, sealer, ref))?.version ?? assert.fail();
  const error = { code: 'timeout', message: 'Try again.', response: null } as const;
  await accounts.recordReceiveState(sql, ownerId, id, 'failing', error);
  await accounts.recordSendState(sql, ownerId, id, 'ok', null, first);
  const before = await accounts.findSmtpAccount(sql, ownerId, id);
  assert.deepEqual([before?.send.state, before?.receive.state], ['ok', 'failing']);
  assert.deepEqual(before?.receive.error, error);
  const changed = await transaction(sql, (sql) =>
    accounts.updateSmtpAccount(sql, sealer, ownerId, id, { smtp: { ...smtp, port: 587 }, imap: null }),
  );
  assert.deepEqual(
    [changed?.imap, changed?.receive.state, changed?.send.state],
    [null, 'unknown', 'unknown'],
  );
  await accounts.recordSendState(sql, ownerId, id, 'failing', error, first);
  assert.equal((await accounts.findSmtpAccount(sql, ownerId, id))?.send.state, 'unknown');
  await accounts.recordSendState(sql, ownerId, id, 'failing', error, first + 1);
  assert.equal((await accounts.findSmtpAccount(sql, ownerId, id))?.send.state, 'failing');
});

test('a renewed refresh token replaces only the token that it was given for', async () => {
  const { id: accountId } = await make();
  const ref = { ownerId, accountId, side: 'imap' } as const;
  const read = async () => {
    const found = await accounts.findMailServer(sql, sealer, ref);
    assert.ok(found && 'oauth2' in found.server.login);
    return { ...found.server.login.oauth2, version: found.version };
  };
  const { version } = await read();
  await accounts.replaceRefreshToken(sql, sealer, ref, 'first', 'second');
  assert.deepEqual(await read(), { ...oauth2, refreshToken: 'second', version });
  await accounts.replaceRefreshToken(sql, sealer, ref, 'first', 'late');
  assert.equal((await read()).refreshToken, 'second');
});

test('an account that an identity refers to is not deleted', async () => {
  const { id } = await make();
  const identity = newId();
  await sql`
    insert into identities (id, owner_id, kind, public_id, value, value_key, smtp_account_id)
    values (${identity}, ${ownerId}, 'domain', 'x', 'used.example', 'used.example', ${id})`;
  assert.equal(await accounts.deleteSmtpAccount(sql, strangerId, id), undefined);
  assert.deepEqual(await accounts.deleteSmtpAccount(sql, ownerId, id), { usedBy: ['used.example'] });
  await sql`delete from identities where id = ${identity}`;
  assert.deepEqual(await accounts.deleteSmtpAccount(sql, ownerId, id), { usedBy: [] });
  assert.equal(await accounts.deleteSmtpAccount(sql, ownerId, id), undefined);
});
