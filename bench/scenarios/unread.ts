/**
 * 40 clients of one owner ask for its largest page, message or attachment, and read nothing. Meanwhile another owner reads its own
 * identities: `p99OfAllowed` is its p99, as a share of what is allowed (three times its p99 alone, or 100 ms where that is more).
 */
import net from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { createApiKey } from '../../src/store/api-keys.ts';
import { ensureUser } from '../../src/store/users.ts';
import { connectBench } from '../database.ts';
import { makeIdentity } from '../mail.ts';
import { type Bench, type Figures, quantile, type Taken } from '../scenario.ts';
import { type BenchedService, startService } from '../service.ts';
import { measurePeak } from './memory.ts';

export const name = 'unread';
export const goal: Figures = { memoryMb: 400, p99OfAllowed: 1 };

const clients = 40;
const allowedMs = 100;
const measuredMs = 6000;
const rounds = 3;
const pauseMs = 20;
const attachmentBytes = 18 * 1024 * 1024;

type Owner = Pick<BenchedService, 'url' | 'headers'>;

export async function run(bench: Bench): Promise<Taken> {
  const service = await startService(bench);
  const other = await makeOther(bench, service);
  const paths = await fill(bench, service);
  bench.log('alone');
  const aloneMs = quantile(await readIdentities(bench, other), 0.99);
  bench.log(`the other owner alone: p99 ${aloneMs.toFixed(1)} ms`);

  const taken = { memoryMb: [] as number[], p99OfAllowed: [] as number[] };
  for (let round = 1; round <= bench.size(rounds); round += 1) {
    bench.log(`round ${round} of ${rounds}`);
    let [memoryMb, p99Ms] = [0, 0];
    // Each path is an attack of its own: the worst counts.
    for (const path of paths) {
      const { peakMb, waitsMs } = await attack(bench, service, path, other);
      memoryMb = Math.max(memoryMb, peakMb);
      p99Ms = Math.max(p99Ms, quantile(waitsMs, 0.99));
    }
    taken.memoryMb.push(memoryMb);
    taken.p99OfAllowed.push(p99Ms / Math.max(3 * aloneMs, allowedMs));
  }
  return taken;
}

async function attack(bench: Bench, service: BenchedService, path: string, other: Owner) {
  const sockets = Array.from({ length: clients }, () => ask(service, path));
  const close = () => sockets.forEach((socket) => void socket.destroy());
  bench.defer(close);
  let waitsMs: number[] = [];
  const peakMb = await measurePeak(bench, `${clients} × ${path}`, service.pid, async () => {
    waitsMs = await readIdentities(bench, other);
  });
  bench.log(`the other owner beside it: p99 ${quantile(waitsMs, 0.99).toFixed(1)} ms`);
  close();
  return { peakMb, waitsMs };
}

async function makeOther(bench: Bench, { databaseUrl, url, headers }: BenchedService): Promise<Owner> {
  const sql = connectBench(bench, databaseUrl);
  const { user } = await ensureUser(sql, 'other@bench.example');
  const { apiKey } = await createApiKey(sql, user.userId);
  const other = { url, headers: { ...headers, authorization: `Bearer ${apiKey}` } };
  for (let n = 0; n < 20; n += 1) await makeIdentity(other, `n${n}@other.example`);
  return other;
}

/** Returns the paths of the largest answers. */
async function fill(bench: Bench, { databaseUrl, ownerId, url, headers }: BenchedService): Promise<string[]> {
  const sql = connectBench(bench, databaseUrl);
  const meta = JSON.stringify({ a: 'x'.repeat(16_000) });
  await makeIdentity({ url, headers });
  await sql`
    insert into identities (id, owner_id, kind, public_id, value, value_key, meta)
    select gen_random_uuid(), ${ownerId}, 'email', gen_random_uuid()::text, n || '@x.example', n || '@x.example',
      ${meta}::text::json
    from generate_series(1, 1000) n`;
  const [{ value } = { value: '' }] = await sql<{ value: string }[]>`
    select value from identities where owner_id = ${ownerId} and value not like '%@x.example' limit 1`;
  const text = Buffer.alloc(attachmentBytes, 'attachment').toString('base64').replace(/.{76}/g, '$&\r\n');
  const head =
    'Subject: large\r\nContent-Type: application/octet-stream\r\nContent-Transfer-Encoding: base64\r\n' +
    'Content-Disposition: attachment; filename=large.bin\r\n\r\n';
  const answer = await fetch(`${url}/inbound?recipient=${encodeURIComponent(value)}`, {
    method: 'POST',
    headers: { ...headers, 'content-type': 'message/rfc822' },
    body: head + text,
  });
  if (answer.status !== 202)
    throw new Error(`POST /inbound responded ${answer.status}: ${await answer.text()}`);
  const { messageIds } = (await answer.json()) as { messageIds: string[] };
  const message = `/messages/${messageIds[0]}`;
  return ['/identities', `${message}/raw`, `${message}/attachments/0`];
}

/** Sends a request, and never reads the answer. */
function ask({ url, headers }: Owner, path: string): net.Socket {
  const { hostname, port } = new URL(url);
  const socket = net.connect(Number(port), hostname).pause();
  // The service cuts it.
  socket.on('error', () => {});
  socket.write(`GET ${path} HTTP/1.1\r\nHost: bench\r\nAuthorization: ${headers.authorization}\r\n\r\n`);
  return socket;
}

/** Returns how long each request took. */
async function readIdentities(bench: Bench, { url, headers }: Owner): Promise<number[]> {
  const tookMs: number[] = [];
  const end = performance.now() + bench.size(measuredMs);
  while (performance.now() < end) {
    bench.signal.throwIfAborted();
    const began = performance.now();
    const answer = await fetch(`${url}/identities`, { headers });
    await answer.text();
    if (answer.status !== 200) throw new Error(`GET /identities responded ${answer.status}`);
    tookMs.push(performance.now() - began);
    await delay(pauseMs);
  }
  return tookMs;
}
