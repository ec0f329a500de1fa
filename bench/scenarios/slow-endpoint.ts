/** One webhook whose receiver takes 200 ms: with 16 tries at once it would get 80 deliveries a second. */
import { startDeliveryBench } from '../deliveries.ts';
import type { Bench, Figures, Taken } from '../scenario.ts';

export const name = 'slow-endpoint';
/** 500 deliveries a second. */
export const goal: Figures = { msPerDelivery: 2 };

const count = 2000;
const rounds = 3;

export async function run(bench: Bench): Promise<Taken> {
  const deliveries = await startDeliveryBench(bench);
  const msPerDelivery: number[] = [];
  while (msPerDelivery.length < bench.size(rounds)) {
    // A new webhook in each round, so that each round starts with 16 tries at once.
    const webhooks = await deliveries.makeWebhooks(1, '/after-200-ms');
    await deliveries.queue(webhooks, bench.size(count));
    const rate = await bench.measured(() => deliveries.drain(webhooks, bench.size(count)));
    msPerDelivery.push(1000 / rate);
    bench.log(`round ${msPerDelivery.length} of ${rounds}: ${rate.toFixed(0)} deliveries/s`);
  }
  return { msPerDelivery };
}
