/** The bytes over HTTP: conditional and partial answers for the raw message, and attachments that no browser can run. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { startDns } from './dns.ts';
import { assertProblem, startTestService } from './harness.ts';

const dns = await startDns();
after(() => dns.close());
const service = await startTestService({ POSTHORN_DNS_SERVERS: dns.address, POSTHORN_ROLES: 'api' });
const { call } = service;
await call('POST', '/identities', { body: { value: 'raw@shop.example' } });

async function handIn(raw: string | Buffer): Promise<string> {
  const headers = { 'content-type': 'message/rfc822' };
  const answer = await call('POST', '/inbound?recipient=raw@shop.example', { body: raw, headers });
  assert.equal(answer.status, 202, answer.text);
  return answer.body.messageIds[0];
}

/** As bytes. */
async function get(path: string, headers: Record<string, string> = {}, method = 'GET') {
  const authorization = `Bearer ${service.user.apiKey}`;
  const response = await fetch(`${service.url}${path}`, { method, headers: { authorization, ...headers } });
  const bytes = Buffer.from(await response.arrayBuffer());
  return { status: response.status, header: (name: string) => response.headers.get(name), bytes };
}

const small = Buffer.from('Subject: ranges\r\n\r\n0123456789');
const smallId = await handIn(small);
const smallPath = `/messages/${smallId}/raw`;
const tag = `"${createHash('sha256').update(small).digest('hex')}"`;

