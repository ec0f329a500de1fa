/**
 * `kill -9` of the process that reads a mailbox, at random moments while it imports older mail and new mail arrives. Another process
 * takes over within 30 s; every message of the mailbox is stored exactly once, and its event is delivered at least once.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { waitFor } from '../harness.ts';
import { type ImapServer, openImapServer } from '../imap-server.ts';
import { startReceiver } from '../receiver.ts';
import { type Fault, type FaultRun, type Outcome, pick } from './fault.ts';
import { prepareProcesses } from './processes.ts';
import type { Server } from './server.ts';
import { make } from './trial.ts';

const takeOverMs = 30_000;
const announceMs = 60_000;
const olderPerRound = 200;
/** The kill of a round comes after at most this many events, or after this time. */
const maxEvents = 220;
const maxWaitMs = 4000;

export const imapKill: Fault = {
  about: 'kill -9 of the process that reads a mailbox, while another waits',
  rounds: { usual: 20, short: 3 },
  boundMs: (rounds) => 150_000 + rounds * 45_000,
  run,
};

async function run(lent: FaultRun): Promise<Outcome> {
  const { random, log } = lent;
  const [api, ...readers] = await prepareProcesses(lent, ['api,deliver', 'sync', 'sync']);
  let [reading, waiting] = readers;
  const imap = await openImapServer();
  lent.defer(() => imap.stop());
  const receiver = await startReceiver();
  lent.defer(() => receiver.close());
  const announced = new Map<string, number>();
  receiver.behave(({ body }, response) => {
    const { subject } = JSON.parse(body.toString()).data.message;
    announced.set(subject, (announced.get(subject) ?? 0) + 1);
    response.writeHead(204).end();
  });
  const identityId = await connectMailbox(api, imap, receiver.url());
  await reading.start();
  await waitFor('the first reading', () => isIdle(api, identityId));
  let starting = waiting.start();

  const mailbox = new Mailbox(imap);
  const broken: string[] = [];
  for (let round = 1; round <= lent.rounds; round += 1) {
    await starting;
    const before = announced.size;
    mailbox.putOlder(round);
    const body = { since: yearBefore(round), events: true };
    const asked = await api.call('POST', `/identities/${identityId}/sync`, body);
    if (asked.status !== 202) throw new Error(`POST /sync: ${asked.status} ${await asked.text()}`);
    const arriving = mailbox.keepArriving();
    const events = pick(random, 0, maxEvents);
    await waitFor('events', () => announced.size - before >= events, maxWaitMs).catch(() => {});
    await delay(pick(random, 0, 50));
    await reading.kill();
    const killedAt = performance.now();
    const eventsAtKill = announced.size - before;
    await waitFor('the end of the connection', () => imap.sessions() === 0);
    // The whole lease is waited for in some rounds only.
    const isWaitedFor = !lent.short && round % 5 === 1;
    if (!isWaitedFor) await api.look((sql) => sql`update imap_connections set lease_until = now()`);
    await waitFor('another process to log in', () => imap.sessions() === 1, 2 * takeOverMs);
    const tookMs = Math.round(performance.now() - killedAt);
    if (tookMs > takeOverMs) broken.push(`round ${round}: nobody took over for ${tookMs} ms`);
    [reading, waiting] = [waiting, reading];
    starting = waiting.start();
    arriving.stop();
    log(
      `round ${round}/${lent.rounds}: killed after ${eventsAtKill} events, taken over ` +
        `${isWaitedFor ? 'when the lease ended' : 'after the lease was ended'}, ${tookMs} ms later`,
    );
  }
  await starting;
  const isOver = () => mailbox.subjects.every((subject) => announced.has(subject));
  await waitFor('the events of all messages', isOver, announceMs).catch(() => {});
  await waitFor('the end of the import', () => isIdle(api, identityId), announceMs).catch(() => {});
  return { ...(await compare(api, mailbox.subjects, announced)), broken };
}

async function connectMailbox(api: Server, { port, password }: ImapServer, url: string): Promise<string> {
  const server = { host: '127.0.0.1', port, username: 'ada', password };
  const account = await make(api, '/smtp-accounts', { label: 'Faults', smtp: server, imap: server });
  const identity = await make(api, '/identities', {
    value: 'ada@faults.example',
    smtp_account_id: account.id,
  });
  const { userId: ownerId } = (await (await api.call('GET', '/me')).json()) as { userId: string };
  await make(api, '/webhooks', { url, events: ['message.received'], ownerId });
  return identity.id;
}

async function isIdle(api: Server, identityId: string): Promise<boolean> {
  const answer = await api.call('GET', `/identities/${identityId}/mailboxes`);
  const boxes = (await answer.json()) as { kind: string; sync: { state: string } | null }[];
  return boxes.every(({ kind, sync }) => kind === 'trash' || sync?.state === 'idle');
}

/** Each round imports a year that no earlier round did. */
function yearBefore(round: number): string {
  return `${2024 - round}-01-01T00:00:00Z`;
}

/** What is put into the folders of the server, by subject. */
class Mailbox {
  readonly subjects: string[] = [];
  readonly #imap: ImapServer;

  constructor(imap: ImapServer) {
    this.#imap = imap;
  }

  putOlder(round: number): void {
    const date = new Date(new Date(yearBefore(round)).getTime() + 1000);
    for (let n = 0; n < olderPerRound; n += 1) this.#put(n % 10 === 0 ? 'Junk' : 'INBOX', date);
  }

  /** New mail, until it is stopped. */
  keepArriving(): { stop(): void } {
    const timer = setInterval(() => this.#put('INBOX', new Date()), 40);
    return { stop: () => clearInterval(timer) };
  }

  #put(folder: string, date: Date): void {
    const subject = `message ${this.subjects.length}`;
    this.subjects.push(subject);
    const header = `From: bob@example.com\r\nTo: ada@faults.example\r\nSubject: ${subject}\r\n`;
    this.#imap.deliver(folder, `${header}\r\n${'Some text. '.repeat(100)}\r\n`, date);
  }
}

async function compare(
  api: Server,
  subjects: readonly string[],
  announced: ReadonlyMap<string, number>,
): Promise<Pick<Outcome, 'acknowledged' | 'lost' | 'conjured'>> {
  const rows = await api.look(
    (sql) => sql<{ subject: string; count: number }[]>`
      select summary ->> 'subject' as subject, count(*)::int as count from messages group by 1`,
  );
  const stored = new Map(rows.map(({ subject, count }) => [subject, count]));
  const known = new Set(subjects);
  return {
    acknowledged: subjects.length,
    lost: subjects.flatMap((subject) => [
      ...(stored.has(subject) ? [] : [`${subject} is in the mailbox and is not stored`]),
      ...(announced.has(subject) ? [] : [`no event came for ${subject}`]),
    ]),
    conjured: rows.flatMap(({ subject, count }) => [
      ...(count > 1 ? [`${subject} is stored ${count} times`] : []),
      ...(known.has(subject) ? [] : [`${subject} is stored and is not in the mailbox`]),
    ]),
  };
}
