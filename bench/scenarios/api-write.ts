/** `POST /webhooks`, against its insert alone. Each turn begins without webhooks, because an owner has a limit of them. */
import { connectBench } from '../database.ts';
import { startLoad } from '../load.ts';
import { startChild } from '../processes.ts';
import { type Bench, type Round, takeTurns } from '../scenario.ts';
import { startService } from '../service.ts';

export const name = 'api-write';
export const goal = 0.55;

/** A literal address, so that DNS is not measured, and loopback, which development mode allows. Nothing is sent there. */
const target = 'https://127.0.0.1/hook';

export async function run(bench: Bench): Promise<Round[]> {
  const { url, headers, ownerId, databaseUrl } = await startService(bench);
  const program = new URL('./api-write.control.ts', import.meta.url);
  const control = startChild(bench, program, [ownerId, target], { DATABASE_URL: databaseUrl });
  const load = startLoad(bench);
  const body = JSON.stringify({ url: target, events: ['message.received'], ownerId });
  const request = { url: `${url}/webhooks`, method: 'POST', status: 201, headers, body } as const;
  const sql = connectBench(bench, databaseUrl);
  const clear = () => sql`delete from webhooks`;
  return takeTurns(bench, {
    service: async (durationMs) => {
      await clear();
      return load(request, durationMs);
    },
    control: async (durationMs) => {
      await clear();
      return Number(await control.ask(durationMs));
    },
  });
}
