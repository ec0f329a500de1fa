/** The embedded server's whole life with real processes: started, adopted, refused, killed, brought back, stopped. */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { mkdir, readdir, stat, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, type TestContext, test } from 'node:test';
import { OperatorError } from '../src/lib/operator-error.ts';
import { addRow, countRows, isAlive, isRoot, query, Scene, until } from './fixtures/embedded-scene.ts';

describe('a fresh data folder', { concurrency: 2 }, () => {
  test('becomes a durable server with a password, on a socket that other users cannot reach', async (t) => {
    const scene = await Scene.make(t);
    const embedded = await scene.open('serve');
    assert.equal(embedded.adopted, false);
    for (const name of ['fsync', 'synchronous_commit', 'full_page_writes']) {
      assert.deepEqual([...(await query(embedded.url, `show ${name}`))], [{ [name]: 'on' }]);
    }
    const [database] = await query(
      embedded.url,
      'select current_database() as name, datlocprovider as provider from pg_database where datname = current_database()',
    );
    assert.deepEqual({ ...database }, { name: 'posthorn', provider: 'b' });

    assert.equal((await stat(join(scene.pgdata, 'posthorn.password'))).mode & 0o777, 0o600);
    assert.equal((await stat(scene.pgdata)).mode & 0o777, 0o700);
    await assert.rejects(query(embedded.url.replace(/:[^:@]+@/, ':guess@'), 'select 1'), { code: '28P01' });

    assert.deepEqual(await query(embedded.url, 'show listen_addresses'), [{ listen_addresses: '' }]);
    const sockets = (await readdir(scene.pgdata)).filter((name) => name.startsWith('.s.PGSQL'));
    assert.deepEqual(sockets, ['.s.PGSQL.5432', '.s.PGSQL.5432.lock']);
    assert.equal((await stat(join(scene.pgdata, '.s.PGSQL.5432'))).mode & 0o777, 0o700);
  });

  test('under a folder that only root may enter: the server is an ordinary user’s', {
    skip: !isRoot,
  }, async (t) => {
    const scene = await Scene.make(t);
    const embedded = await scene.open('serve');
    assert.equal((await stat(join(scene.dataDir, '..'))).mode & 0o777, 0o700);
    const { pid } = (await scene.postmaster()) ?? assert.fail('no server');
    assert.notEqual(
      spawnSync('ps', ['-o', 'uid=', '-p', String(pid)], { encoding: 'utf8' }).stdout.trim(),
      '0',
    );
    assert.notEqual((await stat(scene.pgdata)).uid, 0);
    assert.equal((await stat(scene.dataDir)).uid, 0);
    await addRow(embedded.url);
    await query(embedded.url, 'checkpoint');
    assert.equal(await countRows(embedded.url), 1);
  });

  test('with spaces and quotes in its path', async (t) => {
    const scene = await Scene.make(t, `my mail's "data" ü`);
    const embedded = await scene.open('serve');
    await addRow(embedded.url);
    await embedded.stop();
    assert.equal(await countRows((await scene.open('serve')).url), 1);
  });

  test('two racing first starts: both work, on the same cluster, and no leftovers stay', async (t) => {
    const scene = await Scene.make(t);
    await mkdir(join(scene.dataDir, `postgres.init-${spawnSync('true').pid}-dead`), { recursive: true });
    const [first, second] = await Promise.all([scene.openInChild('tool'), scene.openInChild('tool')]);
    assert.equal(first.url, second.url);
    await addRow(first.url);
    assert.equal(await countRows(second.url), 1);
    assert.deepEqual(await readdir(scene.dataDir), ['postgres']);
  });
});

describe('who may come and who stops the server', { concurrency: 2 }, () => {
  test('one serve, any number of tools; the last one out stops it', async (t) => {
    const scene = await Scene.makeWithCluster(t);
    const serve = await scene.openInChild('serve');
    await assert.rejects(scene.open('serve'), (error) => {
      assert.ok(error instanceof OperatorError);
      const wanted = `Another Posthorn (pid ${serve.pid}) already runs on ${scene.dataDir}. Stop it, or set POSTHORN_DATA_DIR to another folder.`;
      return error.message === wanted;
    });
    const tool = await scene.open('tool');
    assert.equal(tool.adopted, true);
    await serve.end('SIGTERM');
    await query(tool.url, 'select 1');
    await Promise.all([tool.stop(), tool.stop()]);
    assert.equal(await scene.postmaster(), undefined);
  });

  test('a serve waits for one that has announced its stop', async (t) => {
    const scene = await Scene.makeWithCluster(t);
    const first = await scene.open('serve');
    await first.announceStop();
    // A first service that had announced nothing would make the second one give up at its first try.
    const second = scene.open('serve', {}, { patienceMs: 0 });
    const tries = new Set<unknown>();
    const isWaiting = async () => {
      const found = await query(
        first.url,
        `select query_start::text as at from pg_stat_activity
         where application_name = 'posthorn serve pid=${process.pid}' and query like '%pg_locks%'`,
      );
      for (const { at } of found) tries.add(at);
      return tries.size > 1;
    };
    await Promise.race([second, until(isWaiting)]);
    await first.stop();
    assert.equal((await second).adopted, true);
  });

  test('coming and going at once never leaves anyone without a server', async (t) => {
    const scene = await Scene.makeWithCluster(t);
    await (await scene.open('tool')).stop();
    const visit = async () => {
      for (let round = 0; round < 5; round++) {
        const embedded = await scene.open('tool');
        await query(embedded.url, 'select 1');
        await embedded.stop();
      }
    };
    await Promise.all([visit(), visit(), visit()]);
    assert.equal(await scene.postmaster(), undefined);
  });
});

