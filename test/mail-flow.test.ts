/** Mail in, event out: a message over SMTP reaches the webhook, signed and whole, and can be read again. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { after, test } from 'node:test';
import { Webhook } from 'standardwebhooks';
import { startTestService } from './harness.ts';
import { startReceiver } from './receiver.ts';
import { connectSmtp, toWire } from './smtp-client.ts';

const service = await startTestService({ POSTHORN_DNS_SERVERS: '127.0.0.1:9' });
const receiver = await startReceiver();
after(() => receiver.close());

const message = Buffer.from(
  [
    'From: Ada <ada@example.com>',
    'To: sales@shop.example',
    'Subject: Hello',
    'Message-ID: <1@example.com>',
    'Content-Type: multipart/mixed; boundary=b',
    '',
    '--b\r\n\r\nHow are you?\r\n--b',
    'Content-Disposition: attachment; filename="a b.html"',
    'Content-Type: text/html',
    '',
    '<script>1</script>\r\n--b--\r\n',
  ].join('\r\n'),
);

test('a message over SMTP is announced, and what is announced can be fetched', async () => {
  const { body: identity } = await service.call('POST', '/identities', {
    body: { value: 'Sales@shop.example' },
  });
  const webhook = await service.makeWebhook(receiver.url('/mail'));
  const client = await connectSmtp(service.smtpPort);
  assert.equal((await client.envelope('ada@example.com', 'sales+vip@shop.example')).status, 250);
  const taken = await client.data(toWire(message));
  assert.equal(taken.status, 250, taken.full);
  const [request] = await receiver.received(1);
  assert.ok(request);
  new Webhook(webhook.secret).verify(request.body.toString(), request.headers as Record<string, string>);
  const { event, data } = JSON.parse(request.body.toString());
  assert.equal(event, 'message.received');
  assert.equal(data.rawEmail, message.toString());
  assert.equal(data.rawEmailSha256, createHash('sha256').update(message).digest('hex'));
  assert.equal(data.message.subject, 'Hello');
  assert.equal(data.message.identity.id, identity.id);
  assert.equal(data.message.tag, 'vip');
  assert.equal(data.message.attachments.length, 1);
  const raw = await fetch(data.rawEmailUrl);
  assert.equal(raw.status, 200);
  assert.deepEqual(Buffer.from(await raw.arrayBuffer()), message);
  const attachment = await fetch(data.message.attachments[0].url);
  assert.equal(await attachment.text(), '<script>1</script>');
  assert.equal(attachment.headers.get('content-type'), 'application/octet-stream');
  const got = await service.call('GET', `/messages/${data.message.id}`);
  assert.deepEqual(got.body, data.message);
});
