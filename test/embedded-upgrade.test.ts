/**
 * A data folder of an earlier version, whose server listened on a port of 127.0.0.1 and, for root, ran as a shared user: it was
 * stopped, has crashed, still runs, or is in use.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { lstat } from 'node:fs/promises';
import { createServer } from 'node:net';
import { describe, type TestContext, test } from 'node:test';
import { connect } from '../src/db/client.ts';
import { type Cluster, openCluster } from '../src/db/embedded/cluster.ts';
import { joinServer, takeServeLock } from '../src/db/embedded/guard.ts';
import { findPostmaster, launchServer } from '../src/db/embedded/server.ts';
import { OperatorError } from '../src/lib/operator-error.ts';
import { addRow, countRows, isRoot, query, Scene, until } from './fixtures/embedded-scene.ts';
import { freePort, urlOf } from './own-postgres.ts';

interface Earlier {
  scene: Scene;
  cluster: Cluster;
  address: Parameters<typeof joinServer>[0];
}

/** The server as an earlier version launched it, with a row in it and without a process that uses it. */
async function startEarlier(t: TestContext): Promise<Earlier> {
  const scene = await Scene.makeWithCluster(t);
  const opened = await openCluster(scene.dataDir, scene.log);
  const nobody = Number(execFileSync('id', ['-u', 'nobody'], { encoding: 'utf8' }));
  if (isRoot) execFileSync('chown', ['-R', 'nobody', scene.pgdata]);
  const owned = isRoot && { user: { uid: nobody, gid: nobody }, owners: [nobody] };
  const cluster = { ...opened, ...owned };
  const port = await freePort();
  const onPort = { listen_addresses: '127.0.0.1', unix_socket_directories: '', port: String(port) };
  await launchServer(cluster, onPort);
  await until(async () => (await findPostmaster(cluster))?.status === 'ready');
  const address = {
    ...{ user: 'posthorn', password: cluster.password, database: 'postgres' },
    endpoints: [{ host: '127.0.0.1', port, ssl: false, isFallback: false }],
    ...{
      isPrimaryWanted: false,
      isChannelBindingRequired: false,
      connectTimeoutMs: undefined,
      settings: new Map(),
    },
  } as const;
  await (await joinServer(address, 'posthorn serve pid=1')).end();
  await addRow(urlOf({ ...address, database: 'posthorn' }));
  return { scene, cluster, address };
}

/** As a false server does: it waits for a client that sends a password. */
async function takePort(t: TestContext, port: number): Promise<void> {
  let connections = 0;
  const server = createServer(() => {
    connections += 1;
  });
  await until(
    () =>
      new Promise<boolean>((resolve) => {
        server.once('error', () => resolve(false));
        server.listen(port, '127.0.0.1', () => resolve(true));
      }),
  );
  t.after(() => {
    server.close();
    assert.equal(connections, 0);
  });
}

async function assertCurrent(scene: Scene, url: string): Promise<void> {
  assert.equal(await countRows(url), 1);
  assert.deepEqual(await query(url, 'show listen_addresses'), [{ listen_addresses: '' }]);
  const owner = isRoot
    ? Number(execFileSync('id', ['-u', 'posthorn'], { encoding: 'utf8' }))
    : process.getuid?.();
  assert.equal((await lstat(scene.pgdata)).uid, owner);
}

describe('a data folder of an earlier version', { concurrency: 2 }, () => {
  for (const signal of ['SIGINT', 'SIGKILL'] as const) {
    test(`its server was ended with ${signal}, and another program took the port`, async (t) => {
      const { scene, cluster, address } = await startEarlier(t);
      process.kill((await findPostmaster(cluster))?.pid ?? assert.fail(), signal);
      await until(async () => !(await findPostmaster(cluster)));
      await takePort(t, address.endpoints[0].port);
      await assertCurrent(scene, (await scene.open('serve')).url);
    });
  }

  for (const purpose of ['serve', 'tool'] as const) {
    test(`its server runs, and nobody uses it: replaced (${purpose})`, async (t) => {
      const { scene } = await startEarlier(t);
      const embedded = await scene.open(purpose);
      assert.equal(embedded.adopted, false);
      await assertCurrent(scene, embedded.url);
    });
  }

  test('its service runs: a second service is refused, a command works, and its pool follows the server', async (t) => {
    const { scene, cluster, address } = await startEarlier(t);
    const earlier = await joinServer(address, 'posthorn serve pid=1');
    await takeServeLock(earlier, scene.dataDir);
    await assert.rejects(scene.open('serve'), (error) => {
      assert.ok(error instanceof OperatorError);
      return /Another Posthorn \(pid 1\) already runs/.test(error.message);
    });

    const command = await scene.open('tool');
    assert.equal(command.adopted, true);
    assert.equal(command.address.endpoints[0].host, '127.0.0.1');
    const pool = connect(() => command.address, { max: 2, applicationName: 'upgrade test' });
    t.after(() => pool.end({ timeoutMs: 0 }));
    const heard = Promise.withResolvers<void>();
    const listening = await pool.listen('upgrade', heard.resolve);
    t.after(() => listening.stop());
    const count = async () => (await pool<{ id: number }[]>`select id from kept`).length;
    assert.equal(await count(), 1);

    await earlier.end();
    process.kill((await findPostmaster(cluster))?.pid ?? assert.fail(), 'SIGKILL');
    await until(() => command.address.endpoints[0].host !== '127.0.0.1');
    assert.equal(await count().catch(count), 1);
    await heard.promise;
    await assertCurrent(scene, command.url);
  });
});
