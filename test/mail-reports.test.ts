/** A report that reaches an identity: what is shown of it, and which thread it joins. Mail of older versions has `report` too. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { packContent, unpackContent } from '../src/store/content.ts';
import { startDns } from './dns.ts';
import { startTestService } from './harness.ts';
import { startReceiver } from './receiver.ts';
import { compose, failed, lines, returnedMessage, simple } from './report-messages.ts';
import { connectSmtp, toWire } from './smtp-client.ts';

const dns = await startDns();
const service = await startTestService({ POSTHORN_DNS_SERVERS: dns.address });
const { call, sql } = service;
const receiver = await startReceiver();
after(async () => {
  await receiver.close();
  await dns.close();
});

interface Identity {
  id: string;
  value: string;
}

async function makeIdentity(): Promise<Identity> {
  const value = `a${randomBytes(5).toString('hex')}@report.example`;
  const answer = await call('POST', '/identities', { body: { value } });
  assert.equal(answer.status, 201, answer.text);
  return answer.body;
}

async function arrive({ value }: Identity, raw: Buffer | string) {
  const headers = { 'content-type': 'message/rfc822' };
  const taken = await call('POST', `/inbound?recipient=${value}`, { body: raw, headers });
  assert.equal(taken.status, 202, taken.text);
  return (await call('GET', `/messages/${taken.body.messageIds[0]}`)).body;
}

async function arriveBySmtp({ value }: Identity, from: string, raw: Buffer | string) {
  const client = await connectSmtp(service.smtpPort);
  await client.envelope(from, value);
  const taken = await client.data(toWire(raw));
  client.close();
  assert.equal(taken.status, 250, taken.full);
  return (await call('GET', `/messages/${taken.lines[0]?.split(' ').at(-1)}`)).body;
}

const message = (id: string, header = '') => `Message-ID: <${id}>\r\n${header}\r\nHello\r\n`;
const original = message('one@sender.example');

describe('what is shown', () => {
  test('of a delivery status notification', async () => {
    assert.deepEqual((await arrive(await makeIdentity(), compose(failed))).report, simple);
  });

  test('of a complaint and of a read receipt', async () => {
    const to = await makeIdentity();
    const feedback = lines('Feedback-Type: abuse', 'Original-Rcpt-To: <grace@dest.example>');
    const complaint = await arrive(to, compose(feedback, { type: 'message/feedback-report' }));
    const { original, recipients } = simple;
    const nothing = { status: null, diagnostic: null, remoteMta: null };
    const { address } = recipients[0] ?? {};
    assert.deepEqual(complaint.report, {
      type: 'feedback',
      original,
      recipients: [{ address, action: 'abuse', ...nothing }],
    });
    const disposition = lines(
      'Final-Recipient: rfc822; grace@dest.example',
      'Original-Message-ID: <one@sender.example>',
      'Disposition: manual-action/MDN-sent-manually; displayed',
    );
    const type = 'message/disposition-notification';
    const receipt = await arrive(to, compose(disposition, { type, returned: '\r\n' }));
    assert.deepEqual(receipt.report, {
      type: 'disposition',
      original: { messageId: '<one@sender.example>', subject: null },
      recipients: [{ address, action: 'displayed', ...nothing }],
    });
  });

  test('in a list: texts are cut to 1 KiB', async () => {
    const to = await makeIdentity();
    const status = lines('Final-Recipient: rfc822; a@b.example', `Diagnostic-Code: ${'é'.repeat(900)}`);
    const whole = (await arrive(to, compose(status))).report;
    assert.equal(whole.recipients[0].diagnostic, 'é'.repeat(900));
    const [{ report }] = (await call('GET', `/messages?identity_id=${to.id}`)).body;
    assert.equal(report.recipients[0].diagnostic, 'é'.repeat(512));
  });
});

describe('a report is in the thread of the message that it is about', () => {
  test('found by the Message-ID that it returns', async () => {
    const to = await makeIdentity();
    const { threadId } = await arrive(to, original);
    assert.equal((await arrive(to, compose(failed))).threadId, threadId);
  });

  test('found by the Message-ID that it names', async () => {
    const to = await makeIdentity();
    const { threadId } = await arrive(to, original);
    const status = lines('Final-Recipient: rfc822; a@b.example', 'Original-Message-ID: <one@sender.example>');
    const receipt = compose(status, { type: 'message/disposition-notification', returned: '\r\n' });
    assert.equal((await arrive(to, receipt)).threadId, threadId);
  });

  test('found by what the returned message answers, if the message itself is not stored', async () => {
    const to = await makeIdentity();
    const { threadId } = await arrive(to, message('before@x'));
    for (const field of ['References: <root@x> <before@x>', 'In-Reply-To: <before@x>']) {
      const returned = `Content-Type: text/rfc822-headers\r\n\r\nMessage-ID: <reply@x>\r\n${field}\r\n`;
      assert.equal((await arrive(to, compose(failed, { returned }))).threadId, threadId, field);
    }
  });

  test('also if the message arrives after it', async () => {
    const to = await makeIdentity();
    const { threadId } = await arrive(to, compose(failed));
    assert.equal((await arrive(to, original)).threadId, threadId);
  });

  test('but not of a message of another identity', async () => {
    const { threadId } = await arrive(await makeIdentity(), original);
    assert.notEqual((await arrive(await makeIdentity(), compose(failed))).threadId, threadId);
  });
});

describe('a message without the structured part is no report', () => {
  const bounce = (header = '') =>
    [
      `Subject: returned mail\r\n${header}Content-Type: multipart/mixed; boundary=b\r\n`,
      '--b\r\n\r\n550 5.1.1 <grace@dest.example>: No such user\r\n--b',
      `${returnedMessage}\r\n--b--\r\n`,
    ].join('\r\n');

  test('a bounce, which has no sender, joins the thread of the message that it returns', async () => {
    const to = await makeIdentity();
    const { threadId } = await arrive(to, original);
    const { report, ...got } = await arriveBySmtp(to, '', bounce());
    assert.deepEqual([report, got.threadId], [null, threadId]);
  });

  test('so does an automatic reply, also by the API, which knows no sender', async () => {
    const to = await makeIdentity();
    const { threadId } = await arrive(to, original);
    const { report, ...got } = await arrive(to, bounce('Auto-Submitted: auto-replied\r\n'));
    assert.deepEqual([report, got.threadId], [null, threadId]);
  });

  test('a message that a person forwards begins a thread', async () => {
    const to = await makeIdentity();
    const { threadId } = await arrive(to, original);
    for (const got of [await arriveBySmtp(to, 'ada@sender.example', bounce()), await arrive(to, bounce())]) {
      assert.equal(got.report, null);
      assert.notEqual(got.threadId, threadId);
    }
  });
});

test('a message that an older version stored has `report: null` wherever it is shown', async () => {
  const to = await makeIdentity();
  const since = new Date().toISOString();
  const tricky = 'Subject: "report":1,{"message":{\r\n\r\n{"message":{ "report":{} \\"report":null\r\n';
  const { id, report: _, ...rest } = await arrive(to, tricky);
  const [row] = await sql`
    select encode(content, 'base64') as content, size, summary::text as summary from messages where id = ${id}`;
  const { raw, data } = unpackContent({ content: row?.content, size: row?.size, hasRaw: true });
  const [older, summary] = [JSON.parse(data), JSON.parse(row?.summary)];
  delete older.message.report;
  delete summary.report;
  await sql`
    update messages
    set content = ${await packContent(raw, JSON.stringify(older))}, summary = ${JSON.stringify(summary)}::text::json
    where id = ${id}`;

  const shown = { id, ...rest, report: null };
  assert.deepEqual((await call('GET', `/messages/${id}`)).body, shown);
  const { text, html, headers, ...listed } = shown;
  assert.deepEqual((await call('GET', `/messages?identity_id=${to.id}`)).body, [listed]);
  const [event] = (await call('GET', `/events?identity_id=${to.id}`)).body;
  assert.deepEqual((await call('GET', `/events/${event.id}`)).body.data.message, shown);

  const webhook = await service.makeWebhook(receiver.url(), { identityId: to.id });
  const replay = await call('POST', `/webhooks/${webhook.id}/replay`, { body: { since } });
  assert.equal(replay.status, 202, replay.text);
  const [request] = await receiver.received(1);
  assert.deepEqual(JSON.parse(request?.body.toString() ?? '').data.message, shown);
});
