/**
 * One transaction on one connection. Guarantee: all its statements run on this connection between BEGIN and COMMIT, and none runs
 * elsewhere when the connection is lost.
 */
import type { Connection } from './connection.ts';
import { makeSql, type Sql, type UseConnection } from './query.ts';

export async function runTransaction<T>(connection: Connection, work: (sql: Sql) => Promise<T>): Promise<T> {
  let isOpen = true;
  let last: Promise<unknown> = Promise.resolve();
  /** Runs statements one after another, also when the work starts several at once. */
  const inTurn: UseConnection = (run) => {
    const runNow = () => run(connection);
    const result = last.then(runNow, runNow);
    last = result;
    return result;
  };
  // No statement gets behind the commit or rollback: it would run outside of the transaction.
  const useInTurn: UseConnection = (run) =>
    isOpen ? inTurn(run) : Promise.reject(new Error('This transaction has ended'));

  await connection.run('begin');
  try {
    const result = await work(makeSql(useInTurn));
    isOpen = false;
    const { command } = await inTurn(() => connection.run('commit'));
    // When the work ignored the error of a statement, PostgreSQL answers COMMIT with ROLLBACK.
    if (command !== 'COMMIT')
      throw new Error('The transaction was rolled back: one of its statements failed');
    return result;
  } catch (error) {
    isOpen = false;
    // When the connection is lost, PostgreSQL has rolled back already.
    await inTurn(() => connection.run('rollback')).catch(() => {});
    throw error;
  }
}
