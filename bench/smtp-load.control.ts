/**
 * The mail sender, in its own process. `use` gives the messages to send. `flood` replies with the number of messages per second
 * that got a 250; `pace` replies with the time of each 250. The sender keeps its connections open, or opens a new one for each
 * message. `send` sends a number of messages and replies when all got a 250; `post` does the same by HTTP.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { Pool } from 'undici';
import { machineMs } from './clock.ts';
import { idPlace, type MailMix } from './sample-mail.ts';
import { SmtpSession } from './smtp-session.ts';

export type LoadQuestion =
  | { kind: 'use'; messages: MailMix['messages'] }
  | { kind: 'flood'; port: number; sessions: number; keep: boolean; durationMs: number; password?: string }
  | { kind: 'pace'; port: number; perSecond: number; count: number }
  | { kind: 'send'; port: number; sessions: number; count: number }
  | { kind: 'post'; url: string; authorization: string; sessions: number; count: number };
/** The number in the Message-ID, and the time of the 250 by the machine's clock. */
export type Paced = { id: string; answeredMs: number }[];

interface Template {
  from: string;
  bytes: Buffer;
  idAt: number;
}

let templates: Template[] = [];
/** Not measured, because sessions are still being opened. */
const leadInMs = 400;

let lastId = Date.now() * 1000;

function useMessages(messages: MailMix['messages']): number {
  templates = messages.map(({ from, wire }) => {
    const bytes = Buffer.from(wire, 'latin1');
    return { from, bytes, idAt: bytes.indexOf(idPlace) };
  });
  return templates.length;
}

function nextMessage(): { id: string; from: string; bytes: Buffer } {
  lastId += 1;
  const template = templates[lastId % templates.length];
  if (!template) throw new Error('No messages to send');
  const id = String(lastId).padStart(idPlace.length, '0');
  const bytes = Buffer.from(template.bytes);
  bytes.write(id, template.idAt, 'latin1');
  return { id, from: template.from, bytes };
}

async function sendNext(session: SmtpSession): Promise<string> {
  const { id, from, bytes } = nextMessage();
  await session.send(bytes, from);
  return id;
}

/** Open sessions that are not in use, by port. */
const idle = new Map<number, SmtpSession[]>();

async function takeSession(port: number, password?: string): Promise<SmtpSession> {
  const open = idle.get(port) ?? [];
  // The server closes a session that was idle for minutes.
  for (let session = open.pop(); session; session = open.pop()) if (session.isOpen) return session;
  return SmtpSession.open(port, password);
}

function giveBack(port: number, session: SmtpSession): void {
  const others = idle.get(port) ?? [];
  others.push(session);
  idle.set(port, others);
}

async function flood({
  port,
  sessions,
  keep,
  durationMs,
  password,
}: LoadQuestion & { kind: 'flood' }): Promise<number> {
  let taken = 0;
  let isOver = false;
  const onKept = async () => {
    const session = await takeSession(port, password);
    while (!isOver) {
      await sendNext(session);
      taken += 1;
    }
    giveBack(port, session);
  };
  const onNew = async () => {
    while (!isOver) {
      const session = await SmtpSession.open(port, password);
      await sendNext(session);
      taken += 1;
      await session.quit();
    }
  };
  const working = Promise.all(Array.from({ length: sessions }, keep ? onKept : onNew));
  await Promise.race([delay(leadInMs), working]);
  const [before, began] = [taken, machineMs()];
  await Promise.race([delay(durationMs), working]);
  const rate = (taken - before) / ((machineMs() - began) / 1000);
  isOver = true;
  await working;
  return rate;
}

/** Sends at a fixed rate, without waiting for earlier replies. */
async function pace({ port, perSecond, count }: LoadQuestion & { kind: 'pace' }): Promise<Paced> {
  const sendOne = async () => {
    const session = await takeSession(port);
    const id = await sendNext(session);
    const answeredMs = machineMs();
    giveBack(port, session);
    return { id, answeredMs };
  };
  const began = machineMs();
  const sent: ReturnType<typeof sendOne>[] = [];
  while (sent.length < count) {
    sent.push(sendOne());
    await delay(Math.max(0, began + (sent.length * 1000) / perSecond - machineMs()));
  }
  return Promise.all(sent);
}

async function send({ port, sessions, count }: LoadQuestion & { kind: 'send' }): Promise<number> {
  let left = count;
  const repeat = async () => {
    const session = await takeSession(port);
    while (left > 0) {
      left -= 1;
      await sendNext(session);
    }
    giveBack(port, session);
  };
  await Promise.all(Array.from({ length: sessions }, repeat));
  return count;
}

async function post(question: LoadQuestion & { kind: 'post' }): Promise<number> {
  const { url, authorization, sessions, count } = question;
  const { origin, pathname, search } = new URL(url);
  const pool = new Pool(origin, { connections: sessions, pipelining: 1 });
  const headers = { authorization, 'content-type': 'message/rfc822' };
  let left = count;
  const repeat = async () => {
    while (left > 0) {
      left -= 1;
      // Without the final dot of SMTP.
      const message = nextMessage().bytes.subarray(0, -3);
      const request = { path: pathname + search, method: 'POST', headers, body: message } as const;
      const { statusCode, body } = await pool.request(request);
      if (statusCode !== 202)
        throw new Error(`POST ${pathname} responded ${statusCode}: ${await body.text()}`);
      await body.dump();
    }
  };
  await Promise.all(Array.from({ length: sessions }, repeat));
  await pool.close();
  return count;
}

process.on('message', async (question: LoadQuestion) => {
  switch (question.kind) {
    case 'use':
      process.send?.(useMessages(question.messages));
      break;
    case 'flood':
      process.send?.(await flood(question));
      break;
    case 'pace':
      process.send?.(await pace(question));
      break;
    case 'send':
      process.send?.(await send(question));
      break;
    case 'post':
      process.send?.(await post(question));
  }
});
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());
