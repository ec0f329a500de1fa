/** Mail that arrives in a mailbox elsewhere becomes a message and an event, once. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { isPurgeDue } from '../src/store/due-work.ts';
import { purgeOld } from '../src/store/purge.ts';
import { waitFor } from './harness.ts';
import { startImapServer } from './imap-server.ts';
import { isIdling, mailWith, startMailboxService } from './mailbox-service.ts';
import { startReceiver } from './receiver.ts';
import { dns, publish, rsa, sign } from './signing.ts';

const service = await startMailboxService();
const receiver = await startReceiver();
after(() => receiver.close());

const subjects = (messages: { subject: string }[]) => messages.map(({ subject }) => subject).sort();

const hourAgo = () => new Date(Date.now() - 3_600_000);

test('mail that comes after the login, and before a folder is first opened, is not lost', async () => {
  const server = await startImapServer();
  for (const folder of ['INBOX', 'Junk']) {
    server.deliver(folder, mailWith('before'), hourAgo());
    server.deliver(folder, mailWith(`during, ${folder}`), new Date(Date.now() + 60_000));
  }
  const { id } = await service.connect(server, 'during@home.example');
  assert.deepEqual(subjects(await service.messages(id, 2)), ['during, INBOX', 'during, Junk']);
  await service.mailboxes(id, ({ spam }) => spam?.sync?.state === 'idle' && spam.sync.backlog === 0);
  assert.equal((await service.messages(id, 2)).length, 2);
});

test('new mail in the inbox reaches the webhook by IDLE, with the bytes of the server', async () => {
  const server = await startImapServer();
  server.deliver('INBOX', mailWith('before'), hourAgo());
  const { id } = await service.connect(server, 'ada@home.example');
  const webhook = await service.makeWebhook(receiver.url('/idle'), { identityId: id });
  const { inbox, trash } = await service.mailboxes(id);
  assert.equal(inbox?.path, 'INBOX');
  assert.equal(inbox?.total, 1);
  assert.equal(trash?.path, 'Trash');
  assert.equal(trash?.sync?.state, 'off');
  const { id: mailboxId, lastSyncedAt, ...shown } = { ...inbox, ...inbox?.sync };
  assert.match(`${mailboxId} ${lastSyncedAt}`, /^[0-9a-f-]{36} \d{4}-.*Z$/);
  assert.deepEqual(shown, {
    ...{ kind: 'inbox', path: 'INBOX', total: 1, sync: inbox?.sync },
    ...{ state: 'idle', error: null, backlog: 0 },
  });
  await isIdling(server);
  const received = { 'Return-Path': '<bounce@example.com>', 'Delivered-To': 'ada+news@home.example' };
  const raw = mailWith('Grüße', { ...received });
  server.deliver('INBOX', raw);
  const [request] = await receiver.received(1, ({ url }) => url === '/idle');
  assert.equal(request?.headers['webhook-id'] !== undefined, true);
  const { data } = JSON.parse(request?.body.toString() ?? '');
  assert.equal(data.rawEmail, raw);
  const { message } = data;
  assert.equal(message.source, 'imap');
  assert.equal(message.direction, 'incoming');
  assert.deepEqual(message.mailbox, { id: inbox?.id, kind: 'inbox' });
  assert.equal(message.recipient, 'ada+news@home.example');
  assert.equal(message.tag, 'news');
  assert.deepEqual(message.envelope, {
    ...{ mailFrom: 'bounce@example.com', rcptTo: ['ada+news@home.example'] },
    ...{ remoteIp: null, helo: null, tls: null },
  });
  assert.equal(message.authentication.spf.result, 'none');
  assert.equal(message.authentication.dmarc.result, 'none');
  assert.ok(webhook.id);
  const all = await service.messages(id, 1);
  assert.equal(all.length, 1, 'mail that was there at first is not imported');
  const writes = server.commands.filter((command) => /^(SELECT|APPEND|UID (STORE|COPY|MOVE))/.test(command));
  assert.deepEqual(writes, [], 'nothing is changed on the server');
  assert.ok(!server.commands.some((command) => /BODY\[/.test(command)), 'PEEK');
  assert.equal(server.sessions(), 1);
});

test('spam and sent are read at a request; a message moved between folders is not new', async () => {
  const server = await startImapServer();
  const { id } = await service.connect(server, 'moves@home.example');
  await service.makeWebhook(receiver.url('/moves'), { identityId: id });
  await service.mailboxes(id);
  const spam = server.deliver('Junk', mailWith('spam'));
  server.deliver('Sent', mailWith('sent', { From: 'moves@home.example', To: 'bob@example.com' }));
  server.deliver('Trash', mailWith('trash'));
  server.deliver('Archive', mailWith('archive'));
  assert.equal((await service.call('POST', `/identities/${id}/sync`)).status, 202);
  const messages = await service.messages(id, 2);
  assert.deepEqual(subjects(messages), ['sent', 'spam']);
  const sent = messages.find(({ subject }) => subject === 'sent');
  assert.equal(sent.direction, 'outgoing');
  assert.equal(sent.sending, null);
  assert.equal(sent.mailbox.kind, 'sent');
  assert.equal(sent.authentication, null);
  assert.deepEqual(sent.envelope.rcptTo, ['bob@example.com']);
  server.move('Junk', 'INBOX', spam.uid);
  server.deliver('INBOX', mailWith('later'));
  await receiver.received(2, ({ url }) => url === '/moves');
  assert.deepEqual(subjects(await service.messages(id, 3)), ['later', 'sent', 'spam']);
  const told = receiver.requests.filter(({ url }) => url === '/moves');
  const kinds = told.map(({ body }) => JSON.parse(body.toString()).data.message.mailbox.kind);
  assert.deepEqual(kinds.sort(), ['inbox', 'spam']);
  const moved = (await service.messages(id, 3)).find(({ subject }) => subject === 'spam');
  assert.equal(moved.mailbox.kind, 'spam', 'a move at the server changes nothing here');
});

test('a message that is deleted at the server stays here', async () => {
  const server = await startImapServer();
  const { id } = await service.connect(server, 'expunged@home.example');
  await service.mailboxes(id);
  await isIdling(server);
  server.deliver('INBOX', mailWith('stays'));
  await service.messages(id, 1);
  server.folders.get('INBOX')?.mails.splice(0);
  await service.call('POST', `/identities/${id}/sync`);
  await service.mailboxes(id, ({ inbox }) => inbox?.sync?.state === 'idle' && inbox.total === 0);
  assert.deepEqual(subjects(await service.messages(id, 1)), ['stays']);
});

test('mail with the Message-ID of earlier mail is recorded: the rule of SMTP about repeats does not apply', async () => {
  const server = await startImapServer();
  const { id } = await service.connect(server, 'repeats@home.example');
  await service.mailboxes(id);
  await isIdling(server);
  const raw = mailWith('again', { 'Message-ID': '<again@example.com>' });
  server.deliver('INBOX', raw, new Date(Date.now() + 60_000));
  server.deliver('INBOX', raw, new Date(Date.now() + 120_000));
  assert.deepEqual(subjects(await service.messages(id, 2)), ['again', 'again']);
});

test('DKIM is verified, and DMARC passes by DKIM alone', async () => {
  dns.reset();
  publish(rsa.publicKey);
  dns.answer('_dmarc.example.com', { TXT: ['v=DMARC1; p=reject'] });
  const signing = await startMailboxService({ POSTHORN_DNS_SERVERS: dns.address });
  const server = await startImapServer();
  const { id } = await signing.connect(server, 'signed@home.example');
  await signing.mailboxes(id);
  await isIdling(server);
  const signed = await sign(mailWith('signed'));
  server.deliver('INBOX', signed);
  server.deliver('INBOX', signed.replace('Text of', 'Changed text of'));
  const messages = await signing.messages(id, 2);
  const verdicts = messages.map(({ authentication: { spf, dkim, dmarc } }) => {
    return [spf.result, dkim[0].result, dmarc.result];
  });
  assert.deepEqual(verdicts.sort(), [
    ['none', 'fail', 'none'],
    ['none', 'pass', 'pass'],
  ]);
});

test('a folder with a new UIDVALIDITY is read again, and only unknown new mail is recorded', async () => {
  const server = await startImapServer();
  server.deliver('INBOX', mailWith('old'), new Date('2020-01-01T00:00:00Z'));
  const { id } = await service.connect(server, 'rebuilt@home.example');
  await service.mailboxes(id);
  await isIdling(server);
  server.deliver('INBOX', mailWith('first'));
  await service.messages(id, 1);
  server.drop();
  server.deliver('INBOX', mailWith('second'));
  server.rebuild('INBOX');
  assert.deepEqual(subjects(await service.messages(id, 2)), ['first', 'second']);
  const { inbox } = await service.mailboxes(id);
  assert.equal(inbox?.sync?.backlog, 0);
  assert.deepEqual(subjects(await service.messages(id, 2)), ['first', 'second']);
});

test('a connection that is cut in the middle of a message is opened again, and the message is recorded once', async () => {
  const server = await startImapServer();
  const { id } = await service.connect(server, 'cut@home.example');
  await service.mailboxes(id);
  await isIdling(server);
  server.cutNextMessage();
  server.deliver('INBOX', mailWith('cut'));
  assert.deepEqual(subjects(await service.messages(id, 1)), ['cut']);
});

test('older mail is imported back to `since`, without events unless they are asked for', async () => {
  const server = await startImapServer();
  for (let n = 0; n < 120; n += 1) server.deliver('INBOX', mailWith(`old ${n}`), new Date(2024, 0, 1, 0, n));
  server.deliver('INBOX', mailWith('too old'), new Date('2019-01-01T00:00:00Z'));
  server.deliver('Sent', mailWith('old sent'), new Date('2024-05-05T00:00:00Z'));
  const { id } = await service.connect(server, 'older@home.example');
  await service.makeWebhook(receiver.url('/older'), { identityId: id });
  await service.mailboxes(id);
  const asked = await service.call('POST', `/identities/${id}/sync`, {
    body: { since: '2020-01-01T00:00:00Z' },
  });
  assert.equal(asked.status, 202);
  assert.equal(asked.body[0].sync.state, 'syncing');
  await service.mailboxes(
    id,
    ({ inbox, sent }) => inbox?.sync?.state === 'idle' && sent?.sync?.state === 'idle',
  );
  const [row] = await service.sql`select count(*)::int as count from messages where identity_id = ${id}`;
  assert.equal(row.count, 121);
  server.deliver('INBOX', mailWith('new'));
  await receiver.received(1, ({ url }) => url === '/older');
  const body = { since: '2018-01-01T00:00:00Z', events: true };
  await service.call('POST', `/identities/${id}/sync`, { body });
  const told = await receiver.received(2, ({ url }) => url === '/older');
  assert.deepEqual(
    told.map(({ body }) => JSON.parse(body.toString()).data.message.subject),
    ['new', 'too old'],
  );
});

test('a large folder is searched in parts, and mail in each part is found', async () => {
  const server = await startImapServer();
  const longAgo = new Date('2001-01-01T00:00:00Z');
  const old = mailWith('too old');
  for (let n = 1; n <= 12_000; n += 1) {
    if (n % 5000 === 1) server.deliver('INBOX', mailWith(`at ${n}`), new Date('2024-01-01T00:00:00Z'));
    else server.deliver('INBOX', old, longAgo);
  }
  const { id } = await service.connect(server, 'many@home.example');
  await service.mailboxes(id);
  await service.call('POST', `/identities/${id}/sync`, { body: { since: '2020-01-01T00:00:00Z' } });
  const found = subjects(await service.messages(id, 3)).sort();
  assert.deepEqual(found, ['at 1', 'at 10001', 'at 5001']);
  const parts = server.commands.filter((one) => / SINCE /.test(one)).map((one) => /[\d:*]+/.exec(one)?.[0]);
  assert.deepEqual(parts.slice(0, 3), ['7001:*', '2001:7000', '1:2000']);
});

test('a copy in the Sent folder of a message that was sent from here is not a second message', async () => {
  const server = await startImapServer();
  const { id } = await service.connect(server, 'copies@home.example');
  await service.mailboxes(id);
  const draft = { identityId: id, to: ['bob@example.com'], subject: 'sent from here', text: 'Hello' };
  const made = await service.call('POST', '/messages', { body: draft });
  assert.equal(made.status, 202, made.text);
  const raw = await service.call('GET', `/messages/${made.body.id}/raw`);
  server.deliver('Sent', raw.text);
  server.deliver('Sent', mailWith('sent elsewhere'));
  await service.call('POST', `/identities/${id}/sync`);
  assert.deepEqual(subjects(await service.messages(id, 2)), ['sent elsewhere', 'sent from here']);
});

test('deleting the identity closes the connection, and its positions, ledger and mailboxes go', async () => {
  const server = await startImapServer();
  const { id } = await service.connect(server, 'gone@home.example');
  await service.mailboxes(id);
  await isIdling(server);
  server.deliver('INBOX', mailWith('one'));
  await service.messages(id, 1);
  assert.equal((await service.call('DELETE', `/identities/${id}`)).status, 204);
  await waitFor('the end of the connection', () => server.sessions() === 0);
  const left = await service.sql`
    select 1 from imap_connections where identity_id = ${id}
    union all select 1 from mailbox_ledger where identity_id = ${id}
    union all select 1 from mailboxes where identity_id = ${id}`;
  assert.equal(left.length, 0);
});

test('a folder that the server refuses is shown as failing, and the others are read', async () => {
  const server = await startImapServer();
  server.refusedFolder = 'Sent';
  const { id } = await service.connect(server, 'refused@home.example');
  const boxes = await service.mailboxes(id, ({ inbox, sent }) => {
    return inbox?.sync?.state === 'idle' && sent?.sync?.state === 'failing';
  });
  const error = boxes.sent?.sync?.error;
  assert.equal(error?.code, 'server_refused');
  assert.match(error?.message ?? '', /Its reply says why/);
  assert.match(error?.response ?? '', /Not for you/);
  await isIdling(server);
  server.deliver('INBOX', mailWith('anyway'));
  await service.messages(id, 1);
});

test('a folder that the server does not search is shown as failing, and the connection goes on', async () => {
  const server = await startImapServer();
  server.unsearchableFolder = 'Junk';
  server.deliver('Junk', mailWith('spam'), new Date(Date.now() + 60_000));
  const { id } = await service.connect(server, 'unsearchable@home.example');
  const boxes = await service.mailboxes(id, ({ inbox, sent, spam }) => {
    return [inbox, sent].every((box) => box?.sync?.state === 'idle') && spam?.sync?.state === 'failing';
  });
  assert.equal(boxes.spam?.sync?.error?.code, 'server_refused');
  assert.match(boxes.spam?.sync?.error?.message ?? '', /did not search the folder/);
  await isIdling(server);
  server.deliver('INBOX', mailWith('anyway'));
  await service.messages(id, 1);
  server.unsearchableFolder = null;
  await service.call('POST', `/identities/${id}/sync`);
  assert.deepEqual(subjects(await service.messages(id, 2)), ['anyway', 'spam']);
  assert.equal(server.commands.filter((command) => command.startsWith('LOGIN')).length, 1);
});

test('without IDLE the inbox is checked at a request', async () => {
  const server = await startImapServer();
  server.capabilities = 'IMAP4rev1';
  for (const folder of server.folders.values()) folder.use = null;
  const { id } = await service.connect(server, 'polled@home.example');
  const { sent, spam } = await service.mailboxes(id);
  assert.deepEqual([sent?.path, spam?.path], ['Sent', 'Junk'], 'by well-known names');
  server.deliver('INBOX', mailWith('polled'));
  await service.call('POST', `/identities/${id}/sync`);
  await service.messages(id, 1);
  assert.ok(!server.commands.includes('IDLE'));
});

test('folders without IDLE are checked again and again, without a request', async () => {
  const polling = await startMailboxService({}, { syncTimes: { checkMs: 50 } });
  const server = await startImapServer();
  server.capabilities = 'IMAP4rev1 SPECIAL-USE';
  const { id } = await polling.connect(server, 'intervals@home.example');
  await polling.mailboxes(id);
  for (const folder of ['INBOX', 'Sent', 'Junk']) server.deliver(folder, mailWith(folder));
  assert.deepEqual(subjects(await polling.messages(id, 3)), ['INBOX', 'Junk', 'Sent']);
  assert.equal(server.sessions(), 1);
});

test('the marks of the server decide which folder is which, and a server that has only INBOX is enough', async () => {
  const marked = await startImapServer();
  for (const [path, use] of [
    ['Post', '\\Sent'],
    ['Werbung', '\\Junk'],
    ['Eimer', '\\Trash'],
  ] as const)
    marked.folders.set(path, { uidValidity: 1, uidNext: 1, use, mails: [] });
  for (const [path, folder] of marked.folders)
    if (['Sent', 'Junk', 'Trash'].includes(path)) folder.use = null;
  const { id } = await service.connect(marked, 'marks@home.example');
  const { sent, spam, trash } = await service.mailboxes(id);
  assert.deepEqual([sent?.path, spam?.path, trash?.path], ['Post', 'Werbung', 'Eimer']);

  const bare = await startImapServer();
  for (const path of ['Sent', 'Junk', 'Trash']) bare.folders.delete(path);
  const { id: other } = await service.connect(bare, 'bare@home.example');
  const boxes = await service.mailboxes(other);
  assert.deepEqual([boxes.sent?.path, boxes.spam?.path, boxes.trash?.path], [null, null, null]);
  await isIdling(bare);
  bare.deliver('Archive', mailWith('archive'));
  bare.deliver('INBOX', mailWith('inbox'));
  assert.deepEqual(subjects(await service.messages(other, 1)), ['inbox']);
});

test('the server vouches: mail is recorded whatever the status, also where another owner has the value verified', async () => {
  const strict = await startMailboxService({ POSTHORN_ACCEPT_UNVERIFIED: 'false' });
  const other = await strict.makeUser();
  const held = await strict.call('POST', '/identities', { as: other, body: { value: 'held@home.example' } });
  await strict.sql`update identities set status = 'verified' where id = ${held.body.id}`;
  const server = await startImapServer();
  const { id } = await strict.connect(server, 'held@home.example');
  await strict.mailboxes(id);
  await isIdling(server);
  server.deliver('INBOX', mailWith('mine'));
  const [message] = await strict.messages(id, 1);
  assert.equal(message.identity.id, id);
  assert.deepEqual((await strict.call('GET', '/messages', { as: other })).body, []);
});

test('a message of several MiB keeps its bytes', async () => {
  const server = await startImapServer();
  const { id } = await service.connect(server, 'huge@home.example');
  await service.mailboxes(id);
  await isIdling(server);
  const raw = `${mailWith('large')}${'0123456789abcdef\r\n'.repeat(200_000)}`;
  server.deliver('INBOX', raw);
  const [message] = await service.messages(id, 1);
  const stored = await service.call('GET', `/messages/${message.id}/raw`);
  assert.equal(stored.text, raw);
});

test('the retention ends mail without events, and the ledger still knows it', async () => {
  const server = await startImapServer();
  server.deliver('INBOX', mailWith('kept'), new Date('2024-01-01T00:00:00Z'));
  const { id } = await service.connect(server, 'retention@home.example');
  await service.mailboxes(id);
  const scan = () =>
    service.call('POST', `/identities/${id}/sync`, { body: { since: '2023-01-01T00:00:00Z' } });
  await scan();
  await service.messages(id, 1);
  await service.sql`update messages set created_at = now() - interval '31 days' where identity_id = ${id}`;
  assert.equal(await isPurgeDue(service.sql, 30), true);
  while (await purgeOld(service.sql, 30));
  const count = async () => (await service.sql`select 1 from messages where identity_id = ${id}`).length;
  assert.equal(await count(), 0);
  await scan();
  await service.mailboxes(id);
  assert.equal(await count(), 0);
});
