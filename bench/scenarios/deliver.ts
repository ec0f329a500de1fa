/** 20,000 events of 4 KB to one webhook: claimed, signed, posted, recorded; against the same POSTs without a database. */
import { deliveryLimits } from '../../src/webhooks/deliver.ts';
import { type Costs, compareWith, measureCost, warmUpCount } from '../compare.ts';
import { startDeliveryBench } from '../deliveries.ts';
import { startChild } from '../processes.ts';
import { alternate, type Bench, type BoundedScenario, type Checkout, type Round } from '../scenario.ts';

export const name = 'deliver';
export const goal = 0.55;

const usualCount = 20_000;

export async function run(bench: Bench): Promise<Round[]> {
  const count = bench.size(usualCount);
  const deliveries = await startDeliveryBench(bench);
  const args = [deliveries.origin, String(deliveryLimits.perLane)];
  const control = startChild(bench, new URL('./deliver.control.ts', import.meta.url), args);
  const webhooks = await deliveries.makeWebhooks(1);
  await deliveries.queue(webhooks, count);
  bench.log('warming up');
  await deliveries.drain(webhooks, count);
  await control.ask(count);
  return alternate(bench, 5, {
    async service() {
      await deliveries.queue(webhooks, count);
      return deliveries.drain(webhooks, count);
    },
    control: async () => Number(await control.ask(count)),
  });
}

export function against(other: Checkout): BoundedScenario {
  return {
    name: `deliver-against-${other.name}`,
    goal: { deliverRatio: 0.75 },
    run: (bench) => compareWith(bench, other, measureTurn),
  };
}

async function measureTurn(bench: Bench): Promise<Costs> {
  const deliveries = await startDeliveryBench(bench);
  const webhooks = await deliveries.makeWebhooks(1);
  const [warmUp, count] = [bench.size(warmUpCount), bench.size(usualCount)];
  await deliveries.queue(webhooks, warmUp);
  await deliveries.drain(webhooks, warmUp);
  await deliveries.queue(webhooks, count);
  return { deliver: await measureCost(bench, deliveries, count, () => deliveries.drain(webhooks, count)) };
}
