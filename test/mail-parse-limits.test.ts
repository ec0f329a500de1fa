/** Limits of the parser: what is left out is named in `truncated`, and hostile messages take linear time. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { messageKey, readThread } from '../src/contract/thread.ts';
import { extractAttachment, parseMessage } from '../src/mime/parse.ts';
import { readStructure } from '../src/mime/structure.ts';
import { compose, failed, simple } from './report-messages.ts';

const kib = 1024;
const largest = 25 * 1024 * kib;
/** Enough to tell a line from a square: a square of 4 MiB takes minutes. */
const large = 4 * 1024 * kib;

function parse(...pieces: (string | Buffer)[]) {
  return parseMessage(Buffer.concat(pieces.map((piece) => Buffer.from(piece))));
}

function many(count: number, line: (i: number) => string): string {
  return Array.from({ length: count }, (_, i) => line(i)).join('');
}

/** With the processor time of the parse, in microseconds. */
async function measure(...pieces: (string | Buffer)[]) {
  const raw = Buffer.concat(pieces.map((piece) => Buffer.from(piece)));
  const started = process.cpuUsage();
  const parsed = await parseMessage(raw);
  return { parsed, taken: process.cpuUsage(started).user };
}

/** One run of three is enough: the garbage of earlier tests is collected at any moment. */
async function assertQuick(most: number, ...pieces: (string | Buffer)[]) {
  const times: number[] = [];
  while (times.length < 3) {
    const { parsed, taken } = await measure(...pieces);
    if (taken <= most) return parsed;
    times.push(taken);
  }
  return assert.fail(`${times.join(', ')} µs, at most ${most} µs`);
}

/** The longest of five runs, for a control: the first run is of code that is not compiled yet. */
async function measureLongest(...pieces: (string | Buffer)[]): Promise<number> {
  const times: number[] = [];
  while (times.length < 5) times.push((await measure(...pieces)).taken);
  return Math.max(...times);
}

/** The time of an ordinary message of the size `large`: a text and an attachment. */
const ordinary = await (() => {
  const text = 'Words of a letter, in lines that are as long as lines mostly are, one by one.\r\n';
  const attached = `${'QUJD'.repeat(19)}\r\n`.repeat(Math.floor((large - 512 * kib) / 78));
  const pieces = [
    'From: Ada <ada@x.test>\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n',
    `--b\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n${text.repeat(Math.floor((512 * kib) / text.length))}`,
    `--b\r\nContent-Type: a/b; name=c\r\nContent-Transfer-Encoding: base64\r\n\r\n${attached}--b--\r\n`,
  ];
  return measureLongest(...pieces);
})();

