/** A message as it is told: POSTed, as an event, by itself and in lists; every field, in the type its schema says. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { Ajv } from 'ajv';
import { startDns } from './dns.ts';
import { assertProblem, startTestService } from './harness.ts';
import { startReceiver } from './receiver.ts';
import { compose, failed } from './report-messages.ts';
import { connectSmtp, type SmtpClient, toWire } from './smtp-client.ts';

const dns = await startDns();
const service = await startTestService({ POSTHORN_DNS_SERVERS: dns.address });
const { call } = service;
const receiver = await startReceiver();
after(async () => {
  await receiver.close();
  await dns.close();
});
const { body: identity } = await call('POST', '/identities', { body: { value: 'Sales@shop.example' } });
const { body: domain } = await call('POST', '/identities', {
  body: { value: 'catch.example', incoming_domain: true },
});
await service.makeWebhook(receiver.url());

const uuid = /^[\da-f]{8}-[\da-f]{4}-[1-8][\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}$/;
const instant = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

const rich = Buffer.from(
  [
    'Received: from elsewhere',
    '\tby relay.example; Mon, 5 Jan 2026 10:00:01 +0000',
    'From: "Ada L." <ada@sender.example>',
    'Sender: secretary@sender.example',
    'Reply-To: ada+r@sender.example, Bob <bob@sender.example>',
    'To: Team: Sales <sales@shop.example>, two@shop.example;',
    'Cc: =?utf-8?q?Zo=C3=AB?= <zoe@other.example>',
    'Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=',
    'Date: Mon, 5 Jan 2026 11:00:00 +0100',
    'Message-ID: <rich@sender.example>',
    'In-Reply-To: <before@shop.example>',
    'References: <first@shop.example> <before@shop.example>',
    'Auto-Submitted: auto-replied; x=1',
    'X-Twice: one',
    'X-Twice: two',
    'MIME-Version: 1.0',
    'Content-Type: multipart/mixed; boundary=b',
    '',
    '--b',
    'Content-Type: multipart/alternative; boundary=c',
    '',
    '--c\r\nContent-Type: text/plain\r\n\r\nHow are you?\r\n--c',
    'Content-Type: text/html\r\n\r\n<p>How are <b>you</b>?</p>\r\n--c--',
    '--b',
    'Content-Type: application/pdf; name=plan.pdf',
    'Content-Disposition: attachment; filename="plan.pdf"',
    'Content-ID: <plan@sender.example>',
    'Content-Transfer-Encoding: base64',
    '',
    'JVBERi0=',
    '--b--',
    '',
  ].join('\r\n'),
);

const fixtures: [string, Buffer][] = [
  ['a rich message', rich],
  ['header and body', Buffer.from('From: a@sender.example\r\nSubject: plain\r\n\r\nHello\r\n')],
  ['one without anything', Buffer.from('\r\n')],
  ['a body alone', Buffer.from('\r\nJust text\r\n')],
  ['junk', Buffer.concat([Buffer.from(Array.from({ length: 256 }, (_, n) => n)), Buffer.from('\r\n')])],
  ['a NUL in every place', Buffer.from('From: a\0@b\r\nSubject: a\0b\r\nX-\0: \0\r\n\r\nx\0y\r\n')],
  [
    'half a pair of surrogates',
    Buffer.from(`Subject: ${'x'.repeat(199)}\u{1f4ef}\r\n\r\n${'x'.repeat(199)}\u{1f4ef}\r\n`),
  ],
  ['text over 512 KiB', Buffer.from(`Subject: long\r\n\r\n${'0123456789abcde\n'.repeat(40_000)}\r\n`)],
  ['a report', compose(failed)],
  ['a link place in its text', Buffer.from('Subject: "url":"attachment:0"\r\n\r\n"url":"attachment:0"\r\n')],
];

async function send(
  raw: Buffer,
  to: string[],
  client?: SmtpClient,
  from = 'ada@sender.example',
): Promise<string> {
  const sender = client ?? (await connectSmtp(service.smtpPort));
  const routed = await sender.envelope(from, ...to);
  assert.equal(routed.status, 250, routed.full);
  const taken = await sender.data(toWire(raw));
  sender.close();
  assert.equal(taken.status, 250, taken.full);
  return taken.lines[0]?.split(' ').at(-1) ?? '';
}

async function handIn(raw: Buffer, recipient: string): Promise<string> {
  const path = `/inbound?recipient=${encodeURIComponent(recipient)}`;
  const answer = await call('POST', path, { body: raw, headers: { 'content-type': 'message/rfc822' } });
  assert.equal(answer.status, 202, answer.text);
  return answer.body.messageIds[0];
}

/** The body that was POSTed of this message, and the id of its event. */
async function findPosted(id: string) {
  const [request] = await receiver.received(1, ({ body }) => body.includes(id));
  return { posted: JSON.parse(request?.body.toString() ?? ''), eventId: request?.headers['webhook-id'] };
}

