/** A DATABASE_URL with several hosts leads to the primary, and to an error while there is none. */
import assert from 'node:assert/strict';
import { chown, writeFile } from 'node:fs/promises';
import net from 'node:net';
import path from 'node:path';
import { after, before, describe, type TestContext, test } from 'node:test';
import { connect, isUnavailable, type Pool } from '../src/db/client.ts';
import { OperatorError } from '../src/lib/operator-error.ts';
import { waitFor } from './harness.ts';
import { makeOwnPostgres } from './own-postgres.ts';

const { cluster, port, start, stop, remove } = await makeOwnPostgres();
after(remove);
/** Nobody listens there. */
const closed = '127.0.0.1:9';
const here = `127.0.0.1:${port}`;

function open(t: TestContext, hosts: string[], query = ''): Pool {
  const url = `postgres://posthorn:${cluster.password}@${hosts.join(',')}/postgres${query}`;
  const sql = connect(url, { max: 3, applicationName: 'hosts test' });
  t.after(() => sql.end({ timeoutMs: 0 }));
  return sql;
}

async function assertAway(sql: Pool): Promise<void> {
  await assert.rejects(sql`select 1`, (error) => isUnavailable(error));
}

const deadline = { timeout: 300_000 };

describe('several hosts', { concurrency: false }, () => {
  test('none that listens: an error, each time', deadline, async (t) => {
    const sql = open(t, [closed, '127.0.0.1:10']);
    await assertAway(sql);
    await Promise.all(Array.from({ length: 10 }, () => assertAway(sql)));
  });

  test('a wish that leads away from the primary is refused', () => {
    const url = 'postgres://a:b@one,two/c?target_session_attrs=standby';
    assert.throws(() => connect(url, { max: 1, applicationName: 'hosts test' }), OperatorError);
  });

  describe('and one of them is a standby that becomes the primary', () => {
    before(async () => {
      const signal = path.join(cluster.pgdata, 'standby.signal');
      await writeFile(signal, '');
      if (cluster.user) await chown(signal, cluster.user.uid, cluster.user.gid);
      await start();
    });

    for (const wish of ['', '?target_session_attrs=read-write', '?target_session_attrs=primary']) {
      test(`a standby will not do${wish && ` with ${wish}`}`, deadline, async (t) => {
        await assertAway(open(t, [closed, here], wish));
        await assertAway(open(t, [here, closed], wish));
      });
    }

    test(
      'the same pool finds it once it is promoted, past hosts that are closed or silent',
      deadline,
      async (t) => {
        const silent = net.createServer(() => {});
        await new Promise<void>((resolve) => silent.listen(0, '127.0.0.1', resolve));
        t.after(() => silent.close());
        const sockets = new Set<net.Socket>();
        silent.on('connection', (socket) => sockets.add(socket));
        t.after(() => {
          for (const socket of sockets) socket.destroy();
        });
        const { port: silentPort } = silent.address() as net.AddressInfo;
        const pools = [
          open(t, [closed, here]),
          open(t, [here, closed]),
          open(t, [`127.0.0.1:${silentPort}`, here]),
        ];
        for (const sql of pools.slice(0, 2)) await assertAway(sql);
        const direct = open(t, [here]);
        await direct`select pg_promote()`;
        for (const sql of pools) {
          const [row] = await sql`select pg_is_in_recovery() as standby`;
          assert.equal(row?.standby, false);
        }
      },
    );

    test('a primary that goes away and comes back is found again', deadline, async (t) => {
      const sql = open(t, [closed, here]);
      await sql`select 1`;
      await stop();
      await assertAway(sql);
      await start();
      await waitFor('it to be found', async () => (await sql`select 1`.catch(() => [])).length === 1);
    });

    test(
      'what was said as a connection was cut is not taken for an answer on the next',
      deadline,
      async (t) => {
        const [sql, other] = [open(t, [here]), open(t, [here])];
        const sleeping = Promise.allSettled(Array.from({ length: 3 }, () => sql`select pg_sleep(30)`));
        await waitFor('all three to sleep', async () => {
          const found = await other`select from pg_stat_activity where query like 'select pg_sleep%'`;
          return found.count === 3;
        });
        await other`select pg_terminate_backend(pid) from pg_stat_activity where query like 'select pg_sleep%'`;
        for (const { status } of await sleeping) assert.equal(status, 'rejected');
        const again = await Promise.all(Array.from({ length: 3 }, () => sql`select 1`));
        assert.equal(again.length, 3);
      },
    );
  });
});
