/**
 * The time from the 250 at the sender to the complete POST at the receiver, at 20 messages per second, evenly spaced. Sender and
 * receiver are separate processes with the same machine clock. A POST can arrive before the sender reads the 250: such a time
 * counts as negative.
 */
import { startDeliveryBench } from '../deliveries.ts';
import { mailSettings, makeIdentity, startMailTools } from '../mail.ts';
import { type Bench, type Figures, quantile, type Taken } from '../scenario.ts';

export const name = 'latency';
export const goal: Figures = { p50Ms: 1, p99Ms: 4 };

const perSecond = 20;
const warmUp = 200;
const count = 600;
const rounds = 3;

export async function run(bench: Bench): Promise<Taken> {
  const tools = await startMailTools(bench);
  const deliveries = await startDeliveryBench(bench, mailSettings(tools));
  const { service } = deliveries;
  await makeIdentity(service);
  await deliveries.turnOn(await deliveries.makeWebhooks(1, '/mail'), true);

  const measure = async (count: number) => {
    const receiving = deliveries.receiveMail(count);
    const sent = await tools.pace(service.smtpPort, { perSecond, count });
    const arrivals = new Map((await receiving).map(({ messageId, arrivedMs }) => [messageId, arrivedMs]));
    return sent.map(({ id, answeredMs }) => {
      const arrivedMs = arrivals.get(`<${id}@sender.example>`);
      if (arrivedMs === undefined) throw new Error(`No webhook call came for message ${id}`);
      return arrivedMs - answeredMs;
    });
  };
  bench.log('warming up');
  await measure(bench.size(warmUp));
  const taken = { p50Ms: [] as number[], p99Ms: [] as number[] };
  for (let round = 1; round <= bench.size(rounds); round += 1) {
    const waits = await bench.measured(() => measure(bench.size(count)));
    const [least, p50, p99, most] = [0, 0.5, 0.99, 1].map((share) => quantile(waits, share).toFixed(1));
    taken.p50Ms.push(Number(p50));
    taken.p99Ms.push(Number(p99));
    const early = waits.filter((wait) => wait <= 0).length;
    bench.log(
      `round ${round} of ${rounds}, ${count} messages, ${perSecond} a second: p50 ${p50} ms, p99 ${p99} ms, ` +
        `from ${least} to ${most} ms; ${early} POSTs came before their 250`,
    );
  }
  return taken;
}
