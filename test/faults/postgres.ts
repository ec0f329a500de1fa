/** A PostgreSQL for one fault: services use it through DATABASE_URL, and it can be stopped, killed and started. */
import { freePort, makeCluster, type Postgres, serveCluster } from '../own-postgres.ts';
import { makeFolder } from '../programs.ts';
import type { FaultRun } from './fault.ts';

export async function preparePostgres(lent: FaultRun): Promise<Postgres> {
  const folder = makeFolder();
  lent.defer((clean) => {
    if (clean) folder.remove();
    else lent.log(`what is left of its PostgreSQL: ${folder.path}`);
  });
  const postgres = serveCluster(await makeCluster(folder.path), await freePort(lent.random));
  lent.defer(() => postgres.stop());
  return postgres;
}
