/** Used by the scenarios that send: a service, a mail server that takes everything, and mail that waits in the queue until a given moment. */
import type { Pool } from '../src/db/client.ts';
import { connectBench } from './database.ts';
import { startChild, startDnsServer } from './processes.ts';
import type { Bench } from './scenario.ts';
import { type BenchedService, startService } from './service.ts';

const domain = 'sender.example';
const from = `ada@${domain}`;
/** Recipients of `deadDomain` have a mail server that accepts connections and never replies. */
export const deadDomain = 'dead.example';
export const goodDomain = 'good.example';
const hosts = {
  [`mx.${goodDomain}`]: { A: ['127.0.0.1'] },
  [`mx.${deadDomain}`]: { A: ['127.0.0.2'] },
  [goodDomain]: { MX: [`10 mx.${goodDomain}`] },
  [deadDomain]: { MX: [`10 mx.${deadDomain}`] },
};

/** 5 KB with its header. */
export function writeMessage(to: string): string {
  const line = 'Your parcel left our house this morning and is with the carrier now.\r\n';
  const head = [`From: Ada <${from}>`, `To: <${to}>`, 'Subject: Your order is on its way'];
  const more = ['Date: Sat, 15 Nov 2025 05:00:00 +0000', `Message-ID: <order-1042@${domain}>`];
  return `${[...head, ...more, 'MIME-Version: 1.0', 'Content-Type: text/plain'].join('\r\n')}\r\n\r\n${line.repeat(68)}`;
}

export interface SendBench {
  service: BenchedService;
  sql: Pool;
  sinkPort: number;
  identityId: string;
  /** Puts so many messages to this domain into the queue. They wait for `release`. */
  queue(domain: string, count: number): Promise<void>;
  /** Lets the messages to this domain go. */
  release(domain: string): Promise<void>;
  /** Releases so many messages to this domain and waits until they are sent and recorded. Returns messages per second. */
  drain(domain: string, count: number): Promise<number>;
}

export async function startSendBench(bench: Bench, way: 'relay' | 'direct'): Promise<SendBench> {
  const sink = startChild(bench, new URL('./sink.control.ts', import.meta.url), []);
  const sinkPort = Number((await sink.printed(/port (\d+)/))[1]);
  const dnsServer = await startDnsServer(bench, hosts);
  const relayed = { POSTHORN_OUTBOUND: way, POSTHORN_RELAY_URL: `smtp://127.0.0.1:${sinkPort}` };
  const direct = { POSTHORN_OUTBOUND: way, POSTHORN_MX_PORT: String(sinkPort) };
  const service = await startService(bench, {
    ...(way === 'relay' ? relayed : direct),
    POSTHORN_DNS_SERVERS: dnsServer,
    POSTHORN_SEND_RATE: '0',
  });
  const sql = connectBench(bench, service.databaseUrl);
  const identityId = await makeSender(service, sql);
  const templates = new Map<string, string>();

  async function makeTemplate(to: string): Promise<string> {
    const sendAt = new Date(Date.now() + 86_400_000).toISOString();
    const text = writeMessage(to).split('\r\n\r\n')[1];
    const body = JSON.stringify({ identityId, from, to, subject: 'Your order', text, sendAt });
    const answer = await fetch(`${service.url}/messages`, { method: 'POST', headers: service.headers, body });
    if (answer.status !== 202)
      throw new Error(`POST /messages responded ${answer.status}: ${await answer.text()}`);
    return ((await answer.json()) as { id: string }).id;
  }

  async function queue(domain: string, count: number): Promise<void> {
    const template = templates.get(domain) ?? (await makeTemplate(`inbox@${domain}`));
    templates.set(domain, template);
    await copyOutgoing(sql, template, count);
  }

  async function release(domain: string): Promise<void> {
    const template = templates.get(domain) ?? '';
    await sql`
      update send_queue set ready = true, next_attempt_at = now()
      where not ready and message_id <> ${template} and next_attempt_at = 'infinity'
        and lane_id = (select lane_id from send_queue where message_id = ${template})`;
    await sql`notify posthorn_send`;
  }

  async function drain(domain: string, count: number): Promise<number> {
    const came = sink.ask(count) as Promise<{ firstMs: number }>;
    await release(domain);
    const { firstMs } = await came;
    const waiting = () => sql`
      select from send_queue
      where ready and lane_id = (select lane_id from send_queue where message_id = ${templates.get(domain) ?? ''}) limit 1`;
    while ((await waiting()).count > 0) bench.signal.throwIfAborted();
    return count / ((Date.now() - firstMs) / 1000);
  }

  return { service, sql, sinkPort, identityId, queue, release, drain };
}

/** A verified domain whose DKIM key does not stand in DNS: its mail is not signed, as that of the control. */
async function makeSender({ url, headers }: BenchedService, sql: Pool): Promise<string> {
  const body = JSON.stringify({ value: domain });
  const answer = await fetch(`${url}/identities`, { method: 'POST', headers, body });
  if (answer.status !== 201) throw new Error(`POST /identities responded ${answer.status}`);
  const { id } = (await answer.json()) as { id: string };
  await sql`update identities set status = 'verified' where id = ${id}`;
  return id;
}

/** Copies a message that waits for its `sendAt`, with its only recipient. The copies wait for `release`. */
async function copyOutgoing(sql: Pool, template: string, count: number): Promise<void> {
  await sql.begin(async (sql) => {
    await sql`set local statement_timeout = 0`;
    await sql`
      with copies as materialized (
        select (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || '70008000'
          || substr(replace(gen_random_uuid()::text, '-', ''), 1, 12))::uuid as id
        from generate_series(1, ${count}::int)
      ), made as (
        insert into messages (id, owner_id, identity_id, direction, size, sha256, thread_id, summary, content, message_key)
        select copies.id, owner_id, identity_id, direction, size, sha256, gen_random_uuid(), summary, content, gen_random_uuid()
        from copies, messages where messages.id = ${template}
      ), going as (
        insert into outgoing (id, owner_id, identity_id, transport, eight_bit, smtp_utf8, summary_bytes, queued)
        select copies.id, owner_id, identity_id, transport, eight_bit, smtp_utf8, summary_bytes, 1
        from copies, outgoing where outgoing.id = ${template}
      ), named as (
        insert into recipients (message_id, n, owner_id, address, address_key, kind, status)
        select copies.id, n, owner_id, address, address_key, kind, 'queued'
        from copies, recipients where message_id = ${template}
      )
      insert into send_queue (id, owner_id, lane_id, message_id, n, ready, next_attempt_at)
      select gen_random_uuid(), owner_id, lane_id, copies.id, n, false, 'infinity'
      from copies, send_queue where message_id = ${template}`;
  });
  await sql`vacuum analyze send_queue, recipients, outgoing`;
}
