/**
 * The primary of two PostgreSQL servers is killed with `-9` under load and its synchronous standby is promoted; DATABASE_URL has
 * both. Meanwhile clients get 451 and 503; everything continues by itself on the new primary; nothing is lost. Between failovers
 * the killed server returns as the standby, from a copy of the new primary.
 */
import { execFile } from 'node:child_process';
import { chown, readdir, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { promisify } from 'node:util';
import { connect, type Pool } from '../../src/db/client.ts';
import { waitFor } from '../harness.ts';
import type { Postgres } from '../own-postgres.ts';
import { outlast } from './database.ts';
import { type Fault, type FaultRun, type Outcome, pick } from './fault.ts';
import { preparePostgres } from './postgres.ts';
import { Probe } from './probe.ts';
import { prepareServer } from './server.ts';
import { conclude, prepareTrial } from './trial.ts';

const execute = promisify(execFile);
/** The primary keeps the log that the standby needs until the standby connects. */
const settings = { wal_keep_size: '1GB' };

export const failover: Fault = {
  about: 'the PostgreSQL primary killed with -9, its synchronous standby promoted',
  rounds: { usual: 3, short: 1 },
  boundMs: (rounds) => 150_000 + rounds * 90_000,
  run,
};

async function run(lent: FaultRun): Promise<Outcome> {
  let [primary, standby] = [await preparePostgres(lent), await preparePostgres(lent)];
  await primary.start(settings);
  const { password } = primary.cluster;
  const hosts = [primary, standby].map(({ port }) => `127.0.0.1:${port}`);
  const server = await prepareServer(lent, {
    databaseUrl: `postgres://posthorn:${password}@${hosts.join(',')}/postgres`,
  });
  await server.start();
  const trial = await prepareTrial(lent, server);
  const probe = new Probe(server);
  const broken: string[] = [];
  for (let round = 1; round <= lent.rounds; round += 1) {
    await follow(standby, primary, password);
    const found = await outlast(trial, probe, round, async () => {
      await primary.kill();
      await delay(pick(lent.random, 0, lent.short ? 3000 : 10_000));
      await ask(standby, password, (sql) => sql`select pg_promote()`);
    });
    broken.push(...found);
    [primary, standby] = [standby, primary];
  }
  const outcome = await conclude(trial);
  return { ...outcome, broken: [...outcome.broken, ...broken, ...(await probe.conclude())] };
}

/** Copies the running primary, and starts the copy as a synchronous standby. */
async function follow(standby: Postgres, primary: Postgres, password: string): Promise<void> {
  const { pgdata } = standby.cluster;
  await ask(primary, password, async (sql) => {
    // Without a standby every commit would wait forever.
    await setSynchronous(sql, '');
    await sql`select pg_backup_start('standby', true)`;
    await copyFolder(primary.cluster.pgdata, pgdata);
    const [backup] = await sql<{ labelfile: string }[]>`select labelfile from pg_backup_stop(false)`;
    await giveTo(standby, 'backup_label', backup?.labelfile ?? '');
    await giveTo(standby, 'standby.signal', '');
    const source = `host=127.0.0.1 port=${primary.port} user=posthorn password=${password} application_name=standby`;
    await standby.start({ ...settings, primary_conninfo: source });
    await setSynchronous(sql, 'standby');
    await waitFor('the standby to be synchronous', async () => {
      const following = await sql`select from pg_stat_replication where sync_state = 'sync'`;
      return following.count === 1;
    });
  });
}

/** Keeps owners and modes. Files that vanish during the copy do not matter: the log has their content. */
async function copyFolder(from: string, to: string): Promise<void> {
  await rm(to, { recursive: true, force: true });
  await execute('cp', ['-a', from, to]).catch((error) => {
    if (!/No such file or directory/.test(error.stderr)) throw error;
  });
  const wal = path.join(to, 'pg_wal');
  for (const name of await readdir(wal)) await rm(path.join(wal, name), { recursive: true });
  for (const name of ['postmaster.pid', 'postmaster.opts', 'standby.signal', 'server.log'])
    await rm(path.join(to, name), { force: true });
}

async function giveTo({ cluster }: Postgres, name: string, content: string): Promise<void> {
  const file = path.join(cluster.pgdata, name);
  await writeFile(file, content, { mode: 0o600 });
  if (cluster.user) await chown(file, cluster.user.uid, cluster.user.gid);
}

async function setSynchronous(sql: Pool, names: string): Promise<void> {
  await sql.script(`alter system set synchronous_standby_names = '${names}'`);
  await sql`select pg_reload_conf()`;
  await waitFor('the setting to be read', async () => {
    const [row] = await sql`show synchronous_standby_names`;
    return row?.synchronous_standby_names === names;
  });
}

async function ask<T>({ port }: Postgres, password: string, work: (sql: Pool) => Promise<T>): Promise<T> {
  const url = `postgres://posthorn:${password}@127.0.0.1:${port}/postgres`;
  const sql = connect(url, { max: 1, applicationName: 'posthorn faults' });
  try {
    return await work(sql);
  } finally {
    await sql.end({ timeoutMs: 1000 });
  }
}
