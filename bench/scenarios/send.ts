/**
 * 10,000 prepared messages of 5 KB in the queue: claimed, sent by a relay over 10 connections, recorded with their events;
 * against nodemailer's pooled transport, which sends the same messages to the same server without a database. Nobody
 * signs: nodemailer takes 3 ms for a DKIM signature, which would hide everything else.
 */
import { startChild } from '../processes.ts';
import { alternate, type Bench, type Round } from '../scenario.ts';
import { goodDomain, startSendBench } from '../sends.ts';

export const name = 'send';
export const goal = 0.5;

const usualCount = 10_000;

export async function run(bench: Bench): Promise<Round[]> {
  const count = bench.size(usualCount);
  const sends = await startSendBench(bench, 'relay');
  const args = [String(sends.sinkPort)];
  const control = startChild(bench, new URL('./send.control.ts', import.meta.url), args);
  bench.log('warming up');
  await sends.queue(goodDomain, count);
  await sends.drain(goodDomain, count);
  await control.ask(count);
  return alternate(bench, 5, {
    async service() {
      await sends.queue(goodDomain, count);
      return sends.drain(goodDomain, count);
    },
    control: async () => Number(await control.ask(count)),
  });
}