describe('what is cut is named', () => {
  test('text and html at 512 KiB of UTF-8, between characters', async () => {
    const part = (type: string, unit: string) =>
      `--b\r\nContent-Type: ${type}; charset=utf-8\r\n\r\n${unit.repeat(200 * kib)}\r\n`;
    const parsed = await parse(
      'Content-Type: multipart/alternative; boundary=b\r\n\r\n',
      part('text/plain', '€'),
      part('text/html', 'xyz'),
      '--b--',
    );
    assert.deepEqual(parsed.truncated, ['text', 'html']);
    assert.equal(parsed.text, '€'.repeat(Math.floor((512 * kib) / 3)));
    assert.equal(parsed.html?.length, 512 * kib);
  });

  test('text of exactly 512 KiB is whole', async () => {
    const parsed = await parse('\r\n', 'a'.repeat(512 * kib));
    assert.equal(parsed.text?.length, 512 * kib);
    assert.deepEqual(parsed.truncated, []);
  });

  test('text in several parts, together', async () => {
    const part = `--b\r\n\r\n${'a'.repeat(300 * kib)}\r\n`;
    const parsed = await parse('Content-Type: multipart/mixed; boundary=b\r\n\r\n', part.repeat(5));
    assert.equal(parsed.text?.length, 512 * kib);
    assert.deepEqual(parsed.truncated, ['text']);
  });

  test('text that takes more than 2 MiB to write, in several parts', async () => {
    const part = `--b\r\nContent-Type: text/plain; charset=utf-7\r\n\r\n${'+AAA-'.repeat(300 * kib)}abc\r\n`;
    const parsed = await parse('Content-Type: multipart/mixed; boundary=b\r\n\r\n', part.repeat(3));
    assert.equal(parsed.text?.trim(), 'abc');
    assert.deepEqual(parsed.truncated, ['text']);
  });

  test('a megabyte of UTF-16 is half of one as UTF-8, and one more is cut', async () => {
    const header = 'Content-Type: text/plain; charset=utf-16le\r\nContent-Transfer-Encoding: base64\r\n\r\n';
    const encode = (length: number) => Buffer.from('a'.repeat(length), 'utf16le').toString('base64');
    assert.deepEqual((await parse(header, encode(512 * kib))).truncated, []);
    assert.deepEqual((await parse(header, encode(512 * kib + 1))).truncated, ['text']);
  });

  test('more than 1,000 header fields; From, Subject and the like are still found', async () => {
    const parsed = await parse(
      many(10_000, (i) => `X-${i}: v\r\n`),
      'Subject: late\r\n\r\nbody',
    );
    assert.equal(parsed.headers.length, 1000);
    assert.equal(parsed.subject, 'late');
    assert.equal(parsed.text, 'body');
    assert.deepEqual(parsed.truncated, ['headers']);
  });

  test('a header value of more than 64 KiB', async () => {
    const parsed = await parse(`X-Long: ${'v'.repeat(64 * kib + 1)}\r\nX-Short: v\r\n\r\n`);
    assert.deepEqual(
      parsed.headers.map(({ value }) => value.length),
      [64 * kib, 1],
    );
    assert.deepEqual(parsed.truncated, ['headers']);
  });

  test('a header of more than 512 KiB', async () => {
    const parsed = await parse(
      'Subject: early\r\n',
      many(20, () => `X: ${'v'.repeat(32 * kib)}\r\n`),
      '\r\nbody',
    );
    assert.equal(parsed.subject, 'early');
    assert.equal(parsed.text, 'body');
    assert.deepEqual(parsed.truncated, ['headers']);
    const late = await parse(
      many(20, () => `X: ${'v'.repeat(32 * kib)}\r\n`),
      'From: a@x.test\r\nTo: b@x.test\r\nSubject: late\r\n\r\nbody',
    );
    assert.deepEqual([late.from, late.to, late.subject, late.text], [null, [], null, 'body']);
    assert.deepEqual(late.truncated, ['headers']);
  });

  test('a subject of more than 16 KiB', async () => {
    const parsed = await parse(`Subject: ${'s'.repeat(17 * kib)}\r\n\r\n`);
    assert.equal(parsed.subject?.length, 16 * kib);
    assert.deepEqual(parsed.truncated, ['subject']);
  });

  test('more than 1,000 addresses or references, each list by its name', async () => {
    const list = (count: number) => many(count, (i) => `u${i}@x.test,\r\n `);
    const parsed = await parse(
      `To: ${list(1000)}\r\nCc: ${list(1001)}\r\nReply-To: ${list(1001)}\r\n`,
      `References: ${many(1001, (i) => `<${i}@x.test>\r\n `)}\r\n\r\n`,
    );
    assert.deepEqual(
      [parsed.to.length, parsed.cc.length, parsed.replyTo.length, parsed.references.length],
      [1000, 1000, 1000, 1000],
    );
    assert.equal(parsed.to[999]?.address, 'u999@x.test');
    assert.deepEqual(parsed.truncated.sort(), ['cc', 'references', 'replyTo']);
  });

  test('lists of more than 64 KiB of text, each by its name', async () => {
    const local = 'l'.repeat(600);
    const list = many(200, (i) => `"${'é'.repeat(300)}" <${local}.${i}@x.test>,\r\n `);
    const parsed = await parse(
      `To: ${list}\r\nBcc: ${many(900, (i) => `u${i}@x.test, `)}\r\n`,
      `References: ${many(100, (i) => `<${i}.${'r'.repeat(900)}@x.test>\r\n `)}\r\n\r\n`,
    );
    assert.deepEqual([parsed.to.length, parsed.bcc.length, parsed.references.length], [54, 900, 71]);
    assert.deepEqual(parsed.truncated.sort(), ['headers', 'references', 'to']);
  });

  describe('a name of more than 998 characters or an address of as many', () => {
    const name = 'n'.repeat(998);
    const local = 'l'.repeat(996);
    const fields = [
      ['from', 'From'],
      ['sender', 'Sender'],
      ['replyTo', 'Reply-To'],
      ['to', 'To'],
      ['cc', 'Cc'],
      ['bcc', 'Bcc'],
    ] as const;
    for (const [key, field] of fields)
      test(key, async () => {
        const read = async (written: string) => {
          const parsed = await parse(`${field}: ${written}\r\n\r\n`);
          return [[parsed[key]].flat()[0], parsed.truncated];
        };
        const address = 'a@x.test';
        assert.deepEqual(await read(`${name} <${address}>`), [{ name, address }, []]);
        assert.deepEqual(await read(`${name}n <${address}>`), [{ name, address }, [key]]);
        assert.deepEqual(await read(`${address} (${name}n)`), [{ name, address }, [key]]);
        assert.deepEqual(await read(`${name}n`), [{ name, address: null }, [key]]);
        const encoded = `=?utf-8?Q?${'=C3=A9'.repeat(998)}?=`;
        assert.equal(((await read(`${encoded} <${address}>`))[1] as string[]).join(), key);
        assert.deepEqual(await read(`A <${local}@x>`), [{ name: 'A', address: `${local}@x` }, []]);
        assert.deepEqual(await read(`A <${local}l@x>`), [{ name: 'A', address: null }, [key]]);
        assert.deepEqual(await read(`A <"${local}l"@x>`), [{ name: 'A', address: null }, [key]]);
      });

    test('text before the author may be longer, but not an address that would be the author', async () => {
      const author = { name: 'A', address: 'a@x.test' };
      const read = async (written: string) => {
        const parsed = await parse(`From: ${written}\r\nSender: ${written}\r\n\r\n`);
        assert.deepEqual(parsed.sender, parsed.from);
        return [parsed.from, parsed.truncated];
      };
      assert.deepEqual(await read(`${name}n, A <a@x.test>`), [author, []]);
      assert.deepEqual(await read(`${name}n, ${name}n, A <a@x.test>`), [author, []]);
      assert.deepEqual(await read(`A, ${name}n`), [{ name: 'A', address: null }, []]);
      assert.deepEqual(await read(`B <${local}l@x>, A <a@x.test>`), [author, ['from', 'sender']]);
      assert.deepEqual(await read(`A, B <${local}l@x>`), [{ name: 'A', address: null }, ['from', 'sender']]);
    });

    test('a comment that is not shown, and an author that is not shown, may be longer', async () => {
      const comment = `A <a@x.test> (${name}n)`;
      const author = `A <a@x.test>, ${name}n <b@x.test>`;
      const parsed = await parse(`From: ${author}\r\nTo: ${comment}\r\n\r\n`);
      assert.deepEqual(parsed.truncated, []);
    });
  });

  test('a date of more than 1,000 characters', async () => {
    const read = async (length: number) => {
      const date = 'Mon, 5 Feb 2024 10:00:00 +0000 ()';
      const comment = 'c'.repeat(length - date.length);
      const parsed = await parse(`Date: ${date.slice(0, -1)}${comment})\r\n\r\n`);
      return [parsed.date, parsed.truncated];
    };
    assert.deepEqual(await read(1000), ['2024-02-05T10:00:00.000Z', []]);
    assert.deepEqual(await read(1001), [null, ['date']]);
  });

  test('a content type of more than 255 characters becomes application/octet-stream', async () => {
    const type = `a/${'b'.repeat(253)}`;
    const read = (written: string) => parse(`Content-Type: ${written}\r\n\r\nx`);
    const whole = await read(type);
    assert.deepEqual([whole.attachments[0]?.contentType, whole.truncated], [type, []]);
    const { attachments, truncated } = await read(`${type}b; name=n.txt`);
    assert.equal(attachments[0]?.contentType, 'application/octet-stream');
    assert.equal(attachments[0]?.filename, 'n.txt');
    assert.deepEqual(truncated, ['attachments']);
  });

  test('file names of more than 255 characters are cut', async () => {
    const name = 'f'.repeat(255);
    const read = async (written: string) => {
      const parsed = await parse(`Content-Type: a/b; name="${written}"\r\n\r\nx`);
      return [parsed.attachments[0]?.filename, parsed.truncated];
    };
    assert.deepEqual(await read(name), [name, []]);
    assert.deepEqual(await read(`${name}f`), [name, ['attachments']]);
    assert.deepEqual(await read(`${'f'.repeat(16 * 255)}/n.txt`), [name, ['attachments']]);
    const shown = await parse(`Content-Type: text/plain; name=${name}f\r\n\r\nx`);
    assert.deepEqual([shown.attachments, shown.truncated], [[], []]);
  });

  test('ids of more than 998 characters are dropped', async () => {
    const id = `<${'i'.repeat(997)}@x>`;
    const part = `Content-Type: a/b\r\nContent-ID: ${id}\r\n`;
    const named = `Message-ID: ${id}\r\nIn-Reply-To: ${id}\r\nReferences: <a@x>\r\n ${id}\r\n`;
    const parsed = await parse(`${named}${part}\r\nx`);
    assert.deepEqual(
      [parsed.messageId, parsed.inReplyTo, parsed.references, parsed.attachments[0]?.contentId],
      [null, null, ['<a@x>'], null],
    );
    assert.deepEqual(parsed.truncated.sort(), ['attachments', 'inReplyTo', 'messageId', 'references']);
    const bare = await parse(`Message-ID: ${id.slice(1, -1)}\r\n\r\n`);
    assert.deepEqual([bare.messageId, bare.truncated], [null, ['messageId']]);
  });

  test('of an id that is too long, no part and no word beside it becomes the id', async () => {
    const [x, y] = ['x'.repeat(600), 'y'.repeat(600)];
    const parsed = await parse(
      `Message-ID: <${x}\r\n ${y}@z>\r\nIn-Reply-To: <${x}${y}@z> (your mail) from a@b\r\n`,
      `References: <${x}\r\n ${y}@z>\r\n\r\n`,
    );
    assert.deepEqual([parsed.messageId, parsed.inReplyTo, parsed.references], [null, null, []]);
    assert.deepEqual(parsed.truncated.sort(), ['inReplyTo', 'messageId', 'references']);
    const bare = await parse(`Message-ID: ${x}${y}@z a@b\r\nIn-Reply-To: <${x}${y}\r\n y@z a@b\r\n\r\n`);
    assert.deepEqual([bare.messageId, bare.inReplyTo], [null, null]);
    assert.deepEqual(bare.truncated.sort(), ['inReplyTo', 'messageId']);
  });

  test('an id that is too long after the one that is shown is not named', async () => {
    const long = `<${'i'.repeat(997)}@x>`;
    const read = async (ids: string) => {
      const parsed = await parse(
        `Message-ID: ${ids}\r\nIn-Reply-To: ${ids}\r\n`,
        `Content-Type: a/b\r\nContent-ID: ${ids}\r\n\r\nx`,
      );
      const shown = [parsed.messageId, parsed.inReplyTo, parsed.attachments[0]?.contentId];
      return [shown, parsed.truncated.sort()];
    };
    const shown = ['<a@x>', '<a@x>', '<a@x>'];
    assert.deepEqual(await read(`<a@x> ${long}`), [shown, []]);
    assert.deepEqual(await read(`${long} <a@x>`), [shown, ['attachments', 'inReplyTo', 'messageId']]);
  });

  test('of many ancestors only the root and the nearest count', () => {
    const ids = Array.from({ length: 50 }, (_, i) => `<${i}@x.test>`);
    const read = (references: string[], inReplyTo: string | null) =>
      readThread(
        'identity',
        'id',
        {
          ...{ messageId: '<new@x.test>', inReplyTo, references },
          ...{ autoSubmitted: null, report: null, returnedIds: [] },
        },
        { source: 'smtp', envelope: { mailFrom: 'ada@x.test' } },
      ).ancestors;
    assert.deepEqual(read(ids, null), [ids[0] ?? '', ...ids.slice(-19)].map(messageKey));
    assert.deepEqual(read(ids.slice(0, 20), null), ids.slice(0, 20).map(messageKey));
    assert.deepEqual(read([], '<49@x.test>'), ids.slice(-1).map(messageKey));
    assert.deepEqual(read([], null), []);
  });

  test('more than 50 recipients of a report: the first are listed, and `truncated` has "report"', async () => {
    const read = async (count: number) => {
      const status = many(count, (i) => `Final-Recipient: rfc822; u${i}@x.test\r\nAction: failed\r\n\r\n`);
      const { report, truncated } = await parseMessage(compose(status));
      return { count: report?.recipients.length, truncated };
    };
    assert.deepEqual(await read(50), { count: 50, truncated: [] });
    assert.deepEqual(await read(51), { count: 50, truncated: ['report'] });
  });

  test('a report of more than 128 KiB: its first part is read, and `truncated` has "report"', async () => {
    const { report, truncated } = await parseMessage(compose(`${failed}X: ${'x'.repeat(128 * 1024)}\r\n`));
    assert.deepEqual([report, truncated], [simple, ['report']]);
  });

  describe('a long value in a report: `truncated` has "report"', () => {
    const long = 'x'.repeat(1001);
    const [action, status] = ['Action: failed\r\n', 'Final-Recipient: rfc822; a@x.test\r\n'];
    const returned = (field: string) =>
      compose(failed, { returned: `Content-Type: message/rfc822\r\n\r\n${field}\r\n\r\nHello` });
    const reports: Record<string, [whole: Buffer, cut: Buffer]> = {
      diagnostic: [
        compose(`${status}${action}Diagnostic-Code: smtp; ${long.slice(1)}\r\n`),
        compose(`${status}${action}Diagnostic-Code: smtp; ${long}\r\n`),
      ],
      'remote server': [
        compose(`${status}${action}Remote-MTA: dns; ${long.slice(1)}\r\n`),
        compose(`${status}${action}Remote-MTA: dns; ${long}\r\n`),
      ],
      address: [
        compose(`Final-Recipient: rfc822; ${long.slice(5)}@x\r\n${action}`),
        compose(`Final-Recipient: rfc822; ${long.slice(4)}@x\r\n${action}`),
      ],
      action: [
        compose(`${status}Action: ${long.slice(0, 100)}\r\n`),
        compose(`${status}Action: ${long.slice(0, 101)}\r\n`),
      ],
      subject: [returned(`Subject: ${long.slice(1)}`), returned(`Subject: ${long}`)],
      'Message-ID': [
        returned(`Message-ID: <${long.slice(5)}@x>`),
        returned(`Message-ID: <${long.slice(4)}@x>`),
      ],
      'returned header': [
        returned(many(2000, () => 'X: 1\r\n').trimEnd()),
        returned(many(2001, () => 'X: 1\r\n').trimEnd()),
      ],
      fields: [
        compose(`${status}${action}${many(1998, () => 'X: 1\r\n')}`),
        compose(`${status}${action}${many(1999, () => 'X: 1\r\n')}`),
      ],
      'fields in blocks': [
        compose(`${status}${action}${many(1998, () => '\r\nX: 1\r\n')}\r\nnot a field\r\n`),
        compose(`${status}${action}${many(1999, () => '\r\nX: 1\r\n')}`),
      ],
      'returned header in bytes': [
        returned(many(2, () => `X: ${'x'.repeat(60 * kib)}\r\n`).trimEnd()),
        returned(many(3, () => `X: ${'x'.repeat(60 * kib)}\r\n`).trimEnd()),
      ],
    };
    for (const [what, [whole, cut]] of Object.entries(reports))
      test(what, async () => {
        const read = async (raw: Buffer) => {
          const { report, truncated } = await parseMessage(raw);
          return [report?.recipients.length, truncated];
        };
        assert.deepEqual(
          [await read(whole), await read(cut)],
          [
            [1, []],
            [1, ['report']],
          ],
        );
      });
  });

  describe('a long value that a report does not show: `truncated` is empty', () => {
    const [name, action] = ['n'.repeat(999), 'Action: failed\r\n'];
    const type = 'message/disposition-notification';
    const original = `Original-Recipient: rfc822; ${name}@x\r\n`;
    const final = 'Final-Recipient: rfc822; a@x.test\r\n';
    const displayed = 'Disposition: manual-action/MDN-sent-manually; displayed\r\n';
    const reports = {
      'a name': compose(`Final-Recipient: rfc822; ${name} <a@x.test>\r\n${action}`),
      'text before the address': compose(`Final-Recipient: rfc822; ${name}, a@x.test\r\n${action}`),
      'Original-Recipient beside Final-Recipient': compose(`${original}${final}${action}`),
      'Original-Recipient of a disposition': compose(`${original}${final}${displayed}`, { type }),
    };
    for (const [what, raw] of Object.entries(reports))
      test(what, async () => {
        const { report, truncated } = await parseMessage(raw);
        assert.deepEqual([report?.recipients[0]?.address, truncated], ['a@x.test', []]);
      });

    test('but Original-Recipient is shown if Final-Recipient is missing', async () => {
      for (const raw of [compose(`${original}${action}`), compose(`${original}${displayed}`, { type })]) {
        const { report, truncated } = await parseMessage(raw);
        assert.deepEqual([report?.recipients[0]?.address, truncated], [null, ['report']]);
      }
    });
  });

  test('more than 500 parts: the first are listed, and `truncated` has "body"', async () => {
    const raw = Buffer.from(
      `Content-Type: multipart/mixed; boundary=b\r\n\r\n${many(600, (i) => `--b\r\nContent-Type: a/b\r\n\r\n${i}\r\n`)}--b--`,
    );
    const parsed = await parseMessage(raw);
    assert.equal(parsed.attachments.length, 499);
    assert.deepEqual(parsed.truncated, ['body']);
    assert.equal(Buffer.from((await extractAttachment(raw, 498))?.content ?? '').toString(), '498');
    assert.equal(await extractAttachment(raw, 499), null);
  });

  describe('the limits of headers hold for all parts of a message together', () => {
    const mixed = 'Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nread first\r\n';
    const measure = (raw: Buffer) => {
      const { root } = readStructure(raw);
      const fields = [root, ...root.children].flatMap((part) => part.fields);
      return { count: fields.length, characters: fields.reduce((sum, { value }) => sum + value.length, 0) };
    };

    test('480 parts with 12,000 fields each', async () => {
      const part = `--b\r\nContent-Type: a/b\r\n${'A:1\r\n'.repeat(12_000)}\r\nx\r\n`;
      const raw = Buffer.from(`${mixed}${part.repeat(480)}--b--`);
      const parsed = await parseMessage(raw);
      assert.equal(parsed.text, 'read first');
      assert.equal(parsed.attachments.length, 2);
      assert.deepEqual(parsed.truncated, ['body']);
      // Content-Type of the message and of two parts.
      assert.equal(measure(raw).count, 3);
    });

    test('480 parts with a header of 60 KiB each', async () => {
      const part = `--b\r\nContent-Type: a/b; name=${'n'.repeat(60 * kib)}\r\n\r\nx\r\n`;
      const raw = Buffer.from(`${mixed}${part.repeat(480)}--b--`);
      const parsed = await parseMessage(raw);
      assert.equal(parsed.text, 'read first');
      assert.deepEqual(parsed.truncated, ['attachments', 'body']);
      const { characters } = measure(raw);
      assert.ok(characters > 1000 * kib && characters <= 1024 * kib, `${characters}`);
    });

    test('a part with a header of more than 64 KiB is named, and the parts after it are read', async () => {
      const part = `--b\r\nContent-Type: a/b\r\nX: ${'x'.repeat(64 * kib)}\r\n\r\nx\r\n`;
      const parsed = await parse(mixed, part, '--b\r\nContent-Type: c/d\r\n\r\nx\r\n--b--');
      assert.deepEqual(
        parsed.attachments.map(({ contentType }) => contentType),
        ['a/b', 'c/d'],
      );
      assert.deepEqual(parsed.truncated, ['body']);
    });

    test('498 parts with headers of 1 KiB are whole', async () => {
      const part = `--b\r\nContent-Type: a/b\r\n${`X: ${'x'.repeat(95)}\r\n`.repeat(10)}\r\nx\r\n`;
      const parsed = await parse(mixed, part.repeat(498), '--b--');
      assert.equal(parsed.attachments.length, 498);
      assert.deepEqual(parsed.truncated, []);
    });
  });

  test('multiparts nested deeper than 20: the one that is too deep is one attachment', async () => {
    const open = (i: number) => `Content-Type: multipart/mixed; boundary=b${i}\r\n\r\n--b${i}\r\n`;
    const inner = many(30, open);
    const shallow = await parse(many(20, open), '\r\ninnermost');
    assert.equal(shallow.text, 'innermost');
    assert.deepEqual(shallow.truncated, []);
    const parsed = await parse(inner, '\r\ninnermost');
    assert.equal(parsed.text, null);
    assert.deepEqual(
      parsed.attachments.map(({ contentType }) => contentType),
      ['multipart/mixed'],
    );
    assert.deepEqual(parsed.truncated, ['body']);
  });

  test('a filename of more than 255 characters is cut', async () => {
    const parsed = await parse(`Content-Type: a/b; name="${'n'.repeat(300)}.txt"\r\n\r\n`);
    assert.equal(parsed.attachments[0]?.filename, 'n'.repeat(255));
  });
});

