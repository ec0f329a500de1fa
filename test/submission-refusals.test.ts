/** What SMTP submission refuses: keys, senders, recipients and messages. Each with a clear reply, and nothing is stored. */
import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, test } from 'node:test';
import { readConfig } from '../src/config.ts';
import { makeApiKey } from '../src/lib/api-key.ts';
import { AuthFailures } from '../src/net/auth-failures.ts';
import { Session } from '../src/smtp/session.ts';
import { createApiKey, revokeApiKey } from '../src/store/api-keys.ts';
import { makeTestLog, startTestService, type TestService, type TestUser } from './harness.ts';
import { toWire } from './smtp-client.ts';
import {
  assertReply,
  base64,
  greet,
  greetByTls,
  idIn,
  letterFrom,
  makeAddress,
  plainAuth,
  signIn,
  submit,
} from './submission-client.ts';

const service = await startTestService({ POSTHORN_MAX_MESSAGE_BYTES: '65536' });
const { user, sql, submissionPort } = service;
const other = await service.makeUser();

async function makeIdentity(value: string, as: TestUser = user, at: TestService = service): Promise<string> {
  const { status, body, text } = await at.call('POST', '/identities', { as, body: { value } });
  assert.equal(status, 201, text);
  return body.id;
}
await makeIdentity('sender.example');
await makeIdentity('ada@sender.example');
await makeIdentity('else.example', other);
await makeIdentity('eve@shared.example');

async function countMessages(): Promise<number> {
  return (await sql`select from messages`).count;
}

let before = 0;
beforeEach(async () => {
  before = await countMessages();
});

describe('refused, with nothing stored', () => {
  afterEach(async () => assert.equal(await countMessages(), before));

  test('keys that are wrong, malformed, revoked, expired or may only read: 535', async () => {
    const revoked = await createApiKey(sql, user.userId);
    await revokeApiKey(sql, user.userId, revoked.id);
    const expiresAt = new Date(Date.now() - 1000).toISOString();
    const expired = await createApiKey(sql, user.userId, { expiresAt });
    const reader = await createApiKey(sql, user.userId, { scope: 'read' });
    const refused = [makeApiKey(), 'secret', '', revoked.apiKey, expired.apiKey, `${user.apiKey} `];
    for (const key of refused) {
      const client = await greet(submissionPort, makeAddress());
      assertReply(await client.command(plainAuth(key)), 535, '5.7.8', /neither revoked nor expired/);
      assertReply(await submit(client), 530, '5.7.0');
    }
    const client = await greet(submissionPort, makeAddress());
    assertReply(await client.command(plainAuth(reader.apiKey)), 535, '5.7.8', /scope "send" or "full"/);
  });

  test('a key that is revoked during the connection: at MAIL, and at the end of the message', async () => {
    const atMail = await createApiKey(sql, user.userId);
    const first = await signIn(submissionPort, atMail.apiKey);
    await revokeApiKey(sql, user.userId, atMail.id);
    assertReply(await submit(first), 550, '5.7.1', /revoked/);

    const atEnd = await createApiKey(sql, user.userId);
    const second = await signIn(submissionPort, atEnd.apiKey);
    await second.command('MAIL FROM:<ada@sender.example>');
    await second.command('RCPT TO:<bob@dest.example>');
    await revokeApiKey(sql, user.userId, atEnd.id);
    assertReply(await second.data(letterFrom('ada@sender.example')), 550, '5.7.1', /revoked/);
  });

  test('a key that expires, or may only read from now on, during the connection: the same', async () => {
    const expired = (id: string) =>
      sql`update api_keys set expires_at = now() - interval '1 second' where id = ${id}`;
    const narrowed = (id: string) => sql`update api_keys set scope = 'read' where id = ${id}`;
    for (const end of [expired, narrowed]) {
      const { id, apiKey } = await createApiKey(sql, user.userId);
      const client = await signIn(submissionPort, apiKey);
      await client.command('MAIL FROM:<ada@sender.example>');
      await client.command('RCPT TO:<bob@dest.example>');
      await end(id);
      assertReply(await client.data(letterFrom('ada@sender.example')), 550, '5.7.1');
      assertReply(await client.command('MAIL FROM:<ada@sender.example>'), 550, '5.7.1');
    }
  });

  test('senders that no identity of the owner may use: 550 in MAIL, in From and in Sender', async () => {
    const client = await signIn(submissionPort, user.apiKey);
    assertReply(await submit(client, { from: '' }), 550, '5.7.1');
    const foreign = [
      'ann@else.example',
      'ann@nobody.example',
      'bob@shared.example',
      'ada@sub.sender.example',
    ];
    for (const from of foreign) {
      const advice = new RegExp(`${from}; connect .* with POST /identities`);
      assertReply(await client.command(`MAIL FROM:<${from}>`), 550, '5.7.1', advice);
      for (const wire of [
        letterFrom(from),
        letterFrom(`ada@sender.example, ${from}`),
        letterFrom('ada@sender.example', `Sender: ${from}`),
      ])
        assertReply(await submit(client, { wire }), 550, '5.7.1', new RegExp(from));
    }
  });

  test('messages that cannot be sent: 5xx with the reason', async () => {
    const client = await signIn(submissionPort, user.apiKey);
    const without = toWire('Subject: Hello\r\n\r\nNo author\r\n');
    assertReply(await submit(client, { wire: without }), 554, '5.6.0', /no address in "from"/);
    const twice = letterFrom('ada@sender.example', 'From: eve@shared.example');
    assertReply(await submit(client, { wire: twice }), 554, '5.6.0', /2 fields "from"/);
    const large = toWire(`From: ada@sender.example\r\n\r\n${'x'.repeat(70_000)}\r\n`);
    assertReply(await submit(client, { wire: large }), 552, '5.3.4');
    assertReply(await client.command('MAIL FROM:<ada@sender.example> SIZE=70000'), 552, '5.3.4');
    // Below the limit when it comes, above with the Date and the Message-ID that it gets.
    const start = 'From: ada@sender.example\r\n\r\n';
    const full = toWire(`${start}${'x\r\n'.repeat(65_536).slice(0, 65_536 - start.length - 2)}\r\n`);
    assertReply(await submit(client, { wire: full }), 552, '5.3.4', /The limit is 65536 bytes/);
    const long = toWire(`${start}Hi\r\n${'x'.repeat(999)}\r\n`);
    assertReply(await submit(client, { wire: long }), 554, '5.6.0', /Line 2 of the body/);
  });

  test('recipients that are no address, and DSN parameters', async () => {
    const client = await signIn(submissionPort, user.apiKey);
    await client.command('MAIL FROM:<ada@sender.example>');
    for (const to of ['bob@[127.0.0.1]', '"b ob"@dest.example', 'bob@localhost'])
      assertReply(await client.command(`RCPT TO:<${to}>`), 550, '5.1.3');
    assertReply(await client.command('RCPT TO:<bob@dest.example> NOTIFY=SUCCESS'), 555, '5.5.4');
    assertReply(await client.command('DATA'), 554, '5.5.1');
    assertReply(await client.command('RSET'), 250, '2.0.0');
    assertReply(await client.command('MAIL FROM:<ada@sender.example> RET=HDRS'), 555, '5.5.4');
  });
});

