/**
 * The owner who attacks in the scenarios `tenants-…`, in its own process. `flood` and a `repeat` with `times` reply when they are
 * over; the others go on until this process ends. A refusal is as good as an answer: the other owner must not notice either.
 */
import net from 'node:net';
import { Pool } from 'undici';
import { SmtpSession } from '../../smtp-session.ts';

/** A text that is large on the wire and small in a question: `filler` is repeated between the ends. */
export interface Filled {
  start?: string;
  filler: string;
  times: number;
  end?: string;
}

export interface Request {
  path: string;
  type?: string;
  body: Filled;
}

export type AttackQuestion =
  /** POSTs the requests again and again: as many at once as there are connections. */
  | { kind: 'repeat'; connections: number; requests: Request[]; times?: number }
  /** So many `POST /identities`, most of them addresses and some domains, evenly over the sockets, without waiting for any answer. */
  | { kind: 'flood'; sockets: number; count: number }
  /** GETs a path on each socket and reads nothing; again whenever the service closes the connection. */
  | { kind: 'unread'; sockets: number; path: string }
  /** Sends the message by SMTP, again and again. */
  | { kind: 'mail'; connections: number; port: number; mail: Filled };

export type Question = AttackQuestion & { origin: string; authorization: string };
type Given<Kind> = Extract<Question, { kind: Kind }>;

async function repeat({ connections, requests, times, origin, authorization }: Given<'repeat'>) {
  const pool = new Pool(origin, { connections });
  const made = requests.map(({ path, type = 'application/json', body }) => ({
    path,
    type,
    body: fill(body),
  }));
  let left = times ?? Number.POSITIVE_INFINITY;
  let next = 0;
  await inParallel(connections, async () => {
    while (left > 0) {
      left -= 1;
      next += 1;
      const { path, type, body } = made[next % made.length] as (typeof made)[0];
      const headers = { authorization, 'content-type': type };
      const options = { method: 'POST', path, headers, body, headersTimeout: 0, bodyTimeout: 0 } as const;
      await pool.request(options).then(
        (answer) => answer.body.dump(),
        () => {},
      );
    }
  });
}

let lastId = 0;

/** All requests of a socket are written at once. */
async function flood({ sockets, count, origin, authorization }: Given<'flood'>): Promise<void> {
  const { hostname, port } = new URL(origin);
  const write = () => {
    lastId += 1;
    const body = JSON.stringify({ value: lastId % 100 ? `a${lastId}@flood.example` : `d${lastId}.example` });
    const head = `POST /identities HTTP/1.1\r\nhost: ${hostname}\r\nauthorization: ${authorization}`;
    return `${head}\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`;
  };
  const perSocket = Math.ceil(count / sockets);
  await inParallel(Math.ceil(count / perSocket), async () => {
    const socket = net
      .connect(Number(port), hostname)
      .setEncoding('latin1')
      .on('error', () => {});
    const closed = new Promise<void>((resolve) => socket.on('close', () => resolve()));
    let answers = 0;
    socket.on('data', (text) => {
      answers += String(text).split('HTTP/1.1 ').length - 1;
      if (answers >= perSocket) socket.destroy();
    });
    socket.write(Array.from({ length: perSocket }, write).join(''));
    await closed;
  });
}

function leaveUnread({ sockets, path, origin, authorization }: Given<'unread'>): void {
  const { hostname, port } = new URL(origin);
  const open = () => {
    const socket = net.connect(Number(port), hostname).on('error', () => {});
    socket.pause().on('close', () => setTimeout(open, 100));
    socket.write(`GET ${path} HTTP/1.1\r\nhost: ${hostname}\r\nauthorization: ${authorization}\r\n\r\n`);
  };
  for (let n = 0; n < sockets; n += 1) open();
}

async function sendMail({ connections, port, mail }: Given<'mail'>): Promise<void> {
  const wire = Buffer.from(fill(mail), 'latin1');
  await inParallel(connections, async () => {
    for (;;) {
      try {
        const session = await SmtpSession.open(port);
        while (session.isOpen) await session.send(wire);
      } catch {
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
    }
  });
}

function fill({ start = '', filler, times, end = '' }: Filled): string {
  return `${start}${filler.repeat(times)}${end}`;
}

async function inParallel(count: number, work: () => Promise<void>): Promise<void> {
  await Promise.all(Array.from({ length: count }, work));
}

process.on('message', async (question: Question) => {
  if (question.kind === 'repeat') await repeat(question);
  if (question.kind === 'flood') await flood(question);
  if (question.kind === 'unread') return leaveUnread(question);
  if (question.kind === 'mail') await sendMail(question);
  process.send?.('done');
});
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());
