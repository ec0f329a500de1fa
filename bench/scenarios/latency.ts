/**
 * From the 250 that the sender reads to the whole POST at the receiver, at 50 messages a second, evenly spaced. Sender and
 * receiver are processes of their own on the clock of one machine. A POST may well be there before the 250 is read: that
 * counts as what it is, below zero.
 */
import { startDeliveryBench } from '../deliveries.ts';
import { mailSettings, makeIdentity, startMailTools } from '../mail.ts';
import { type Bench, type Figures, quantile } from '../scenario.ts';

export const name = 'latency';
export const goal: Figures = { p50Ms: 10, p99Ms: 50 };

const perSecond = 50;
const warmUp = 200;
const count = 1000;

export async function run(bench: Bench): Promise<Figures> {
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
      if (arrivedMs === undefined) throw new Error(`Message ${id} was not announced`);
      return arrivedMs - answeredMs;
    });
  };
  bench.tell('warming up');
  await measure(warmUp);
  bench.tell(`sending ${count} messages, ${perSecond} a second`);
  const waits = await measure(count);
  const figures = { p50Ms: quantile(waits, 0.5), p99Ms: quantile(waits, 0.99) };
  const [least, most] = [Math.min(...waits), Math.max(...waits)];
  const early = waits.filter((wait) => wait <= 0).length;
  bench.tell(`from ${least.toFixed(1)} to ${most.toFixed(1)} ms; ${early} were there before their 250`);
  return figures;
}
