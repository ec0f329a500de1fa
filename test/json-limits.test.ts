/** Hostile JSON takes linear time: a stranger can send 64 KiB, an owner 36 MB, and nothing else runs meanwhile. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseJson } from '../src/lib/json.ts';

const bytes = 64 * 1024;
const fill = (unit: string) => unit.repeat(Math.ceil(bytes / unit.length));
/** Microseconds of the processor. */
const measureParse = (text: string) => {
  const before = process.cpuUsage();
  parse(text);
  return process.cpuUsage(before).user;
};
const parse = (text: string) => {
  try {
    parseJson(text);
  } catch {
    // Most are refused.
  }
};

test('hostile JSON costs at most 30 times what ordinary JSON of its size costs', () => {
  const ordinary = `[${fill('{"name":"Ada","n":1.5e3},')}0]`;
  parse(ordinary);
  const control = Math.max(10_000, measureParse(ordinary));
  const hostile = {
    'zeros within a number': `[0.1${fill('0')}1]`,
    'zeros at the end of a number': `[0.1${fill('0')}]`,
    'zeros before the digits': `[0.${fill('0')}1]`,
    'digits and zeros in turns': `[0.${fill('10')}1]`,
    'digits of an exponent': `[1e-${fill('0')}1]`,
    'escaped quotes': `["${fill('\\"')}"]`,
    'backslashes that never end': `["${fill('\\')}`,
    'keys that resemble each other': `{${fill('"":1e1,')}"":1}`,
    'brackets that never end': fill('['),
  };
  for (const [what, text] of Object.entries(hostile)) {
    const cost = measureParse(text);
    assert.ok(cost < 30 * control, `${what}: ${cost} µs, ordinary JSON: ${control} µs`);
  }
});
