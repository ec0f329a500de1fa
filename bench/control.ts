/**
 * What every control process does: it uses the database of the service, with the same driver and a pool of the same size,
 * answers one request of the bench at a time, and stops when the bench stops.
 */
import { connect, type Pool } from '../src/db/client.ts';

/** As in src/main.ts. */
const poolSize = 10;

/** The database URL is in the environment and not in the arguments, which every user of the machine can read. */
export async function runControl<Question>(
  answer: (sql: Pool, question: Question) => Promise<unknown>,
): Promise<void> {
  const ended = new Promise<void>((resolve) => {
    for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => resolve());
  });
  const { DATABASE_URL: url = '' } = process.env;
  const sql = connect(url, { max: poolSize, applicationName: 'posthorn bench control' });
  // An error ends the process, and the bench prints its output.
  process.on('message', async (question: Question) => process.send?.(await answer(sql, question)));

  await ended;
  await sql.end({ timeoutMs: 1000 });
  process.exit();
}