test('more than 50 recipients: 452 for the rest, and the 50 get the message', async () => {
  const client = await signIn(submissionPort, user.apiKey);
  const to = Array.from({ length: 52 }, (_, n) => `r${n}@dest.example`);
  void client.send(`MAIL FROM:<ada@sender.example>\r\n${to.map((one) => `RCPT TO:<${one}>\r\n`).join('')}`);
  const [, ...answers] = await client.replies(53);
  for (const answer of answers.slice(0, 50)) assertReply(answer, 250, '2.1.5');
  for (const answer of answers.slice(50)) assertReply(answer, 452, '4.5.3');
  const id = idIn(await client.data(letterFrom('ada@sender.example')));
  const { body } = await service.call('GET', `/messages/${id}`);
  assert.deepEqual(body.envelope.rcptTo.toSorted(), to.slice(0, 50).toSorted());
});

test('beyond the send rate: 451 with the time to wait', async () => {
  const slow = await startTestService({ POSTHORN_SEND_RATE: '1' });
  await makeIdentity('ada@sender.example', slow.user, slow);
  const client = await signIn(slow.submissionPort, slow.user.apiKey);
  idIn(await submit(client));
  assertReply(await submit(client), 451, '4.7.1', /Retry in \d+ s/);
});

test('an identity that is not verified sends only by capture', async () => {
  const strict = await startTestService({ POSTHORN_OUTBOUND: 'direct' });
  await makeIdentity('ada@sender.example', strict.user, strict);
  const client = await signIn(strict.submissionPort, strict.user.apiKey);
  assertReply(await submit(client), 550, '5.7.1', /not verified/);
  await strict.sql`update identities set status = 'verified'`;
  assert.equal((await client.command('MAIL FROM:<ada@sender.example>')).status, 250);
  await client.command('RCPT TO:<bob@dest.example>');
  await strict.sql`update identities set status = 'unverified'`;
  assertReply(await client.data(letterFrom('ada@sender.example')), 550, '5.7.1', /not verified/);
  assert.equal((await strict.sql`select from messages`).count, 0);
});

