/** A PostgreSQL of the fault's own, which services reach through DATABASE_URL and which can be stopped, killed and started. */

import { type Cluster, openCluster } from '../../src/db/embedded/cluster.ts';
import { findPostmaster, launchServer, stopServer } from '../../src/db/embedded/server.ts';
import { makeLog } from '../../src/lib/log.ts';
import { waitFor } from '../harness.ts';
import { makeFolder } from '../programs.ts';
import type { FaultRun } from './fault.ts';
import { freePort } from './server.ts';

export interface Postgres {
  url: string;
  port: number;
  cluster: Cluster;
  /** Starts it and waits until it lets sessions in. */
  start(settings?: Record<string, string>): Promise<void>;
  /** In order: sessions are told and cut. */
  stop(): Promise<void>;
  /** SIGKILL to the postmaster; its backends end when they notice. */
  kill(): Promise<void>;
}

export const quiet = makeLog({ level: 'silent', json: true });
const startMs = 60_000;

export async function preparePostgres(lent: FaultRun): Promise<Postgres> {
  const folder = makeFolder();
  lent.defer((clean) => {
    if (clean) folder.remove();
    else lent.tell(`what is left of its PostgreSQL: ${folder.path}`);
  });
  return servePostgres(lent, await openCluster(folder.path, quiet), await freePort(lent.random));
}

/** On a cluster that is there. */
export function servePostgres(lent: FaultRun, cluster: Cluster, port: number): Postgres {
  const { pgdata, password } = cluster;
  lent.defer(() => stopServer(pgdata, 20_000));
  return {
    url: `postgres://posthorn:${password}@127.0.0.1:${port}/postgres`,
    port,
    cluster,
    async start(settings = {}) {
      let launch = await launchServer(cluster, port, settings);
      await waitFor(
        'PostgreSQL to be ready',
        async () => {
          const end = await launch.end();
          // Backends of a killed one may take a moment to let go of its memory.
          if (end?.why === 'failed') throw new Error(`PostgreSQL did not start: ${end.lines}`);
          if (end) launch = await launchServer(cluster, port, settings);
          return /ready|standby/.test((await findPostmaster(pgdata))?.status ?? '');
        },
        startMs,
      );
    },
    async stop() {
      if (!(await stopServer(pgdata, 30_000))) throw new Error('PostgreSQL did not stop');
    },
    async kill() {
      const postmaster = await findPostmaster(pgdata);
      if (postmaster) process.kill(postmaster.pid, 'SIGKILL');
      await waitFor('PostgreSQL to be gone', async () => !(await findPostmaster(pgdata)));
    },
  };
}
