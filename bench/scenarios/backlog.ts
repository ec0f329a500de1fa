/** Deliveries to one webhook while 1,000,000 other deliveries are pending, against 1,000. */
import { startDeliveryBench } from '../deliveries.ts';
import { alternate, type Bench, type Round } from '../scenario.ts';

export const name = 'backlog';
export const goal = 0.9;

const count = 10_000;

export async function run(bench: Bench): Promise<Round[]> {
  const [small, large] = [await startDeliveryBench(bench), await startDeliveryBench(bench)];
  const busy = { small: await small.makeWebhooks(1), large: await large.makeWebhooks(1) };
  // Half of them belong to disabled webhooks, half are not due yet.
  const asides = { small: await small.makeWebhooks(10), large: await large.makeWebhooks(10) };
  bench.log('making 1,000 and 1,000,000 pending deliveries');
  await small.queue(asides.small, 1000);
  for (let n = 1; n <= 20; n += 1) {
    await large.queue(asides.large, bench.size(50_000));
    bench.log(`${(n * 50_000).toLocaleString('en')} of 1,000,000`);
  }
  for (const { sql } of [small, large]) {
    await sql`
      update delivery_queue set ready = false, next_attempt_at = now() + interval '1 day'
      where webhook_id in (select id from webhooks order by id limit 5)`;
    await sql`vacuum analyze delivery_queue`;
  }
  const measure = async (deliveries: typeof small, webhooks: string[]) => {
    await deliveries.queue(webhooks, bench.size(count));
    return deliveries.drain(webhooks, bench.size(count));
  };
  bench.log('warming up');
  await measure(small, busy.small);
  await measure(large, busy.large);
  return alternate(bench, 5, {
    service: () => measure(large, busy.large),
    control: () => measure(small, busy.small),
  });
}
