/**
 * The frame of a control process: the database of the service that it is held against, a pool of the same size by the
 * same driver, and one question at a time from the bench. It ends when the bench says so or is gone.
 */
import { connect, type Pool } from '../src/db/client.ts';

/** As in src/main.ts. */
const poolSize = 10;

/** Where the database is stands in the environment, as for the service: arguments are for all to see. */
export async function runControl<Question>(
  answer: (sql: Pool, question: Question) => Promise<unknown>,
): Promise<void> {
  const ended = new Promise<void>((resolve) => {
    for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => resolve());
  });
  const { DATABASE_URL: url = '' } = process.env;
  const sql = connect(url, { max: poolSize, applicationName: 'posthorn bench control' });
  // An error ends the process, and the bench shows what it printed.
  process.on('message', async (question: Question) => process.send?.(await answer(sql, question)));

  await ended;
  await sql.end({ timeoutMs: 1000 });
  process.exit();
}
