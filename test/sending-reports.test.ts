/** Reports that come back: to bounce addresses and to identities. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { describe, test } from 'node:test';
import { identifier } from '../src/db/sql.ts';
import { deriveBounceKeys, makeBounceAddress } from '../src/sending/bounce-address.ts';
import { startDirectMail } from './direct-mail.ts';
import { newDomain } from './proving.ts';
import { compose, lines } from './report-messages.ts';
import { connectSmtp, toWire } from './smtp-client.ts';

const secretKey = randomBytes(32);
const direct = await startDirectMail({
  POSTHORN_SEND_SCHEDULE: '3600',
  POSTHORN_ACCEPT_UNVERIFIED: 'true',
  POSTHORN_SECRET_KEY: secretKey.toString('base64'),
});
const { service, sink, makeSender, makeDestination, send, findEnded, findMessage, events, attempts } = direct;
const { call, sql, user } = service;
const sender = newDomain();
const identityId = await makeSender(sender);
await call('PATCH', `/identities/${identityId}`, { body: { incoming_domain: true } });
const from = `ada@${sender}`;

interface Sent {
  id: string;
  address: string;
  bounceAddress: string;
  messageId: string;
}

/** A message to one recipient that the server took. `status`: as if it had gone by a relay. */
async function deliver(status: 'sent' | 'delivered' = 'delivered'): Promise<Sent> {
  const domain = newDomain();
  makeDestination(domain);
  const { id, messageId } = await send({ identityId, from, to: `grace@${domain}`, metadata: { order: '9' } });
  await findEnded(id);
  if (status === 'sent') {
    await sql`update recipients set status = 'sent' where message_id = ${id}`;
    await sql`update outgoing set sent = 1, delivered = 0 where id = ${id}`;
  }
  const mail = sink.mails.find(({ rcpt }) => rcpt.includes(domain))?.mail ?? '';
  const [, bounceAddress = ''] = /<(.+)>/.exec(mail) ?? [];
  return { id, messageId, bounceAddress, address: `grace@${domain}` };
}

async function mailTo(recipient: string, raw: string | Buffer): Promise<string> {
  const client = await connectSmtp(service.smtpPort);
  const asked = await client.envelope('', recipient);
  const reply = asked.status === 250 ? await client.data(toWire(raw)) : asked;
  client.close();
  return `${reply.status} ${reply.enhanced}`;
}

function statusReport({ address }: Sent, action: string, status: string, diagnostic = ''): Buffer {
  return compose(
    lines(
      'Reporting-MTA: dns; mx.dest.example',
      '',
      `Final-Recipient: rfc822; ${address}`,
      `Action: ${action}`,
      `Status: ${status}`,
      'Remote-MTA: dns; mail.dest.example',
      ...(diagnostic ? [`Diagnostic-Code: smtp; ${diagnostic}`] : []),
    ),
  );
}

const complaint = (returned: string, type = 'abuse') =>
  compose(lines(`Feedback-Type: ${type}`, 'User-Agent: Test/1', 'Version: 1'), {
    top: 'multipart/report; report-type=feedback-report; boundary="b"',
    type: 'message/feedback-report',
    returned,
  });

const returned = (path: string) =>
  `Content-Type: message/rfc822\r\n\r\nReturn-Path: <${path}>\r\nFrom: ${from}\r\nMessage-ID: <one@${sender}>\r\n\r\nText`;

const statusOf = async ({ id }: Sent) => (await findMessage(id)).sending.status;
const eventsOf = async ({ id }: Sent) => (await events(id)).map(({ event }) => event);
const isSuppressed = async ({ address }: Sent) =>
  (await call('GET', `/suppressions?address=${encodeURIComponent(address)}`)).body.length === 1;
async function countMessages(): Promise<number> {
  const [row] = await sql`select count(*)::int as count from messages`;
  return row?.count;
}
async function keptOf({ id }: Sent): Promise<string[]> {
  const rows = await sql<{ action: string }[]>`
    select action from send_reports where message_id = ${id} order by created_at`;
  return rows.map(({ action }) => action);
}

