/** Delimiters of multiparts: which lines are delimiters and of which multipart, and that nesting costs no time. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parseMessage } from '../src/mime/parse.ts';
import { type Part, readStructure } from '../src/mime/structure.ts';

function nest(boundaries: readonly string[]): string {
  return boundaries
    .map((name, i) => {
      const delimiter = i === 0 ? '' : `--${boundaries[i - 1]}\n`;
      return `${delimiter}Content-Type: multipart/mixed; boundary="${name}"\n\n`;
    })
    .join('');
}

/** The texts of all parts, from the outermost multipart to the innermost. */
function readTexts(raw: string): string[][] {
  const bytes = Buffer.from(raw);
  const texts: string[][] = [];
  const visit = ({ children }: Part): void => {
    const leaves = children.filter((child) => !child.isContainer);
    texts.push(leaves.map((leaf) => bytes.toString('utf8', leaf.bodyStart, leaf.bodyEnd)));
    for (const child of children) if (child.isContainer) visit(child);
  };
  visit(readStructure(bytes).root);
  return texts;
}

describe('which multipart a line delimits', () => {
  test('a boundary that is the beginning of another one', () => {
    for (const boundaries of [
      ['ab', 'a'],
      ['a', 'ab'],
    ]) {
      const [outer = '', inner = ''] = boundaries;
      const raw = `${nest(boundaries)}--${inner}\n\none\n--${inner}\n\ntwo\n--${outer}\n\nthree\n--${outer}--\n`;
      assert.deepEqual(readTexts(raw), [['three'], ['one', 'two']]);
    }
  });

  test('the inner one, if the delimiter of one is the end of the other', () => {
    // "--a--" ends the multipart "a" and delimits the multipart "a--".
    assert.deepEqual(readTexts(`${nest(['a', 'a--'])}--a--\n\none\n--a----\n--a\n\ntwo\n--a--\n`), [
      ['two'],
      ['one'],
    ]);
    assert.deepEqual(readTexts(`${nest(['a--', 'a'])}--a\n\none\n--a--\nnothing\n--a--\n\ntwo`), [
      ['two'],
      ['one'],
    ]);
  });

  test('the inner one of two with the same boundary, then the outer one', () => {
    assert.deepEqual(readTexts(`${nest(['b', 'b'])}--b\n\none\n--b--\n--b\n\ntwo\n--b--\n`), [
      ['two'],
      ['one'],
    ]);
  });

  test('blanks after a delimiter do not count, other characters do', () => {
    const raw = `${nest(['b'])}--b \t\n\none\n--b-\n--bb\n-- b\n --b\n--b--- \n--b-- \t\nnothing\n`;
    assert.deepEqual(readTexts(raw), [['one\n--b-\n--bb\n-- b\n --b\n--b--- ']]);
  });

  test('a boundary of characters that are not ASCII', () => {
    assert.deepEqual(readTexts(`${nest(['é', 'è'])}--è\n\none\n--é\n\ntwo\n--é--\n`), [['two'], ['one']]);
  });

  test('hyphens alone', () => {
    assert.deepEqual(readTexts(`${nest(['b'])}--b\n\n--\n---\n----\n--b--\n`), [['--\n---\n----']]);
    assert.deepEqual(readTexts(`${nest(['-'])}---\n\none\n--\n-----\n`), [['one\n--']]);
  });
});

/** The least of three runs, in microseconds of processor time: the garbage of earlier tests is collected at any moment. */
async function measure(raw: Buffer): Promise<number> {
  const times: number[] = [];
  while (times.length < 3) {
    const started = process.cpuUsage();
    await parseMessage(raw);
    times.push(process.cpuUsage(started).user);
  }
  return Math.min(...times);
}

/** The control is the same message without the nesting, in the same run. */
describe('20 multiparts in each other take at most 4 times as long as one', () => {
  const size = 4 * 1024 * 1024;
  const letters = Array.from({ length: 20 }, (_, i) => String.fromCharCode(65 + i));
  const fill = (header: string, line: string) =>
    Buffer.concat([Buffer.from(header), Buffer.alloc(size, line)]);
  const kinds: [name: string, boundaries: string[], line: string][] = [
    ['lines like delimiters but for the last character', letters.map((l) => 'p'.repeat(69) + l), 'z'],
    ['short lines like delimiters', letters.map((l) => `p${l}`), 'z'],
    ['lines like the last delimiters', letters.map((l) => `p${l}`), 'z--'],
    ['lines of hyphens', letters.map((l) => `--${l}`), '-'],
  ];
  for (const [name, boundaries, end] of kinds)
    test(name, async () => {
      const line = `--${boundaries[0]?.slice(0, -1)}${end}\n`;
      const control = await measure(fill(nest(boundaries.slice(0, 1)), line));
      const taken = await measure(fill(nest(boundaries), line));
      assert.ok(taken <= 4 * control, `${taken} µs, one multipart ${control} µs`);
    });

  test('headers that go on beyond their limit and have no empty line', async () => {
    const damage = 'w'.repeat(64 * 1024);
    const part = (name: string) => `Content-Type: multipart/mixed; boundary=${name}\n${damage}\n--${name}\n`;
    const control = await measure(fill(nest(['r']) + damage.repeat(19), '--\n'));
    const taken = await measure(fill(`${nest(['r'])}--r\n${letters.slice(1).map(part).join('')}`, '--\n'));
    assert.ok(taken <= 4 * control, `${taken} µs, one multipart ${control} µs`);
  });
});
