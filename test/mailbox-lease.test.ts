/** One process at a time reads a mailbox; what fails is shown, and tried again within limits. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { test } from 'node:test';
import { connect, transaction } from '../src/db/client.ts';
import { newId } from '../src/lib/ids.ts';
import { claimConnections, listLeased, releaseConnection } from '../src/store/imap-connections.ts';
import { MailboxGone, movePosition, noteFolders, PositionLost } from '../src/store/mailbox-sync.ts';
import { assertProblem, waitFor } from './harness.ts';
import { openImapServer, startImapServer } from './imap-server.ts';
import { breakInserts, breakLedger, isIdling, mailWith, startMailboxService } from './mailbox-service.ts';

const service = await startMailboxService();
const { sql } = service;
/** Without the role `sync`: the test claims the connections. */
const idle = await startMailboxService({ POSTHORN_ROLES: 'api' });

const folders = [{ kind: 'inbox', path: 'INBOX' }] as const;
const claim = async (id: string) => {
  const claimed = await claimConnections(idle.sql, newId(), 20);
  const found = claimed.find(({ identityId }) => identityId === id);
  assert.ok(found);
  return found;
};

const serverOf = (accountId: string) => service.call('GET', `/smtp-accounts/${accountId}`);

test('a claimed connection cannot be claimed again until its lease expires or is released', async () => {
  const server = await startImapServer();
  const { id } = await idle.connect(server, 'lease@home.example');
  await idle.call('POST', `/identities/${id}/sync`);
  const [one, other] = [newId(), newId()];
  const claimAll = async (token: string) =>
    (await claimConnections(idle.sql, token, 20)).map(({ identityId }) => identityId);
  assert.deepEqual(await claimAll(one), [id]);
  assert.deepEqual(await claimAll(other), []);
  assert.equal((await listLeased(idle.sql, [one])).length, 1);
  await idle.sql`update imap_connections set lease_until = now() - interval '1 second'`;
  assert.deepEqual(await claimAll(other), [id]);
  assert.equal((await listLeased(idle.sql, [one])).length, 0);
  await releaseConnection(idle.sql, { identityId: id, token: one }, null);
  assert.deepEqual(await claimAll(one), [], 'only the process that has the lease can give it back');
  await releaseConnection(idle.sql, { identityId: id, token: other }, null);
  assert.deepEqual(await claimAll(one), [id]);
});

test('of two processes that read one mailbox, the position of one counts', async () => {
  const server = await startImapServer();
  const { id } = await idle.connect(server, 'two@home.example');
  const claimed = await claim(id);
  const { positions } = await noteFolders(idle.sql, claimed, newId(), folders);
  const [position] = positions;
  assert.ok(position);
  const to = { uidValidity: 1, nextUid: 5, older: null, scan: 0 };
  await movePosition(idle.sql, claimed.ownerId, position, to);
  await assert.rejects(movePosition(idle.sql, claimed.ownerId, position, to), PositionLost);
});

test('a process that lost its lease, or whose account was changed, does not note folders', async () => {
  const server = await startImapServer();
  const { id, accountId } = await idle.connect(server, 'late@home.example');
  const late = await claim(id);
  await idle.sql`update imap_connections set lease_until = now() - interval '1 second' where identity_id = ${id}`;
  const claimed = await claim(id);
  const [position] = (await noteFolders(idle.sql, claimed, newId(), folders)).positions;
  assert.ok(position);
  const to = { uidValidity: 1, nextUid: 5, older: null, scan: 0 };
  await movePosition(idle.sql, claimed.ownerId, position, to);
  await assert.rejects(noteFolders(idle.sql, late, newId(), folders), PositionLost);
  const body = { imap: { username: 'eve', password: 'secret' } };
  assert.equal((await idle.call('PATCH', `/smtp-accounts/${accountId}`, { body })).status, 200);
  await assert.rejects(noteFolders(idle.sql, claimed, newId(), folders), PositionLost);
  const [row] = await idle.sql`
    select next_uid::int as next_uid from mailbox_sync where mailbox_id = ${position.mailboxId}`;
  assert.deepEqual(row, { next_uid: 5 });
});

