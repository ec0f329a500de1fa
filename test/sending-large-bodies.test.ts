/** Bodies of `POST /messages` that are too large for the event loop: a worker thread parses, validates and composes them. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { startTestService } from './harness.ts';
import { openOutbox } from './outbox.ts';

const megabyte = 1024 * 1024;
const service = await startTestService();
const { call } = service;
const identityId = await openOutbox(service).makeIdentity('ada@sender.example');
const timeout = 300_000;

const text = 'A line of the text, with ümläuts.\n'.repeat(40_000);
const html = `<p>${'Ein Absatz. '.repeat(1000)}</p>`;
const content = Buffer.alloc(megabyte, 'any bytes ');
const attachment = { filename: 'bytes.bin', content: content.toString('base64') };
const plain = { identityId, to: 'Bob <bob@dest.example>', subject: 'Large', text };
const post = (body: unknown, headers: Record<string, string> = {}) =>
  call('POST', '/messages', { body, headers });

describe('a large body', () => {
  test('is sent as a small one would be', { timeout }, async () => {
    const metadata = { order: '17' };
    const headers = { 'X-Order': '17' };
    const { status, body } = await post({ ...plain, html, attachments: [attachment], metadata, headers });
    assert.equal(status, 202);
    assert.ok(body.text.length > 0 && text.startsWith(body.text));
    assert.deepEqual(body.truncated, ['text']);
    assert.equal(body.html, html);
    assert.deepEqual([body.subject, body.to], ['Large', [{ name: 'Bob', address: 'bob@dest.example' }]]);
    assert.deepEqual(body.sending.metadata, metadata);
    assert.equal(body.attachments[0].size, content.length);
    const got = await fetch(body.attachments[0].url);
    assert.ok(Buffer.from(await got.arrayBuffer()).equals(content));
  });

  test('is told all of its faults at once, those of the schema and of references too', {
    timeout,
  }, async () => {
    const { status, body } = await post({
      ...{ ...plain, identityId: '01a1dcf7-c357-700e-a78a-57a267febce8', to: 'nobody', colour: 'red' },
      attachments: [{ filename: 'x', content: '*' }, { filename: 5 }],
    });
    assert.equal(status, 400);
    const pointers = body.errors.map(({ pointer }: { pointer: string }) => pointer);
    assert.deepEqual(
      new Set(pointers),
      new Set([
        ...['/colour', '/to', '/identityId', '/attachments/0/content'],
        ...['/attachments/1/filename', '/attachments/1/content'],
      ]),
    );
  });

  test('is the same request when it comes again with its Idempotency-Key, and another one is not', {
    timeout,
  }, async () => {
    const key = { 'idempotency-key': 'large' };
    const first = await post(plain, key);
    assert.equal(first.status, 202);
    const again = await post(plain, key);
    assert.deepEqual([again.status, again.body.id], [202, first.body.id]);
    const other = await post({ ...plain, text: `${text}.` }, key);
    assert.deepEqual([other.status, other.body.code], [409, 'idempotency_mismatch']);
  });

  for (const [what, body, detail] of [
    ['is no JSON', `{"a": ${'x'.repeat(2 * megabyte)}`, /Unexpected token/],
    ['is not UTF-8', Buffer.alloc(2 * megabyte, 0xff), /UTF-8/],
    ['has the same key twice', `{"text":"${'x'.repeat(2 * megabyte)}","text":""}`, /same key twice/],
  ] as const) {
    test(`that ${what} is refused as a small one`, { timeout }, async () => {
      const answer = await call('POST', '/messages', {
        body,
        headers: { 'content-type': 'application/json' },
      });
      assert.deepEqual([answer.status, answer.body.code], [400, 'invalid_json']);
      assert.match(answer.body.detail, detail);
      assert.ok(answer.text.length < 1000, answer.text.slice(0, 1000));
    });
  }
});

describe('a hostile body', () => {
  test('of blanks is refused', { timeout }, async () => {
    for (const blanks of [70_000, 31_000_000]) {
      const answer = await post(`${JSON.stringify(plain).slice(0, -1)}${' '.repeat(blanks)}}`, {
        'content-type': 'application/json',
      });
      assert.deepEqual([answer.status, answer.body.code], [400, 'invalid_json']);
      assert.match(answer.body.detail, /more than 65536 blanks outside of strings/);
    }
  });

  const long = 'n'.repeat(20_000_000);
  for (const [where, body] of [
    ['the name of a field', { ...plain, [long]: 1 }],
    ['the name of a header', { ...plain, headers: { [long]: 'x' } }],
    ['a name in the metadata', { ...plain, metadata: { [long]: 'x' } }],
    ['a name in an attachment', { ...plain, attachments: [{ ...attachment, [long]: 'x' }] }],
    ['an address', { ...plain, to: long }],
    ['an id', { ...plain, identityId: long }],
    ['a time', { ...plain, sendAt: long }],
  ] as const) {
    test(`is not repeated in the answer: ${where}`, { timeout }, async () => {
      const { status, text } = await post(body);
      assert.equal(status, 400);
      assert.ok(text.length < 2000, `${text.length} characters: ${text.slice(0, 500)}`);
    });
  }

  test('of HTML that cannot fit as text too is refused, and is no failure of the service', {
    timeout,
  }, async () => {
    const { status, body } = await post({ ...plain, text: undefined, html: '<'.repeat(24_000_000) });
    assert.equal(status, 413, body.code);
  });
});