describe('after a crash', { concurrency: 2 }, () => {
  test('parent killed, four times in a row: the server lives on and is adopted', async (t) => {
    const scene = await Scene.makeWithCluster(t);
    for (let round = 0; round < 4; round++) {
      const holder = await scene.openInChild('serve');
      assert.equal(holder.adopted, round > 0);
      await addRow(holder.url);
      await holder.end('SIGKILL');
    }
    const embedded = await scene.open('serve');
    assert.equal(embedded.adopted, true);
    assert.equal(await countRows(embedded.url), 4);
  });

  test('server killed while nobody was there: recovered, with its data', async (t) => {
    const scene = await Scene.makeWithCluster(t);
    const holder = await scene.openInChild('serve');
    await addRow(holder.url);
    await holder.end('SIGKILL');
    await scene.killPostmaster();
    const embedded = await scene.open('serve');
    assert.equal(embedded.adopted, false);
    assert.equal(await countRows(embedded.url), 1);
  });

  test('server killed while we hold it: it comes back at the same address by itself', async (t) => {
    const scene = await Scene.makeWithCluster(t);
    const embedded = await scene.open('serve');
    const before = embedded.url;
    await addRow(before);
    const killed = await scene.killPostmaster();
    await until(async () => ![killed, undefined].includes((await scene.postmaster())?.pid));
    await until(() =>
      countRows(embedded.url)
        .then((count) => count === 1)
        .catch(() => false),
    );
    assert.equal(embedded.url, before);
    // The locks are back too.
    await until(() =>
      scene.open('serve').then(
        (tooEarly) => tooEarly.stop().then(() => false),
        (error) => /already runs/.test(error.message),
      ),
    );
    await embedded.stop();
    assert.equal(await scene.postmaster(), undefined);
  });

  for (const [what, program] of [
    ['a living stranger', 'sleep'],
    ['a server on another folder', 'postgres'],
  ] as const) {
    test(`a postmaster.pid that names ${what} is not believed`, async (t) => {
      const scene = await Scene.makeWithCluster(t);
      await (await scene.open('serve')).stop();
      const pid = program === 'sleep' ? await startStranger(t, scene.pgdata) : await startElsewhere(t);
      const lines = [pid, scene.pgdata, 1, 20_001, '', '127.0.0.1', '1 2', 'ready'];
      await writeFile(join(scene.pgdata, 'postmaster.pid'), `${lines.join('\n')}\n`);
      const embedded = await scene.open('serve');
      assert.equal(embedded.adopted, false);
      await query(embedded.url, 'select 1');
      assert.ok(isAlive(pid));
    });
  }

  async function startStranger(t: TestContext, pgdata: string): Promise<number> {
    const { uid, gid } = await stat(pgdata);
    const stranger = spawn('sleep', ['60'], { ...(isRoot && { uid, gid }), cwd: '/' });
    t.after(() => stranger.kill());
    return stranger.pid ?? assert.fail();
  }

  async function startElsewhere(t: TestContext): Promise<number> {
    const scene = await Scene.makeWithCluster(t);
    await scene.open('serve');
    return (await scene.postmaster())?.pid ?? assert.fail();
  }

  test('an empty postmaster.pid of a crash long ago is no obstacle', async (t) => {
    const scene = await Scene.makeWithCluster(t);
    await (await scene.open('serve')).stop();
    const path = join(scene.pgdata, 'postmaster.pid');
    await writeFile(path, '');
    await utimes(path, 1, 1);
    await query((await scene.open('serve')).url, 'select 1');
  });
});

describe('what a person has to fix', { concurrency: 2 }, () => {
  test('a cluster of another major version: both named, nothing touched', async (t) => {
    const scene = await Scene.makeWithCluster(t);
    await (await scene.open('serve')).stop();
    await writeFile(join(scene.pgdata, 'PG_VERSION'), '17\n');
    const before = await listFolder(scene.dataDir);
    await assert.rejects(scene.open('serve'), (error) => {
      assert.ok(error instanceof OperatorError);
      assert.match(error.message, /PostgreSQL 17.*PostgreSQL 18.*DATABASE_URL/s);
      return true;
    });
    assert.deepEqual(await listFolder(scene.dataDir), before);
  });

  test('a folder with something else in it is left alone', async (t) => {
    const scene = await Scene.make(t);
    await mkdir(scene.pgdata, { recursive: true });
    await writeFile(join(scene.pgdata, 'notes.txt'), 'mine');
    await assert.rejects(scene.open('serve'), /has files that are no PostgreSQL cluster/);
    assert.deepEqual(await readdir(scene.pgdata), ['notes.txt']);
  });

  test('a start that fails shows what PostgreSQL said', async (t) => {
    const scene = await Scene.makeWithCluster(t);
    await assert.rejects(scene.open('serve', { shared_buffers: 'lots' }), (error) => {
      assert.ok(error instanceof OperatorError);
      assert.match(error.message, /invalid value for parameter "shared_buffers": "lots"/);
      return true;
    });
  });

  test('a data folder that is a file', async (t) => {
    const scene = await Scene.make(t);
    await writeFile(scene.dataDir, '');
    await assert.rejects(scene.open('serve'), /cannot use the data folder .* POSTHORN_DATA_DIR/s);
  });

  async function listFolder(folder: string): Promise<string[]> {
    const names = await readdir(folder, { recursive: true });
    const times = await Promise.all(names.map(async (name) => (await stat(join(folder, name))).mtimeMs));
    return names.map((name, i) => `${name} ${times[i]}`).sort();
  }
});