test('the folders are noted while the identity is deleted: the deletion wins, and neither fails by a deadlock', async (t) => {
  const server = await startImapServer();
  const { id } = await idle.connect(server, 'deleted@home.example');
  const claimed = await claim(id);
  const syncing = connect(idle.databaseUrl, { max: 2, applicationName: 'posthorn sync test' });
  t.after(() => syncing.end());
  const isWaiting = async () => {
    const { count } = await syncing`
      select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;
    return count > 0;
  };
  const noting = await transaction(idle.sql, async (deleting) => {
    await deleting`select from identities where id = ${id} for update`;
    await deleting`delete from mailboxes where identity_id = ${id}`;
    const noted = noteFolders(syncing, claimed, newId(), folders);
    const settled = noted.then(
      () => 'noted',
      (error) => error,
    );
    await waitFor('the sync to wait', isWaiting);
    await deleting`delete from identities where id = ${id}`;
    return { settled };
  });
  assert.ok((await noting.settled) instanceof MailboxGone);
});

test('wrong credentials are shown, and after three tries nobody calls until the account is changed', async () => {
  const server = await startImapServer();
  const { id, accountId } = await service.connect(
    { port: server.port, password: 'not the one' },
    'wrong@home.example',
  );
  const isFailing = async () => (await serverOf(accountId)).body.receive.state === 'failing';
  await waitFor('the first failure', isFailing);
  const { body } = await serverOf(accountId);
  assert.equal(body.receive.error.code, 'authentication_failed');
  assert.match(body.receive.error.response, /Wrong password/);
  const boxes = await service.mailboxes(id, ({ inbox }) => inbox?.sync?.state === 'failing');
  assert.equal(boxes.inbox?.sync?.error?.code, 'authentication_failed');
  const logins = () => server.commands.filter((command) => command.startsWith('LOGIN')).length;
  const tryNow = () =>
    sql`
      update imap_connections set next_try_at = now()
      where identity_id = ${id} and next_try_at < 'infinity' and lease_token is null`;
  for (const count of [2, 3])
    await waitFor(`try ${count}`, async () => {
      await tryNow();
      return logins() >= count;
    });
  const isStopped = async () => {
    const [row] =
      await sql`select next_try_at = 'infinity' as stopped from imap_connections where identity_id = ${id}`;
    return row?.stopped;
  };
  await waitFor('the stop', isStopped);
  await service.call('POST', `/identities/${id}/sync`);
  assert.equal(logins(), 3);
  const patched = await service.call('PATCH', `/smtp-accounts/${accountId}`, {
    body: { imap: { password: server.password } },
  });
  assert.equal(patched.status, 200, patched.text);
  await service.mailboxes(id);
  assert.equal(logins(), 4);
  assert.equal((await serverOf(accountId)).body.receive.state, 'ok');
  const metrics = await service.call('GET', '/metrics');
  assert.match(metrics.text, /posthorn_sync_failures_total\{code="authentication_failed"\} 3/);
});

test('an outage is shown in `receive`, in the mailbox and in metrics, and the next try waits', async () => {
  const server = await openImapServer();
  const { id, accountId } = await service.connect(server, 'outage@home.example');
  await service.mailboxes(id);
  await isIdling(server);
  await server.stop();
  const tryNow = async () => {
    await sql`update imap_connections set next_try_at = now() where identity_id = ${id} and lease_token is null`;
    const { state, error } = (await serverOf(accountId)).body.receive;
    return state === 'failing' && error.code === 'connection_refused';
  };
  await waitFor('the refused connection', tryNow);
  // The mailbox is noted after the account.
  await service.mailboxes(id, ({ inbox }) => inbox?.sync?.error?.code === 'connection_refused');
  const metrics = await service.call('GET', '/metrics');
  assert.match(metrics.text, /posthorn_sync_failures_total\{code="connection_refused"\} [1-9]/);
  const isPutOff = async () => {
    const [row] = await sql`
      select next_try_at > now() and next_try_at <= now() + interval '15 minutes' as put_off
      from imap_connections where identity_id = ${id} and lease_token is null`;
    return row?.put_off;
  };
  await waitFor('the next try', isPutOff);
});

test('a connection that was open is opened again soon, however often it had failed before', async () => {
  const server = await openImapServer();
  const wrong = { port: server.port, password: 'not-yet' };
  const { id } = await service.connect(wrong, 'again@home.example');
  await service.mailboxes(id, ({ inbox }) => inbox?.sync?.state === 'failing');
  server.password = wrong.password;
  await waitFor('the next try', async () => {
    const { count } = await sql`
      update imap_connections set failures = 12, next_try_at = now() where identity_id = ${id} and lease_token is null`;
    return count > 0;
  });
  await service.mailboxes(id);
  await isIdling(server);
  await server.stop();
  const row = await waitFor('the end of the connection', async () => {
    const [ended] = await sql`
      select next_try_at < now() + interval '1 minute' as soon from imap_connections
      where identity_id = ${id} and lease_token is null and error is not null`;
    return ended;
  });
  assert.deepEqual(row, { soon: true });
});

test('a stopped sync continues after the account was verified', async () => {
  const server = await startImapServer();
  const wrong = { port: server.port, password: 'not-yet' };
  const { id, accountId } = await service.connect(wrong, 'verified@home.example');
  await service.mailboxes(id, ({ inbox }) => inbox?.sync?.state === 'failing');
  await sql`update imap_connections set refused_logins = 3, next_try_at = 'infinity' where identity_id = ${id}`;
  server.password = wrong.password;
  const verified = await service.call('POST', `/smtp-accounts/${accountId}/verify`);
  assert.equal(verified.body.receive.state, 'ok', verified.text);
  await service.mailboxes(id);
});

test('another account is another mailbox: the old connection ends, and what is in the new one at first is not imported', async () => {
  const [old, moved] = [await startImapServer(), await startImapServer()];
  moved.deliver('INBOX', mailWith('there at first'), new Date(Date.now() - 3_600_000));
  const { id } = await service.connect(old, 'changes@home.example');
  await service.mailboxes(id);
  await isIdling(old);
  old.deliver('INBOX', mailWith('old'));
  await service.messages(id, 1);
  const { id: otherId, accountId } = await service.connect(moved, 'temporary@home.example');
  const deleted = await service.call('DELETE', `/identities/${otherId}`);
  assert.equal(deleted.status, 204, deleted.text);
  await waitFor('the end of the other connection', () => moved.sessions() === 0);
  moved.commands.length = 0;
  const body = { smtp_account_id: accountId };
  assert.equal((await service.call('PATCH', `/identities/${id}`, { body })).status, 200);
  await waitFor('the end of the old connection', () => old.sessions() === 0);
  await service.mailboxes(id, ({ inbox }) => inbox?.sync?.state === 'idle' && inbox.total === 1);
  await isIdling(moved);
  moved.deliver('INBOX', mailWith('new'));
  const messages = await service.messages(id, 2);
  assert.deepEqual(messages.map(({ subject }) => subject).sort(), ['new', 'old']);
  await service.call('PATCH', `/smtp-accounts/${accountId}`, { body: { imap: null } });
  await waitFor('the end of the connection', () => moved.sessions() === 0);
  const { inbox } = await service.mailboxes(id, ({ inbox }) => inbox?.sync === null);
  assert.equal(inbox?.sync, null);
  const asked = await service.call('POST', `/identities/${id}/sync`);
  assertProblem(asked, 409, 'no_mailbox');
});

test('older mail that is asked for after the account moved to another server is imported from the new server', async () => {
  const [old, moved] = [await startImapServer(), await startImapServer('not-yet')];
  const hoursAgo = (hours: number) => new Date(Date.now() - hours * 3_600_000);
  old.deliver('INBOX', mailWith('of the old server'), hoursAgo(1));
  moved.deliver('INBOX', mailWith('asked for'), hoursAgo(1));
  moved.deliver('INBOX', mailWith('before'), hoursAgo(100));
  const { id, accountId } = await service.connect(old, 'moves@home.example');
  await service.mailboxes(id);
  const body = { imap: { port: moved.port, password: 'secret' } };
  assert.equal((await service.call('PATCH', `/smtp-accounts/${accountId}`, { body })).status, 200);
  await service.mailboxes(id, ({ inbox }) => inbox?.sync?.state === 'failing');
  const since = hoursAgo(48).toISOString();
  const asked = await service.call('POST', `/identities/${id}/sync`, { body: { since } });
  assert.equal(asked.status, 202, asked.text);
  moved.password = 'secret';
  await waitFor('the next connection', async () => {
    await sql`update imap_connections set next_try_at = now() where identity_id = ${id} and lease_token is null`;
    return moved.sessions() === 1;
  });
  await service.mailboxes(id, ({ inbox }) => inbox?.sync?.state === 'idle' && inbox.total === 2);
  const messages = await service.messages(id, 1);
  assert.deepEqual(
    messages.map(({ subject }) => subject),
    ['asked for'],
  );
});

test('an account that moves away and back is read as before, whatever was asked for meanwhile', async () => {
  const [home, away] = [await startImapServer(), await startImapServer('not-yet')];
  const { id, accountId } = await service.connect(home, 'returns@home.example');
  await service.mailboxes(id);
  const move = async ({ port }: { port: number }) => {
    const body = { imap: { port, password: 'secret' } };
    assert.equal((await service.call('PATCH', `/smtp-accounts/${accountId}`, { body })).status, 200);
  };
  await move(away);
  await service.mailboxes(id, ({ inbox }) => inbox?.sync?.state === 'failing');
  home.deliver('INBOX', mailWith('meanwhile'));
  const body = { since: new Date(Date.now() + 3_600_000).toISOString() };
  const asked = await service.call('POST', `/identities/${id}/sync`, { body });
  assert.equal(asked.status, 202, asked.text);
  await move(home);
  const [message] = await service.messages(id, 1);
  assert.equal(message?.subject, 'meanwhile');
  const events =
    await sql`select from events where message_id = ${message?.id} and event = 'message.received'`;
  assert.equal(events.count, 1);
});

test('of two processes one reads a mailbox; when it stops the other goes on, and no message comes twice', async () => {
  const server = await startImapServer();
  const key = randomBytes(32).toString('base64');
  const settings = { POSTHORN_SECRET_KEY: key, POSTHORN_ROLES: 'api' };
  const api = await startMailboxService(settings);
  const syncing = { ...settings, POSTHORN_ROLES: 'sync', DATABASE_URL: api.databaseUrl };
  const processes = [await startMailboxService(syncing), await startMailboxService(syncing)];
  const { id } = await api.connect(server, 'moving@home.example');
  await api.mailboxes(id);
  await isIdling(server);
  server.deliver('INBOX', mailWith('one'));
  await api.messages(id, 1);
  assert.equal(server.sessions(), 1);
  await processes[0]?.stop();
  server.deliver('INBOX', mailWith('two'));
  const messages = await api.messages(id, 2);
  assert.deepEqual(messages.map(({ subject }) => subject).sort(), ['one', 'two']);
  assert.equal(server.sessions(), 1);
});

test('a failure of our own is logged and tried again, and shown as no failure of the server', async () => {
  const server = await startImapServer();
  const { id, accountId } = await service.connect(server, 'internal@home.example');
  await service.mailboxes(id);
  await isIdling(server);
  const ledger = await breakLedger(sql, id, '42702', 'column "message_key" is ambiguous');
  server.deliver('INBOX', mailWith('later'));
  const isFailure = ({ identityId, level }: Record<string, unknown>) =>
    identityId === id && level === 'error';
  const failure = await waitFor('the error in the log', () => service.logged.find(isFailure));
  assert.match(JSON.stringify(failure), /message_key/);
  const waits = async () => {
    const [row] = await sql`
      select next_try_at > now() as waits, error from imap_connections where identity_id = ${id} and lease_token is null`;
    return row;
  };
  const row = await waitFor('the end of the connection', waits);
  assert.deepEqual(row, { waits: true, error: null });
  const shown = await service.call('GET', `/identities/${id}/mailboxes`);
  assert.doesNotMatch(shown.text, /message_key|connection_failed|failing/);
  const { body, text } = await serverOf(accountId);
  assert.equal(body.receive.state, 'ok');
  assert.doesNotMatch(text, /message_key/);
  await ledger.fix();
  await service.call('POST', `/identities/${id}/sync`);
  await service.messages(id, 1);
});

test('an unavailable database is waited for on the same connection, and nothing is shown', async () => {
  const server = await startImapServer();
  const { id, accountId } = await service.connect(server, 'away@home.example');
  await service.mailboxes(id);
  await isIdling(server);
  const ledger = await breakLedger(sql, id, '57P03', 'the database system is starting up');
  const reads = () => server.commands.filter((command) => command.includes('BODY.PEEK[]')).length;
  server.deliver('INBOX', mailWith('later'));
  await waitFor('the second try', () => reads() >= 2);
  assert.equal((await serverOf(accountId)).body.receive.state, 'ok');
  await ledger.fix();
  await service.messages(id, 1);
  assert.equal(server.commands.filter((command) => command.startsWith('LOGIN')).length, 1);
});

test('a database that goes away between the login and the first note of the folders is waited for, too', async () => {
  const server = await startImapServer();
  const positions = await breakInserts(
    sql,
    'mailbox_sync for each row',
    '57P03',
    'the database system is starting up',
  );
  const { id } = await service.connect(server, 'starting@home.example');
  const countOf = (start: string) => server.commands.filter((command) => command.startsWith(start)).length;
  await waitFor('the folders', () => countOf('LIST "" "*"') > 0);
  await waitFor('the second try', () => countOf('LIST "" "*"') > 1);
  await positions.fix();
  await service.mailboxes(id);
  await isIdling(server);
  server.deliver('INBOX', mailWith('at last'));
  await service.messages(id, 1);
  assert.equal(countOf('LOGIN'), 1);
});

test('of two processes that both believe they have the lease, one position wins and no message comes twice', async () => {
  const server = await startImapServer();
  const settings = { POSTHORN_SECRET_KEY: randomBytes(32).toString('base64'), POSTHORN_ROLES: 'api' };
  const api = await startMailboxService(settings);
  const syncing = { ...settings, POSTHORN_ROLES: 'sync', DATABASE_URL: api.databaseUrl };
  const hourMs = 60 * 60 * 1000;
  // Neither process asks for its leases again.
  const start = () =>
    startMailboxService(syncing, { syncTimes: { pollMs: hourMs, renewMs: hourMs, checkMs: hourMs } });
  await start();
  const { id } = await api.connect(server, 'both@home.example');
  await api.mailboxes(id);
  await isIdling(server);
  await api.sql`update imap_connections set lease_until = now() - interval '1 second'`;
  await start();
  await isIdling(server, 2);
  assert.equal(server.sessions(), 2);
  const wanted = Array.from({ length: 40 }, (_, n) => `mail ${n}`);
  for (const subject of wanted) server.deliver('INBOX', mailWith(subject));
  await waitFor('the end of one connection', () => server.sessions() === 1);
  await api.messages(id, 40);
  const stored = async () => {
    const rows =
      await api.sql`select summary ->> 'subject' as subject from messages where identity_id = ${id}`;
    return rows.map(({ subject }) => subject).sort();
  };
  assert.deepEqual(await stored(), wanted.sort());
  server.deliver('INBOX', mailWith('one more'));
  await api.messages(id, 41);
  assert.deepEqual(await stored(), [...wanted, 'one more'].sort());
});

test('a connection that lost its lease and ends late does not release the lease of the connection that follows', async () => {
  const server = await startImapServer();
  const { id } = await service.connect(server, 'late@home.example');
  await service.mailboxes(id);
  await isIdling(server);
  const logins = () => server.commands.filter((command) => command.startsWith('LOGIN')).length;
  await transaction(sql, async (holder) => {
    // The first connection cannot end before it has recorded its message.
    await holder`lock table mailbox_ledger in share mode`;
    server.deliver('INBOX', mailWith('during the end'));
    await waitFor('the message to wait', async () => {
      const { count } = await sql`
        select from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and query ~ 'insert into mailbox_ledger'`;
      return count > 0;
    });
    // As another process does that finds the lease expired.
    await sql`update imap_connections set ready = true, lease_token = null, lease_until = null where identity_id = ${id}`;
    await waitFor('the second connection', () => logins() === 2);
  });
  await service.messages(id, 1);
  // Only a check reads spam, and a check at a request comes after a check of the leases.
  for (const count of [2, 3]) {
    server.deliver('Junk', mailWith(`spam ${count}`));
    await service.call('POST', `/identities/${id}/sync`);
    await service.messages(id, count);
  }
  assert.equal(logins(), 2);
  assert.equal(server.sessions(), 1);
});

test('an owner with many mailboxes does not keep another from its first', async () => {
  const api = await startMailboxService({ POSTHORN_ROLES: 'api' });
  const [many, few] = [await api.makeUser(), await api.makeUser()];
  const server = { port: 1, password: 'x' };
  for (let n = 0; n < 5; n++) await api.connect(server, `m${n}@many.example`, many);
  await api.connect(server, 'first@few.example', few);
  await api.sql`update imap_connections set next_try_at = now() - interval '1 hour' where owner_id = ${many.userId}`;
  const owners = (await claimConnections(api.sql, newId(), 3)).map(({ ownerId }) => ownerId);
  assert.equal(owners.length, 3);
  assert.equal(owners.filter((id) => id === few.userId).length, 1);
});
