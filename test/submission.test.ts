/** SMTP submission over real sockets: AUTH with API keys, who may send from what, and what becomes of the message. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { createApiKey } from '../src/store/api-keys.ts';
import { startTestService, type TestUser, waitFor } from './harness.ts';
import { connectSmtp, openSmtp, type SmtpReply, toWire } from './smtp-client.ts';
import {
  assertReply,
  base64,
  greet,
  greetByTls,
  idIn,
  letterFrom,
  plainAuth,
  signIn,
  submit,
} from './submission-client.ts';

const service = await startTestService({ POSTHORN_MAX_MESSAGE_BYTES: '65536' });
const { user, call, sql } = service;
const other = await service.makeUser();

async function makeIdentity(value: string, as: TestUser = user): Promise<string> {
  const { status, body, text } = await call('POST', '/identities', { as, body: { value } });
  assert.equal(status, 201, text);
  return body.id;
}
const domainId = await makeIdentity('sender.example');
const adaId = await makeIdentity('ada@sender.example');
await makeIdentity('else.example', other);

async function makeKey(given: Parameters<typeof createApiKey>[2] = {}, as: TestUser = user) {
  return createApiKey(sql, as.userId, given);
}

const greetHere = () => greet(service.submissionPort);
const signInHere = (key = user.apiKey) => signIn(service.submissionPort, key);

async function findMessage(answer: SmtpReply, as: TestUser = user) {
  const found = await call('GET', `/messages/${idIn(answer)}`, { as });
  assert.equal(found.status, 200, found.text);
  return found.body;
}

describe('a submitted message', () => {
  test('is stored before the 250, which names its id, and is sent', async () => {
    const client = await signInHere();
    const message = await findMessage(
      await submit(client, { to: ['bob@dest.example', 'carol@dest.example'] }),
    );
    assert.equal(message.source, 'submission');
    assert.equal(message.direction, 'outgoing');
    assert.equal(message.identity.id, adaId, 'the exact address wins over its domain');
    assert.equal(message.mailbox.kind, 'sent');
    assert.equal(message.envelope.mailFrom, null);
    assert.deepEqual(message.envelope.rcptTo, ['bob@dest.example', 'carol@dest.example']);
    const kinds = message.sending.recipients.map(({ kind }: { kind: string }) => kind);
    assert.deepEqual(kinds, ['to', 'bcc'], 'a recipient that the header does not show is blind');
    assert.deepEqual(message.bcc, [{ name: null, address: 'carol@dest.example' }]);
    await waitFor('the message to be sent', async () => {
      const { body } = await call('GET', `/messages/${message.id}`);
      return body.sending.status === 'delivered';
    });
  });

  test('keeps its bytes, but for Bcc, Date and Message-ID', async () => {
    const body = '..a dot\r\nand one more line\r\n';
    const client = await signInHere();
    const wire = toWire(`From: ada@sender.example\r\nBcc: x@dest.example\r\nSubject: Dots\r\n\r\n${body}`);
    const { id } = await findMessage(await submit(client, { wire }));
    const { text } = await call('GET', `/messages/${id}/raw`);
    assert.ok(text.endsWith(`\r\n\r\n${body}`), text);
    assert.match(text, /^message-id: <.+>\r$/im);
    assert.match(text, /^date: .+\r$/im);
    assert.doesNotMatch(text, /bcc/i);
  });

  test('belongs to the identity of its author; the envelope may have another address of the owner', async () => {
    const client = await signInHere();
    const fromDomain = await submit(client, { from: 'bot@sender.example' });
    assert.equal((await findMessage(fromDomain)).identity.id, domainId);
    const wire = letterFrom('Ada <ada@sender.example>', 'Sender: bot@sender.example');
    const mixed = await submit(client, { from: 'bounces@sender.example', wire });
    assert.equal((await findMessage(mixed)).identity.id, adaId);
  });

  test('may follow another on the same connection, pipelined', async () => {
    const client = await signInHere();
    const envelope = 'MAIL FROM:<ada@sender.example>\r\nRCPT TO:<bob@dest.example>\r\nDATA\r\n';
    for (let n = 0; n < 2; n += 1) {
      void client.send(envelope);
      assert.deepEqual(
        (await client.replies(3)).map(({ status }) => status),
        [250, 250, 354],
      );
      void client.send(letterFrom('ada@sender.example'));
      idIn(await client.reply());
    }
  });

  test('has the recipients since RSET alone, which keeps the authentication', async () => {
    const client = await signInHere();
    await client.command('MAIL FROM:<bot@sender.example>');
    await client.command('RCPT TO:<wrong@dest.example>');
    assertReply(await client.command('RSET'), 250, '2.0.0');
    assertReply(await client.command('RCPT TO:<bob@dest.example>'), 503, '5.5.1');
    assertReply(await client.command('DATA'), 503, '5.5.1');
    const message = await findMessage(await submit(client));
    assert.deepEqual(message.envelope.rcptTo, ['bob@dest.example']);
    const next = await findMessage(await submit(client, { to: ['carol@dest.example'] }));
    assert.deepEqual(next.envelope.rcptTo, ['carol@dest.example'], 'nothing is left of the message before');
  });

  test('pipelined behind a sender that is refused: no part of it is taken', async () => {
    const client = await signInHere();
    const envelope = 'MAIL FROM:<ann@else.example>\r\nRCPT TO:<bob@dest.example>\r\nDATA\r\n';
    void client.send(`${envelope}MAIL FROM:<ada@sender.example>\r\n`);
    assert.deepEqual(
      (await client.replies(4)).map(({ status }) => status),
      [550, 503, 503, 250],
    );
  });

  test('with SMTPUTF8 and 8BITMIME: an address and a text beyond ASCII', async () => {
    const client = await signInHere();
    const sender = 'MAIL FROM:<zoë@sender.example> SMTPUTF8 BODY=8BITMIME SIZE=500 AUTH=<>';
    assert.equal((await client.command(sender)).status, 250);
    assert.equal((await client.command('RCPT TO:<jörg@dest.example>')).status, 250);
    const raw = Buffer.from('From: zoë@sender.example\r\nSubject: Grüße\r\n\r\nHallo Jörg\r\n');
    const message = await findMessage(await client.data(toWire(raw)));
    assert.equal(message.from.address, 'zoë@sender.example');
    assert.deepEqual(message.envelope.rcptTo, ['jörg@dest.example']);
  });

  test('is seen by the `send` key that submitted it, and by no other `send` key', async () => {
    const [own, foreign] = [await makeKey({ scope: 'send' }), await makeKey({ scope: 'send' })];
    const answer = await submit(await signInHere(own.apiKey));
    await findMessage(answer, { ...user, apiKey: own.apiKey });
    const used = () => call('GET', `/api-keys/${own.id}`).then(({ body }) => body.lastUsedAt);
    await waitFor('the use of the key to be noted', used);
    const hidden = await call('GET', `/messages/${idIn(answer)}`, {
      as: { ...user, apiKey: foreign.apiKey },
    });
    assert.equal(hidden.status, 404);
  });

  test('is counted and logged as submitted, and not as mail of the MX', async () => {
    const before = (await call('GET', '/metrics')).text;
    const read = (text: string, series: string) => Number(text.split(`${series} `)[1]?.split('\n')[0] ?? 0);
    const client = await signInHere();
    const id = idIn(await submit(client));
    assertReply(await submit(client, { from: 'mallory@else.example' }), 550, '5.7.1');
    const { text } = await call('GET', '/metrics');
    const series = {
      taken: 'posthorn_submitted_messages_total{source="submission"}',
      submission: 'posthorn_smtp_messages_total{listener="submission",status="250"}',
      recipients: 'posthorn_smtp_recipients_total{listener="submission",status="250"}',
    };
    for (const one of Object.values(series)) assert.equal(read(text, one), read(before, one) + 1, one);
    assert.doesNotMatch(text, /^posthorn_smtp_(messages|recipients)_total\{listener="mx"/m);
    assert.match(text, /^posthorn_smtp_connections\{listener="mx"\} 0$/m);
    const taken = service.logged.find(({ messageId }) => messageId === id);
    assert.equal(taken?.source, 'submission');
    assert.equal(taken?.remoteIp, '127.0.0.1');
    const refused = service.logged.find(({ mailFrom }) => mailFrom === 'mallory@else.example');
    assert.equal(refused?.reason, 'sender_not_allowed');
    assert.equal(refused?.source, 'submission');
  });
});

test('TLS from the start: the greeting comes after the handshake, and AUTH is announced at once', async () => {
  const client = await greetByTls(service.submissionsPort);
  const hello = await client.command('EHLO client.example');
  assert.ok(hello.lines.includes('AUTH PLAIN LOGIN') && !hello.lines.includes('STARTTLS'), hello.full);
  assertReply(await client.command('STARTTLS'), 503, '5.5.1');
  assertReply(await submit(client), 530, '5.7.0');
  await client.command(plainAuth(user.apiKey));
  assert.equal((await findMessage(await submit(client))).source, 'submission');
  const { text } = await call('GET', '/metrics');
  assert.match(text, /^posthorn_smtp_messages_total\{listener="submissions",status="250"\} 1$/m);

  const clear = await openSmtp(service.submissionsPort);
  await clear.send('EHLO client.example\r\n');
  await clear.ended();
  assert.doesNotMatch(clear.unread, /^\d{3}[ -]/, 'a client without TLS reads no reply');
  for (let n = 0; n < 5; n += 1) (await openSmtp(service.submissionsPort)).close();
  client.close();
  await waitFor('every connection to be forgotten', async () =>
    (await call('GET', '/metrics')).text.includes('posthorn_smtp_connections{listener="submissions"} 0\n'),
  );
});

describe('AUTH', () => {
  test('PLAIN and LOGIN, with and without an initial response; the username is not looked at', async () => {
    const key = user.apiKey;
    const dialogues: [string, ...[RegExp, string][]][] = [
      [plainAuth(key)],
      [plainAuth(key, '')],
      [`auth plain ${base64(`someone\0else\0${key}`)}`],
      ['AUTH PLAIN', [/^334 $/, base64(`\0posthorn\0${key}`)]],
      ['AUTH LOGIN', [/^334 VXNlcm5hbWU6$/, base64('posthorn')], [/^334 UGFzc3dvcmQ6$/, base64(key)]],
      ['AUTH LOGIN', [/^334 /, ''], [/^334 /, base64(key)]],
      [`AUTH LOGIN ${base64('posthorn')}`, [/^334 UGFzc3dvcmQ6$/, base64(key)]],
      ['AUTH LOGIN =', [/^334 UGFzc3dvcmQ6$/, base64(key)]],
    ];
    for (const [first, ...turns] of dialogues) {
      const client = await greetHere();
      let answer = await client.command(first);
      for (const [question, line] of turns) {
        assert.match(`${answer.status} ${answer.lines[0]}`, question, first);
        answer = await client.command(line);
      }
      assertReply(answer, 235, '2.7.0');
      assertReply(await client.command(plainAuth(key)), 503, '5.5.1');
      client.close();
    }
  });

  test('is announced where it can be used, and only there; DSN is not', async () => {
    const expected = ['PIPELINING', 'SIZE 65536', '8BITMIME', 'SMTPUTF8', 'STARTTLS', 'AUTH PLAIN LOGIN'];
    const client = await connectSmtp(service.submissionPort);
    const hello = await client.command('EHLO client.example');
    assert.deepEqual(hello.lines.slice(1), [...expected, 'ENHANCEDSTATUSCODES']);
    await client.startTls();
    const secure = (await client.command('EHLO client.example')).lines;
    assert.ok(secure.includes('AUTH PLAIN LOGIN') && !secure.includes('STARTTLS'));
    await client.command(plainAuth(user.apiKey));
    assert.doesNotMatch((await client.command('EHLO client.example')).full, /AUTH/);
    assert.equal((await submit(client)).status, 250, 'EHLO does not end the authentication');

    const mx = await connectSmtp(service.smtpPort);
    assert.doesNotMatch((await mx.command('EHLO client.example')).full, /AUTH/);
    assertReply(await mx.command(plainAuth(user.apiKey)), 502, '5.5.1');
  });

  test('before TLS is forgotten with everything else', async () => {
    const client = await signInHere();
    await client.startTls();
    await client.command('EHLO client.example');
    assertReply(await submit(client), 530, '5.7.0');
  });

  test('comes before MAIL, and after EHLO', async () => {
    const client = await connectSmtp(service.submissionPort);
    assertReply(await client.command(plainAuth(user.apiKey)), 503, '5.5.1');
    await client.command('EHLO client.example');
    assertReply(await client.command('MAIL FROM:<ada@sender.example>'), 530, '5.7.0');
    assertReply(await client.command('RCPT TO:<bob@dest.example>'), 503, '5.5.1');
    assertReply(await client.command('DATA'), 503, '5.5.1');
  });

  test('malformed: a clear reply, and the next line is a command again', async () => {
    const wrong: [string[], number, string][] = [
      [['AUTH'], 501, '5.5.4'],
      [['AUTH PLAIN a b'], 501, '5.5.4'],
      [['AUTH CRAM-MD5'], 504, '5.5.4'],
      [['AUTH PLAIN not-base64'], 501, '5.5.2'],
      [[`AUTH PLAIN ${base64('no NUL')}`], 501, '5.5.2'],
      [[`AUTH PLAIN ${base64('a\0b\0c\0d')}`], 501, '5.5.2'],
      [['AUTH PLAIN', '*'], 501, '5.7.0'],
      [['AUTH LOGIN', 'MAIL FROM:<ada@sender.example>'], 501, '5.5.2'],
      [['AUTH LOGIN', 'a'.repeat(3000)], 500, '5.5.2'],
    ];
    for (const [lines, status, enhanced] of wrong) {
      const client = await greetHere();
      for (const line of lines.slice(0, -1)) assert.equal((await client.command(line)).status, 334);
      assertReply(await client.command(lines.at(-1) ?? ''), status, enhanced);
      assert.equal((await client.command('NOOP')).status, 250);
      client.close();
    }
  });
});

test('a port that is in use: the start fails, and names the setting', async () => {
  for (const [setting, port] of [
    ['POSTHORN_SUBMISSION_PORT', service.submissionPort],
    ['POSTHORN_SUBMISSIONS_PORT', service.submissionsPort],
  ] as const) {
    const second = startTestService({ DATABASE_URL: service.databaseUrl, [setting]: String(port) });
    const message = `^Port ${port} on 127.0.0.1 is in use by another program. .*, or set ${setting} `;
    await assert.rejects(second, ({ message: said }) => new RegExp(message).test(said));
  }
});
