/** Cancelling: what waits, what is being tried, and what has ended. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { transaction } from '../src/db/client.ts';
import { lockPurge } from '../src/store/purge.ts';
import { startDirectMail } from './direct-mail.ts';
import { assertProblem, waitFor } from './harness.ts';
import { newDomain } from './proving.ts';
import { hangUp } from './smtp-sink.ts';

const direct = await startDirectMail({ POSTHORN_SEND_SCHEDULE: '3600' });
const { service, sink, makeSender, makeDestination } = direct;
const { send, findMessage, findEnded, findRecipient, attempts, events } = direct;
const { call, sql } = service;
const sender = newDomain();
const identityId = await makeSender(sender);
const from = `ada@${sender}`;
const inAnHour = () => new Date(Date.now() + 3_600_000).toISOString();

function newDestination(): string {
  const domain = newDomain();
  makeDestination(domain);
  return domain;
}

const cancel = (id: string) => call('POST', `/messages/${id}/cancel`);

/** The end of data is reached, and the server replies when the test says so. */
function holdReply(): { isHeld: Promise<void>; reply(text: string): void } {
  const held = Promise.withResolvers<(text: string) => void>();
  sink.behave('.', ({ say }) => held.resolve(say), '250 2.0.0 Taken');
  return {
    isHeld: held.promise.then(() => {}),
    reply: (text) => void held.promise.then((say) => say(text)),
  };
}

describe('a recipient that waits', () => {
  test('for its time: is cancelled, and again when repeated', async () => {
    const domain = newDestination();
    const sendAt = inAnHour();
    const taken = await send({ identityId, from, to: [`a@${domain}`, `b@${domain}`], sendAt });
    assert.equal(taken.sending.sendAt, sendAt);
    assert.equal(taken.sending.recipients[0].nextAttemptAt, sendAt);
    for (let n = 0; n < 2; n += 1) {
      const { status, body, text } = await cancel(taken.id);
      assert.equal(status, 200, text);
      assert.equal(body.sending.status, 'cancelled');
      for (const recipient of body.sending.recipients)
        assert.deepEqual([recipient.status, recipient.nextAttemptAt], ['cancelled', null]);
    }
    assert.deepEqual(await events(taken.id), []);
    const [row] = await sql`select from send_queue where message_id = ${taken.id}`;
    assert.equal(row, undefined);
  });

  test('for its next attempt, beside one that was delivered: the message is mixed', async () => {
    const domain = newDestination();
    sink.behave('RCPT', ({ say }) =>
      say(
        /<a@/.test(sink.commands.findLast((line) => line.startsWith('RCPT')) ?? '')
          ? '250 Ok'
          : '450 4.2.0 Later',
      ),
    );
    const { id } = await send({ identityId, from, to: [`a@${domain}`, `b@${domain}`] });
    await waitFor('both tries', async () => {
      const { recipients } = (await findMessage(id)).sending;
      return recipients.every(({ attemptCount }: { attemptCount: number }) => attemptCount === 1);
    });
    const { body } = await cancel(id);
    assert.equal(body.sending.status, 'mixed');
    const statuses = body.sending.recipients.map(({ status }: { status: string }) => status);
    assert.deepEqual(statuses, ['delivered', 'cancelled']);
    assert.equal((await cancel(id)).status, 200);
    sink.behave('RCPT', '250 2.1.5 Ok');
  });

  test('sendAt in the past means now', async () => {
    const { id } = await send({
      identityId,
      from,
      to: `a@${newDestination()}`,
      sendAt: '2020-01-01T00:00:00Z',
    });
    assert.equal((await findEnded(id)).sending.status, 'delivered');
  });
});

