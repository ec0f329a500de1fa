/** Processor time in a second in which nothing happens, of the service and of PostgreSQL. */
import { setTimeout as delay } from 'node:timers/promises';
import { connectBench } from '../database.ts';
import type { Bench, Figures, Taken } from '../scenario.ts';
import { startService } from '../service.ts';
import { findPostmaster, readCpuMs, readServerCpuMs } from '../usage.ts';

export const name = 'idle';
export const goal: Figures = { serviceMs: 5, postgresMs: 3 };

/** After its start a service still compiles and collects garbage. */
const settleMs = 10_000;
const usualMs = 20_000;
const rounds = 3;

export async function run(bench: Bench): Promise<Taken> {
  const service = await startService(bench);
  const postmaster = await findPostmaster(connectBench(bench, service.databaseUrl));
  await delay(bench.size(settleMs), undefined, { signal: bench.signal });
  const roundMs = bench.size(usualMs);
  const taken = { serviceMs: [] as number[], postgresMs: [] as number[] };
  for (let round = 1; round <= bench.size(rounds); round += 1) {
    const before = { service: readCpuMs(service.pid), postgres: readServerCpuMs(postmaster) };
    await bench.measured(() => delay(roundMs, undefined, { signal: bench.signal }));
    taken.serviceMs.push(((readCpuMs(service.pid) - before.service) * 1000) / roundMs);
    taken.postgresMs.push(((readServerCpuMs(postmaster) - before.postgres) * 1000) / roundMs);
    bench.log(
      `round ${round} of ${rounds}: ${taken.serviceMs.at(-1)} ms a second in the service, ${taken.postgresMs.at(-1)} in PostgreSQL`,
    );
  }
  return taken;
}
