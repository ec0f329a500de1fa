/** A client of the scenario `tenants`, in its own process: the owner whose waits are measured, or the one who attacks. */
import net from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { Pool } from 'undici';
import { machineMs } from '../clock.ts';
import { idPlace } from '../sample-mail.ts';

export interface Client {
  origin: string;
  authorization: string;
}

export type TenantsQuestion = Client &
  (
    | { kind: 'probe'; perSecond: number; count: number; recipient: string; mail: string }
    | { kind: 'flood'; sockets: number; count: number }
    | { kind: 'unread'; sockets: number; path: string }
  );

export interface Probed {
  /** How long each `GET /identities` took. */
  apiMs: number[];
  /** The messages that were sent, and when the 202 came, by the machine's clock. */
  sent: { id: string; answeredMs: number }[];
}

let lastId = 0;

/** Evenly spaced, whether or not the answers before have come. */
async function probe(given: Extract<TenantsQuestion, { kind: 'probe' }>): Promise<Probed> {
  const pool = new Pool(given.origin, { connections: 64 });
  const probed: Probed = { apiMs: [], sent: [] };
  const one = async () => {
    const began = machineMs();
    await request(pool, given, { method: 'GET', path: '/identities' }, 200);
    probed.apiMs.push(machineMs() - began);
    lastId += 1;
    const id = String(lastId).padStart(idPlace.length, '0');
    const path = `/inbound?recipient=${encodeURIComponent(given.recipient)}`;
    const body = given.mail.replace(idPlace, id);
    await request(pool, given, { method: 'POST', path, body, type: 'message/rfc822' }, 202);
    probed.sent.push({ id, answeredMs: machineMs() });
  };
  const running: Promise<void>[] = [];
  for (let n = 0; n < given.count; n += 1) {
    running.push(one());
    await delay(1000 / given.perSecond);
  }
  await Promise.all(running);
  await pool.close();
  return probed;
}

async function request(
  pool: Pool,
  { authorization }: Client,
  {
    type = 'application/json',
    ...given
  }: { method: 'GET' | 'POST'; path: string; body?: string; type?: string },
  status: number | null,
): Promise<void> {
  const headers = { authorization, ...(given.body ? { 'content-type': type } : {}) };
  const answer = await pool.request({ ...given, headers, headersTimeout: 0, bodyTimeout: 0 });
  const text = await answer.body.text();
  if (status !== null && answer.statusCode !== status)
    throw new Error(`${given.method} ${given.path} responded ${answer.statusCode}: ${text}`);
}

/** As many requests at once as there are sockets. A refusal is as good as an answer: the others must not notice either. */
async function flood(given: Extract<TenantsQuestion, { kind: 'flood' }>): Promise<void> {
  const pool = new Pool(given.origin, { connections: given.sockets, pipelining: 1 });
  let left = given.count;
  const repeat = async () => {
    while (left > 0) {
      left -= 1;
      lastId += 1;
      const body = JSON.stringify({ value: `flood${lastId}@flood.example` });
      await request(pool, given, { method: 'POST', path: '/identities', body }, null).catch(() => {});
    }
  };
  await Promise.all(Array.from({ length: given.sockets }, repeat));
  await pool.close();
}

/** Asks again whenever the service closes a connection, until this process ends. */
function leaveUnread(given: Extract<TenantsQuestion, { kind: 'unread' }>): void {
  const { hostname, port } = new URL(given.origin);
  const open = () => {
    const socket = net.connect(Number(port), hostname).on('error', () => {});
    socket.pause().on('close', () => setTimeout(open, 100));
    socket.write(
      `GET ${given.path} HTTP/1.1\r\nhost: ${hostname}\r\nauthorization: ${given.authorization}\r\n\r\n`,
    );
  };
  for (let n = 0; n < given.sockets; n += 1) open();
}

process.on('message', async (question: TenantsQuestion) => {
  if (question.kind === 'probe') process.send?.(await probe(question));
  if (question.kind === 'flood') process.send?.(await flood(question).then(() => 'done'));
  if (question.kind === 'unread') leaveUnread(question);
});
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());