describe('GET /messages/{id}/raw', () => {
  test('is a download of message/rfc822, with length, tag and guards', async () => {
    const { status, header, bytes } = await get(smallPath);
    assert.equal(status, 200);
    assert.ok(bytes.equals(small));
    assert.equal(header('content-type'), 'message/rfc822');
    assert.equal(header('content-length'), String(small.length));
    assert.equal(header('etag'), tag);
    assert.equal(header('accept-ranges'), 'bytes');
    assert.match(header('content-disposition') ?? '', /^attachment;/);
    assert.equal(header('x-content-type-options'), 'nosniff');
    assert.match(header('content-security-policy') ?? '', /sandbox/);
    assert.match(header('cache-control') ?? '', /private|no-store/, 'no shared cache keeps it');
  });

  test('HEAD tells the same without the bytes', async () => {
    const [got, head] = [await get(smallPath), await get(smallPath, {}, 'HEAD')];
    assert.deepEqual([head.status, head.bytes.length], [200, 0]);
    for (const name of ['content-type', 'content-length', 'etag', 'accept-ranges', 'content-disposition']) {
      assert.equal(head.header(name), got.header(name), name);
    }
    assert.equal((await get(smallPath, { 'if-none-match': tag }, 'HEAD')).status, 304);
  });

  for (const [value, status] of [
    [tag, 304],
    [`W/${tag}`, 304],
    [`"other", ${tag}`, 304],
    ['*', 304],
    ['"other"', 200],
    [tag.slice(1, -1), 200],
  ] as const) {
    test(`If-None-Match: ${value.replace(tag.slice(1, -1), '<its tag>')} gives ${status}`, async () => {
      const answer = await get(smallPath, { 'if-none-match': value });
      assert.equal(answer.status, status);
      assert.equal(answer.header('etag'), tag);
      assert.ok(answer.bytes.equals(status === 304 ? Buffer.alloc(0) : small));
    });
  }

  const size = small.length;
  const partial: [string, number, number][] = [
    ['bytes=0-0', 0, 1],
    ['bytes=0-6', 0, 7],
    ['bytes=5-9', 5, 10],
    [`bytes=${size - 1}-`, size - 1, size],
    ['bytes=3-', 3, size],
    ['bytes=0-', 0, size],
    ['bytes=-1', size - 1, size],
    ['bytes=-10', size - 10, size],
    ['bytes=-9999', 0, size],
    ['bytes=10-9999', 10, size],
    ['BYTES=0-1', 0, 2],
  ];
  for (const [range, start, end] of partial) {
    test(`Range: ${range} gives 206 with bytes ${start} to ${end - 1}`, async () => {
      const { status, header, bytes } = await get(smallPath, { range });
      assert.equal(status, 206);
      assert.equal(header('content-range'), `bytes ${start}-${end - 1}/${size}`);
      assert.equal(header('content-length'), String(end - start));
      assert.equal(header('etag'), tag);
      assert.equal(bytes.toString(), small.subarray(start, end).toString());
    });
  }

  for (const range of [`bytes=${size}-`, 'bytes=9999-10000', 'bytes=-0', `bytes=${'9'.repeat(30)}-`]) {
    test(`Range: ${range} gives 416 with the size`, async () => {
      const answer = await call('GET', smallPath, { headers: { range } });
      assertProblem(answer, 416, 'range_not_satisfiable');
      assert.equal(answer.headers.get('content-range'), `bytes */${size}`);
    });
  }

  for (const range of ['bytes=0-1,4-5', 'bytes=5-2', 'bytes=-', 'bytes=a-b', 'lines=0-1', 'bytes 0-1', '']) {
    test(`Range: ${range || 'nothing'} is as if it were not there: 200`, async () => {
      const { status, bytes, header } = await get(smallPath, { range });
      assert.equal(status, 200);
      assert.ok(bytes.equals(small));
      assert.equal(header('content-range'), null);
    });
  }

  test('If-Range: the range for the same tag, all of it for any other or a date', async () => {
    const range = 'bytes=0-6';
    const part = await get(smallPath, { range, 'if-range': tag });
    assert.deepEqual([part.status, part.bytes.toString()], [206, 'Subject']);
    for (const other of ['"other"', `W/${tag}`, 'Mon, 05 Jan 2026 10:00:00 GMT']) {
      const whole = await get(smallPath, { range, 'if-range': other });
      assert.equal(whole.status, 200, other);
      assert.ok(whole.bytes.equals(small));
    }
  });

  test('If-None-Match comes before Range: 304', async () => {
    assert.equal((await get(smallPath, { range: 'bytes=0-1', 'if-none-match': tag })).status, 304);
  });

  test('of several pieces: any range, across their borders too', async () => {
    const piece = 1024 * 1024;
    const big = Buffer.alloc(3 * piece + 1000);
    for (let at = 0; at < big.length; at++) big[at] = (at * 31 + (at >> 10)) & 0xff;
    big.write('Subject: big\r\n\r\n');
    const path = `/messages/${await handIn(big)}/raw`;
    const end = big.length;
    const ranges = [
      [0, 0],
      [piece - 1, piece - 1],
      [piece, piece],
      [piece - 1, piece],
      [piece - 5, 2 * piece + 5],
      [1, end - 1],
      [3 * piece, end - 1],
      [2 * piece, 3 * piece - 1],
      [end - 1, end - 1],
    ] as const;
    for (const [first, last] of ranges) {
      const { status, bytes } = await get(path, { range: `bytes=${first}-${last}` });
      assert.equal(status, 206);
      assert.ok(bytes.equals(big.subarray(first, last + 1)), `${first} to ${last}`);
    }
    const suffix = await get(path, { range: `bytes=-${piece + 1}` });
    assert.ok(suffix.bytes.equals(big.subarray(end - piece - 1)));
    assert.ok((await get(path)).bytes.equals(big));
    const head = await get(path, {}, 'HEAD');
    assert.deepEqual([head.status, head.header('content-length'), head.bytes.length], [200, String(end), 0]);
  });

  test('of a message that is not there is 404; with another method 405', async () => {
    const none = '/messages/00000000-0000-7000-8000-000000000000/raw';
    assertProblem(await call('GET', none), 404, 'not_found');
    assertProblem(await call('GET', '/messages/x/raw'), 404, 'not_found');
    assertProblem(await call('DELETE', smallPath), 405, 'method_not_allowed');
    assertProblem(await call('GET', smallPath, { as: null }), 401, 'missing_api_key');
  });
});

