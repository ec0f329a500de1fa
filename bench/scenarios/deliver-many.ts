/** 20,000 events to 1,000 webhooks, against the same events to one webhook. */
import { startDeliveryBench } from '../deliveries.ts';
import { alternate, type Bench, type Round } from '../scenario.ts';

export const name = 'deliver-many';
export const goal = 0.85;

const count = 20_000;

export async function run(bench: Bench): Promise<Round[]> {
  const deliveries = await startDeliveryBench(bench);
  bench.log('making 1,000 webhooks');
  const many = await deliveries.makeWebhooks(bench.size(1000));
  const one = await deliveries.makeWebhooks(1);
  const measure = async (webhooks: string[]) => {
    await deliveries.queue(webhooks, bench.size(count));
    return deliveries.drain(webhooks, bench.size(count));
  };
  bench.log('warming up');
  await measure(one);
  await measure(many);
  return alternate(bench, 5, { service: () => measure(many), control: () => measure(one) });
}
