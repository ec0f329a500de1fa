/**
 * The disk of the data folder becomes full under load, and later has space again. Meanwhile mail gets 452 (451 when PostgreSQL
 * is down because of it) and API writes get 503; with space everything continues by itself; nothing is lost, and no table or
 * index is corrupt. The disk is a small file system in memory, which needs root.
 */
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { closeSync, openSync, rmSync, statfsSync, writeSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Pool } from '../../src/db/client.ts';
import { waitFor } from '../harness.ts';
import { makeFolder } from '../programs.ts';
import { type Fault, type FaultRun, type Outcome, pick } from './fault.ts';
import { Probe } from './probe.ts';
import { prepareServer } from './server.ts';
import { addresses, conclude, keepSending, prepareTrial, type Trial } from './trial.ts';

const diskMb = 400;
const fullForMs = 4000;
const largeBytes = 300_000;
const backWithinMs = 60_000;
/** PostgreSQL restarts after a crash; until it is back, nothing can report that the disk is full. */
const fitting = [452, 451, 421];

export const diskFull: Fault = {
  about: 'the disk under the data folder runs full, then has room again',
  rounds: { usual: 4, short: 2 },
  boundMs: (rounds) => 150_000 + rounds * 150_000,
  lacks: () =>
    process.platform === 'linux' && process.getuid?.() === 0
      ? null
      : 'it takes Linux and root to mount a small disk',
  run,
};

async function run(lent: FaultRun): Promise<Outcome> {
  const { log, random } = lent;
  const disk = mountDisk(lent);
  const server = await prepareServer(lent, { dataDir: path.join(disk, 'data') });
  await server.start();
  const trial = await prepareTrial(lent, server);
  const { post } = trial;
  const probe = new Probe(server);
  const filler = path.join(disk, 'filler');
  const broken: string[] = [];
  for (let round = 1; round <= lent.rounds; round += 1) {
    const before = { taken: post.acknowledged, deferred: post.deferred, refused: probe.unavailable };
    const countFull = () => post.deferrals.get(452) ?? 0;
    const toldBefore = countFull();
    const load = keepSending(trial, round);
    probe.start();
    await waitFor('letters to be taken', () => post.acknowledged > before.taken + 20, 30_000);
    if (round % 2 === 1) await server.look((sql) => setLogAside(sql));
    fill(filler, disk, pick(random, 0, 3) * 2 ** 20);
    await waitFor('a letter to be put off', () => post.deferred > before.deferred, 60_000);
    if (round % 2 === 0) await server.look((sql) => exhaustLog(sql));
    const answers = await handIn(trial, round);
    await delay(fullForMs);
    const full = { at: performance.now(), taken: post.acknowledged };
    rmSync(filler);
    await probe.recovered(backWithinMs);
    await waitFor('letters to be taken again', () => post.acknowledged > full.taken, backWithinMs);
    const backMs = Math.round(performance.now() - full.at);
    await waitFor('many letters to be taken again', () => post.acknowledged > full.taken + 20, backWithinMs);
    await load.stop();
    await probe.stop();
    const told = [...post.deferrals].map(([status, count]) => `${status} ${count} times`).join(', ');
    log(
      `round ${round}/${lent.rounds}${round % 2 === 0 ? ', the log of PostgreSQL too' : ''}: ${full.taken - before.taken} letters acknowledged until it was full, ${told} so far, ` +
        `503 ${probe.unavailable - before.refused} times; taken again ${backMs} ms after there was room`,
    );
    broken.push(...(await server.look(findCorruption)));
    if (round % 2 === 1 && countFull() === toldBefore) broken.push(`round ${round}: nobody was told 452`);
    if (!answers.has(503)) broken.push(`round ${round}: nobody was told 503`);
    for (const status of answers)
      if (status !== 503 && status !== 202)
        broken.push(`round ${round}: POST /inbound was answered ${status}`);
  }
  const odd = [...post.deferrals.keys()].filter((status) => !fitting.includes(status));
  broken.push(...odd.map((status) => `letters were put off with ${status}`));
  const outcome = await conclude(trial);
  return { ...outcome, broken: [...outcome.broken, ...broken, ...(await probe.conclude())] };
}

