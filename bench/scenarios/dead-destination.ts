/** Mail to a good domain while 10,000 recipients wait for a domain whose mail server never replies, against the same mail alone. */
import { alternate, type Bench, type Round } from '../scenario.ts';
import { deadDomain, goodDomain, startSendBench } from '../sends.ts';

export const name = 'dead-destination';
export const goal = 0.9;

const waiting = 10_000;
const usualCount = 6000;

export async function run(bench: Bench): Promise<Round[]> {
  const count = bench.size(usualCount);
  const alone = await startSendBench(bench, 'direct');
  const beside = await startSendBench(bench, 'direct');
  await beside.queue(deadDomain, bench.size(waiting));
  await beside.release(deadDomain);
  const measure = (sends: typeof alone) => async () => {
    await sends.queue(goodDomain, count);
    return sends.drain(goodDomain, count);
  };
  bench.log('warming up');
  await measure(alone)();
  await measure(beside)();
  return alternate(bench, 5, { service: measure(beside), control: measure(alone) });
}