describe('a recipient that is being tried', () => {
  test('is marked: a temporary failure ends it as cancelled, without an event', async () => {
    const { isHeld, reply } = holdReply();
    const { id } = await send({ identityId, from, to: `a@${newDestination()}` });
    await isHeld;
    const marked = await cancel(id);
    assert.equal(marked.status, 200, marked.text);
    assert.equal(marked.body.sending.status, 'queued');
    assert.equal((await cancel(id)).status, 200);
    reply('451 4.3.0 Not now');
    const message = await findEnded(id);
    assert.equal(message.sending.status, 'cancelled');
    assert.equal(message.sending.recipients[0].attemptCount, 1);
    assert.equal((await attempts(id)).length, 1);
    assert.deepEqual(await events(id), []);
    assert.equal((await cancel(id)).status, 200);
  });

  test('is marked: a server that takes it wins, and a repeated request still gets 200', async () => {
    const { isHeld, reply } = holdReply();
    const { id } = await send({ identityId, from, to: `a@${newDestination()}` });
    await isHeld;
    assert.equal((await cancel(id)).status, 200);
    reply('250 2.0.0 Taken');
    assert.equal((await findEnded(id)).sending.status, 'delivered');
    assert.equal((await cancel(id)).status, 200);
  });

  test('is marked: a server that refuses it wins too, with the event of the bounce', async () => {
    const { isHeld, reply } = holdReply();
    const { id } = await send({ identityId, from, to: `a@${newDestination()}` });
    await isHeld;
    assert.equal((await cancel(id)).status, 200);
    reply('550 5.7.1 Not from you');
    assert.equal((await findEnded(id)).sending.status, 'bounced');
    const happened = (await events(id)).map(({ event, data }) => [event, data.recipient.bounce.type]);
    assert.deepEqual(happened, [['message.bounced', 'policy']]);
  });

  test('beside one that waits: each ends by its own rule', async () => {
    const [triedAt, waitsAt] = [newDestination(), newDestination()];
    const { id } = await send({ identityId, from, to: [`a@${triedAt}`, `b@${waitsAt}`], sendAt: inAnHour() });
    const { isHeld, reply } = holdReply();
    await sql`update send_queue set next_attempt_at = now() where message_id = ${id} and n = 0`;
    await isHeld;
    const { body } = await cancel(id);
    const statusesOf = (message: typeof body) =>
      message.sending.recipients.map(({ status }: { status: string }) => status);
    assert.deepEqual([body.sending.status, statusesOf(body)], ['queued', ['queued', 'cancelled']]);
    reply('250 2.0.0 Taken');
    const ended = await findEnded(id);
    assert.deepEqual([ended.sending.status, statusesOf(ended)], ['mixed', ['delivered', 'cancelled']]);
    assert.equal(sink.commands.filter((line) => line.includes(waitsAt)).length, 0);
  });

  test('is marked, and its process dies: the process that claims it next does not try it', async () => {
    const domain = newDestination();
    const { id } = await send({ identityId, from, to: `a@${domain}`, sendAt: inAnHour() });
    // The mark is what is left when a lease ended without an outcome.
    await sql`update recipients set is_cancelling = true where message_id = ${id}`;
    await direct.passWait(id);
    const { sending } = await findEnded(id);
    assert.deepEqual([sending.status, sending.recipients[0].attemptCount], ['cancelled', 0]);
    assert.equal(sink.commands.filter((line) => line.includes(domain)).length, 0);
    assert.deepEqual([await events(id), await attempts(id)], [[], []]);
  });
});

test('a message that was sent or received: 409; another that does not exist: 404', async () => {
  await call('POST', '/identities', { body: { value: `in@${sender}` } });
  const headers = { 'content-type': 'message/rfc822' };
  const body = `From: bob@dest.example\r\n\r\nHello`;
  const received = await call('POST', `/inbound?recipient=in@${sender}`, { headers, body });
  const [incoming = assert.fail(received.text)] = received.body.messageIds ?? [];
  assertProblem(await cancel(incoming), 409, 'nothing_to_cancel');
  const { id } = await send({ identityId, from, to: `a@${newDestination()}` });
  await findEnded(id);
  assertProblem(await cancel(id), 409, 'nothing_to_cancel');
  assertProblem(await cancel(crypto.randomUUID()), 404, 'not_found');
  assertProblem(await cancel('x'), 404, 'not_found');
});