async function readSchema() {
  const { body } = await call('GET', '/event-types');
  return body.find(({ name }: { name: string }) => name === 'message.received').schema;
}

const ajv = new Ajv({
  strict: true,
  allErrors: true,
  allowUnionTypes: true,
  formats: { uuid, 'date-time': instant },
});
const validate = ajv.compile(await readSchema());

test('the schema is closed and asks for every field, at every depth', async () => {
  const open: string[] = [];
  const walk = (schema: Record<string, unknown>, at: string) => {
    const { properties } = schema as { properties?: Record<string, Record<string, unknown>> };
    // A record of texts that the sender chose.
    if (schema.type === 'object' && !at.endsWith('/metadata')) {
      const optional = at === '/data' ? ['test'] : [];
      const named = Object.keys(properties ?? {}).filter((name) => !optional.includes(name));
      const asked = [...((schema.required as string[]) ?? [])].sort();
      if (schema.additionalProperties !== false || String(asked) !== String(named.sort())) open.push(at);
    }
    for (const [name, one] of Object.entries(properties ?? {})) walk(one, `${at}/${name}`);
    for (const one of (schema.anyOf as Record<string, unknown>[]) ?? []) walk(one, at);
    if (schema.items) walk(schema.items as Record<string, unknown>, `${at}[]`);
  };
  walk(await readSchema(), '');
  assert.deepEqual(open, []);
});

describe('what is told of a message is the same wherever it is told', () => {
  for (const [name, raw] of fixtures) {
    for (const [way, deliver] of [
      ['SMTP', () => send(raw, ['sales@shop.example'])],
      ['HTTP', () => handIn(raw, 'sales@shop.example')],
    ] as const) {
      test(`${name}, over ${way}`, async () => {
        const id = await deliver();
        const { posted, eventId } = await findPosted(id);
        assert.equal(validate(posted), true, ajv.errorsText(validate.errors));
        assert.deepEqual(Object.keys(posted), ['event', 'data']);

        const event = await call('GET', `/events/${eventId}`);
        assert.equal(event.status, 200, event.text);
        assert.deepEqual(event.body.data, posted.data);
        assert.equal(event.body.identityId, identity.id);

        const message = await call('GET', `/messages/${id}`);
        assert.equal(message.status, 200, message.text);
        assert.deepEqual(message.body, posted.data.message);

        const { text, html, headers, ...light } = posted.data.message;
        const { body: listed } = await call('GET', '/messages?limit=1');
        assert.deepEqual(listed, [light]);
      });
    }
  }
});

