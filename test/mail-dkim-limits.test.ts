/** Hostile messages take linear time to verify: each is compared with an ordinary message of the same size, in the same run. */
import assert from 'node:assert/strict';
import { beforeEach, describe, test } from 'node:test';
import { checkDkim, dns, plain, publish, rsa, sign } from './signing.ts';

beforeEach(() => dns.reset());

/** The results, and the processor time of the check in microseconds. */
async function measure(message: string) {
  const started = process.cpuUsage();
  const found = await checkDkim(message);
  return { results: found.map(({ result }) => result), spent: process.cpuUsage(started).user };
}

/** Returns the results of `hostile`. One run of three is enough: the garbage of earlier tests is collected at any moment. */
async function assertCheap(hostile: string, control: string) {
  const controls = [(await measure(control)).spent, (await measure(control)).spent];
  const most = 10 * Math.max(...controls);
  const runs = [];
  while (runs.length < 3) {
    const { results, spent } = await measure(hostile);
    if (spent <= most) return results;
    runs.push(spent);
  }
  return assert.fail(`${runs.join(', ')} µs, the control ${controls.join(', ')} µs`);
}

/** Enough to tell a line from a square: quadratic time for 4 MiB is hours. */
describe('4 MiB', () => {
  const mib = 1024 * 1024;
  const line = 'Words of a letter, in lines that are as long as lines mostly are, one by one.\r\n';
  const letter = line.repeat(Math.ceil((4 * mib) / line.length));
  for (const [title, text] of [
    ['a line of blanks', ' '.repeat(4 * mib)],
    ['empty lines', '\r\n'.repeat(2 * mib)],
    ['blanks with something after them', `${' \t'.repeat(2 * mib)}x`],
  ] as const) {
    test(`of ${title} cost at most ten times as much as 4 MiB of a letter`, async () => {
      publish(rsa.publicKey);
      const signed = await sign(plain);
      const [found] = await assertCheap(signed + text, signed + letter);
      assert.equal(found, text.endsWith('x') ? 'fail' : 'pass', 'blanks at the end do not count');
    });
  }
});

test('ten signatures that name thousands of fields cost at most ten times as much as ten long ones', async () => {
  publish(rsa.publicKey);
  const signed = await sign(plain);
  const signature = signed.slice(0, -plain.length);
  const names = 'x:'.repeat(8000);
  const write = (long: string) => {
    assert.notEqual(long, signature);
    return `${long.repeat(10)}${'y: z\r\n'.repeat(12_000)}${plain}`;
  };
  const hostile = write(signature.replace(' h=', ` h=${names}`));
  const results = await assertCheap(hostile, write(signature.replace(' h=', ` z=${names}; h=`)));
  assert.deepEqual(results, Array(10).fill('fail'));
});
