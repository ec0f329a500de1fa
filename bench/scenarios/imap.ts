/**
 * 5,000 messages of 5 KB that are in a mailbox of Dovecot: fetched, parsed, authenticated, committed with their events. Two controls:
 * imapflow fetches the same messages and discards them; and the service takes the same mail by SMTP, from the memory of the sender. The
 * times of both add up, so the rate of the control is that of a program that first does the one and then the other. No webhooks.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { openDovecot } from '../../test/peers/dovecot-server.ts';
import { hasPeer } from '../../test/peers/programs.ts';
import { connectBench } from '../database.ts';
import { mailSettings, makeIdentity, startMailTools } from '../mail.ts';
import { connectMailbox, post } from '../mailboxes.ts';
import { startChild } from '../processes.ts';
import { idPlace, makeSampleMail } from '../sample-mail.ts';
import { alternate, type Bench, concurrency, type Round } from '../scenario.ts';
import { startService } from '../service.ts';

export const name = 'imap';
export const goal = 0.6;

export function findMissing(): string | null {
  if (!hasPeer('dovecot'))
    return 'Dovecot is not installed. On Debian: apt-get install --no-install-recommends dovecot-imapd';
  return process.getuid?.() === 0 ? null : 'Dovecot starts as root only: run the bench as root.';
}

const usualCount = 5000;
const turnMs = 4000;
const rounds = 5;
const user = 'ada';
/** When the mail in the mailbox came, and a time before. */
const date = new Date('2026-02-02T00:00:00Z');
const since = '2026-01-01T00:00:00Z';

export async function run(bench: Bench): Promise<Round[]> {
  const count = bench.size(usualCount);
  const sample = await makeSampleMail();
  const tools = await startMailTools(bench, sample);
  const dovecot = await openDovecot({ [user]: '' });
  bench.defer(() => dovecot.remove());
  const message = sample.wire.replace(/\.\r\n$/, '');
  for (let n = 0; n < count; n += 1)
    dovecot.deliver(user, message.replace(idPlace, String(n).padStart(idPlace.length, '0')), date);
  const args = [String(dovecot.port), user, dovecot.password];
  const control = startChild(bench, new URL('./imap.control.ts', import.meta.url), args);
  const service = await startService(bench, mailSettings(tools));
  const sql = connectBench(bench, service.databaseUrl);
  await makeIdentity(service);

  let identities = 0;
  /** Each time the mailbox of a new identity, which has seen none of the messages. */
  async function connect(): Promise<string> {
    identities += 1;
    const login = { port: dovecot.port, username: user, password: dovecot.password };
    const id = await connectMailbox(service, login, `box-${identities}@customer.example`);
    await until(
      () => sql`
      select from mailboxes join mailbox_sync on mailbox_id = id
      where identity_id = ${id} having count(*) filter (where synced_at is not null) = 3`,
    );
    return id;
  }

  async function until(query: () => Promise<{ count: number }>): Promise<void> {
    while ((await query()).count === 0) await delay(10, undefined, { signal: bench.signal });
  }

  async function backfill(id: string): Promise<number> {
    const began = performance.now();
    await post(service, `/identities/${id}/sync`, { since, events: true });
    await until(
      () => sql`
      select from mailboxes join mailbox_sync on mailbox_id = id join imap_connections using (identity_id)
      where identity_id = ${id} and kind = 'inbox' and mailbox_sync.scan = imap_connections.scan and older_uid is null`,
    );
    const rate = count / ((performance.now() - began) / 1000);
    const recorded = await sql`select from messages where identity_id = ${id}`;
    if (recorded.count !== count) throw new Error(`${recorded.count} of ${count} messages were recorded`);
    return rate;
  }

  async function measureControls(): Promise<number> {
    const fetched = Number(await control.ask('fetch'));
    const taken = await tools.flood(service.smtpPort, {
      ...{ sessions: concurrency, keep: true, durationMs: bench.size(turnMs) },
    });
    bench.log(`imapflow fetches ${fetched.toFixed(0)}/s, SMTP takes ${taken.toFixed(0)}/s`);
    return 1 / (1 / fetched + 1 / taken);
  }

  bench.log('warming up');
  await backfill(await connect());
  await measureControls();
  let next = await connect();
  return alternate(bench, rounds, {
    service: () => backfill(next),
    async control() {
      const rate = await measureControls();
      next = await connect();
      return rate;
    },
  });
}
