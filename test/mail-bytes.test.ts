/** The bytes of a message come back unchanged, from every place that returns them. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { after, describe, test } from 'node:test';
import fc from 'fast-check';
import { anyCharacter } from './any-character.ts';
import { startDns } from './dns.ts';
import { startTestService } from './harness.ts';
import { startReceiver } from './receiver.ts';
import { connectSmtp, toWire } from './smtp-client.ts';

const dns = await startDns();
const service = await startTestService({ POSTHORN_DNS_SERVERS: dns.address });
const receiver = await startReceiver();
after(async () => {
  await receiver.close();
  await dns.close();
});
await service.call('POST', '/identities', { body: { value: 'in@bytes.example' } });
await service.makeWebhook(receiver.url());

const inlineBytes = 1024 * 1024;
const maxBytes = 26_214_400;
const allValues = Buffer.from(Array.from({ length: 256 }, (_, value) => value));

/** Returns the id of the message. */
async function sendOverSmtp(raw: Buffer): Promise<string> {
  const client = await connectSmtp(service.smtpPort);
  assert.equal((await client.envelope('ada@sender.example', 'in@bytes.example')).status, 250);
  const taken = await client.data(toWire(raw));
  client.close();
  assert.equal(taken.status, 250, taken.full);
  return taken.lines[0]?.split(' ').at(-1) ?? '';
}

async function sendOverHttp(raw: Buffer): Promise<string> {
  const answer = await service.call('POST', '/inbound?recipient=in@bytes.example', {
    body: raw,
    headers: { 'content-type': 'message/rfc822' },
  });
  assert.equal(answer.status, 202, answer.text);
  return answer.body.messageIds[0];
}

async function fetchBytes(url: string, headers: Record<string, string> = {}): Promise<Buffer> {
  const response = await fetch(url, { headers });
  assert.equal(response.status, 200);
  return Buffer.from(await response.arrayBuffer());
}

/** Not deepEqual: it would print megabytes. */
function assertSame(got: Buffer, raw: Buffer, where: string): void {
  if (got.equals(raw)) return;
  let at = 0;
  while (got[at] === raw[at]) at += 1;
  const show = (bytes: Buffer) => JSON.stringify(bytes.toString('latin1', Math.max(0, at - 10), at + 20));
  assert.fail(`${where}: ${got.length} of ${raw.length} bytes, from ${at} on ${show(got)} for ${show(raw)}`);
}

/** Compares the bytes at every place that returns them; returns the POSTed event. */
async function assertComesBack(id: string, raw: Buffer) {
  const [request] = await receiver.received(1, ({ body }) => body.includes(id));
  const { data } = JSON.parse(request?.body.toString() ?? '');
  assert.equal(data.message.id, id);
  assert.equal(data.message.size, raw.length);
  assert.equal(data.rawEmailSize, raw.length);
  assert.equal(data.rawEmailSha256, createHash('sha256').update(raw).digest('hex'));
  if (raw.length <= inlineBytes) {
    const encoding = data.rawEmailEncoding === 'base64' ? 'base64' : 'utf8';
    assertSame(Buffer.from(data.rawEmail, encoding), raw, `rawEmail in ${encoding}`);
    if (encoding === 'base64') assert.equal(data.rawEmail, raw.toString('base64'));
  } else {
    assert.equal(data.rawEmail, null);
  }
  assertSame(await fetchBytes(data.rawEmailUrl), raw, 'rawEmailUrl');
  const key = { authorization: `Bearer ${service.user.apiKey}` };
  assertSame(await fetchBytes(`${service.url}/messages/${id}/raw`, key), raw, 'raw');
  return data;
}

const fixtures: [string, Buffer, 'utf-8' | 'base64'][] = [
  ['plain text', Buffer.from('Subject: Hello\r\n\r\nHow are you?\r\n'), 'utf-8'],
  ['nothing but a line end', Buffer.from('\r\n'), 'utf-8'],
  ['UTF-8 beyond the basic plane', Buffer.from('Subject: 📯\r\n\r\nGrüße 𝔘\r\n'), 'utf-8'],
  ['a byte order mark', Buffer.from('\ufeffSubject: x\r\n\r\n\ufeff\r\n'), 'utf-8'],
  ['NULs and other controls', Buffer.from('Subject: a\0b\r\n\r\n\0\u0001\u001f\u007f\0\r\n'), 'utf-8'],
  ['noncharacters and separators', Buffer.from('\r\n\uffff\u{10ffff}\u2028\u2029\ufffd\r\n'), 'utf-8'],
  ['8 bits of Latin-1', Buffer.from('Subject: Grüße\r\n\r\nGrüße\r\n', 'latin1'), 'base64'],
  ['half a character at the end', Buffer.from([0x0d, 0x0a, 0xe2, 0x82, 0x0d, 0x0a]), 'base64'],
  ['a surrogate in UTF-8', Buffer.from([0x0d, 0x0a, 0xed, 0xa0, 0x80, 0x0d, 0x0a]), 'base64'],
  ['every byte there is', Buffer.concat([allValues, allValues, Buffer.from('\r\n')]), 'base64'],
  ['lone dots', Buffer.from('.\r\n\r\n.\r\n..\r\n...\r\n.a\r\n. \r\na.\r\n'), 'utf-8'],
  ['bare line feeds', Buffer.from('Subject: x\n\nbody\n.\n..\n.\n\r\n'), 'utf-8'],
  ['bare carriage returns', Buffer.from('Subject: x\r\rbody\r.\r..\r.\r\r\n'), 'utf-8'],
  ['line ends mixed', Buffer.from('a\r\n\n.\r\r\n.\n\r\n\n\r.\r\r\n'), 'utf-8'],
  ['JSON that looks like ours', Buffer.from('\r\n","rawEmail":null,"url":"attachment:0"}\\\r\n'), 'utf-8'],
  ['a long line', Buffer.from(`\r\n${'x'.repeat(100_000)}\r\n`), 'utf-8'],
];

