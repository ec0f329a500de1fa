/**
 * The mail log: one line for each message that is accepted, refused or put off, and one for the end of each delivery. A stranger
 * cannot fill the disk with it.
 */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { makeLog } from '../src/lib/log.ts';
import { MailLog } from '../src/receiving/mail-log.ts';
import { startTestService, type TestService, waitFor } from './harness.ts';
import { answer, startReceiver } from './receiver.ts';
import { connectSmtp, toWire } from './smtp-client.ts';

const receiver = await startReceiver();
const service = await startTestService({
  POSTHORN_MAX_MESSAGE_BYTES: '2048',
  POSTHORN_SMTP_MAX_RECIPIENTS: '2',
  POSTHORN_SMTP_MAX_CONNECTIONS: '20',
  POSTHORN_RETRY_SCHEDULE: '0',
});
const strict = await startTestService({ POSTHORN_ACCEPT_UNVERIFIED: 'false' });
after(() => receiver.close());

async function addIdentity(value: string, at: TestService = service): Promise<string> {
  const { status, body, text } = await at.call('POST', '/identities', { body: { value } });
  assert.equal(status, 201, text);
  return body.id;
}

/** The lines of the mail log that match these fields. */
function linesWith(fields: Record<string, unknown>, at: TestService = service) {
  return at.logged.filter((line) => Object.entries(fields).every(([name, value]) => line[name] === value));
}

const found = <Line>(lines: Line[], count: number) => (lines.length >= count ? lines : null);

const message = (subject: string, size = 100) =>
  toWire(`From: ada@sender.example\r\nSubject: ${subject}\r\n\r\n${'x'.repeat(size)}\r\n`);

async function refuse(address: string, at: TestService = service) {
  const client = await connectSmtp(at.smtpPort);
  const reply = await client.envelope('ada@sender.example', address);
  client.close();
  const [line] = await waitFor('the line', () =>
    found(
      at.logged.filter(({ recipients }) => JSON.stringify(recipients) === `["${address}"]`),
      1,
    ),
  );
  return { status: reply.status, line };
}

