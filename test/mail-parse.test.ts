/**
 * What is read from each message in fixtures/mail. Beside each stands what is expected, written from the RFCs by hand:
 * `why` names the rule, `expect` the fields that it asserts. An attachment is given with its content, from which size
 * and hash follow. Unless a fixture says otherwise, nothing is left out.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, test } from 'node:test';
import {
  extractAttachment,
  type ParsedAttachment,
  type ParsedMessage,
  parseMessage,
} from '../src/mime/parse.ts';

interface Expected extends Partial<Omit<ParsedMessage, 'attachments'>> {
  attachments?: (Omit<ParsedAttachment, 'size' | 'sha256'> & { content?: string; contentHex?: string })[];
}

const folder = path.join(import.meta.dirname, 'fixtures/mail');
const names = globSync('*.eml', { cwd: folder }).sort();

test('the corpus is complete', () => {
  assert.ok(names.length >= 100);
  assert.equal(globSync('*.json', { cwd: folder }).length, names.length);
});

describe('fixtures', () => {
  for (const name of names) {
    test(path.parse(name).name, async () => {
      const raw = readFileSync(path.join(folder, name));
      const { why, expect } = readExpected(name);
      const parsed = await parseMessage(raw);
      const { attachments, ...fields } = { truncated: [], ...expect };
      for (const [key, value] of Object.entries(fields)) {
        assert.deepEqual(parsed[key as keyof ParsedMessage], value, `${key}: ${why}`);
      }
      if (!attachments) return;
      const contents = attachments.map(readContent);
      const described = attachments.map(({ content, contentHex, ...rest }, i) => ({
        ...rest,
        size: contents[i]?.length,
        sha256: hash(contents[i] ?? ''),
      }));
      assert.deepEqual(parsed.attachments, described, why);
      for (const [i, content] of contents.entries()) {
        const extracted = await extractAttachment(raw, i);
        assert.deepEqual(Buffer.from(extracted?.content ?? 'none'), content);
        assert.deepEqual(extracted?.meta, described[i]);
      }
      assert.equal(await extractAttachment(raw, contents.length), null);
    });
  }
});

test('an attachment that does not exist is null', async () => {
  const raw = Buffer.from('Content-Type: image/png\r\n\r\nx');
  assert.ok(await extractAttachment(raw, 0));
  for (const n of [-1, 1, 0.5, Number.NaN, Number.POSITIVE_INFINITY]) {
    assert.equal(await extractAttachment(raw, n), null);
  }
});

test('of a view into a larger buffer only the view is read', async () => {
  const whole = Buffer.from('XXSubject: here\r\n\r\nbodyXX');
  const parsed = await parseMessage(new Uint8Array(whole.buffer, whole.byteOffset + 2, whole.length - 4));
  assert.equal(parsed.subject, 'here');
  assert.equal(parsed.text, 'body');
});

function readExpected(name: string): { why: string; expect: Expected } {
  return JSON.parse(readFileSync(path.join(folder, name.replace(/eml$/, 'json')), 'utf8'));
}

function readContent({ content, contentHex }: { content?: string; contentHex?: string }): Buffer {
  return content === undefined ? Buffer.from(contentHex ?? '', 'hex') : Buffer.from(content);
}

function hash(content: Buffer | string): string {
  return createHash('sha256').update(content).digest('hex');
}
