/** How much work encoded words may cause. Whoever sends mail chooses how many there are, and their charsets. */
import assert from 'node:assert/strict';
import { syncBuiltinESMExports } from 'node:module';
import { type TestContext, test } from 'node:test';
import util from 'node:util';
import iconv from 'iconv-lite';
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