describe('a delivery report to a bounce address is never shown as a message', () => {
  test('failed: bounced, also after delivered, with the event and the suppression; a repeat changes nothing', async () => {
    const sent = await deliver();
    const before = await countMessages();
    const report = statusReport(sent, 'failed', '5.1.1', '550 5.1.1 No such user');
    for (let n = 0; n < 2; n += 1) assert.equal(await mailTo(sent.bounceAddress, report), '250 2.0.0');
    assert.equal(await countMessages(), before);
    assert.equal(await statusOf(sent), 'bounced');
    assert.deepEqual(await eventsOf(sent), ['message.sent', 'message.delivered', 'message.bounced']);
    const { data } = (await events(sent.id)).at(-1) ?? {};
    assert.deepEqual(data.recipient.bounce, { type: 'hard', source: 'dsn' });
    assert.equal(data.recipient.response.code, 550);
    assert.equal(data.recipient.response.enhanced, '5.1.1');
    assert.equal(data.recipient.host, 'mail.dest.example');
    assert.equal(data.recipient.status, 'bounced');
    assert.equal(data.message.sending.metadata.order, '9');
    assert.equal(await isSuppressed(sent), true);
    const later = statusReport(sent, 'delivered', '2.0.0');
    assert.equal(await mailTo(sent.bounceAddress, later), '250 2.0.0');
    assert.equal(await statusOf(sent), 'bounced');
  });

  test('the reason of a server that made the report itself is shown: event, recipient and attempts', async () => {
    const sent = await deliver('sent');
    const report = compose(
      lines(
        'Reporting-MTA: dns; mx.dest.example',
        '',
        `Final-Recipient: rfc822; ${sent.address}`,
        'Action: failed',
        'Status: 5.2.2',
        'Diagnostic-Code: X-Postfix; mailbox is full',
      ),
    );
    assert.equal(await mailTo(sent.bounceAddress, report), '250 2.0.0');
    const response = { code: null, enhanced: '5.2.2', text: 'mailbox is full' };
    const { data } = (await events(sent.id)).at(-1) ?? {};
    assert.deepEqual([data.recipient.response, data.recipient.bounce.type], [response, 'soft']);
    const { lastResponse, attemptCount } = (await findMessage(sent.id)).sending.recipients[0];
    assert.deepEqual([lastResponse, attemptCount], [response, 1]);
    const [reported, tried, ...others] = await attempts(sent.id);
    assert.deepEqual(others, []);
    assert.equal(tried.response.code, 250);
    const { id, startedAt, ...rest } = reported;
    assert.deepEqual(rest, {
      ...{ durationMs: 0, recipients: [sent.address], host: null, address: null, tls: null },
      ...{ response, error: 'reported' },
    });
    await mailTo(sent.bounceAddress, report);
    assert.equal((await attempts(sent.id)).length, 2, 'a repeat changes nothing');
  });

  test('the types of bounces, and no suppression for those that may pass', async () => {
    for (const [status, diagnostic, type, suppresses] of [
      ['5.2.2', '552 5.2.2 Full', 'soft', false],
      ['4.4.7', '', 'soft', false],
      ['5.7.1', '', 'policy', false],
      ['5.0.0', '550 No such user', 'unknown', false],
      ['5.2.1', '', 'hard', true],
    ] as const) {
      const sent = await deliver();
      await mailTo(sent.bounceAddress, statusReport(sent, 'failed', status, diagnostic));
      const last = (await events(sent.id)).at(-1);
      assert.deepEqual(last?.data.recipient.bounce, { type, source: 'dsn' }, status);
      assert.equal(await isSuppressed(sent), suppresses, status);
    }
  });

  test('delivered and expanded: delivered; relayed and delayed: kept, and nothing changes', async () => {
    for (const [action, expected] of [
      ['delivered', 'delivered'],
      ['expanded', 'delivered'],
      ['relayed', 'sent'],
      ['delayed', 'sent'],
    ] as const) {
      const sent = await deliver('sent');
      assert.equal(await mailTo(sent.bounceAddress, statusReport(sent, action, '2.0.0')), '250 2.0.0');
      assert.equal(await statusOf(sent), expected, action);
      assert.deepEqual(await keptOf(sent), [action]);
      // One of each from the direct way, and one more where the report changed the status.
      assert.equal((await eventsOf(sent)).length, expected === 'delivered' ? 3 : 2, action);
    }
  });

  test('of a recipient that was cancelled, suppressed or bounced: nothing changes', async () => {
    for (const status of ['cancelled', 'suppressed', 'bounced'] as const) {
      const sent = await deliver();
      await sql`update recipients set status = ${status} where message_id = ${sent.id}`;
      await sql`update outgoing set delivered = 0, ${identifier(status)} = 1 where id = ${sent.id}`;
      for (const [action, code] of [
        ['delivered', '2.0.0'],
        ['failed', '5.1.1'],
      ] as const)
        assert.equal(await mailTo(sent.bounceAddress, statusReport(sent, action, code)), '250 2.0.0');
      assert.equal(await statusOf(sent), status);
      assert.deepEqual(await eventsOf(sent), ['message.sent', 'message.delivered']);
    }
  });

  test('of a message that is gone: taken, and nothing is shown', async () => {
    const sent = await deliver();
    assert.equal((await call('DELETE', `/messages/${sent.id}`)).status, 204);
    const before = await countMessages();
    assert.equal(
      await mailTo(sent.bounceAddress, statusReport(sent, 'failed', '5.1.1', '550 5.1.1 No')),
      '250 2.0.0',
    );
    assert.equal(await countMessages(), before);
    assert.equal(await isSuppressed(sent), false);
  });

  test('of several recipients, the entry that names ours counts', async () => {
    const sent = await deliver();
    const report = compose(
      lines(
        'Reporting-MTA: dns; mx.dest.example',
        '',
        'Final-Recipient: rfc822; other@dest.example',
        'Action: failed',
        'Status: 5.1.1',
        '',
        `Final-Recipient: rfc822; ${sent.address}`,
        'Action: delayed',
        'Status: 4.2.0',
      ),
    );
    await mailTo(sent.bounceAddress, report);
    assert.equal(await statusOf(sent), 'delivered');
    assert.deepEqual(await keptOf(sent), ['delayed']);
  });

  test('a report that names only another address bounces, and suppresses nothing', async () => {
    const sent = await deliver();
    const other = { ...sent, address: 'other@dest.example' };
    await mailTo(sent.bounceAddress, statusReport(other, 'failed', '5.1.1', '550 5.1.1 No such user'));
    assert.equal(await statusOf(sent), 'bounced');
    assert.equal(await isSuppressed(sent), false);
  });

  test('anything else is kept as an unknown report', async () => {
    const sent = await deliver();
    const before = await countMessages();
    for (const raw of [
      'Subject: out of office\r\n\r\nI am away\r\n',
      'garbage',
      Buffer.from([0, 255, 13, 10]),
    ])
      assert.equal(await mailTo(sent.bounceAddress, raw), '250 2.0.0');
    assert.deepEqual(await keptOf(sent), ['unknown', 'unknown', 'unknown']);
    assert.equal(await countMessages(), before);
    assert.equal(await statusOf(sent), 'delivered');
  });

  test('with a recipient of ours in the same message: both get what is theirs', async () => {
    const sent = await deliver();
    const [before, client] = [await countMessages(), await connectSmtp(service.smtpPort)];
    await client.envelope('', sent.bounceAddress, `ada@${sender}`);
    assert.equal((await client.data(toWire(statusReport(sent, 'failed', '5.2.2')))).status, 250);
    client.close();
    assert.equal(await statusOf(sent), 'bounced');
    assert.equal(await countMessages(), before + 1);
  });
});