/** API writes that need more space than a half-empty page has. Refused ones are sent again later, as mail. */
async function handIn({ server, ledger, post }: Trial, round: number): Promise<Set<number>> {
  const statuses = new Set<number>();
  for (let n = 0; n < 10; n += 1) {
    const noise = randomBytes(largeBytes).toString('base64');
    const message = `Message-ID: <in${round}-${n}@sender.example>\r\n\r\n${noise}\r\n`;
    const letter = ledger.enter([addresses[0] ?? ''], () => Buffer.from(message));
    const { status } = await fetch(`${server.url}/inbound?recipient=${addresses[0]}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${server.apiKey}`, 'content-type': 'message/rfc822' },
      body: message,
    });
    statuses.add(status);
    if (status === 202) letter.acknowledgedIn = round;
    else post.unanswered.push(letter);
  }
  return statuses;
}

function mountDisk(lent: FaultRun): string {
  const folder = makeFolder();
  execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${diskMb}m,mode=755`, 'posthorn-faults', folder.path]);
  lent.defer(() => {
    execFileSync('umount', ['-l', folder.path]);
    folder.remove();
  });
  return folder.path;
}

/** Fills the disk, except for so many bytes. */
function fill(file: string, disk: string, leave: number): void {
  const megabyte = Buffer.alloc(2 ** 20);
  const handle = openSync(file, 'w');
  try {
    for (;;) {
      const { bavail, bsize } = statfsSync(disk);
      const size = Math.min(bavail * bsize - leave, megabyte.length);
      if (size <= 0) return;
      writeSync(handle, megabyte, 0, size);
    }
  } catch (error) {
    // Another process has just used the rest.
    if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error;
  } finally {
    closeSync(handle);
  }
}

/** WAL files for reuse: with them PostgreSQL survives a full disk for a while. */
async function setLogAside(sql: Pool): Promise<void> {
  for (let segments = 0; segments < 5; segments += 1)
    await sql`select pg_logical_emit_message(true, 'faults', 'x'), pg_switch_wal()`;
  await sql.script('checkpoint');
}

/** Uses up the reserved WAL files too, so that PostgreSQL goes down: it cannot run without its log. */
async function exhaustLog(sql: Pool): Promise<void> {
  for (let segments = 0; segments < diskMb / 16; segments += 1) {
    try {
      await sql`select pg_logical_emit_message(true, 'faults', repeat('x', 1000)), pg_switch_wal()`;
    } catch {
      return;
    }
  }
  throw new Error('PostgreSQL still writes its log on a disk that is full');
}

/** Reads and checks every page of every table and index (amcheck). */
async function findCorruption(sql: Pool): Promise<string[]> {
  await sql`create extension if not exists amcheck`;
  const tables = await sql<{ name: string; fault: string }[]>`
    select relname as name, found.msg as fault
    from pg_class cross join lateral verify_heapam(oid) found
    where relkind = 'r' and relnamespace = 'public'::regnamespace`;
  const faults = tables.map(({ name, fault }) => `table ${name}: ${fault}`);
  const indexes = await sql<{ oid: number; name: string }[]>`
    select indexrelid as oid, indexrelid::regclass::text as name
    from pg_index join pg_class on pg_class.oid = indrelid
    join pg_class as index on index.oid = indexrelid join pg_am on pg_am.oid = index.relam
    where amname = 'btree' and pg_class.relnamespace = 'public'::regnamespace`;
  for (const { oid, name } of indexes) {
    await sql`select bt_index_check(${oid}::oid::regclass, true)`.catch((error) =>
      faults.push(`index ${name}: ${error.message}`),
    );
  }
  return faults;
}
