/** The network to PostgreSQL falls silent, or is cut at the worst moment: every question is answered, and by its own answer. */
import assert from 'node:assert/strict';
import { after, type TestContext, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { connect, isUnavailable } from '../src/db/client.ts';
import { startNetwork } from './database-network.ts';
import { makeDatabase, waitFor } from './harness.ts';

const database = await makeDatabase();
after(() => database.drop());

function open(t: TestContext, url: string) {
  const sql = connect(url, { max: 1, applicationName: 'silence', statementTimeoutMs: 600 });
  t.after(() => sql.end({ timeoutMs: 0 }));
  return sql;
}

for (const hosts of [1, 2]) {
  for (const restMs of [0, 1500]) {
    test(`silence after ${restMs} ms of rest, ${hosts} hosts: the question ends, the next takes another way`, async (t) => {
      const network = await startNetwork(t, database.url);
      const sql = open(t, network.url(hosts));
      await sql`select 1`;
      // Longer than the watch waits: a connection at rest is not what it looks for.
      await delay(restMs);
      network.fallSilent();
      await assert.rejects(sql`select 2`, (error) => isUnavailable(error));
      assert.deepEqual([...(await sql`select 3 as n`)], [{ n: 3 }]);
    });
  }

  test(`cut at the first question, ${hosts} hosts`, { timeout: 120_000 }, async (t) => {
    const network = await startNetwork(t, database.url);
    const sql = open(t, network.url(hosts));
    network.cutAt({ question: 'the first' });
    await assert.rejects(sql`select 'the first'`, (error) => isUnavailable(error));
    assert.deepEqual([...(await sql`select 3 as n`)], [{ n: 3 }]);
  });

  test(`cut in the middle of an answer, ${hosts} hosts: nothing of it is in the next`, {
    timeout: 120_000,
  }, async (t) => {
    const network = await startNetwork(t, database.url);
    const sql = open(t, network.url(hosts));
    await sql`select 1`;
    network.cutAt({ answer: 'row 3 ' });
    const long = sql`select 'row ' || n || ' ' || repeat('x', 100000) from generate_series(1, 9) n`;
    await assert.rejects(long, (error) => isUnavailable(error));
    const next = await sql`select 3 as n`;
    assert.equal(next.length, 1);
    assert.deepEqual([...next], [{ n: 3 }]);
  });
}

test('what has a statement timeout of its own is not cut, and neither is a connection at rest', async (t) => {
  const sql = open(t, database.url);
  const [before] = await sql`select pg_backend_pid() as pid`;
  await sql.begin(async (sql) => {
    await sql`set local statement_timeout = 0`;
    await sql.script('select pg_sleep(1.5)');
  });
  const [after] = await sql`select pg_backend_pid() as pid`;
  assert.equal(after?.pid, before?.pid);
  await assert.rejects(sql`select pg_sleep(1.5)`, { code: '57014' });
});

test('a statement timeout in the URL, as PostgreSQL writes it', async (t) => {
  const sql = open(t, `${database.url}?statement_timeout=5s`);
  assert.deepEqual([...(await sql`show statement_timeout`)], [{ statement_timeout: '5s' }]);
});

test('a limit of 0 wins over the limits of the URL and of the database', async (t) => {
  const limited = await makeDatabase();
  t.after(() => limited.drop());
  const { pathname } = new URL(limited.url);
  const setting = (name: string) => `alter database ${pathname.slice(1)} set ${name} = '5s'`;
  await open(t, limited.url).script(`${setting('statement_timeout')}; ${setting('lock_timeout')}`);
  for (const url of [limited.url, `${limited.url}?statement_timeout=5s&lock_timeout=5s`]) {
    const options = { max: 1, applicationName: 'unlimited', statementTimeoutMs: 0, lockTimeoutMs: 0 };
    const sql = connect(url, options);
    t.after(() => sql.end());
    const [limits] = await sql`
      select current_setting('statement_timeout') as statement, current_setting('lock_timeout') as lock`;
    assert.deepEqual({ ...limits }, { statement: '0', lock: '0' });
  }
});

for (const [where, question] of [
  ['at its start', 'client_encoding'],
  ['at LISTEN', 'listen "news"'],
] as const) {
  test(`a listening connection that is opened again while the service stops is closed: ${where}`, {
    timeout: 120_000,
  }, async (t) => {
    const network = await startNetwork(t, database.url);
    const applicationName = `listener ${where}`;
    // Only the stop itself ends the attempt, not a time limit.
    const sql = connect(`${network.url(1)}?connect_timeout=600`, {
      ...{ max: 1, applicationName, statementTimeoutMs: 600_000 },
    });
    const listening = await sql.listen('news', () => {});
    const opening = network.holdAt(question);
    const admin = open(t, database.url);
    await admin`select pg_terminate_backend(pid) from pg_stat_activity where application_name = ${applicationName}`;
    await opening.reached;
    await listening.stop();
    opening.release();
    await waitFor('the connections to be closed', () => network.countOpen() === 0, 60_000);
    await waitFor('no session', async () => {
      const found = await admin`select from pg_stat_activity where application_name = ${applicationName}`;
      return found.length === 0;
    });
    await sql.end();
  });
}
