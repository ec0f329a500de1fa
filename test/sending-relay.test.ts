/** Sending through a relay: only `sent`, until a report says more; two processes share one queue. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { startDns } from './dns.ts';
import { startTestService, waitFor } from './harness.ts';
import { openOutbox } from './outbox.ts';
import { startSink } from './smtp-sink.ts';

const dns = await startDns();
after(() => dns.close());
const sink = await startSink();
const settings = {
  POSTHORN_RELAY_URL: `smtp://127.0.0.1:${sink.port}`,
  POSTHORN_DNS_SERVERS: dns.address,
  POSTHORN_BOUNCE_DOMAIN: 'bounces.posthorn.example',
  POSTHORN_SEND_SCHEDULE: '3600',
  POSTHORN_SEND_RATE: '0',
  POSTHORN_ROLES: 'api,send',
};
const service = await startTestService(settings);
const second = await startTestService({ ...settings, DATABASE_URL: service.databaseUrl });
const { call, sql } = service;
const { makeIdentity, send, findEnded, findRecipient, attempts, events } = openOutbox(service);
const identityId = await makeIdentity('ada@sender.example');
await sql`update identities set status = 'verified' where id = ${identityId}`;

test('the relay took it: sent and no more, with a bounce address of its own', async () => {
  const { id } = await send({ identityId, to: 'Bob <bob@dest.example>', cc: 'carol@elsewhere.example' });
  const message = await findEnded(id);
  assert.equal(message.sending.status, 'sent');
  assert.equal(message.sending.transport, 'relay');
  assert.deepEqual(
    (await events(id)).map(({ event }) => event),
    ['message.sent', 'message.sent'],
  );
  assert.deepEqual(sink.mails.map(({ rcpt }) => rcpt.replace(/>.*/, '>')).sort(), [
    'RCPT TO:<bob@dest.example>',
    'RCPT TO:<carol@elsewhere.example>',
  ]);
  for (const { mail } of sink.mails) assert.match(mail, /<bounces\+[a-z2-7]{48}@bounces\.posthorn\.example>/);
  assert.equal(dns.count('dest.example'), 0);
  const [attempt] = await attempts(id);
  assert.equal(attempt.host, '127.0.0.1');
});

test('the relay refuses a recipient, or is going down', async () => {
  sink.behave('RCPT', '550 5.7.1 Relaying denied');
  const { id } = await send({ identityId, to: 'dan@dest.example' });
  assert.equal((await findEnded(id)).sending.status, 'bounced');
  sink.behave('RCPT', '250 2.1.5 Ok');
  const [event] = await events(id);
  assert.deepEqual(event?.data.recipient.bounce, { type: 'policy', source: 'smtp' });
  sink.behave('MAIL', '421 4.3.2 Going down', '250 2.1.0 Ok');
  const later = await send({ identityId, to: 'dan@dest.example' });
  const recipient = await findRecipient(
    later.id,
    ({ attemptCount, status }) => attemptCount > 0 || status !== 'queued',
  );
  assert.ok(['queued', 'sent'].includes(recipient.status), recipient.status);
});

test('mail of one owner that the relay takes slowly does not delay the mail of another', async () => {
  const other = await service.makeUser();
  const theirs = await makeIdentity('vic@victim.example', { as: other });
  await sql`update identities set status = 'verified' where id = ${theirs}`;
  const held: (() => void)[] = [];
  sink.behave('.', ({ say }) => {
    const reply = () => say('250 2.0.0 Taken');
    if (sink.mails.at(-1)?.rcpt.includes('@slow.example')) held.push(reply);
    else reply();
  });
  const to = Array.from({ length: 50 }, (_, n) => `r${n}@slow.example`);
  const slow = await send({ identityId, to });
  // Each process has as many conversations as one owner may have.
  await waitFor('the slow mail', () => held.length === 20);
  const { id } = await send({ identityId: theirs, to: 'bob@dest.example' }, { as: other });
  await waitFor('the mail of the other owner', async () => {
    const { body } = await call('GET', `/messages/${id}`, { as: other });
    return body.sending.status === 'sent';
  });
  assert.equal(held.length, 20);
  sink.behave('.', '250 2.0.0 Taken');
  for (const reply of held) reply();
  await findEnded(slow.id);
});

test('two processes send 200 recipients of 20 messages: one copy each, and every count agrees', async () => {
  const before = sink.mails.length;
  const refused = /<r[05]@/;
  sink.behave('RCPT', ({ say }) => {
    const line = sink.commands.findLast((command) => command.startsWith('RCPT')) ?? '';
    say(refused.test(line) ? '552 5.2.2 Full' : '250 2.1.5 Ok');
  });
  const other = openOutbox(second);
  const ids = await Promise.all(
    Array.from({ length: 20 }, async (_, n) => {
      const to = Array.from({ length: 10 }, (_, r) => `r${r}@m${n}.example`);
      const { id } = await (n % 2 ? other : { send }).send({ identityId, to });
      return id as string;
    }),
  );
  await waitFor('all messages', async () => {
    const [row] =
      await sql`select count(*)::int as count from outgoing where id = any (${ids}::uuid[]) and queued > 0`;
    return row?.count === 0;
  });
  const copies = sink.mails.slice(before).map(({ rcpt }) => rcpt);
  assert.equal(copies.length, 160);
  assert.equal(new Set(copies).size, 160);
  const rows = await sql`
    select outgoing.status, sent, bounced,
      (select count(*)::int from recipients where message_id = outgoing.id and status = 'sent') as recipients_sent,
      (select count(*)::int from events where message_id = outgoing.id and event = 'message.sent') as events_sent,
      (select count(*)::int from events where message_id = outgoing.id and event = 'message.bounced') as events_bounced,
      (select count(*)::int from send_attempts where message_id = outgoing.id) as attempts,
      (select count(*)::int from send_queue where message_id = outgoing.id) as waiting
    from outgoing where id = any (${ids}::uuid[])`;
  const expected = {
    status: 'mixed',
    sent: 8,
    bounced: 2,
    recipients_sent: 8,
    events_sent: 8,
    events_bounced: 2,
  };
  assert.deepEqual([...rows], Array(20).fill({ ...expected, attempts: 10, waiting: 0 }));
  const listed = await call('GET', '/messages?status=mixed&limit=200');
  assert.equal(listed.body.length, 20);
  // Before the database is dropped.
  await second.stop();
});
