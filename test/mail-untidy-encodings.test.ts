/** Transfer encodings: uuencode, and base64 with words after its end. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { extractAttachment, parseMessage } from '../src/mime/parse.ts';
import { decodeTransfer } from '../src/mime/transfer.ts';

/** With grave accents for zeros, as most programs write them; with spaces if `zero` is a space. */
function uuencode(content: Uint8Array, zero = '`'): string {
  const lines: string[] = [];
  const character = (sextet: number) => (sextet === 0 ? zero : String.fromCharCode(32 + sextet));
  for (let at = 0; at < content.length; at += 45) {
    const line = content.subarray(at, at + 45);
    let text = character(line.length);
    for (let i = 0; i < line.length; i += 3) {
      const [a = 0, b = 0, c = 0] = line.subarray(i, i + 3);
      for (const sextet of [a >> 2, ((a & 3) << 4) | (b >> 4), ((b & 15) << 2) | (c >> 6), c & 63])
        text += character(sextet);
    }
    lines.push(text);
  }
  return ['begin 644 file.bin', ...lines, zero, 'end'].join('\r\n');
}

async function readAttachment(encoding: string, body: string) {
  const raw = Buffer.from(
    `Content-Type: a/b\r\nContent-Transfer-Encoding: ${encoding}\r\n\r\n${body}`,
    'latin1',
  );
  const { truncated } = await parseMessage(raw);
  const extracted = await extractAttachment(raw, 0);
  return { content: Buffer.from(extracted?.content ?? '').toString('latin1'), truncated };
}

async function readText(encoding: string, body: string, type = 'text/plain; charset=utf-8') {
  return parseMessage(
    Buffer.from(`Content-Type: ${type}\r\nContent-Transfer-Encoding: ${encoding}\r\n\r\n${body}`),
  );
}

describe('uuencode', () => {
  for (const encoding of ['x-uuencode', 'X-UUENCODE', 'uuencode', 'x-uue', 'uue'])
    test(encoding, async () => {
      const read = await readAttachment(encoding, `${uuencode(Buffer.from('Hello, world'))}\r\n`);
      assert.deepEqual(read, { content: 'Hello, world', truncated: [] });
    });

  test('text is read in its charset', async () => {
    const parsed = await readText('x-uuencode', uuencode(Buffer.from('Grüße\r\n')));
    assert.deepEqual([parsed.text, parsed.truncated], ['Grüße\n', []]);
  });

  const bodies: [why: string, body: string, content: string][] = [
    ['without its end', 'begin 644 x\r\n#86)C\r\n', 'abc'],
    ['without the empty line of data', 'begin 644 x\r\n#86)C\r\nend\r\n', 'abc'],
    ['with four digits of rights', 'begin 0644 x\r\n#86)C\r\n`\r\nend', 'abc'],
    ['with line feeds alone', 'begin 644 x\n#86)C\n`\nend\n', 'abc'],
    ['with blanks lost at the end of a line', 'begin 644 x\r\n#\r\n`\r\nend', '\0\0\0'],
    ['empty', 'begin 644 x\r\n`\r\nend\r\n', ''],
    ['after empty lines', '\r\n\r\nbegin 644 x\r\n#86)C\r\n`\r\nend\r\n', 'abc'],
  ];
  for (const [why, body, content] of bodies)
    test(why, async () => {
      assert.deepEqual(await readAttachment('x-uuencode', body), { content, truncated: [] });
    });

  test('without its beginning the bytes stay as they are', async () => {
    assert.equal((await readAttachment('x-uuencode', '#86)C\r\nend')).content, '#86)C\r\nend');
  });

  test('words around the data are shown with a text, and named with an attachment', async () => {
    const body = `Before\r\n${uuencode(Buffer.from('abc'))}\r\nAfter\r\n`;
    const parsed = await readText('x-uuencode', body);
    assert.equal(parsed.text, 'abc\nBefore\nAfter\n');
    assert.deepEqual(parsed.truncated, []);
    assert.deepEqual(await readAttachment('x-uuencode', body), { content: 'abc', truncated: ['body'] });
  });

  test('any content comes back', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), fc.constantFrom('`', ' '), (content, zero) => {
        const { content: decoded } = decodeTransfer(
          Buffer.from(uuencode(content, zero), 'latin1'),
          'x-uuencode',
        );
        assert.deepEqual(Buffer.from(decoded), Buffer.from(content));
      }),
      { numRuns: 500 },
    );
  });

  test('lines that promise more than they have do not make the content longer than the message', () => {
    const bytes = Buffer.from(`begin 644 x\n${'M\n'.repeat(100_000)}end`);
    assert.ok(decodeTransfer(bytes, 'x-uuencode').content.length <= bytes.length);
  });
});