describe('what was decoded only to be described is freed at once, and the message itself is not', () => {
  const kinds = [
    ['an attachment in base64', 'a/b', 'base64', 'QUJD'],
    ['an attachment in quoted-printable', 'a/b', 'quoted-printable', '=41'],
    ['an attachment that is not encoded', 'a/b', '8bit', 'ABC'],
    ['a text in base64', 'text/plain', 'base64', 'QUJD'],
  ] as const;
  for (const [name, type, encoding, unit] of kinds) {
    test(name, async () => {
      const head = `Content-Type: ${type}\r\nContent-Transfer-Encoding: ${encoding}\r\n\r\n`;
      const raw = Buffer.concat([Buffer.from(head), Buffer.alloc(large, unit)]);
      const before = process.memoryUsage().arrayBuffers;
      // Everything is done when it returns: nobody else allocates meanwhile, and a collection could only make it less.
      const parsing = parseMessage(raw);
      const kept = process.memoryUsage().arrayBuffers - before;
      const { text, attachments } = await parsing;
      assert.ok(text ? text.startsWith('ABC') : (attachments[0]?.size ?? 0) >= 3);
      // A copy of the first 2 MiB of a text is allowed.
      assert.ok(kept <= large / 2, `${kept} bytes are kept`);
      assert.equal(raw.length, head.length + large);
    });
  }
});

