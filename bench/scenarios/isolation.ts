/** Nine healthy webhooks while a tenth with 10,000 pending deliveries never responds, against the nine alone. */
import { startDeliveryBench } from '../deliveries.ts';
import { alternate, type Bench, type Round } from '../scenario.ts';

export const name = 'isolation';
export const goal = 0.9;

const count = 18_000;

export async function run(bench: Bench): Promise<Round[]> {
  const deliveries = await startDeliveryBench(bench);
  const healthy = await deliveries.makeWebhooks(9);
  const hanging = await deliveries.makeWebhooks(1, '/hang');
  await deliveries.queue(hanging, bench.size(10_000));
  const measure = async () => {
    await deliveries.queue(healthy, bench.size(count));
    return deliveries.drain(healthy, bench.size(count));
  };
  bench.log('warming up');
  await measure();
  return alternate(bench, 5, {
    async service() {
      await deliveries.turnOn(hanging, true);
      const rate = await measure();
      await deliveries.turnOn(hanging, false);
      return rate;
    },
    control: measure,
  });
}