describe('base64', () => {
  const footer =
    '_______________________________________________\r\nlist mailing list\r\nlist@example.com\r\n';
  const data: [why: string, body: string, content: string, rest: string][] = [
    ['words of a mailing list', `SGVsbG8=\r\n${footer}`, 'Hello', footer],
    ['words after an empty line', `SGVsbG8=\r\n\r\nSent from my phone\r\n`, 'Hello', 'Sent from my phone'],
    ['words on the same line', 'SGVsbG8= Sent from my phone', 'Hello', 'Sent from my phone'],
    ['words after two signs of padding', 'SGVsbA==\r\n-- \r\nAda', 'Hell', '-- \r\nAda'],
    ['one word that is no group of four', 'SGVsbG8=\r\nRegards\r\n', 'Hello', 'Regards'],
    ['lines that are padded one by one', 'SGVs\r\nbG8=\r\nIQ==\r\nISEh\r\n', 'Hello!!!!', ''],
    ['lines that are padded one by one, then words', 'SGVsbA==\r\nbw==\r\nBye, Ada\r\n', 'Hello', 'Bye, Ada'],
    ['two texts on one line', 'SGVsbA==bw==', 'Hello', ''],
    ['blanks and controls', 'SGVsbG8=\r\n \t\r\n\0\x1a', 'Hello', ''],
    ['padding alone', '====', '', ''],
    ['no padding', 'SGVs\r\nbG8', 'Hello', ''],
    ['other characters before the padding', 'SG!Vs\r\n*bG8=', 'Hello', ''],
  ];
  for (const [why, body, content, rest] of data)
    test(why, async () => {
      const isWhole = rest === '';
      assert.deepEqual(await readAttachment('base64', body), { content, truncated: isWhole ? [] : ['body'] });
      const words = rest.replaceAll('\r\n', '\n').trimEnd();
      for (const type of ['text/plain', 'text/html']) {
        const parsed = await readText('base64', body, type);
        const shown = parsed.text ?? parsed.html;
        assert.equal(shown?.trimEnd(), isWhole ? content : `${content}\n${words}`);
        assert.deepEqual(parsed.truncated, []);
      }
    });

  test('words after UTF-16 are not UTF-16', async () => {
    const body = Buffer.from('Grüße!', 'utf16le').toString('base64');
    assert.ok(!body.endsWith('='));
    const padded = Buffer.from('Grüße', 'utf16le').toString('base64');
    const parsed = await readText('base64', `${padded}\r\nBye, Ada`, 'text/plain; charset=utf-16le');
    assert.equal(parsed.text, 'Grüße\nBye, Ada');
  });

  test('any content comes back, whole or line by line', () => {
    fc.assert(
      fc.property(fc.array(fc.uint8Array({ maxLength: 20 }), { maxLength: 6 }), (pieces) => {
        const lines = pieces.map((piece) => Buffer.from(piece).toString('base64')).join('\r\n');
        const { content, rest } = decodeTransfer(Buffer.from(lines), 'base64');
        assert.deepEqual(content, Buffer.concat(pieces));
        assert.equal(rest.length, 0);
      }),
      { numRuns: 500 },
    );
  });
});
