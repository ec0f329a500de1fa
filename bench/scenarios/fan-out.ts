/**
 * What a delivery costs when each message goes to 1, 10 and 50 webhooks: 2,000 messages of 5 KB by `POST /inbound`, 32 at once.
 * Processor time of service and PostgreSQL for one delivery, with its share of the message. `/inbound` accepts faster than 50
 * webhooks are served, so the queue fills within seconds, and PostgreSQL has not analysed it yet: a new service in each round.
 */
import { startDeliveryBench } from '../deliveries.ts';
import { type MailTools, mailSettings, makeIdentity, startMailTools } from '../mail.ts';
import { type Bench, type Figures, type Taken, withCleanup } from '../scenario.ts';
import { findPostmaster, readCpuMs, readServerCpuMs } from '../usage.ts';

export const name = 'fan-out';
/** With 50 webhooks. */
export const goal: Figures = { postgresMs: 0.12, totalMs: 0.25 };

const fans = [1, 10, 50];
const messages = 2000;
const rounds = 3;

export async function run(bench: Bench): Promise<Taken> {
  const tools = await startMailTools(bench);
  const taken = { postgresMs: [] as number[], totalMs: [] as number[] };
  for (let round = 1; round <= bench.size(rounds); round += 1) {
    bench.log(`round ${round} of ${rounds}`);
    const costs = await withCleanup((defer) => measureFans({ ...bench, defer }, tools));
    taken.postgresMs.push(costs.postgresMs);
    taken.totalMs.push(costs.serviceMs + costs.postgresMs);
  }
  return taken;
}

/** The costs with the most webhooks. */
async function measureFans(bench: Bench, tools: MailTools) {
  const deliveries = await startDeliveryBench(bench, mailSettings(tools));
  const { service, sql } = deliveries;
  await makeIdentity(service);
  const postmaster = await findPostmaster(sql);
  const readAll = () => ({ serviceMs: readCpuMs(service.pid), postgresMs: readServerCpuMs(postmaster) });
  let each = { serviceMs: Number.NaN, postgresMs: Number.NaN };
  let webhookIds: string[] = [];
  for (const fan of fans) {
    webhookIds = [...webhookIds, ...(await deliveries.makeWebhooks(fan - webhookIds.length))];
    await deliveries.turnOn(webhookIds, true);
    const count = bench.size(messages) * fan;
    const [before, began] = [readAll(), performance.now()];
    await bench.measured(async () => {
      const received = deliveries.receiveMail(count);
      await tools.post(service, bench.size(messages));
      await received;
      while ((await sql`select from delivery_queue limit 1`).count > 0) bench.signal.throwIfAborted();
    });
    const [after, seconds] = [readAll(), (performance.now() - began) / 1000];
    each = {
      serviceMs: (after.serviceMs - before.serviceMs) / count,
      postgresMs: (after.postgresMs - before.postgresMs) / count,
    };
    bench.log(
      `${fan} webhooks: ${(count / seconds).toFixed(0)} deliveries/s, ${each.serviceMs.toFixed(3)} ms in the service, ` +
        `${each.postgresMs.toFixed(3)} ms in PostgreSQL`,
    );
  }
  return each;
}
