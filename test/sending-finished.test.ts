/** Finished messages, and attached ones, that not every server can take. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { assertProblem, startTestService } from './harness.ts';
import { openOutbox } from './outbox.ts';
import { startSink } from './smtp-sink.ts';

const relay = await startSink({ extensions: ['PIPELINING', 'SIZE 5000'] });
const service = await startTestService({
  POSTHORN_RELAY_URL: `smtp://127.0.0.1:${relay.port}`,
  POSTHORN_ROLES: 'api,send',
});
const { call, sql } = service;
const { makeIdentity, findEnded, attempts, events, post } = openOutbox(service);
const identityId = await makeIdentity('ada@sender.example');
await sql`update identities set status = 'verified' where id = ${identityId}`;

const postRaw = (body: string | Buffer) =>
  call('POST', `/messages?identity_id=${identityId}`, {
    body,
    headers: { 'content-type': 'message/rfc822' },
  });
const header = 'From: ada@sender.example\r\nTo: bob@dest.example\r\n';

for (const [title, raw, error, enhanced, text] of [
  ['8-bit text', `${header}\r\nGrüße\r\n`, 'needs_8bitmime', '5.6.3', /8BITMIME.*quoted-printable or base64/],
  ['a UTF-8 field', `${header}Subject: Grüße\r\n\r\n`, 'needs_8bitmime', '5.6.3', /8BITMIME/],
  ['too large', `${header}\r\n${'x\r\n'.repeat(3000)}`, 'message_too_large', '5.3.4', /takes at most 5000/],
] as const) {
  test(`${title}, which the server does not take: the bounce says what to do`, async () => {
    const { body } = await postRaw(raw);
    const { sending } = await findEnded(body.id);
    const [{ status, lastResponse }] = sending.recipients;
    assert.equal(status, 'bounced');
    assert.deepEqual([lastResponse.code, lastResponse.enhanced], [null, enhanced]);
    assert.match(lastResponse.text, text);
    const [event] = await events(body.id);
    assert.deepEqual(event?.data.recipient.response, lastResponse);
    const [attempt] = await attempts(body.id);
    assert.deepEqual([attempt.error, attempt.response], [error, lastResponse]);
    assert.equal(relay.mails.length, 0);
    assert.equal((await call('GET', '/suppressions')).body.length, 0);
  });
}

test('a body line over 998 octets is 400, and names the line', async () => {
  const refused = await postRaw(`${header}\r\nHi\r\n${'x'.repeat(999)}\r\n`);
  assertProblem(refused, 400, 'invalid_body');
  assert.match(refused.body.errors[0].message, /^Line 2 of the body has more than 998 octets\./);
});

test('an attached message keeps its type; with a long line it is 400', async () => {
  const attach = (text: string) => ({
    identityId,
    attachments: [
      {
        filename: 'letter',
        contentType: 'message/rfc822',
        content: Buffer.from(text).toString('base64'),
      },
    ],
  });
  const made = await post(attach('Subject: Inner\n\nHi\n'));
  assert.equal(made.body.attachments[0].contentType, 'message/rfc822');
  await findEnded(made.body.id);
  assert.match(relay.mails[0]?.raw ?? '', /\r\nSubject: Inner\r\n\r\nHi\r\n/);
  const refused = await post(attach(`Subject: Inner\n\n${'x'.repeat(999)}\n`));
  assertProblem(refused, 400, 'invalid_body');
  assert.equal(refused.body.errors[0].pointer, '/attachments/0/content');
});
