/** Several services with some of the roles each, on one PostgreSQL. */
import type { FaultRun } from './fault.ts';
import { preparePostgres } from './postgres.ts';
import { prepareServer, type Server } from './server.ts';

/** `roles`: of each process, as in POSTHORN_ROLES. Starts the first process, which creates the schema and the first user. */
export async function prepareProcesses<const Roles extends readonly [string, ...string[]]>(
  lent: FaultRun,
  roles: Roles,
): Promise<{ -readonly [Index in keyof Roles]: Server }> {
  const postgres = await preparePostgres(lent);
  await postgres.start();
  const servers: Server[] = [];
  for (const some of roles) {
    const settings = { POSTHORN_ROLES: some };
    servers.push(await prepareServer(lent, { databaseUrl: postgres.url, settings }));
  }
  await servers[0]?.start();
  return servers as { -readonly [Index in keyof Roles]: Server };
}
