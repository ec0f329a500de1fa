/**
 * 1,000 messages by `POST /inbound` to one webhook whose receiver takes 200 ms, with a service that has just started: deliveries a
 * second until the last one arrives, against the rate at which `/inbound` accepts. With 16 tries at once there would be 80 a second.
 */
import { startDeliveryBench } from '../deliveries.ts';
import { type MailTools, mailSettings, makeIdentity, startMailTools } from '../mail.ts';
import { type Bench, type Round, withCleanup } from '../scenario.ts';

export const name = 'slow-endpoint';
export const goal = 0.95;

const count = 1000;
const rounds = 3;

export async function run(bench: Bench): Promise<Round[]> {
  const tools = await startMailTools(bench);
  const taken: Round[] = [];
  while (taken.length < bench.size(rounds)) {
    const round = await withCleanup((defer) => measure({ ...bench, defer }, tools));
    taken.push(round);
    bench.log(
      `round ${taken.length} of ${rounds}: ${round.service.toFixed(0)} deliveries/s, ` +
        `${round.control.toFixed(0)} accepted/s, ratio ${round.ratio.toFixed(2)}`,
    );
  }
  return taken;
}

async function measure(bench: Bench, tools: MailTools): Promise<Round> {
  const deliveries = await startDeliveryBench(bench, mailSettings(tools));
  await makeIdentity(deliveries.service);
  await deliveries.turnOn(await deliveries.makeWebhooks(1, '/after-200-ms'), true);
  return bench.measured(async () => {
    const began = performance.now();
    const perSecond = () => bench.size(count) / ((performance.now() - began) / 1000);
    const received = deliveries.receiveMail(bench.size(count)).then(perSecond);
    const control = await tools.post(deliveries.service, bench.size(count)).then(perSecond);
    const service = await received;
    return { service, control, ratio: service / control };
  });
}