describe('mail', () => {
  test('accepted by SMTP: one line with who sent it to whom, and the id of the message', async () => {
    const identityId = await addIdentity('log@taken.example');
    const client = await connectSmtp(service.smtpPort);
    await client.envelope('ada@sender.example', 'log@taken.example');
    const taken = await client.data(message('taken'));
    client.close();
    const messageId = /Accepted as (\S+)/.exec(taken.full)?.[1];
    const [line, ...more] = linesWith({ messageId });
    assert.deepEqual(more, []);
    const { level, msg, source, outcome, mailFrom, recipients, remoteIp, size } = line ?? {};
    assert.deepEqual([level, msg], ['info', 'message accepted']);
    assert.deepEqual([source, outcome, line?.identityId], ['smtp', 'recorded', identityId]);
    assert.deepEqual([mailFrom, recipients], ['ada@sender.example', ['log@taken.example']]);
    assert.deepEqual([remoteIp, typeof size], ['127.0.0.1', 'number']);
  });

  test('accepted by the API: the line has the id of the request', async () => {
    await addIdentity('log@api.example');
    const accepted = await service.call('POST', '/inbound?recipient=log@api.example', {
      body: 'Subject: x\r\n\r\n',
      headers: { 'content-type': 'message/rfc822', 'x-request-id': 'log-1' },
    });
    const [messageId] = accepted.body.messageIds;
    assert.deepEqual(
      linesWith({ requestId: 'log-1', messageId }).map(({ source, msg }) => [source, msg]),
      [['api', 'message accepted']],
    );
  });

  test('refused by the API: the line has the reason and the id of the request', async () => {
    const ask = (recipient: string, requestId: string, body = 'Subject: x\r\n\r\n') =>
      service.call('POST', `/inbound?recipient=${recipient}`, {
        body,
        headers: { 'content-type': 'message/rfc822', 'x-request-id': requestId },
      });
    assert.equal((await ask('nobody@api.example', 'log-2')).status, 400);
    assert.equal((await ask('log@api.example', 'log-3', 'x'.repeat(3000))).status, 413);
    const told = ['log-2', 'log-3'].map((requestId) =>
      linesWith({ requestId, msg: 'message refused' }).map(({ reason, status }) => [reason, status]),
    );
    assert.deepEqual(told, [[['unknown_recipient', 400]], [['body_too_large', 413]]]);
  });

  test('refused: unknown and unverified get the same reply, and the log tells them apart', async () => {
    const unknown = await refuse('nobody@unknown.example', strict);
    await addIdentity('log@unverified.example', strict);
    const unverified = await refuse('log@unverified.example', strict);
    assert.deepEqual([unknown.status, unverified.status], [550, 550]);
    assert.deepEqual([unknown.line?.reason, unverified.line?.reason], ['unknown', 'unverified']);
    assert.deepEqual([unknown.line?.msg, unknown.line?.level], ['message refused', 'info']);
    assert.deepEqual([unknown.line?.status, unknown.line?.mailFrom], [550, 'ada@sender.example']);
  });

  test('refused because it is too big, also by the SIZE that was announced', async () => {
    await addIdentity('log@big.example');
    const client = await connectSmtp(service.smtpPort);
    await client.envelope('big@sender.example', 'log@big.example');
    assert.equal((await client.data(message('big', 3000))).status, 552);
    assert.equal((await client.command('MAIL FROM:<size@sender.example> SIZE=99999')).status, 552);
    client.close();
    const told = linesWith({ reason: 'too_big' }).map(({ mailFrom, recipients }) => [mailFrom, recipients]);
    assert.deepEqual(told, [
      ['big@sender.example', ['log@big.example']],
      [undefined, undefined],
    ]);
  });

  test('refused because it is in a loop: more than 50 Received fields; the API takes it', async () => {
    await addIdentity('log@loop.example');
    const write = (count: number, rest = '') =>
      `${'Received: x\r\n'.repeat(count)}Subject: ${count}\r\n${rest}\r\nReceived: x\r\n`;
    const client = await connectSmtp(service.smtpPort);
    const send = async (raw: string) => {
      await client.envelope('loop@sender.example', 'log@loop.example');
      return (await client.data(toWire(raw))).full;
    };
    assert.match(await send(write(50, 'Received-SPF: x\r\nX-Received: x\r\n received: x\r\n')), /^250 /);
    const refused = /^554 5\.4\.6 Too many Received fields/;
    assert.match(await send(write(51)), refused);
    assert.match(await send(write(50, 'RECEIVED\t:\r\n x\r\n')), refused);
    client.close();
    const told = linesWith({ reason: 'loop' }).map(({ msg, status, mailFrom, recipients }) => [
      ...[msg, status, mailFrom],
      recipients,
    ]);
    const line = ['message refused', 554, 'loop@sender.example', ['log@loop.example']];
    assert.deepEqual(told, [line, line]);
    const headers = { 'content-type': 'message/rfc822' };
    const taken = await service.call('POST', '/inbound?recipient=log@loop.example', {
      body: write(51),
      headers,
    });
    assert.equal(taken.status, 202, taken.text);
    const { body } = await service.call('GET', '/messages');
    assert.deepEqual(
      body
        .map(({ subject }: { subject: string }) => subject)
        .filter((subject: string) => /^5\d$/.test(subject)),
      ['51', '50'],
    );
  });

  test('put off: over the limit of recipients, or of connections', async () => {
    for (const one of ['a', 'b', 'c']) await addIdentity(`${one}@many.example`);
    const client = await connectSmtp(service.smtpPort);
    const all = ['a', 'b', 'c'].map((one) => `${one}@many.example`);
    assert.equal((await client.envelope('ada@sender.example', ...all)).status, 452);
    const opening = Array.from({ length: 20 }, () => connectSmtp(service.smtpPort));
    const opened = await Promise.allSettled(opening);
    assert.ok(opened.some(({ status }) => status === 'rejected'));
    for (const one of opened) if (one.status === 'fulfilled') one.value.close();
    client.close();
    const [limit] = linesWith({ reason: 'too_many_recipients' });
    assert.deepEqual([limit?.msg, limit?.level, limit?.status], ['message put off', 'warn', 452]);
    assert.deepEqual(limit?.recipients, ['c@many.example']);
    assert.equal(linesWith({ reason: 'too_many_connections' })[0]?.status, 421);
  });

  test('a connection that is refused again and again gets three lines, and one with the sums', async () => {
    const client = await connectSmtp(strict.smtpPort);
    const many = Array.from({ length: 12 }, (_, n) => `guess${n}@flood.example`);
    await client.envelope('flood@sender.example', ...many);
    client.close();
    const [sum] = await waitFor('the sums', () =>
      found(
        strict.logged.filter(({ refusals }) => refusals !== undefined),
        1,
      ),
    );
    assert.deepEqual(sum?.refusals, { unknown: 9 });
    assert.equal(sum?.remoteIp, '127.0.0.1');
    assert.equal(strict.logged.filter(({ mailFrom }) => mailFrom === 'flood@sender.example').length, 3);
  });
});