test('deleting the identity ends what waits, and what is being tried has no event', async () => {
  const own = newDomain();
  const id = await makeSender(own);
  const [waitsAt, triedAt] = [newDestination(), newDestination()];
  const waiting = await send({ identityId: id, from: `a@${own}`, to: `a@${waitsAt}`, sendAt: inAnHour() });
  const { isHeld, reply } = holdReply();
  const tried = await send({ identityId: id, from: `a@${own}`, to: `a@${triedAt}` });
  await isHeld;
  // The purge would delete the mail, and the outcome would find nothing to record.
  await using _ = await holdPurge();
  assert.equal((await call('DELETE', `/identities/${id}`)).status, 204);
  assertProblem(await call('GET', `/messages/${waiting.id}`), 404, 'not_found');
  assertProblem(await cancel(waiting.id), 404, 'not_found');
  await direct.passWait(waiting.id);
  reply('250 2.0.0 Taken');
  await waitFor('the outcomes', async () => {
    const rows = await sql`select from send_queue where message_id in (${waiting.id}, ${tried.id})`;
    return rows.count === 0;
  });
  assert.equal(sink.commands.filter((line) => line.includes(waitsAt)).length, 0);
  const [row] = await sql`
    select count(*)::int as count from events where message_id in (${waiting.id}, ${tried.id})`;
  assert.equal(row?.count, 0);
});

test('deleting the message ends what waits, and what is being tried has no event', async () => {
  const [waitsAt, triedAt] = [newDestination(), newDestination()];
  const waiting = await send({ identityId, from, to: `a@${waitsAt}`, sendAt: inAnHour() });
  const { isHeld, reply } = holdReply();
  const tried = await send({ identityId, from, to: `a@${triedAt}` });
  await isHeld;
  for (const { id } of [waiting, tried]) assert.equal((await call('DELETE', `/messages/${id}`)).status, 204);
  reply('451 4.3.0 Not now');
  await waitFor('the outcomes', async () => {
    const rows = await sql`select from send_queue where message_id in (${waiting.id}, ${tried.id})`;
    return rows.count === 0;
  });
  assert.equal(sink.commands.filter((line) => line.includes(waitsAt)).length, 0);
  assert.equal((await sql`select from events where message_id in (${waiting.id}, ${tried.id})`).count, 0);
});

/** No process deletes messages until the end of the block. */
async function holdPurge(): Promise<AsyncDisposable> {
  const [held, end] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const done = transaction(sql, async (sql) => {
    await lockPurge(sql);
    held.resolve();
    await end.promise;
  });
  await held.promise;
  return {
    async [Symbol.asyncDispose]() {
      end.resolve();
      await done;
    },
  };
}

test('a server that hangs up after the end of data: the mail is put off, and a second copy is possible', async () => {
  const domain = newDestination();
  sink.behave('.', hangUp, '250 2.0.0 Taken');
  const { id } = await send({ identityId, from, to: `a@${domain}` });
  await findRecipient(id, ({ attemptCount }) => attemptCount === 1);
  await direct.passWait(id);
  assert.equal((await findEnded(id)).sending.status, 'delivered');
  assert.equal(sink.mails.filter(({ rcpt }) => rcpt.includes(domain)).length, 2);
  const [, first] = await attempts(id);
  assert.equal(first.error, 'connection_lost');
});

test('attempts are newest first by their start, not by their end', async () => {
  const { id } = await send({ identityId, from, to: [`a@${newDestination()}`, `b@${newDestination()}`] });
  await findEnded(id);
  const [last] = await attempts(id);
  await sql`update send_attempts set started_at = started_at - interval '1 minute' where id = ${last.id}`;
  assert.equal((await attempts(id)).at(-1)?.id, last.id);
});