describe('failed AUTH commands', () => {
  test('five end the connection, and the password is not logged', async () => {
    const client = await greet(submissionPort, makeAddress());
    const wrong = makeApiKey();
    for (let n = 0; n < 3; n += 1) assertReply(await client.command(plainAuth(wrong)), 535, '5.7.8');
    await client.command('AUTH LOGIN');
    await client.command(base64('posthorn'));
    assertReply(await client.command(base64(wrong)), 535, '5.7.8');
    assertReply(await client.command(plainAuth(wrong)), 421, '4.7.0');
    await client.ended();
    const log = JSON.stringify(service.logged);
    for (const secret of [wrong, base64(wrong), base64(`\0posthorn\0${wrong}`)])
      assert.ok(!log.includes(secret));
    assert.match(log, /bad_api_key/);
  });

  test('20 from one address in a minute: 421 on both listeners, also for the right key; not elsewhere', async () => {
    const address = makeAddress();
    for (let n = 0; n < 20; n += 1) {
      const client = await (n % 2
        ? greet(submissionPort, address)
        : greetByTls(service.submissionsPort, address));
      assertReply(await client.command(plainAuth(makeApiKey())), 535, '5.7.8');
      client.close();
    }
    for (const client of [
      await greet(submissionPort, address),
      await greetByTls(service.submissionsPort, address),
    ]) {
      assertReply(await client.command(plainAuth(user.apiKey)), 421, '4.7.0');
      await client.ended();
    }
    const elsewhere = await greet(submissionPort, makeAddress());
    assertReply(await elsewhere.command(plainAuth(user.apiKey)), 235, '2.7.0');
  });

  test('are counted for a minute', () => {
    const failures = new AuthFailures();
    for (let n = 0; n < 20; n += 1) {
      assert.equal(failures.isBlocked('192.0.2.1', 1000 + n), false);
      failures.add('192.0.2.1', 1000 + n);
    }
    assert.equal(failures.isBlocked('192.0.2.1', 60_000), true);
    assert.equal(failures.isBlocked('192.0.2.2', 60_000), false);
    assert.equal(failures.isBlocked('192.0.2.1', 61_001), false);
  });
});

test('from another machine, AUTH is not announced before TLS, and is 538; with TLS it works', async () => {
  const submitter = { ownerId: 'an owner', keyId: 'a key', keyHash: Buffer.alloc(32) };
  const tried: string[] = [];
  const parts = {
    mailHost: 'mx.example',
    limits: readConfig({}).smtpLimits,
    log: makeTestLog().log,
    route: () => assert.fail('no recipient is given'),
    submission: {
      async authenticate(password: string) {
        tried.push(password);
        return submitter;
      },
      checkSender: async () => null,
    },
  };
  for (const remoteIp of ['203.0.113.9', '2001:db8::1', '10.0.0.1', '::ffff:203.0.113.9']) {
    const session = new Session(parts, remoteIp);
    const say = async (line: string) => session.answer(Buffer.from(line));
    const announced = async () => String((await say('EHLO client.example')).text).includes('AUTH');
    assert.equal(await announced(), false, remoteIp);
    for (const line of ['AUTH PLAIN', 'AUTH LOGIN', plainAuth('a key')]) {
      const { status, enhanced } = await say(line);
      assert.equal(`${status} ${enhanced}`, '538 5.7.11', remoteIp);
    }
    assert.equal((await say('MAIL FROM:<ada@sender.example>')).status, 530);
    assert.deepEqual(tried, []);
    session.becomeSecure();
    assert.equal(await announced(), true, remoteIp);
    assert.equal((await say(plainAuth('a key'))).status, 235);
    assert.deepEqual(tried.splice(0), ['a key']);
  }
  for (const remoteIp of ['127.0.0.1', '127.9.9.9', '::1']) {
    const session = new Session(parts, remoteIp);
    const hello = await session.answer(Buffer.from('EHLO client.example'));
    assert.match(String(hello.text), /AUTH PLAIN LOGIN/);
  }
});

test('without POSTHORN_SUBMISSION_PORT in production, and without the role smtp, nobody listens', async () => {
  const production = {
    NODE_ENV: 'production',
    POSTHORN_SUBMISSION_PORT: '',
    POSTHORN_SUBMISSIONS_PORT: '',
    POSTHORN_MAIL_HOST: 'mx.example.com',
    POSTHORN_PUBLIC_URL: 'https://posthorn.example.com',
  };
  for (const settings of [production, { POSTHORN_ROLES: 'api' }]) {
    const { submissionPort, submissionsPort, stop } = await startTestService(settings);
    assert.deepEqual([submissionPort, submissionsPort], [0, 0]);
    await stop();
  }
});