/** A message with one attachment whose header is as given. */
function attach(fields: string[], content = 'content'): string {
  return `Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nText\r\n--b\r\n${fields.join('\r\n')}\r\n\r\n${content}\r\n--b--\r\n`;
}

describe('GET /messages/{id}/attachments/{n}', () => {
  test('gives the decoded bytes, as the message tells them', async () => {
    const content = Buffer.from(Array.from({ length: 256 }, (_, n) => n));
    const base64 = content.toString('base64').replace(/.{76}/g, '$&\r\n');
    const fields = ['Content-Type: image/png', 'Content-Disposition: inline; filename=a.png'];
    const id = await handIn(attach([...fields, 'Content-Transfer-Encoding: base64'], base64));
    const [told] = (await call('GET', `/messages/${id}`)).body.attachments;
    const { status, header, bytes } = await get(`/messages/${id}/attachments/0`);
    assert.equal(status, 200);
    assert.ok(bytes.equals(content));
    assert.equal(told.size, 256);
    assert.equal(told.sha256, createHash('sha256').update(bytes).digest('hex'));
    assert.equal(header('etag'), `"${told.sha256}"`);
    assert.equal(header('content-type'), 'image/png');
    assert.match(header('content-disposition') ?? '', /^attachment; filename="a\.png"/, 'never inline');
    const again = await get(`/messages/${id}/attachments/0`, { 'if-none-match': header('etag') ?? '' });
    assert.deepEqual([again.status, again.bytes.length], [304, 0]);
    const head = await get(`/messages/${id}/attachments/0`, {}, 'HEAD');
    assert.deepEqual([head.status, head.header('content-length'), head.bytes.length], [200, '256', 0]);
  });

  test('of a large message as of a small one', async () => {
    const content = 'abcdefg\r\n'.repeat(300_000).slice(0, -2);
    const id = await handIn(attach(['Content-Disposition: attachment; filename=big.txt'], content));
    const { status, bytes } = await get(`/messages/${id}/attachments/0`);
    assert.equal(status, 200);
    assert.ok(bytes.equals(Buffer.from(content)));
  });

  test('beyond the last, or what is no number: 404', async () => {
    const id = await handIn(attach(['Content-Disposition: attachment']));
    assert.equal((await get(`/messages/${id}/attachments/0`)).status, 200);
    for (const n of ['1', '9999', '10000', '99999999999999999999', '-1', '0.0', '1e0', 'x', '%00', '+0']) {
      assertProblem(await call('GET', `/messages/${id}/attachments/${n}`), 404, 'not_found');
    }
    assertProblem(await call('GET', `/messages/${smallId}/attachments/0`), 404, 'not_found');
  });

  test('with a zero in front of its number: 404, since it has one address', async () => {
    const id = await handIn(attach(['Content-Disposition: attachment']));
    assertProblem(await call('GET', `/messages/${id}/attachments/00`), 404, 'not_found');
  });

  const names: [string, string, string | null][] = [
    ['plain', 'filename="plan 1.pdf"', 'plan 1.pdf'],
    ['quotes and backslashes', 'filename="a\\"; x=\\"y.txt"', 'a"; x="y.txt'],
    ['a line end', "filename*=utf-8''a%0D%0ASet-Cookie:%20x=1.txt", null],
    ['a NUL', "filename*=utf-8''a%00b.txt", null],
    ['letters beyond ASCII', "filename*=utf-8''%F0%9F%93%AF%20Gr%C3%BC%C3%9Fe.txt", '📯 Grüße.txt'],
    ['raw UTF-8', 'filename="Grüße.txt"', 'Grüße.txt'],
    ['half a character', "filename*=utf-16''%D8%3D.txt", null],
    ['a path', 'filename="../../etc/passwd"', 'passwd'],
    ['a path of Windows', 'filename="C:\\\\temp\\\\x.exe"', 'x.exe'],
    ['an encoded path', "filename*=utf-8''..%2F..%2Fetc%2Fpasswd", 'passwd'],
    ['marks that turn the text round', "filename*=utf-8''a%E2%80%AEtxt.exe", null],
    ['signs that mean something in a header', 'filename="a%20b;c,d=e\'f(g)*h.txt"', "a%20b;c,d=e'f(g)*h.txt"],
    ['no name', 'x=y', 'attachment'],
    ['10,000 letters', `filename="${'x'.repeat(10_000)}"`, 'x'.repeat(255)],
    ['255 pairs of surrogates', `filename="${'📯'.repeat(255)}"`, null],
  ];
  for (const [name, parameter, expected] of names) {
    test(`a name with ${name} makes a safe Content-Disposition`, async () => {
      const id = await handIn(attach([`Content-Disposition: attachment; ${parameter}`]));
      const [{ filename }] = (await call('GET', `/messages/${id}`)).body.attachments;
      const { status, header, bytes } = await get(`/messages/${id}/attachments/0`);
      assert.equal(status, 200);
      assert.equal(bytes.toString(), 'content');
      assert.equal(header('set-cookie'), null);
      const value = header('content-disposition') ?? '';
      // RFC 6266: a quoted string without escapes, and RFC 8187's characters.
      const safe =
        /^attachment; filename="([\w .()-]*)"; filename\*=UTF-8''((?:[\w!#$&+.^`|~-]|%[\da-f]{2})*)$/i;
      assert.match(value, safe);
      const [, plain = '', encoded = ''] = safe.exec(value) ?? [];
      const told = decodeURIComponent(encoded);
      assert.equal(told, filename ?? 'attachment');
      if (expected !== null) assert.equal(told, expected);
      // biome-ignore lint/suspicious/noControlCharactersInRegex: what must not be in a name.
      assert.doesNotMatch(told, /[\0-\x1f\x7f/\\]/);
      assert.ok(!plain.startsWith('..'));
    });
  }

  const dangerous = [
    'text/html',
    'TEXT/HTML; charset=utf-7',
    'application/xhtml+xml',
    'image/svg+xml',
    'text/xml',
    'application/xml',
    'application/rss+xml',
    'text/xsl',
    'text/javascript',
    'application/javascript',
    'application/ecmascript',
    'application/x-shockwave-flash',
    'multipart/related',
    'message/rfc822',
    'text/html, text/plain',
    'text/plain\t;x="\r\n <script>"',
    'nonsense',
    '*/*',
  ];
  for (const type of dangerous) {
    test(`${JSON.stringify(type)} is not served as anything a browser runs`, async () => {
      const fields = [`Content-Type: ${type}`, 'Content-Disposition: attachment; filename=x'];
      const id = await handIn(attach(fields, '<script>alert(1)</script>'));
      const { status, header } = await get(`/messages/${id}/attachments/0`);
      assert.equal(status, 200);
      assert.match(
        header('content-type') ?? '',
        /^(application\/octet-stream|text\/plain|message\/rfc822)\b/,
      );
      assert.equal(header('x-content-type-options'), 'nosniff');
      assert.match(header('content-security-policy') ?? '', /sandbox/);
      assert.match(header('content-disposition') ?? '', /^attachment;/);
    });
  }

  test('a message within a message is given whole', async () => {
    const inner = 'Subject: inner\r\n\r\nInside';
    const id = await handIn(attach(['Content-Type: message/rfc822'], inner));
    const { header, bytes } = await get(`/messages/${id}/attachments/0`);
    assert.equal(bytes.toString(), inner);
    assert.equal(header('content-type'), 'message/rfc822');
  });
});

test('nothing of all this was a failure of ours', () => {
  assert.deepEqual(
    service.logged.filter(({ level }) => ['error', 'fatal'].includes(String(level))),
    [],
  );
});