describe('a message that came over SMTP', () => {
  test('every field has its value', async () => {
    const before = Date.now();
    const id = await send(rich, ['SALES+vip@Shop.Example']);
    const { message } = (await findPosted(id)).posted.data;
    const { receivedAt, threadId, mailbox, headers, attachments, ...rest } = message;
    assert.ok(Date.parse(receivedAt) >= before && Date.parse(receivedAt) <= Date.now(), receivedAt);
    assert.match(threadId, uuid);
    const [inbox] = await service.sql`
      select id from mailboxes where identity_id = ${identity.id} and kind = 'inbox'`;
    assert.deepEqual(mailbox, { id: inbox?.id, kind: 'inbox' });
    assert.deepEqual(rest, {
      id,
      identity: { id: identity.id, publicId: identity.public_id, kind: 'email', value: 'Sales@shop.example' },
      source: 'smtp',
      direction: 'incoming',
      sending: null,
      messageId: '<rich@sender.example>',
      inReplyTo: '<before@shop.example>',
      references: ['<first@shop.example>', '<before@shop.example>'],
      date: '2026-01-05T10:00:00.000Z',
      size: rich.length,
      from: { name: 'Ada L.', address: 'ada@sender.example' },
      sender: { name: null, address: 'secretary@sender.example' },
      replyTo: [
        { name: null, address: 'ada+r@sender.example' },
        { name: 'Bob', address: 'bob@sender.example' },
      ],
      to: [
        { name: 'Sales', address: 'sales@shop.example' },
        { name: null, address: 'two@shop.example' },
      ],
      cc: [{ name: 'Zoë', address: 'zoe@other.example' }],
      bcc: [],
      recipient: 'SALES+vip@Shop.Example',
      tag: 'vip',
      subject: 'Grüße',
      text: 'How are you?',
      html: '<p>How are <b>you</b>?</p>',
      preview: 'How are you?',
      envelope: {
        mailFrom: 'ada@sender.example',
        rcptTo: ['SALES+vip@Shop.Example'],
        remoteIp: '127.0.0.1',
        helo: 'client.example',
        tls: null,
      },
      authentication: {
        spf: { result: 'none', domain: 'sender.example' },
        dkim: [],
        dmarc: { result: 'none', policy: null, aligned: null, reason: null },
        arc: { result: 'none' },
      },
      autoSubmitted: 'auto-replied',
      report: null,
      truncated: [],
    });
    assert.deepEqual(headers[0], {
      name: 'Received',
      value: 'from elsewhere\tby relay.example; Mon, 5 Jan 2026 10:00:01 +0000',
    });
    assert.deepEqual(
      headers.filter(({ name }: { name: string }) => name === 'X-Twice'),
      [
        { name: 'X-Twice', value: 'one' },
        { name: 'X-Twice', value: 'two' },
      ],
    );
    assert.equal(headers.length, 16, "the client's own and none of ours");
    assert.equal(
      headers.find(({ name }: { name: string }) => name === 'Subject').value,
      '=?utf-8?q?Gr=C3=BC=C3=9Fe?=',
    );
    const [{ url, ...attachment }] = attachments;
    assert.deepEqual(attachment, {
      id: '0',
      filename: 'plan.pdf',
      contentType: 'application/pdf',
      size: 5,
      disposition: 'attachment',
      contentId: '<plan@sender.example>',
      sha256: createHash('sha256').update('%PDF-').digest('hex'),
    });
    assert.equal(await (await fetch(url)).text(), '%PDF-');
    assert.equal(attachments.length, 1);
  });

  test('over STARTTLS says so; the name after it is the one that counts', async () => {
    const client = await connectSmtp(service.smtpPort);
    await client.command('EHLO before.example');
    const secured = await client.startTls();
    const [version, cipher] = [secured.getProtocol(), secured.getCipher().standardName];
    const id = await send(Buffer.from('Subject: t\r\n\r\n'), ['sales@shop.example'], client);
    const { body } = await call('GET', `/messages/${id}`);
    assert.deepEqual(body.envelope.tls, { version, cipher });
    assert.match(String(version), /^TLSv1\.[23]$/);
    assert.equal(body.envelope.helo, 'client.example');
  });

  test('from the null sender has no mailFrom', async () => {
    const id = await send(Buffer.from('Subject: bounce\r\n\r\n'), ['sales@shop.example'], undefined, '');
    const { body } = await call('GET', `/messages/${id}`);
    assert.equal(body.envelope.mailFrom, null);
    assert.equal(body.authentication.spf.domain, 'client.example');
  });

  test('to two identities shows each the recipients that were its own, the first as `recipient`', async () => {
    const to = [
      'b@catch.example',
      'sales+x@shop.example',
      'a@catch.example',
      'Sales@shop.example',
      'sales+y@shop.example',
    ];
    await send(Buffer.from('Subject: both\r\nMessage-ID: <both@x.example>\r\n\r\n'), to);
    const ofDomain = await call('GET', `/messages?identity_id=${domain.id}&limit=1`);
    const ofAddress = await call('GET', `/messages?identity_id=${identity.id}&limit=1`);
    const read = ({ body: [message] }: { body: Record<string, { rcptTo: string[] }>[] }) => [
      message?.messageId,
      message?.recipient,
      message?.tag,
      message?.envelope?.rcptTo,
    ];
    assert.deepEqual(read(ofDomain), [
      '<both@x.example>',
      'b@catch.example',
      null,
      ['b@catch.example', 'a@catch.example'],
    ]);
    assert.deepEqual(read(ofAddress), [
      '<both@x.example>',
      'sales+x@shop.example',
      'x',
      ['sales+x@shop.example', 'Sales@shop.example', 'sales+y@shop.example'],
    ]);
  });
});