describe('the slowest messages take at most 30 times as long as an ordinary one of 4 MiB', () => {
  const fill = (unit: string, size = large) => Buffer.alloc(size, unit, 'latin1');
  const mixed = 'Content-Type: multipart/mixed; boundary=ab\r\n\r\n--ab\r\n\r\n';
  const prefix = 'x'.repeat(68);
  const kinds: [string, ...(string | Buffer)[]][] = [
    ['line feeds', fill('\n')],
    ['line feeds, of the largest size', fill('\n', largest)],
    ['carriage returns', fill('\r')],
    ['NULs', fill('\0')],
    ['header fields', fill('A:\n')],
    ['100,000 header fields', many(100_000, (i) => `X-${i}: v\r\n`), '\r\nbody'],
    ['continuations', 'A: b\n', fill(' \n')],
    ['delimiters', mixed, fill('--ab\n')],
    ['lines that nearly are delimiters, of the largest size', mixed, fill('--ac\n', largest)],
    ['10,000 levels', many(10_000, (i) => `Content-Type: multipart/mixed; boundary=b${i}\n\n--b${i}\n`)],
    [
      'long boundaries that begin alike',
      many(20, (i) => `Content-Type: multipart/mixed; boundary=${prefix}${10 + i}\n\n--${prefix}${10 + i}\n`),
      '\n',
      fill(`--${prefix}zz\n`),
    ],
    ['escapes', 'Content-Transfer-Encoding: quoted-printable\n\n', fill('=41')],
    ['soft breaks', 'Content-Transfer-Encoding: quoted-printable\n\n', fill('=\n')],
    ['padding', 'Content-Type: a/b\nContent-Transfer-Encoding: base64\n\n', fill('/w==\n')],
    ['a charset of many bytes', 'Content-Type: text/html; charset=gb18030\n\n', fill('\xff\xfe<')],
    [
      'parts of UTF-7 that are nothing but NULs',
      'Content-Type: multipart/mixed; boundary=b\r\n\r\n',
      many(12, () => `--b\r\nContent-Type: text/plain; charset=utf-7\r\n\r\n${'+AAA-'.repeat(80 * kib)}\r\n`),
    ],
    [
      'a charset of its own for every word',
      'To: ',
      many(30_000, (i) => `=?${i}?B?/w?= ${i % 30 ? '' : '<a@b>,'}`),
      '\r\n\r\nbody',
    ],
    [
      'parts related to one that is not there',
      'Content-Type: multipart/related; boundary=b; start="<none>"\r\n\r\n',
      many(499, () => `--b\r\nContent-Type: text/plain\r\nContent-ID: ${'('.repeat(50 * kib)}\r\n\r\nx\r\n`),
    ],
    [
      'parts with many parameters',
      'Content-Type: multipart/mixed; boundary=b\r\n\r\n',
      many(499, () => `--b\r\nContent-Disposition: inline; ${'a=b;'.repeat(12 * kib)}\r\n\r\nx\r\n`),
    ],
    ['padding on one line', 'Content-Type: a/b\nContent-Transfer-Encoding: base64\n\n', fill('AAA=')],
    ['padding after each character', 'Content-Type: a/b\nContent-Transfer-Encoding: base64\n\n', fill('A=')],
    ['uuencode', 'Content-Type: a/b\nContent-Transfer-Encoding: x-uuencode\n\nbegin 644 x\n', fill('M\n')],
    [
      'beginnings of uuencode',
      'Content-Type: a/b\nContent-Transfer-Encoding: x-uuencode\n\n',
      fill('begin 644'),
    ],
    ['a header with damage after each field', many(500_000, (i) => `X-${i}: v\nwords\n`), '\nbody'],
    ['lines that are not fields', 'Subject: s\n', fill('words\n')],
    ['lines of blanks between lines that are not fields', 'Subject: s\n', fill(' \nx\n \n')],
    [
      'parts without an empty line',
      'Content-Type: multipart/mixed; boundary=b\n\n',
      many(499, () => `--b\nContent-Type: a/b\n${'words\n'.repeat(8000)}`),
    ],
    [
      'multiparts without boundaries, after many hyphens',
      'Content-Type: multipart/mixed; boundary=b\n\n',
      many(499, () => `--b\nContent-Type: multipart/mixed\n\n${'--\n'.repeat(16 * kib)}`),
    ],
    [
      'multiparts in each other that end nowhere',
      many(20, (i) => `Content-Type: multipart/mixed; boundary=b${i}\n--b${i}\n`),
      fill('Content-Type: multipart/mixed\n'),
    ],
    ['a charset that is UTF-8 in fact', 'Content-Type: text/plain; charset=gbk\n\n', fill('\xc3\xa9')],
    ['UTF-8 with much damage', '\n', fill('\xc3\xa9\xff')],
    ['tags that never close', 'Content-Type: text/html\n\n', fill('<!-- <a <style ')],
  ];
  for (const [name, ...pieces] of kinds) {
    test(name, async () => {
      await assertQuick(30 * ordinary, ...pieces);
    });
  }
});

