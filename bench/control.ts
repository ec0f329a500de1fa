/**
 * The frame of a control process: the database of the service that it is held against, a pool of the same size by the
 * same driver, and one question at a time from the bench. It ends when the bench says so or is gone.
 */
import { connect, type Pool } from '../src/db/client.ts';
import { openEmbedded } from '../src/db/embedded.ts';
import { makeLog } from '../src/lib/log.ts';

/** As in src/main.ts. */
const poolSize = 10;

/** `dataDir` is the service's data folder. An error ends the process, and the bench shows what it printed. */
export async function runControl<Question>(
  dataDir: string,
  answer: (sql: Pool, question: Question) => Promise<unknown>,
): Promise<void> {
  const ended = new Promise<void>((resolve) => {
    for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => resolve());
  });
  const log = makeLog({ level: 'warn', json: false, stream: process.stderr });
  const embedded = await openEmbedded({ dataDir, log, purpose: 'tool' });
  const sql = connect(embedded.url, { max: poolSize, applicationName: 'posthorn bench' });
  process.on('message', async (question: Question) => process.send?.(await answer(sql, question)));

  await ended;
  await sql.end({ timeout: 1 });
  await embedded.stop();
  process.exit();
}
