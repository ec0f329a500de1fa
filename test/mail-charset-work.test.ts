/** How much work encoded words may cause. Whoever sends mail chooses how many there are, and their charsets. */
import assert from 'node:assert/strict';
import { syncBuiltinESMExports } from 'node:module';
import { type TestContext, test } from 'node:test';
import util from 'node:util';
import iconv from 'iconv-lite';
import { verifySignatures } from '../src/mailauth/signatures.ts';
import { parseMessage } from '../src/mime/parse.ts';

const { TextDecoder } = util;

/** Counts how often a decoder is asked for, also when Node has none for the charset. */
function countTextDecoders(t: TestContext): () => number {
  let count = 0;
  util.TextDecoder = class extends TextDecoder {
    constructor(label?: string) {
      count += 1;
      super(label);
    }
  };
  syncBuiltinESMExports();
  t.after(() => {
    util.TextDecoder = TextDecoder;
    syncBuiltinESMExports();
  });
  return () => count;
}

// Without the two limits a message of 1 MiB took 3.2 s of processor time.
test('file names in charsets that Node lacks: one decoder for each charset, each word decoded once', async (t) => {
  const [parts, words] = [30, 280];
  const charsets = ['437', '850'];
  const name = Array.from({ length: words }, (_, i) => `=?${charsets[i % 2]}?q?a?=`).join(' ');
  const part = `--b\r\nContent-Type: text/plain; name="${name}"\r\n\r\nx\r\n`;
  const raw = Buffer.from(`Content-Type: multipart/mixed; boundary=b\r\n\r\n${part.repeat(parts)}--b--\r\n`);

  const countDecoders = countTextDecoders(t);
  const { mock: decode } = t.mock.method(iconv, 'decode');
  const { attachments } = await parseMessage(raw);

  // The first part is the text of the message.
  assert.equal(attachments.length, parts - 1);
  assert.equal(attachments.at(-1)?.filename, 'a'.repeat(255));
  assert.equal(countDecoders(), charsets.length);
  const decodedWords = decode.callCount();
  assert.ok(decodedWords > 0 && decodedWords <= parts * words, `${decodedWords} of ${parts * words}`);
});

// Node has no decoder for this charset, so the calls of iconv-lite can be counted.
const type = 'Content-Type: text/plain; charset=ibm437\n';
const fields = 'A:\xe4\n';

test('of the fields of a part only those that count are decoded', async (t) => {
  const part = `--b\n${type}${fields.repeat(12_000)}\nx\n`;
  const raw = Buffer.from(
    `From: \xe4 <ada@x.test>\nContent-Type: multipart/mixed; boundary=b\n\n${part}--b--\n`,
    'latin1',
  );
  const { mock: decode } = t.mock.method(iconv, 'decode');
  const { from, text } = await parseMessage(raw);
  assert.deepEqual([from?.name, text], ['Σ', 'x']);
  assert.deepEqual(verifySignatures(raw, new Map()).authors.domains, ['x.test']);
  assert.ok(decode.callCount() < 20, `${decode.callCount()} calls`);
});

test('of the fields of a message only those that are shown are decoded, and for the authors only From', async (t) => {
  const raw = Buffer.from(`From: \xe4 <ada@x.test>\n${type}${fields.repeat(6000)}\nx\n`, 'latin1');
  const { mock: decode } = t.mock.method(iconv, 'decode');
  const { headers, from } = await parseMessage(raw);
  assert.deepEqual([headers.length, from?.name], [1000, 'Σ']);
  const shown = decode.callCount();
  assert.ok(shown < 1020, `${shown} calls`);
  assert.deepEqual(verifySignatures(raw, new Map()).authors.domains, ['x.test']);
  assert.ok(decode.callCount() - shown < 10, `${decode.callCount() - shown} calls for the authors`);
});

test('of parameters only those that are used are decoded', async (t) => {
  const parameters = Array.from({ length: 3000 }, (_, i) => ` p${i}*=ibm437''%E4;`).join('\n');
  const { mock: decode } = t.mock.method(iconv, 'decode');
  const { attachments } = await parseMessage(
    Buffer.from(`Content-Type: a/b;\n${parameters}\n name*=ibm437''%E4\n\nx`),
  );
  assert.equal(attachments[0]?.filename, 'Σ');
  assert.ok(decode.callCount() < 10, `${decode.callCount()} calls`);
});
