/** Used by all delivery scenarios: a service, a receiver, and a backlog whose delivery starts at a given moment. */
import type { Pool } from '../src/db/client.ts';
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

  async function queue(webhookIds: readonly string[], count: number, data = sampleJson): Promise<void> {
    await sql.begin(async (sql) => {
      await sql`set local statement_timeout = 0`;
      await sql`
        with made as (
          insert into events (id, owner_id, event, data, bytes)
          select (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0')
            || '7000' || '8000' || lpad(to_hex(n), 12, '0'))::uuid, ${ownerId}, 'message.received', ${data}::text::json,
            ${Buffer.byteLength(data)}::int
          from generate_series(1, ${count}::int) n
          returning id
        )
        insert into delivery_queue (id, owner_id, event_id, webhook_id, event)
        select delivery_id(id, webhook_id), ${ownerId}, id, webhook_id, 'message.received'
        from (
          select id, (${webhookIds}::uuid[])[1 + row_number() over () % ${webhookIds.length}::int] as webhook_id from made
        ) spread`;
    });
    await sql`vacuum analyze delivery_queue`;
  }

  async function turnOn(webhookIds: readonly string[], enabled: boolean): Promise<void> {
    await sql`update webhooks set enabled = ${enabled} where id = any (${webhookIds}::uuid[])`;
    if (enabled) await sql`notify posthorn_ready`;
    // Its deliveries stay ready and are not held, so that enabling the webhook costs nothing.
    else await sql`update webhooks set unsettled_at = 'infinity' where id = any (${webhookIds}::uuid[])`;
  }

  async function drain(webhookIds: readonly string[], count: number): Promise<number> {
    const came = receiver.ask(count) as Promise<{ firstMs: number }>;
    await turnOn(webhookIds, true);
    const { firstMs } = await came;
    const pending = () => sql`
      select from unnest(${webhookIds}::uuid[]) as id
      where exists (select from delivery_queue where owner_id = ${ownerId} and webhook_id = id and ready) limit 1`;
    while ((await pending()).count > 0) bench.signal.throwIfAborted();
    const rate = count / ((Date.now() - firstMs) / 1000);
    await turnOn(webhookIds, false);
    return rate;
  }

  async function receiveMail(count: number): Promise<ReceivedMail[]> {
    const { mails } = (await receiver.ask(count)) as { mails: ReceivedMail[] };
    return mails;
  }

  const countReceived = async () => Number(await receiver.ask('seen'));

  return { service, sql, origin, makeWebhooks, queue, drain, turnOn, receiveMail, countReceived };
}
