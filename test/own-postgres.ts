/**
 * PostgreSQL servers of a test's own, started and ended by hand. Their clusters are copies of one that test/run.ts makes for the
 * whole run, since a copy costs a tenth of what `initdb` costs. Where nothing is prepared (`npm run test:faults`), a cluster is
 * made.
 */
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { DatabaseAddress } from '../src/db/address.ts';
import { type Cluster, openCluster } from '../src/db/embedded/cluster.ts';
import { findPostmaster, launchServer, stopServer } from '../src/db/embedded/server.ts';
import { makeLog } from '../src/lib/log.ts';
import { waitFor } from './harness.ts';

export interface Postgres {
  /** Of the database `postgres`. */
  url: string;
  port: number;
  cluster: Cluster;
  /** Starts it and waits until it lets sessions in. */
  start(settings?: Record<string, string>): Promise<void>;
  /** In order: sessions are told and cut. */
  stop(): Promise<void>;
  /** As a crash does it: every backend ends where it stands. */
  crash(): Promise<void>;
  /** SIGKILL to the postmaster; its backends end when they notice. */
  kill(): Promise<void>;
}

const patienceMs = 120_000;

/** In a folder of its own, which `remove` takes away with the server. */
export async function makeOwnPostgres(): Promise<Postgres & { remove(): Promise<void> }> {
  const dataDir = mkdtempSync(path.join(tmpdir(), 'posthorn-postgres-'));
  // Some files are looked up by their whole path, as the server's user.
  chmodSync(dataDir, 0o755);
  const postgres = serveCluster(await makeCluster(dataDir), await freePort());
  const remove = async () => {
    await postgres.stop();
    rmSync(dataDir, { recursive: true, force: true });
  };
  return { ...postgres, remove };
}

export function makeCluster(dataDir: string): Promise<Cluster> {
  copyCluster(dataDir);
  return openCluster(dataDir, makeLog({ level: 'silent', json: true }));
}

/** Puts a cluster that was never started into a data folder. */
export function copyCluster(dataDir: string): void {
  const { TEST_CLUSTER: prepared } = process.env;
  if (!prepared) return;
  mkdirSync(dataDir, { recursive: true });
  // Not with Node's own copy: `cp -a` keeps the owner, which is an unprivileged user when we are root.
  execFileSync('cp', ['-a', path.join(prepared, 'postgres'), path.join(dataDir, 'postgres')]);
}

export function serveCluster(cluster: Cluster, port: number): Postgres {
  const { password } = cluster;
  const onPort = { listen_addresses: '127.0.0.1', port: String(port) };

  async function end(signal: NodeJS.Signals): Promise<void> {
    const postmaster = await findPostmaster(cluster);
    if (postmaster) process.kill(postmaster.pid, signal);
    await waitFor('PostgreSQL to be gone', async () => !(await findPostmaster(cluster)));
  }

  return {
    url: `postgres://posthorn:${password}@127.0.0.1:${port}/postgres`,
    port,
    cluster,
    async start(settings = {}) {
      let launch = await launchServer(cluster, { ...onPort, ...settings });
      await waitFor('PostgreSQL to be ready', async () => {
        const end = await launch.end();
        if (end?.why === 'failed') throw new Error(`PostgreSQL did not start: ${end.lines}`);
        // The one before may take a moment to let go of its lock file and its memory.
        if (end) launch = await launchServer(cluster, { ...onPort, ...settings });
        return /ready|standby/.test((await findPostmaster(cluster))?.status ?? '');
      });
    },
    async stop() {
      if (!(await stopServer(cluster, patienceMs))) throw new Error('PostgreSQL did not stop');
    },
    crash: () => end('SIGQUIT'),
    kill: () => end('SIGKILL'),
  };
}

/** The URL of an embedded server, for drivers and programs that read one. */
export function urlOf({ user, password, database, endpoints: [{ host, port }] }: DatabaseAddress): string {
  const server = host.startsWith('/') ? `localhost:${port}` : `${host}:${port}`;
  const query = host.startsWith('/') ? `?${new URLSearchParams({ host, port: String(port) })}` : '';
  return `postgres://${user}:${password}@${server}/${database}${query}`;
}

/** Below the range of outgoing connections: there a client that tries a server that is down may reach itself. */
export async function freePort(random = Math.random): Promise<number> {
  for (;;) {
    const port = 20_000 + Math.floor(12_000 * random());
    const server = net.createServer().listen(port, '127.0.0.1');
    const isFree = await once(server, 'listening').then(
      () => true,
      () => false,
    );
    server.close();
    if (isFree) return port;
  }
}