describe('a small message with many hostile parts takes at most 10 times as long as with harmless ones', () => {
  const multipart = (kind: string, part: string, count: number) =>
    `Content-Type: multipart/${kind}; boundary=b\r\n\r\n${part.repeat(count)}`;

  test('parts related to one that is not there', async () => {
    const part = (id: string) => `--b\r\nContent-Type: text/plain\r\nContent-ID: ${id}\r\n\r\nx\r\n`;
    const harmless = multipart('mixed', part('i'.repeat(400)), 499);
    const hostile = multipart('related; start="<none>"', part('('.repeat(400)), 499);
    await assertQuick(10 * (await measureLongest(harmless)), hostile);
  });

  test('multiparts without their delimiters', async () => {
    const part = (type: string) => `--b\r\nX: y\r\nContent-Type: ${type}\r\n\r\n${'--a\r\n'.repeat(90)}`;
    const harmless = multipart('mixed', part('text/plain'), 490);
    const hostile = multipart('mixed', part('multipart/mixed; boundary=none'), 490);
    await assertQuick(10 * (await measureLongest(harmless)), hostile);
  });
});

/** The first field at its largest, the others at a fifth of it, which is still more than is kept of one value. */
describe('50 KiB of a header field of one pattern take no longer than an ordinary message of 4 MiB', () => {
  const fields = [
    'To: ',
    'Subject: ',
    'References: ',
    'Date: ',
    'Auto-Submitted: ',
    'Content-Transfer-Encoding: ',
    'Content-Type: multipart/mixed; ',
    'Content-Disposition: attachment; filename=',
  ];
  const units = [
    '(',
    '"',
    '<',
    '<@',
    '>',
    '[',
    '\\',
    ',',
    ';',
    ':',
    '.',
    '@',
    '=',
    '=?',
    "''",
    '%41',
    ' ',
    'a ',
  ];
  units.push(
    'a@b ',
    '"a".',
    '"a b"',
    '[a]',
    '\r\n ',
    'a@b,',
    '(a)',
    '"a"',
    '<a@b> ',
    'a*1=b;',
    '=?a?b?AAAA?= ',
  );
  for (const [index, field] of fields.entries()) {
    const size = (index === 0 ? 500 : 100) * kib;
    test(`${field}${size} characters`, async () => {
      for (const unit of units) {
        // Something after the run: a pattern that looks for the end fails at each place.
        const value = `${unit.repeat(size / unit.length)}x name=b`;
        const parsed = await assertQuick((size / (50 * kib)) * ordinary, field, value, '\r\n\r\nbody');
        assert.ok(parsed.headers.length <= 1);
      }
    });
  }
});
