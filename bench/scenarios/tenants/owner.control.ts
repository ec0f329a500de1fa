/**
 * The owner whose waits the scenarios `tenants-…` measure, in its own process. It sends evenly spaced requests, whether or not the
 * answers before have come, and replies with the time that each took.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { Pool } from 'undici';
import { machineMs } from '../../clock.ts';
import { idPlace } from '../../sample-mail.ts';

export interface ProbeQuestion {
  origin: string;
  authorization: string;
  identityId: string;
  recipient: string;
  /** A message to the recipient, with `idPlace` in its Message-ID. */
  mail: string;
  perSecond: number;
  count: number;
  /** So many of each kind, one a second. */
  large: { mail: string; count: number } | null;
  relayed: { count: number } | null;
}

/** By the machine's clock. */
export interface Sent {
  id: string;
  begunMs: number;
  answeredMs: number;
}

export interface Probed {
  /** How long each `GET /identities` took. */
  apiMs: number[];
  /** How long each `POST /messages` of 300 KB took. */
  postMs: number[];
  mails: Sent[];
  largeMails: Sent[];
  /** Messages to `<id>@good.example`. */
  relayed: Sent[];
}

const largeBytes = 300_000;
let lastId = 0;

async function probe(given: ProbeQuestion): Promise<Probed> {
  const pool = new Pool(given.origin, { connections: 64 });
  const probed: Probed = { apiMs: [], postMs: [], mails: [], largeMails: [], relayed: [] };

  /** Returns when the request began and when its answer was complete. */
  async function request(method: 'GET' | 'POST', path: string, type = 'application/json', body?: string) {
    const headers = { authorization: given.authorization, ...(body ? { 'content-type': type } : {}) };
    const begunMs = machineMs();
    const options = { method, path, headers, body: body ?? null, headersTimeout: 0, bodyTimeout: 0 };
    const answer = await pool.request(options);
    const text = await answer.body.text();
    if (answer.statusCode >= 300)
      throw new Error(`${method} ${path} responded ${answer.statusCode}: ${text}`);
    return { begunMs, answeredMs: machineMs() };
  }

  async function receive(mail: string): Promise<Sent> {
    const id = nextId();
    const path = `/inbound?recipient=${encodeURIComponent(given.recipient)}`;
    return { id, ...(await request('POST', path, 'message/rfc822', mail.replace(idPlace, id))) };
  }

  async function send(text: string): Promise<Sent> {
    const id = nextId();
    const message = { identityId: given.identityId, to: `${id}@good.example`, subject: 'Hello', text };
    return { id, ...(await request('POST', '/messages', undefined, JSON.stringify(message))) };
  }

  async function small(): Promise<void> {
    const { begunMs, answeredMs } = await request('GET', '/identities');
    probed.apiMs.push(answeredMs - begunMs);
    probed.mails.push(await receive(given.mail));
  }

  const { large, relayed } = given;
  await Promise.all([
    repeat(given.count, 1000 / given.perSecond, small),
    repeat(large?.count ?? 0, 1000, async () => {
      probed.largeMails.push(await receive(large?.mail ?? ''));
    }),
    repeat(large?.count ?? 0, 1000, async () => {
      const { begunMs, answeredMs } = await send(`${'x'.repeat(70)}\n`.repeat(largeBytes / 71));
      probed.postMs.push(answeredMs - begunMs);
    }),
    repeat(relayed?.count ?? 0, 1000, async () => {
      probed.relayed.push(await send('Hello'));
    }),
  ]);
  await pool.close();
  return probed;
}

async function repeat(count: number, everyMs: number, work: () => Promise<void>): Promise<void> {
  const running: Promise<void>[] = [];
  for (let n = 0; n < count; n += 1) {
    running.push(work());
    await delay(everyMs);
  }
  await Promise.all(running);
}

function nextId(): string {
  lastId += 1;
  return String(lastId).padStart(idPlace.length, '0');
}

process.on('message', async (question: ProbeQuestion) => process.send?.(await probe(question)));
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());
