/**
 * The PostgreSQL driver, with six defects of porsager/postgres 3.4.9 mended as it is loaded (its issues #1066, #1154
 * and #1208, open at the time of writing). When a connection dies with a write still to be made, the driver
 *  - writes to a socket that is gone, which throws where nobody can catch it and ends the process: any transaction
 *    that PostgreSQL cuts does so, since the driver sends `rollback` after it;
 *  - takes the write for scheduled ever after, so that this place in the pool never connects again.
 * When a connection is closed before it is ready, as a proxy does whose database is away, it connects again without pause
 * or end, and the query that wanted it is never answered. With several hosts it does the same whenever none of them will do,
 * since it never counts those it has tried: mended, each is tried once, and then the query fails.
 * When the network to PostgreSQL falls silent, as when its machine is gone, it waits for an answer for as long as the kernel
 * does: a quarter of an hour. Mended, a connection with a question open that hears nothing for longer than a statement may
 * take is closed. A `simple` query, which migrations alone use, may take as long as it likes.
 * What PostgreSQL said last on a connection that died is taken for the first answer on the next, which fails the query
 * that wanted it and passes over the question whether this is the primary.
 * Whoever wants the driver imports it from here; an import of `postgres` itself beside it would be the unmended one.
 */
import { registerHooks } from 'node:module';

const forgetAnswers = 'rows = 0; query = results = errorResponse = null; result = new Result()';

const mends: [string, string][] = [
  [
    'const x = socket.write(chunk, fn)',
    `if (!socket) {
      chunk = nextWriteTimer = null
      error(Errors.connection('CONNECTION_CLOSED', options))
      query = null
      return false
    }
    const x = socket.write(chunk, fn)`,
  ],
  [
    'clearImmediate(nextWriteTimer)\n    if (socket)',
    'clearImmediate(nextWriteTimer)\n    chunk = nextWriteTimer = null\n    if (socket)',
  ],
  [
    'clearImmediate(nextWriteTimer)\n    socket.removeListener',
    'clearImmediate(nextWriteTimer)\n    chunk = nextWriteTimer = null\n    socket.removeListener',
  ],
  [
    'if (initial)\n      return reconnect()',
    `if (initial && options.host[++retries]) {
      ${forgetAnswers}
      return reconnect()
    }
    initial && errored(Errors.connection('CONNECTION_CLOSED', options, socket))
    retries = 0`,
  ],
  ['closedTime = performance.now()', `${forgetAnswers}\n    closedTime = performance.now()`],
  // Only while no session has begun is there a next host to try; from then on a query is under way, and must be answered.
  [
    'if (connection.queue === queues.connecting && options.host[retries + 1])',
    'if (initial && options.host[retries + 1])',
  ],
  // Its failure is the connection's, which is told already.
  ['query.resolve = ([[a], [b]]) => {', 'query.reject = () => {}\n    query.resolve = ([[a], [b]]) => {'],
  // A host that is silent, or not ready for sessions, is no reason to leave out the next.
  [
    "errored(Errors.connection('CONNECT_TIMEOUT', options, socket))",
    "error(Errors.connection('CONNECT_TIMEOUT', options, socket))",
  ],
  [
    "socket.on('data', data)\n",
    `socket.on('data', data)
      const statementMs = Number(options.connection.statement_timeout)
      statementMs && socket.setTimeout(statementMs * 7 / 6)
      statementMs && socket.on('timeout', () => query && !query.options.simple && socket.destroy())
`,
  ],
  ['errored(Errors.postgres(parseError(x)))', 'error(Errors.postgres(parseError(x)))'],
];

const hooks = registerHooks({
  load(url, context, nextLoad) {
    const loaded = nextLoad(url, context);
    return url.endsWith('/postgres/src/connection.js')
      ? { ...loaded, source: mend(String(loaded.source)) }
      : loaded;
  },
});
export const { default: postgres } = await import('postgres');
hooks.deregister();

function mend(source: string): string {
  for (const [from, to] of mends) {
    // Another version of the driver: see whether it still needs this.
    if (source.split(from).length !== 2)
      throw new Error(`src/db/driver.ts does not fit this version of postgres: ${from}`);
    source = source.replace(from, to);
  }
  return source;
}
