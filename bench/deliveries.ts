/** Used by all delivery scenarios: a service, a receiver, and a backlog whose delivery starts at a given moment. */
import type { Pool } from '../src/db/client.ts';
import { importFrom } from './checkout.ts';
import { connectBench } from './database.ts';
import { startChild } from './processes.ts';
import type { ReceivedMail } from './receiver.control.ts';
import type { Bench } from './scenario.ts';
import { type BenchedService, type Preparation, startService } from './service.ts';

/** The `data` of an event: 4 KB. */
export const sampleJson = JSON.stringify({ message: { text: 'x'.repeat(4000) } });

export interface DeliveryBench {
  service: BenchedService;
  sql: Pool;
  /** The URL of the receiver. */
  origin: string;
  /** Creates disabled webhooks. */
  makeWebhooks(count: number, path?: string): Promise<string[]>;
  /** Creates events and their deliveries, spread evenly over the webhooks. */
  queue(webhookIds: readonly string[], count: number, data?: string): Promise<void>;
  /** Enables the webhooks and waits until so many deliveries are made and recorded. Returns deliveries per second. */
  drain(webhookIds: readonly string[], count: number): Promise<number>;
  turnOn(webhookIds: readonly string[], enabled: boolean): Promise<void>;
  /** Waits until no delivery of these webhooks is pending. */
  awaitRecorded(webhookIds: readonly string[]): Promise<void>;
  /** The next POSTs to `/mail`, when so many have come. */
  receiveMail(count: number): Promise<ReceivedMail[]>;
  /** The number of POSTs since the start, or since the last wait for a number of POSTs. */
  countReceived(): Promise<number>;
}

export async function startDeliveryBench(
  bench: Bench,
  settings: Record<string, string> = {},
  preparation?: Preparation,
): Promise<DeliveryBench> {
  const rows = await importFrom(bench.checkout, 'bench/delivery-rows.ts');
  const service = await startService(bench, settings, preparation);
  const { url, headers, ownerId } = service;
  const sql = connectBench(bench, service.databaseUrl);
  const receiver = startChild(bench, new URL('./receiver.control.ts', import.meta.url), []);
  const [, port] = await receiver.printed(/port (\d+)/);
  const origin = `http://127.0.0.1:${port}`;

  async function makeWebhooks(count: number, path = '/hook'): Promise<string[]> {
    const body = { url: `${origin}${path}`, events: ['message.received'], ownerId, enabled: false };
    const made: string[] = [];
    for (let n = 0; n < count; n += 1) {
      const answer = await fetch(`${url}/webhooks`, { method: 'POST', headers, body: JSON.stringify(body) });
      if (answer.status !== 201)
        throw new Error(`POST /webhooks responded ${answer.status}: ${await answer.text()}`);
      made.push(((await answer.json()) as { id: string }).id);
    }
    await turnOn(made, false);
    return made;
  }

  const queue = (webhookIds: readonly string[], count: number, data = sampleJson) =>
    rows.queueDeliveries(sql, ownerId, webhookIds, count, data);

  const turnOn = (webhookIds: readonly string[], enabled: boolean) =>
    rows.enableWebhooks(sql, webhookIds, enabled);

  async function awaitRecorded(webhookIds: readonly string[]): Promise<void> {
    while (await rows.hasDeliveries(sql, ownerId, webhookIds)) bench.signal.throwIfAborted();
  }

  async function drain(webhookIds: readonly string[], count: number): Promise<number> {
    const came = receiver.ask(count) as Promise<{ firstMs: number }>;
    await turnOn(webhookIds, true);
    const { firstMs } = await came;
    await awaitRecorded(webhookIds);
    const rate = count / ((Date.now() - firstMs) / 1000);
    await turnOn(webhookIds, false);
    return rate;
  }

  async function receiveMail(count: number): Promise<ReceivedMail[]> {
    const { mails } = (await receiver.ask(count)) as { mails: ReceivedMail[] };
    return mails;
  }

  const countReceived = async () => Number(await receiver.ask('seen'));

  return {
    service,
    sql,
    origin,
    makeWebhooks,
    queue,
    drain,
    turnOn,
    awaitRecorded,
    receiveMail,
    countReceived,
  };
}