test('a forged, changed, expired or misspelled token is 550, also where an identity would take the mail', async () => {
  const sent = await deliver();
  await direct.add('mx.posthorn.example', { incoming_domain: true });
  const [local = '', domain] = sent.bounceAddress.split('@');
  const changed = `${local.slice(0, -1)}${local.endsWith('a') ? 'b' : 'a'}`;
  const then = Date.now() - 32 * 86_400_000;
  const recipient = { messageId: sent.id, recipient: 0 };
  const [old = ''] = makeBounceAddress(deriveBounceKeys([secretKey]), recipient, '', then).split('@');
  for (const wrong of [
    old,
    changed,
    local.toUpperCase(),
    local.slice(0, -1),
    `${local}aaaaaaaa`,
    'bounces+',
    'BOUNCES+x',
  ])
    assert.equal(await mailTo(`${wrong}@${domain}`, 'Subject: x\r\n\r\nx'), '550 5.1.1', wrong);
  assert.equal(await mailTo(`${local}@MX.posthorn.EXAMPLE`, 'Subject: x\r\n\r\nx'), '250 2.0.0');
  assert.deepEqual(await keptOf(sent), ['unknown']);
});

describe('a complaint', () => {
  test('to the bounce address: message.complained once, the address is suppressed, no status changes', async () => {
    const sent = await deliver();
    for (let n = 0; n < 2; n += 1) await mailTo(sent.bounceAddress, complaint(returned(sent.bounceAddress)));
    assert.deepEqual(await eventsOf(sent), ['message.sent', 'message.delivered', 'message.complained']);
    assert.equal(await statusOf(sent), 'delivered');
    const { body } = await call('GET', `/suppressions?address=${sent.address}`);
    assert.deepEqual([body[0].reason, body[0].messageId], ['complaint', sent.id]);
    const last = (await events(sent.id)).at(-1);
    assert.equal(last?.data.recipient.status, 'delivered');
    assert.equal(last?.data.recipient.bounce, null);
  });

  test('after so many other reports that no more are kept: still once', async () => {
    const sent = await deliver();
    for (let n = 0; n < 21; n += 1) await mailTo(sent.bounceAddress, 'Subject: away\r\n\r\nI am away');
    for (let n = 0; n < 3; n += 1) await mailTo(sent.bounceAddress, complaint(returned(sent.bounceAddress)));
    assert.deepEqual(await eventsOf(sent), ['message.sent', 'message.delivered', 'message.complained']);
    assert.equal(await isSuppressed(sent), true);
    assert.deepEqual((await keptOf(sent)).slice(19), ['unknown', 'complained']);
  });

  test('to an identity counts where it returns a valid token, and is shown as a message', async () => {
    const sent = await deliver();
    const before = await countMessages();
    const address = `abuse@${sender}`;
    await direct.add(address);
    await mailTo(address, complaint(returned(sent.bounceAddress)));
    assert.equal(await countMessages(), before + 1);
    assert.deepEqual(await eventsOf(sent), ['message.sent', 'message.delivered', 'message.complained']);
    assert.equal(await isSuppressed(sent), true);
    const { body } = await call('GET', '/messages?direction=incoming&limit=1');
    const shown = await findMessage(body[0].id);
    assert.equal(shown.report.type, 'feedback');
  });

  test('without a valid token it changes nothing', async () => {
    const sent = await deliver();
    const forged = sent.bounceAddress.replace(/.@/, (end) => (end === 'a@' ? 'b@' : 'a@'));
    for (const raw of [
      complaint(returned(forged)),
      complaint(`Content-Type: message/rfc822\r\n\r\nMessage-ID: ${sent.messageId}\r\n\r\nx`),
      complaint(returned(sent.bounceAddress), 'not-spam'),
    ])
      assert.equal(await mailTo(`ada@${sender}`, raw), '250 2.0.0');
    assert.deepEqual(await eventsOf(sent), ['message.sent', 'message.delivered']);
    assert.equal(await isSuppressed(sent), false);
  });
});

test('a delivery report to an identity is a message of the thread, and changes nothing', async () => {
  const sent = await deliver('sent');
  const original = `Content-Type: message/rfc822\r\n\r\nFrom: ${from}\r\nSubject: Hello\r\nMessage-ID: ${sent.messageId}\r\n\r\nx`;
  const status = lines(
    'Reporting-MTA: dns; a',
    '',
    `Final-Recipient: rfc822; ${sent.address}`,
    'Action: failed',
    'Status: 5.1.1',
  );
  assert.equal(await mailTo(`ada@${sender}`, compose(status, { returned: original })), '250 2.0.0');
  const { body } = await call('GET', '/messages?direction=incoming&limit=1', { as: user });
  const shown = await findMessage(body[0].id);
  assert.equal(shown.report.type, 'delivery-status');
  assert.deepEqual(shown.report.original, { messageId: sent.messageId, subject: 'Hello' });
  assert.equal(shown.threadId, (await findMessage(sent.id)).threadId);
  assert.equal(await statusOf(sent), 'sent');
  assert.equal(await isSuppressed(sent), false);
});
