/** A transaction is one: whatever happens to its connection, none of its statements runs outside of it or inside another. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import net from 'node:net';
import { after, before, describe, type TestContext, test } from 'node:test';
import { connect, isUnavailable, type Pool, type Sql } from '../src/db/client.ts';
import { makeDatabase, waitFor } from './harness.ts';

const database = await makeDatabase({ empty: true });
const admin = connect(database.url, { max: 1, applicationName: 'transactions admin' });
after(async () => {
  await admin.end();
  await database.drop();
});
before(() => admin`create table notes (text text primary key)`);

function open(t: TestContext, max: number): Pool {
  const sql = connect(database.url, { max, applicationName: 'transactions' });
  t.after(() => sql.end({ timeoutMs: 1000 }));
  return sql;
}

async function readPid(sql: Sql): Promise<number> {
  const [row] = await sql<{ pid: number }[]>`select pg_backend_pid() as pid`;
  return row?.pid ?? 0;
}

async function terminate(pid: number): Promise<void> {
  await admin`select pg_terminate_backend(${pid}::int)`;
  await waitFor('the backend to be gone', async () => {
    const left = await admin`select from pg_stat_activity where pid = ${pid}::int`;
    return left.length === 0;
  });
}

async function listNotes(): Promise<string[]> {
  const rows = await admin<{ text: string }[]>`select text from notes order by text`;
  return rows.map(({ text }) => text);
}

describe('a backend that is terminated', { concurrency: false }, () => {
  for (const when of ['before the kill', 'after it']) {
    test(`between two statements, another transaction begun ${when}: the rest of it runs nowhere`, async (t) => {
      const sql = open(t, 1);
      const inSecond = Promise.withResolvers<void>();
      const endSecond = Promise.withResolvers<void>();
      let second: Promise<void> | undefined;
      const beginSecond = () => {
        second = sql.begin(async (other) => {
          await other`insert into notes values ('second, before')`;
          inSecond.resolve();
          await endSecond.promise;
          await other`insert into notes values ('second, after')`;
          throw new Error('rolled back');
        });
        second.catch(() => {});
      };
      const first = sql.begin(async (lost) => {
        const pid = await readPid(lost);
        await lost`insert into notes values ('first, before')`;
        if (when === 'before the kill') beginSecond();
        await admin`select pg_terminate_backend(${pid}::int)`;
        if (when === 'after it') beginSecond();
        // A driver that gives the place away early has the second transaction under way now; another has it wait.
        await Promise.race([inSecond.promise, once(AbortSignal.timeout(2000), 'abort')]);
        await lost`insert into notes values ('first, after')`;
      });
      await assert.rejects(first, (error) => isUnavailable(error));
      await inSecond.promise;
      endSecond.resolve();
      await assert.rejects(second as Promise<void>, /rolled back/);
      assert.deepEqual(await listNotes(), []);
    });
  }

  test('during a statement', async (t) => {
    const sql = open(t, 1);
    const work = sql.begin(async (sql) => {
      await sql`insert into notes values ('during')`;
      const pid = await readPid(sql);
      const sleeping = sql`select pg_sleep(60)`;
      await Promise.all([
        assert.rejects(sleeping, (error) => isUnavailable(error)),
        waitFor('it to sleep', async () => {
          const found =
            await admin`select from pg_stat_activity where pid = ${pid}::int and query like 'select pg_sleep%'`;
          return found.length === 1;
        }).then(() => terminate(pid)),
      ]);
      // Whoever goes on after an error must not get through either.
      await sql`insert into notes values ('during, after')`;
    });
    await assert.rejects(work, (error) => isUnavailable(error));
    assert.deepEqual(await listNotes(), []);
    assert.equal((await sql`select 1`).length, 1);
  });

  test('before the commit', async (t) => {
    const sql = open(t, 1);
    const work = sql.begin(async (sql) => {
      await sql`insert into notes values ('before the commit')`;
      await terminate(await readPid(sql));
    });
    await assert.rejects(work, (error) => isUnavailable(error));
    assert.deepEqual(await listNotes(), []);
    assert.equal((await sql`select 1`).length, 1);
  });

  test('at rest in the pool: the next statement works', async (t) => {
    const sql = open(t, 1);
    const pid = await readPid(sql);
    await terminate(pid);
    await waitFor('another connection', async () => (await readPid(sql).catch(() => pid)) !== pid);
  });
});

describe('a transaction that ends', { concurrency: false }, () => {
  const leftovers: [string, (sql: Sql) => Promise<unknown>][] = [
    ['by a rollback', () => Promise.reject(new Error('refused'))],
    ['by a commit', () => Promise.resolve()],
  ];
  for (const [how, end] of leftovers) {
    test(`${how} leaves no statement of its work to run outside of it`, async (t) => {
      const sql = open(t, 1);
      let late: Promise<unknown> | undefined;
      const work = sql.begin(async (sql) => {
        // Started and not awaited: its second statement comes when the commit or rollback is already on its way.
        late = sql`select 1`.then(() => sql`insert into notes values ('late')`);
        late.catch(() => {});
        await end(sql);
      });
      await work.catch(() => {});
      await assert.rejects(late as Promise<unknown>, /has ended/);
      assert.deepEqual(await listNotes(), []);
    });
  }

  test('with an error that its work ignored is not reported as committed', async (t) => {
    const sql = open(t, 1);
    const work = sql.begin(async (sql) => {
      await sql`insert into notes values ('ignored')`;
      await sql`select 1 / 0`.catch(() => {});
    });
    await assert.rejects(work, /rolled back/);
    assert.deepEqual(await listNotes(), []);
    assert.equal((await sql`select 1`).length, 1);
  });
});

test('closing a pool answers those who wait, also when the server is silent', async () => {
  const silent = net.createServer(() => {});
  await once(silent.listen(0, '127.0.0.1'), 'listening');
  const { port } = silent.address() as net.AddressInfo;
  const sql = connect(`postgres://a:b@127.0.0.1:${port}/c`, { max: 1, applicationName: 'silent' });
  const waiting = Array.from({ length: 4 }, () =>
    assert.rejects(sql`select 1`, (error) => isUnavailable(error)),
  );
  await sql.end({ timeoutMs: 0 });
  await Promise.all(waiting);
  silent.close();
  await once(silent, 'close');
});