describe('deliveries', () => {
  const about = (eventId: string) => service.logged.filter((line) => line.eventId === eventId);

  test('delivered: one line at the end', async () => {
    const webhook = await service.makeWebhook(receiver.url('/delivered'));
    const eventId = await service.makeEvent();
    const { id } = await service.findDelivery(eventId, webhook);
    const [line, ...more] = await waitFor('the line', () => found(about(eventId), 1));
    assert.deepEqual(more, []);
    assert.deepEqual([line?.level, line?.msg, line?.deliveryId], ['info', 'delivered', id]);
    assert.deepEqual([line?.webhookId, line?.tries, line?.status], [webhook.id, 1, 204]);
    await service.call('DELETE', `/webhooks/${webhook.id}`);
  });

  test('given up: a line for the try that will be repeated, and a line for the end', async () => {
    receiver.behaveAt('/given-up', answer(500));
    const webhook = await service.makeWebhook(receiver.url('/given-up'));
    const eventId = await service.makeEvent();
    await service.findDelivery(eventId, webhook);
    const lines = await waitFor('both lines', () => found(about(eventId), 2));
    assert.deepEqual(
      lines.map(({ level, tries, error }) => [level, tries, error]),
      [
        ['warn', 1, 'http_error'],
        ['warn', 2, 'http_error'],
      ],
    );
    assert.match(String(lines[0]?.msg), /^delivery failed: status 500; retry in 0 s$/);
    assert.match(String(lines[1]?.msg), /^delivery given up: status 500$/);
    await service.call('DELETE', `/webhooks/${webhook.id}`);
  });
});

describe('the bound', () => {
  function makeMailLog(now: () => number) {
    const lines: Record<string, unknown>[] = [];
    const stream = { write: (line: string) => lines.push(JSON.parse(line)) };
    const log = makeLog({ level: 'info', json: true, stream });
    return { lines, mailLog: new MailLog(log, { burst: 10, perSecond: 1 }, now) };
  }

  test('a million refusals on as many connections are a few lines, and their sums', () => {
    let nowMs = 0;
    const { lines, mailLog } = makeMailLog(() => nowMs);
    for (let n = 0; n < 1_000_000; n += 1) {
      const connection = mailLog.openConnection('192.0.2.1', 'smtp');
      connection.refused({ reason: n % 2 ? 'unknown' : 'too_big', status: 550 });
      connection.end();
    }
    mailLog.stop();
    assert.equal(lines.length, 11);
    assert.deepEqual(lines.at(-1)?.refusals, { too_big: 499_995, unknown: 499_995 });
    nowMs += 3000;
    for (let n = 0; n < 5; n += 1)
      mailLog.openConnection('192.0.2.1', 'smtp').refused({ reason: 'unknown', status: 550 });
    assert.equal(lines.length, 14, 'one more line for each second');
    mailLog.stop();
  });
});
