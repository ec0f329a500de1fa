/** Sending by capture, from the request to the events: nothing leaves the machine. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { assertProblem, startTestService } from './harness.ts';
import { openOutbox } from './outbox.ts';
import { startReceiver } from './receiver.ts';

const service = await startTestService({
  POSTHORN_SEND_SCHEDULE: '3600',
  POSTHORN_MAX_MESSAGE_BYTES: '400000',
});
const { user, call } = service;

const { makeIdentity, findEnded, ...outbox } = openOutbox(service);
const identityId = await makeIdentity('ada@sender.example');
const plain = { identityId, to: 'bob@dest.example', subject: 'Hello', text: 'How are you?' };

const send = (change: Record<string, unknown> = {}) => outbox.send({ ...plain, ...change });

test('a message is taken, captured, and counts as sent and delivered', async () => {
  const receiver = await startReceiver();
  after(() => receiver.close());
  const events = ['message.sent', 'message.delivered', 'message.bounced'];
  await service.makeWebhook(receiver.url(), { events });
  const before = Date.now();
  const answer = await call('POST', '/messages', { body: { ...plain, metadata: { order: '7' } } });
  const taken = answer.body;
  assert.equal(answer.status, 202, answer.text);
  assert.equal(answer.headers.get('location'), `/messages/${taken.id}`);
  const receivedAt = Date.parse(taken.receivedAt);
  assert.ok(receivedAt >= before && receivedAt <= Date.now(), taken.receivedAt);
  assert.equal(taken.direction, 'outgoing');
  assert.equal(taken.sending.status, 'queued');
  assert.equal(taken.sending.recipients[0].status, 'queued');
  const { sending, ...message } = await findEnded(taken.id);
  const { sending: _, ...atFirst } = taken;
  assert.deepEqual({ ...message, attachments: [] }, { ...atFirst, attachments: [] });
  const [recipient] = sending.recipients;
  assert.deepEqual(
    { ...sending, recipients: [{ ...recipient, updatedAt: 'then' }] },
    {
      status: 'delivered',
      sendAt: null,
      metadata: { order: '7' },
      transport: 'capture',
      recipients: [
        {
          address: 'bob@dest.example',
          kind: 'to',
          status: 'delivered',
          attemptCount: 1,
          nextAttemptAt: null,
          lastResponse: { code: 250, enhanced: '2.0.0', text: 'Captured; nothing was sent' },
          updatedAt: 'then',
        },
      ],
    },
  );
  assert.equal(message.source, 'api');
  assert.equal(message.mailbox.kind, 'sent');
  assert.equal(message.authentication, null);
  assert.equal(message.recipient, null);
  assert.deepEqual(message.envelope.rcptTo, ['bob@dest.example']);
  const posted = await receiver.received(2);
  const bodies = posted.map(({ body }) => JSON.parse(body.toString()));
  assert.deepEqual(bodies.map(({ event }) => event).sort(), ['message.delivered', 'message.sent']);
  for (const { data } of bodies) {
    assert.equal(data.message.id, taken.id);
    assert.equal(data.message.sending.metadata.order, '7');
    assert.equal(data.recipient.address, 'bob@dest.example');
    assert.equal(data.recipient.bounce, null);
    assert.equal('text' in data.message, false);
  }
  const { body: listed } = await call('GET', '/messages?limit=1');
  const happened = await outbox.events(taken.id);
  assert.deepEqual(
    happened.map(({ event, data }) => [event, data.recipient.status]),
    [
      ['message.sent', 'sent'],
      ['message.delivered', 'delivered'],
    ],
  );
  const { at, ...told } = happened[1]?.data.recipient ?? {};
  assert.match(at, /^\d{4}-.*Z$/);
  assert.deepEqual(told, {
    ...{ address: 'bob@dest.example', kind: 'to', status: 'delivered', host: 'capture' },
    ...{ response: { code: 250, enhanced: '2.0.0', text: 'Captured; nothing was sent' }, bounce: null },
  });
  assert.deepEqual(happened[1]?.data.message, listed[0], 'the message as lists show it');
});

function errorsOf(answer: Awaited<ReturnType<typeof call>>): string[] {
  const { errors = [] } = assertProblem(answer, 400, 'invalid_body');
  return errors.map(({ pointer, code }) => `${pointer} ${code}`).sort();
}

async function refuse(change: Record<string, unknown>): Promise<string[]> {
  return errorsOf(await call('POST', '/messages', { body: { ...plain, ...change } }));
}

async function countStored(): Promise<number> {
  const [row] = await service.sql`select count(*)::int as count from messages where direction = 'outgoing'`;
  return row?.count;
}

async function readRaw(id: string): Promise<string> {
  const { status, text } = await call('GET', `/messages/${id}/raw`);
  assert.equal(status, 200, text);
  return text;
}

test('without a usable identityId the answer says where to find one', async () => {
  const where = /Take the `id` from GET \/identities\./;
  for (const identityId of [undefined, 'x', 7]) {
    const answer = await call('POST', '/messages', { body: { ...plain, identityId } });
    assert.match(assertProblem(answer, 400, 'invalid_body').errors?.[0]?.message ?? '', where);
  }
  const headers = { 'content-type': 'message/rfc822' };
  const raw = await call('POST', '/messages', { body: 'Subject: x\r\n\r\nx', headers });
  assert.match(assertProblem(raw, 400, 'invalid_query').errors?.[0]?.message ?? '', where);
});

describe('a request that is refused stores nothing', () => {
  test('every field and its faults, all told at once', async () => {
    const before = await countStored();
    const inject = 'a\r\nBcc: eve@evil.example';
    const cases = [
      [{ to: undefined }, ['/to required']],
      [{ to: [] }, ['/to required']],
      [{ to: 'bob' }, ['/to invalid_value']],
      [{ to: ['bob@dest.example', { address: 'no' }] }, ['/to/1/address invalid_value']],
      [{ cc: 5 }, ['/cc wrong_type']],
      [{ subject: undefined }, ['/subject required']],
      [{ text: undefined }, ['/text required']],
      [{ text: 7 }, ['/text wrong_type']],
      [{ from: 'eve@evil.example' }, ['/from not_allowed']],
      [{ from: { name: 'Ada', address: 'other@sender.example' } }, ['/from not_allowed']],
      [{ identityId: 'x' }, ['/identityId invalid_value']],
      [{ identityId: crypto.randomUUID() }, ['/identityId unknown_reference']],
      [
        { attachments: [{ filename: 'a.txt', content: 'not base64!' }] },
        ['/attachments/0/content invalid_value'],
      ],
      [{ sendAt: new Date(Date.now() + 31 * 86_400_000).toISOString() }, ['/sendAt too_late']],
      [{ sendAt: 'tomorrow' }, ['/sendAt invalid_value']],
      [{ metadata: { a: 'x'.repeat(2100) } }, ['/metadata too_long']],
      [{ metadata: { a: 1 } }, ['/metadata/a wrong_type']],
      [{ inReplyTo: 'nonsense' }, ['/inReplyTo not_found']],
      [{ inReplyTo: crypto.randomUUID() }, ['/inReplyTo not_found']],
      [{ inReplyTo: '<nobody@nowhere.example>' }, ['/inReplyTo not_found']],
      [{ subjekt: 'a' }, ['/subjekt unknown_field']],
      [{ to: Array.from({ length: 51 }, (_, n) => `r${n}@dest.example`) }, [' too_long']],
      [{ from: { name: inject, address: 'ada@sender.example' } }, ['/from/name invalid_value']],
      [{ from: `${inject} <ada@sender.example>` }, ['/from invalid_value']],
      ...['to', 'cc', 'bcc', 'replyTo'].flatMap((field): [object, string[]][] => [
        [{ [field]: `${inject} <bob@dest.example>` }, [`/${field} invalid_value`]],
        [{ [field]: [{ name: inject, address: 'bob@dest.example' }] }, [`/${field}/0/name invalid_value`]],
        [{ [field]: [{ address: `bob@dest.example\nX: y` }] }, [`/${field}/0/address invalid_value`]],
      ]),
      [{ subject: inject }, ['/subject invalid_value']],
      [{ subject: 'a\nb' }, ['/subject invalid_value']],
      [{ headers: { 'X-A': inject } }, ['/headers/X-A invalid_value']],
      [{ headers: { 'X-A: b\r\nBcc': 'x' } }, ['/headers/X-A: b\r\nBcc invalid_value']],
      [
        { attachments: [{ filename: inject, content: 'AA==', contentType: inject, contentId: inject }] },
        ['contentId', 'contentType', 'filename'].map((key) => `/attachments/0/${key} invalid_value`),
      ],
      [{ inReplyTo: '<a@b>\r\nBcc: eve@evil.example' }, ['/inReplyTo not_found']],
      [
        { to: 'x', subject: 'a\nb', metadata: { a: 1 }, from: 'no' },
        ['/from invalid_value', '/metadata/a wrong_type', '/subject invalid_value', '/to invalid_value'],
      ],
    ] as [Record<string, unknown>, string[]][];
    const found: typeof cases = [];
    for (const [change] of cases) found.push([change, await refuse(change)]);
    assert.deepEqual(found, cases);
    assert.equal(await countStored(), before);
  });

  test('header fields that the service writes are refused by name, others are sent', async () => {
    const own = [
      ...['From', 'to', 'CC', 'bcc', 'Reply-To', 'subject', 'Sender', 'Date', 'Message-ID', 'References'],
      ...['In-Reply-To', 'Received', 'Return-Path', 'Resent-To', 'DKIM-Signature', 'ARC-Seal'],
      ...['Content-Type', 'content-x', 'MIME-Version'],
    ];
    const headers = Object.fromEntries(own.map((name) => [name, 'x']));
    assert.deepEqual(await refuse({ headers }), own.map((name) => `/headers/${name} invalid_value`).sort());
    const { id } = await send({ headers: { 'List-Unsubscribe': '<https://sender.example/u>' } });
    assert.match(await readRaw(id), /^List-Unsubscribe: <https:\/\/sender\.example\/u>\r$/m);
  });

  test('a message that is too large is 413, as JSON and as finished message', async () => {
    const content = Buffer.alloc(300_000).toString('base64');
    const body = { ...plain, attachments: [{ filename: 'a', content }] };
    assertProblem(await call('POST', '/messages', { body }), 413, 'body_too_large');
    const raw = `From: ada@sender.example\r\nTo: b@c.example\r\n\r\n${'x\r\n'.repeat(150_000)}`;
    assertProblem(await sendRaw(raw), 413, 'body_too_large');
    // Within the limit as it is given, but not when it is finished: a bare LF becomes CRLF.
    const grows = `From: ada@sender.example\r\nTo: b@c.example\r\n\r\n${'\n'.repeat(200_000)}`;
    assertProblem(await sendRaw(grows), 413, 'body_too_large');
  });

  test('a JSON body has up to 1.4 times the limit of a message, and 1 MiB', async () => {
    // Six bytes of JSON for one of the message.
    const escaped = (count: number) =>
      JSON.stringify({ ...plain, text: '' }).replace('"text":""', `"text":"${'\\u0061'.repeat(count)}"`);
    const headers = { 'content-type': 'application/json' };
    const taken = await call('POST', '/messages', { body: escaped(260_000), headers });
    assert.equal(taken.status, 202, taken.text);
    assert.ok(taken.body.size < 400_000);
    const { detail } = assertProblem(
      await call('POST', '/messages', { body: escaped(270_000), headers }),
      413,
      'body_too_large',
    );
    assert.match(detail, /The body of this route can have up to/);
  });

  test('sendAt may be 30 days ahead, in any time zone, and must exist', async () => {
    const limit = Date.now() + 30 * 86_400_000;
    const sendAt = new Date(limit - 60_000).toISOString();
    assert.equal((await send({ sendAt })).sending.sendAt, sendAt);
    // The same moment, as a clock two hours ahead shows it.
    const elsewhere = new Date(limit - 60_000 + 7_200_000).toISOString().replace('Z', '+02:00');
    assert.equal((await send({ sendAt: elsewhere })).sending.sendAt, sendAt);
    // An hour is more than a test takes: the limit moves on with the clock.
    for (const late of [new Date(limit + 3_600_000).toISOString(), '9999-12-31T23:59:59Z'])
      assert.deepEqual(await refuse({ sendAt: late }), ['/sendAt too_late']);
    for (const wrong of ['2026-02-30T00:00:00Z', '2026-13-01T00:00:00Z', '2026-01-01', ''])
      assert.deepEqual(await refuse({ sendAt: wrong }), ['/sendAt invalid_value'], wrong);
    assert.deepEqual(await refuse({ sendAt: 1_900_000_000 }), ['/sendAt wrong_type']);
    for (const past of ['0001-01-01T00:00:00Z', '0000-01-01T00:00:00Z', '-271821-04-20T00:00:00Z']) {
      const answer = await call('POST', '/messages', { body: { ...plain, sendAt: past } });
      assert.ok([202, 400].includes(answer.status), `${past}: ${answer.text}`);
    }
  });

  test('the identity of another owner, and its messages, do not exist', async () => {
    const other = await service.makeUser();
    const theirs = await makeIdentity('eve@elsewhere.example', { as: other });
    assert.deepEqual(await refuse({ identityId: theirs }), ['/identityId unknown_reference']);
    assertProblem(
      await sendRaw('From: eve@elsewhere.example\r\nTo: b@c.example\r\n\r\nx', theirs),
      400,
      'invalid_body',
    );
    const { id, messageId } = await send();
    const own = { ...plain, identityId: theirs };
    for (const inReplyTo of [id, messageId]) {
      const answer = await call('POST', '/messages', { as: other, body: { ...own, inReplyTo } });
      assert.deepEqual(errorsOf(answer), ['/inReplyTo not_found']);
    }
    for (const path of ['', '/raw', '/attempts'])
      assertProblem(await call('GET', `/messages/${id}${path}`, { as: other }), 404, 'not_found');
    assertProblem(await call('POST', `/messages/${id}/cancel`, { as: other }), 404, 'not_found');
  });
});

async function sendRaw(raw: string, identity = identityId, query = '') {
  return call('POST', `/messages?identity_id=${identity}${query}`, {
    body: Buffer.from(raw, 'latin1'),
    headers: { 'content-type': 'message/rfc822' },
  });
}

describe('what is sent', () => {
  test('recipients are merged over all lists, and only Bcc stays hidden', async () => {
    const message = await send({
      from: { name: 'Ada "the first" Lovelace, Ünï', address: 'ADA@sender.example' },
      to: ['Bob <bob@dest.example>', { name: null, address: 'BOB@dest.example' }],
      cc: 'bob@DEST.example, carol@dest.example',
      bcc: ['dan@dest.example', 'Carol <carol@dest.example>'],
      replyTo: 'office@sender.example',
      attachments: [{ filename: 'a.txt', content: 'aGk=', contentType: 'text/plain' }],
    });
    assert.deepEqual(
      message.sending.recipients.map(({ address, kind }: { address: string; kind: string }) => [
        kind,
        address,
      ]),
      [
        ['to', 'bob@dest.example'],
        ['cc', 'carol@dest.example'],
        ['bcc', 'dan@dest.example'],
      ],
    );
    assert.deepEqual(message.envelope, {
      ...{ mailFrom: null, rcptTo: ['bob@dest.example', 'carol@dest.example', 'dan@dest.example'] },
      ...{ remoteIp: null, helo: null, tls: null },
    });
    assert.equal(message.from.name, 'Ada "the first" Lovelace, Ünï');
    assert.deepEqual(message.bcc, [{ name: null, address: 'dan@dest.example' }]);
    assert.deepEqual(message.replyTo, [{ name: null, address: 'office@sender.example' }]);
    const raw = await readRaw(message.id);
    assert.doesNotMatch(raw, /dan@dest|^bcc/im);
    const link = await call('GET', `/messages/${message.id}/attachments/0`);
    assert.equal(link.text, 'hi');
  });

  test('fifty recipients are allowed', async () => {
    const to = Array.from({ length: 50 }, (_, n) => `r${n}@dest.example`);
    const { id } = await send({ to: [...to, ...to] });
    const { sending } = await findEnded(id);
    assert.equal(sending.recipients.length, 50);
    assert.equal(sending.status, 'delivered');
  });

  test('HTML without text gets a text', async () => {
    const { html, text } = await send({ text: undefined, html: '<p>Hello <b>Bob</b></p>' });
    assert.match(html, /<b>Bob<\/b>/);
    assert.match(text, /Hello Bob/);
  });

  test('a domain identity sends from any address of its domain, and needs to know which', async () => {
    const domain = await makeIdentity('wide.example');
    const own = { identityId: domain };
    assert.deepEqual(await refuse(own), ['/from required']);
    assert.deepEqual(await refuse({ ...own, from: 'a@sub.wide.example' }), ['/from not_allowed']);
    assert.deepEqual(await refuse({ ...own, from: 'a@sender.example' }), ['/from not_allowed']);
    const { from } = await send({ ...own, from: 'Shop <shop@WIDE.example>' });
    assert.deepEqual(from, { name: 'Shop', address: 'shop@wide.example' });
  });

  test('a finished message: From and Sender, Date, Message-ID, Bcc, line ends, the rest byte for byte', async () => {
    const given =
      'From: ada@sender.example\nTo: b@c.example\nBcc: d@c.example\nX-Odd:  \tkept \r\n\r\nline\nbare\rcr\r\nend \xe9';
    const answer = await sendRaw(given);
    assert.equal(answer.status, 202, answer.text);
    const response = await fetch(`${service.url}/messages/${answer.body.id}/raw`, {
      headers: { authorization: `Bearer ${user.apiKey}` },
    });
    const raw = Buffer.from(await response.arrayBuffer()).toString('latin1');
    const [head = '', body] = raw.split('\r\n\r\n');
    const lines = head.split('\r\n');
    assert.deepEqual(lines.slice(0, 3), ['From: ada@sender.example', 'To: b@c.example', 'X-Odd:  \tkept ']);
    assert.match(lines.slice(3).join('\n'), /^Date: .* \+0000\nMessage-ID: <.+@sender\.example>$/);
    assert.equal(body, 'line\r\nbare\r\ncr\r\nend \xe9\r\n');
    assert.deepEqual(answer.body.envelope.rcptTo, ['b@c.example', 'd@c.example']);
    assert.deepEqual(answer.body.bcc, [{ name: null, address: 'd@c.example' }]);
    const own = await sendRaw(given, identityId, '&recipient=x@y.example&recipient=B@c.example');
    assert.deepEqual(
      own.body.sending.recipients.map(
        ({ address, kind }: { address: string; kind: string }) => `${kind} ${address}`,
      ),
      ['to B@c.example', 'bcc x@y.example'],
    );
    for (const head of [
      'From: eve@evil.example',
      'From: ada@sender.example, eve@evil.example',
      'From: ada@sender.example\nSender: eve@evil.example',
      'From: ada@sender.example\nFrom: eve@evil.example',
      'Subject: no author',
    ])
      assertProblem(await sendRaw(`${head}\nTo: b@c.example\n\nx`), 400, 'invalid_body');
    assertProblem(await sendRaw('From: ada@sender.example\n\nx'), 400, 'invalid_body');
    assertProblem(await sendRaw(given, identityId, '&recipient=no'), 400, 'invalid_query');
    const many = Array.from({ length: 51 }, (_, n) => `&recipient=r${n}@c.example`).join('');
    assertProblem(await sendRaw(given, identityId, many), 400, 'invalid_body');
    const headers = { 'content-type': 'message/rfc822' };
    assertProblem(await call('POST', '/messages', { body: given, headers }), 400, 'invalid_query');
    const query = await call('POST', `/messages?identity_id=${identityId}`, { body: plain });
    assertProblem(query, 400, 'invalid_query');
    const text = { 'content-type': 'text/plain' };
    assertProblem(
      await call('POST', '/messages', { body: 'x', headers: text }),
      415,
      'unsupported_media_type',
    );
  });
});