test('a message handed in over HTTP has an envelope of its recipient alone, and source api', async () => {
  const id = await handIn(rich, 'sales+h@shop.example');
  const { body } = await call('GET', `/messages/${id}`);
  assert.equal(body.source, 'api');
  assert.equal(body.recipient, 'sales+h@shop.example');
  assert.equal(body.tag, 'h');
  assert.deepEqual(body.envelope, {
    ...{ mailFrom: null, rcptTo: ['sales+h@shop.example'], remoteIp: null, helo: null, tls: null },
  });
  assert.equal(body.authentication.spf.result, 'none');
});

test('text beyond 512 KiB is cut and named', async () => {
  const raw = Buffer.from(`Subject: long\r\n\r\n${'é'.repeat(300_000)}\r\n`);
  const { body } = await call('GET', `/messages/${await handIn(raw, 'sales@shop.example')}`);
  assert.deepEqual(body.truncated, ['text']);
  assert.ok(Buffer.byteLength(body.text) <= 512 * 1024);
  assert.ok(Buffer.byteLength(body.text) > 512 * 1024 - 4);
  assert.equal(body.preview, 'é'.repeat(200));
});

describe('GET /messages', () => {
  test('pages, newest first, each once, while more arrive', async () => {
    const as = await service.makeUser();
    await call('POST', '/identities', { as, body: { value: 'pages@shop.example' } });
    const made: string[] = [];
    const arrive = async () => {
      const headers = { 'content-type': 'message/rfc822' };
      const body = `Subject: ${made.length}\r\n\r\n`;
      const answer = await call('POST', '/inbound?recipient=pages@shop.example', { as, body, headers });
      made.unshift(answer.body.messageIds[0]);
    };
    for (let n = 0; n < 7; n++) await arrive();
    const expected = [...made];
    const seen: string[] = [];
    for (let path: string | undefined = '/messages?limit=3'; path; ) {
      const { body, headers, status } = await call('GET', path, { as });
      assert.equal(status, 200);
      seen.push(...body.map(({ id }: { id: string }) => id));
      path = /<([^>]+)>; rel="next"/.exec(headers.get('link') ?? '')?.[1];
      await arrive();
    }
    assert.deepEqual(seen, expected);
  });

  test('filters by time and identity; another owner sees nothing of it: 404, and not in the list', async () => {
    const as = await service.makeUser();
    const id = await handIn(Buffer.from('Subject: mine\r\n\r\n'), 'sales@shop.example');
    const { body: mine } = await call('GET', `/messages/${id}`);
    const [row] = await service.sql`select created_at from messages where id = ${id}`;
    const since = (ms: number) => new Date(row?.created_at.getTime() + ms).toISOString();
    const ids = async (query: string, who = service.user) =>
      (await call('GET', `/messages?${query}`, { as: who })).body.map((one: { id: string }) => one.id);
    assert.ok((await ids(`since=${since(0)}`)).includes(id));
    assert.ok(!(await ids(`since=${since(1)}`)).includes(id));
    assert.deepEqual(await ids(`identity_id=${domain.id}&since=${since(0)}`), []);
    assert.deepEqual(await ids('', as), []);
    assert.deepEqual(await ids(`identity_id=${mine.identity.id}`, as), []);
    for (const path of [`/messages/${id}`, `/messages/${id}/raw`, `/messages/${id}/attachments/0`]) {
      assertProblem(await call('GET', path, { as }), 404, 'not_found');
    }
    assertProblem(await call('GET', '/messages/nonsense'), 404, 'not_found');
    assertProblem(await call('GET', '/messages?limit=201'), 400, 'invalid_query');
    assertProblem(await call('GET', '/messages?identity_id=x'), 400, 'invalid_query');
    assertProblem(await call('GET', '/messages', { as: null }), 401, 'missing_api_key');
  });
});
