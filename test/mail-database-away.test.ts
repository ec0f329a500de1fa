/**
 * Mail while the database fails or is unavailable: it is deferred, nothing is stored in part, and everything works again
 * when the database is back.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { connect } from '../src/db/client.ts';
import { startDns } from './dns.ts';
import { assertProblem, startTestService, waitFor } from './harness.ts';
import { countRows, large, makeIdentity, send, small, told } from './mail-in-trouble.ts';
import { makeOwnPostgres } from './own-postgres.ts';
import { startReceiver } from './receiver.ts';
import { connectSmtp, type SmtpReply, toWire } from './smtp-client.ts';
import { greet, letterFrom, plainAuth, signIn, submit } from './submission-client.ts';

const dns = await startDns();
const { url, start, stop, crash, remove } = await makeOwnPostgres();
const receiver = await startReceiver();
await start();
const service = await startTestService({ POSTHORN_DNS_SERVERS: dns.address, DATABASE_URL: url });
await service.makeWebhook(receiver.url());
const to = await makeIdentity(service);
after(async () => {
  await service.stop();
  await remove();
  await receiver.close();
  await dns.close();
});

const recovered = () =>
  waitFor('the service to recover', async () => (await service.call('GET', '/health/ready')).status === 200);

describe('a database that becomes unavailable', { concurrency: false }, () => {
  test('between RCPT and the end of the message: 451 for it and for further recipients, 503 over HTTP', {
    timeout: 300_000,
  }, async () => {
    const client = await connectSmtp(service.smtpPort);
    assert.equal((await client.envelope('ada@sender.example', to)).status, 250);
    await stop();
    const late = await client.command('RCPT TO:<other@away.example>');
    assert.equal(told(late), '451 4.3.0', late.full);
    const refused = await client.data(toWire(small));
    assert.equal(told(refused), '451 4.3.0', refused.full);
    assert.doesNotMatch(refused.full, /ECONN|postgres/i);
    const headers = { 'content-type': 'message/rfc822' };
    const answer = await service.call('POST', `/inbound?recipient=${to}`, { body: small, headers });
    assertProblem(answer, 503, 'database_unavailable');
    assert.match(answer.headers.get('retry-after') ?? '', /^\d+$/);

    await start();
    await recovered();
    assert.deepEqual((await service.call('GET', '/messages')).body, []);
    // On the same connection, as a mail server's queue does it.
    assert.equal((await client.envelope('ada@sender.example', to)).status, 250);
    assert.equal((await client.data(toWire(small))).status, 250);
    client.close();
    await receiver.received(1);
    assert.equal((await service.call('GET', '/messages')).body.length, 1);
  });

  test('during a large message: 451, nothing is stored, and the retry is stored once', {
    timeout: 300_000,
  }, async () => {
    const blocker = connect(url, { max: 1, applicationName: 'blocker' });
    const watcher = connect(url, { max: 1, applicationName: 'watcher' });
    let sending: Promise<SmtpReply> | undefined;
    const blocked = blocker.begin(async (sql) => {
      await sql`lock table raw_chunks in exclusive mode`;
      sending = send(service, [to], large);
      await waitFor('the message to wait', async () => {
        const waiting = await watcher`select from pg_stat_activity where wait_event_type = 'Lock'`;
        return waiting.count > 0;
      });
      await crash();
    });
    await assert.rejects(blocked);
    assert.equal(told((await sending) as SmtpReply), '451 4.3.0');
    await Promise.all([blocker.end({ timeoutMs: 0 }), watcher.end({ timeoutMs: 0 })]);

    await start();
    await recovered();
    const sql = connect(url, { max: 1, applicationName: 'look' });
    assert.deepEqual(await countRows(sql), { messages: 1, events: 1, deliveries: 1, raw_chunks: 0 });
    for (let n = 0; n < 2; n++) assert.equal((await send(service, [to], large)).status, 250);
    await receiver.received(2);
    assert.deepEqual(await countRows(sql), { messages: 2, events: 2, deliveries: 2, raw_chunks: 3 });
    await sql.end();
  });

  test('under load: every reply is 250 or 451, and every message with a 250 is stored once', {
    timeout: 300_000,
  }, async () => {
    const taken: string[] = [];
    const replies = new Map<number, number>();
    for (let round = 0; round < 2; round++) {
      let down = false;
      const clients = Array.from({ length: 8 }, async () => {
        while (!down) {
          const client = await connectSmtp(service.smtpPort);
          const id = `${randomBytes(8).toString('hex')}@load.example`;
          let reply = await client.envelope('ada@sender.example', to);
          if (reply.status === 250) reply = await client.data(toWire(`Message-ID: <${id}>\r\n\r\nBody\r\n`));
          client.close();
          replies.set(reply.status, (replies.get(reply.status) ?? 0) + 1);
          if (reply.status === 250) taken.push(`<${id}>`);
        }
      });
      const target = taken.length + 40;
      await waitFor('some mail', () => taken.length >= target);
      await (round % 2 ? stop() : crash());
      const refused = replies.get(451) ?? 0;
      await waitFor('some refusals', () => (replies.get(451) ?? 0) > refused);
      down = true;
      await Promise.all(clients);
      await start();
      await recovered();
    }
    assert.deepEqual([...replies.keys()].sort(), [250, 451]);
    const sql = connect(url, { max: 1, applicationName: 'look' });
    const rows = await sql`
      select summary ->> 'messageId' as id from messages where summary ->> 'messageId' like '%@load.example>'`;
    const stored = rows.map(({ id }) => id);
    assert.equal(new Set(stored).size, stored.length, 'none twice');
    assert.deepEqual(
      taken.filter((id) => !stored.includes(id)),
      [],
    );
    const counts = await countRows(sql);
    assert.equal(counts.events, counts.messages);
    assert.equal(counts.deliveries, counts.messages);
    await waitFor(
      'every message to be announced',
      async () => {
        const posted = receiver.requests.map(
          ({ body }) => JSON.parse(body.toString()).data.message.messageId,
        );
        return taken.every((id) => posted.includes(id));
      },
      60_000,
    );
    await sql.end();
  });
});

test('a database that is unavailable while programs submit mail: 454 to AUTH, 451 to MAIL and to the message; then the same connection works', {
  timeout: 300_000,
}, async () => {
  const { submissionPort, user } = service;
  const outgoing = () => service.call('GET', '/messages?direction=outgoing');
  const [early, late] = [
    await signIn(submissionPort, user.apiKey),
    await signIn(submissionPort, user.apiKey),
  ];
  const stranger = await greet(submissionPort);
  assert.equal((await early.command(`MAIL FROM:<${to}>`)).status, 250);
  assert.equal((await early.command('RCPT TO:<bob@dest.example>')).status, 250);
  await stop();
  assert.equal(told(await stranger.command(plainAuth(user.apiKey))), '454 4.7.0');
  assert.equal(told(await submit(late, { from: to })), '451 4.3.0');
  const refused = await early.data(letterFrom(to));
  assert.equal(told(refused), '451 4.3.0', refused.full);
  assert.doesNotMatch(refused.full, /ECONN|postgres/i);

  await start();
  await recovered();
  assert.deepEqual((await outgoing()).body, []);
  assert.equal((await stranger.command(plainAuth(user.apiKey))).status, 235);
  for (const client of [early, late, stranger]) {
    const answer = await submit(client, { from: to });
    assert.equal(answer.status, 250, answer.full);
    client.close();
  }
  assert.equal((await outgoing()).body.length, 3);
});
