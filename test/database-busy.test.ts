/** All connections are in use, or one is lost while it is opened: callers get "unavailable", and no place of the pool is lost. */
import assert from 'node:assert/strict';
import { after, type TestContext, test } from 'node:test';
import { connect, isUnavailable, type Pool, type Sql } from '../src/db/client.ts';
import { makeApp } from '../src/http/fastify.ts';
import { makeLog } from '../src/lib/log.ts';
import { startNetwork } from './database-network.ts';
import { makeDatabase, waitFor } from './harness.ts';

const database = await makeDatabase({ empty: true });
const admin = connect(database.url, { max: 1, applicationName: 'busy admin' });
after(async () => {
  await admin.end();
  await database.drop();
});

function open(t: TestContext, url: string, more: { max?: number; checkOutTimeoutMs?: number }): Pool {
  const sql = connect(url, { max: 1, applicationName: 'busy', ...more });
  t.after(() => sql.end({ timeoutMs: 0 }));
  return sql;
}

const endOwnSession = (sql: Sql) => sql`select pg_terminate_backend(pg_backend_pid())`;
const worked = (query: Promise<unknown>) =>
  query.then(
    () => true,
    () => false,
  );

test('a query that waits too long for a connection: 503 with Retry-After', async (t) => {
  const sql = open(t, database.url, { checkOutTimeoutMs: 2000 });
  const app = makeApp(makeLog({ level: 'silent', json: true }));
  t.after(() => app.close());
  app.get('/', async () => sql`select 1`);
  await sql.begin(async () => {
    await assert.rejects(sql`select 1`, (error) => isUnavailable(error));
    const answer = await app.inject('/');
    assert.equal(answer.statusCode, 503, answer.body);
    assert.equal(answer.json().code, 'database_unavailable');
    assert.match(String(answer.headers['retry-after']), /^[1-9]\d*$/);
  });
  assert.equal((await sql`select 1`).length, 1);
});

test('a caller gives up while the role of the server is checked: its place in the pool is not lost', {
  timeout: 120_000,
}, async (t) => {
  const network = await startNetwork(t, database.url);
  // With two hosts the role is checked.
  const sql = open(t, network.url(2), { checkOutTimeoutMs: 2000 });
  await sql`select 1`;
  const check = network.holdAt('pg_is_in_recovery');
  let [first, second] = [Promise.resolve(false), Promise.resolve(false)];
  const lost = sql.begin(async (transaction) => {
    [first, second] = [worked(sql`select 1`), worked(sql`select 2`)];
    await endOwnSession(transaction);
  });
  await assert.rejects(lost, (error) => isUnavailable(error));
  await check.reached;
  // It began to wait after the first, so a limit for the first has passed too.
  assert.equal(await second, false);
  check.release();
  await first;
  await waitFor('a connection', () => worked(sql`select 3`), 60_000);
});

test('a role check that fails leaves its place to the next caller', async (t) => {
  const network = await startNetwork(t, database.url);
  const sql = open(t, network.url(2), {});
  for (let n = 0; n < 3; n += 1) {
    network.cutAt({ question: 'pg_is_in_recovery' });
    assert.equal((await sql`select 1`).length, 1, 'by the second host');
    await assert.rejects(endOwnSession(sql), (error) => isUnavailable(error));
  }
});

test('a connection that is not used again, on a network that is silent: the next caller gets its place', async (t) => {
  const network = await startNetwork(t, database.url);
  const sql = open(t, network.url(1), {});
  await sql`create table versions as select 1 as a`;
  const read = () => sql`select * from versions`;
  await read();
  // The prepared statement is older than the schema, so the connection is closed.
  await admin`alter table versions add b int`;
  network.fallSilentAfter('cached plan');
  const [reading, waiting] = [worked(read()), worked(sql`select 1`)];
  assert.equal(await reading, false);
  assert.equal(await waiting, true);
});

test('a pool can be ended twice: by the part that opened it, and with all others', async () => {
  const sql = connect(database.url, { max: 1, applicationName: 'posthorn tests' });
  await sql`select 1`;
  await Promise.all([sql.end({ timeoutMs: 0 }), sql.end({ timeoutMs: 5000 })]);
  await sql.end();
});
