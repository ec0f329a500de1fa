/** `GET /identities` of an owner with 20 identities, against a bare fastify that runs the same query. */
import { startLoad } from '../load.ts';
import { startChild } from '../processes.ts';
import { type Bench, type Round, takeTurns } from '../scenario.ts';
import { type BenchedService, startService } from '../service.ts';

export const name = 'api-read';
export const goal = 0.65;

const identities = 20;

export async function run(bench: Bench): Promise<Round[]> {
  const service = await startService(bench);
  await makeIdentities(service);
  const program = new URL('./api-read.control.ts', import.meta.url);
  const control = startChild(bench, program, [service.ownerId], { DATABASE_URL: service.databaseUrl });
  const ofService = { url: `${service.url}/identities`, headers: service.headers };
  const ofControl = { url: `${await control.ask('listen')}/identities` };
  await requireAll(ofService);
  await requireAll(ofControl);
  const load = startLoad(bench);
  return takeTurns(bench, {
    service: (durationMs) => load({ method: 'GET', status: 200, ...ofService }, durationMs),
    control: (durationMs) => load({ method: 'GET', status: 200, ...ofControl }, durationMs),
  });
}

async function makeIdentities({ url, headers }: BenchedService): Promise<void> {
  for (let i = 1; i <= identities; i++) {
    const body = JSON.stringify({ value: `team${i}@customer.example`, meta: { team: i } });
    const answer = await fetch(`${url}/identities`, { method: 'POST', headers, body });
    if (answer.status !== 201) throw new Error(`POST /identities responded ${answer.status}`);
  }
}

/** Both must return the same number of rows, or the comparison is invalid. */
async function requireAll({ url, headers = {} }: { url: string; headers?: Record<string, string> }) {
  const found = (await (await fetch(url, { headers })).json()) as unknown[];
  if (found.length !== identities) throw new Error(`${url} lists ${found.length}, not ${identities}`);
}