describe('over SMTP', () => {
  for (const [name, raw, encoding] of fixtures) {
    test(`${name} comes back byte for byte, in ${encoding}`, async () => {
      const data = await assertComesBack(await sendOverSmtp(raw), raw);
      assert.equal(data.rawEmailEncoding, encoding);
    });
  }

  test('an empty message is accepted, and stays empty', async () => {
    const client = await connectSmtp(service.smtpPort);
    await client.envelope('ada@sender.example', 'in@bytes.example');
    const taken = await client.data('.\r\n');
    client.close();
    assert.equal(taken.status, 250, taken.full);
    const data = await assertComesBack(taken.lines[0]?.split(' ').at(-1) ?? '', Buffer.alloc(0));
    assert.equal(data.rawEmail, '');
    assert.equal(data.rawEmailEncoding, 'utf-8');
  });
});

describe('over HTTP', () => {
  for (const [name, whole, encoding] of fixtures) {
    const raw = whole.subarray(0, -2);
    if (raw.length === 0) continue;
    test(`${name}, without a final line end, comes back byte for byte`, async () => {
      const data = await assertComesBack(await sendOverHttp(raw), raw);
      assert.equal(data.rawEmailEncoding, encoding);
    });
  }
});

describe('random messages come back', () => {
  const piece = fc.oneof(
    fc.constantFrom('\r\n', '\n', '\r', '.', '..', '\r\n.', '\r\n..', '\n.\n', '\r.\r', '\r\n.\n', '\n.\r\n'),
    fc.constantFrom(
      'Subject: x\r\n',
      'Content-Type: text/plain; charset=utf-16\r\n',
      '\r\n\r\n',
      '--b\r\n',
      '\0',
    ),
    fc.string({ unit: anyCharacter, maxLength: 20 }),
  );
  const bytes = fc.oneof(
    {
      weight: 2,
      arbitrary: fc.array(piece, { maxLength: 40 }).map((pieces) => Buffer.from(pieces.join(''))),
    },
    { weight: 1, arbitrary: fc.uint8Array({ maxLength: 300 }).map((values) => Buffer.from(values)) },
  );

  test('over SMTP', async () => {
    // On the wire the last line has a line end.
    const messages = bytes.map((raw) => Buffer.concat([raw, Buffer.from('\r\n')]));
    await fc.assert(
      fc.asyncProperty(messages, async (raw) => {
        await assertComesBack(await sendOverSmtp(raw), raw);
      }),
      { numRuns: 40 },
    );
  });

  test('over HTTP', async () => {
    const messages = bytes.filter((raw) => raw.length > 0);
    await fc.assert(
      fc.asyncProperty(messages, async (raw) => {
        await assertComesBack(await sendOverHttp(raw), raw);
      }),
      { numRuns: 40 },
    );
  });
});

describe('size', () => {
  /** Rows differ, so that chunks in the wrong order are found. */
  function fill(size: number): Buffer {
    const raw = Buffer.alloc(size);
    for (let at = 0; at < size; at += 1) raw[at] = (at * 31 + (at >> 8) * 7 + (at >> 16)) & 0xff;
    raw.write('Subject: big\r\n\r\n');
    raw.write('\r\n', size - 2);
    return raw;
  }

  for (const [name, size] of [
    ['as large as goes into the event', inlineBytes],
    ['a byte larger', inlineBytes + 1],
    ['of three pieces exactly', 3 * inlineBytes],
    ['of three pieces and a byte', 3 * inlineBytes + 1],
  ] as const) {
    test(`${name}, it comes back (${size} bytes)`, async () => {
      const raw = fill(size);
      const data = await assertComesBack(await sendOverSmtp(raw), raw);
      assert.equal(data.rawEmail === null, size > inlineBytes);
      assert.equal(data.rawEmailEncoding, 'base64');
    });
  }

  test('25 MiB, the limit itself, come back over SMTP and over HTTP; a byte more is refused by both', async () => {
    const raw = fill(maxBytes);
    await assertComesBack(await sendOverSmtp(raw), raw);
    await assertComesBack(await sendOverHttp(raw), raw);
    const more = fill(maxBytes + 1);
    const client = await connectSmtp(service.smtpPort);
    await client.envelope('ada@sender.example', 'in@bytes.example');
    const refused = await client.data(toWire(more));
    client.close();
    assert.equal(`${refused.status} ${refused.enhanced}`, '552 5.3.4', refused.full);
    const answer = await service.call('POST', '/inbound?recipient=in@bytes.example', {
      body: more,
      headers: { 'content-type': 'message/rfc822' },
    });
    assert.equal(answer.status, 413, answer.text);
  });
});

test('no test above logged an error', () => {
  const faults = service.logged.filter(({ level }) => ['error', 'fatal'].includes(String(level)));
  assert.deepEqual(faults, []);
});
