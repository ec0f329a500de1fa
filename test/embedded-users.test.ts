/**
 * The embedded server and the other users of the machine: who runs it, who reaches it, and what root does with links and pipes
 * in a folder that is not root's.
 */
import assert from 'node:assert/strict';
import { execFile, execFileSync, spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import {
  chown,
  link,
  lstat,
  mkdir,
  readdir,
  readFile,
  rename,
  rm,
  symlink,
  writeFile,
} from 'node:fs/promises';
import { join } from 'node:path';
import { describe, type TestContext, test } from 'node:test';
import { promisify } from 'node:util';
import { backUpEmbedded } from '../src/db/embedded/backup.ts';
import { chooseUser, ensureUser } from '../src/db/embedded/user.ts';
import { OperatorError } from '../src/lib/operator-error.ts';
import { readOrMakeKeyFile } from '../src/lib/secrets.ts';
import { addRow, countRows, isRoot, query, Scene } from './fixtures/embedded-scene.ts';
import { makeTestLog } from './harness.ts';

const asRoot = { skip: !isRoot, concurrency: 2 };
const idOf = (name: string) => Number(execFileSync('id', ['-u', name], { encoding: 'utf8' }));
const daemon = () => ({ uid: idOf('daemon'), gid: idOf('daemon') });
const secret = 'a secret that only root may read';

/** A folder of root's with a secret, outside of the data folder. */
async function writeSecret(scene: Scene): Promise<string> {
  const path = join(scene.dataDir, '..', 'secret');
  await writeFile(path, secret, { mode: 0o600 });
  return path;
}

async function listOwners(folder: string): Promise<number[]> {
  const names = await readdir(folder, { recursive: true });
  const owners = await Promise.all(names.map(async (name) => (await lstat(join(folder, name))).uid));
  return [...new Set([...owners, (await lstat(folder)).uid])];
}

function refuses(pattern: RegExp) {
  return (error: unknown) => {
    assert.ok(error instanceof OperatorError, String(error));
    assert.match(error.message, pattern);
    assert.doesNotMatch(error.message, new RegExp(secret));
    return true;
  };
}

test('another user of the machine cannot connect to the socket', asRoot, async (t) => {
  const scene = await Scene.makeWithCluster(t);
  execFileSync('chmod', ['755', join(scene.dataDir, '..')]);
  const { url } = await scene.open('serve');
  const host = new URL(url).searchParams.get('host');
  const script = `require('net').connect('${host}/.s.PGSQL.5432').on('connect', () => console.log('connected')).on('error', (e) => console.log(e.code))`;
  const connectAs = (user: object) =>
    spawnSync(process.execPath, ['-e', `${script}.on('connect', process.exit)`], {
      ...user,
      cwd: '/',
      encoding: 'utf8',
    });
  assert.equal(connectAs({}).stdout, 'connected\n');
  assert.equal(connectAs(daemon()).stdout, 'EACCES\n');
});

test('a path that is longer than the path of a socket may be', async (t) => {
  const scene = await Scene.make(t, join('deep'.repeat(30), 'deeper'.repeat(30), 'data'));
  const embedded = await scene.open('serve');
  await addRow(embedded.url);
  await scene.killPostmaster();
  const holder = await scene.openInChild('tool');
  await holder.end('SIGTERM');
  await embedded.stop();
  assert.equal(await countRows((await scene.open('tool')).url), 1);
});

test('a lock of the socket that names a living process of the same user is not believed', async (t) => {
  const scene = await Scene.makeWithCluster(t);
  const other = await Scene.makeWithCluster(t);
  await other.open('serve');
  const { pid } = (await other.postmaster()) ?? assert.fail();
  await (await scene.open('serve')).stop();
  await writeFile(join(scene.pgdata, '.s.PGSQL.5432.lock'), `${pid}\n${scene.pgdata}\n`);
  await writeFile(join(scene.pgdata, '.s.PGSQL.5432'), 'no socket');
  await query((await scene.open('serve')).url, 'select 1');
});

describe('who runs the server', asRoot, () => {
  test('a new database is the user posthorn’s', async (t) => {
    const scene = await Scene.make(t);
    await scene.open('serve');
    const { pid } = (await scene.postmaster()) ?? assert.fail('no server');
    const { stdout } = spawnSync('ps', ['-o', 'uid=', '-p', String(pid)], { encoding: 'utf8' });
    assert.equal(Number(stdout), idOf('posthorn'));
    assert.deepEqual(await listOwners(scene.pgdata), [idOf('posthorn')]);
  });

  test('the user is created, also by several processes at once, who all get the same user and say so', async (t) => {
    const name = `posthorn-${randomBytes(4).toString('hex')}`;
    t.after(() => spawnSync('userdel', [name]));
    const { log, logged } = makeTestLog();
    const script = `import { ensureUser } from './src/db/embedded/user.ts';
      import { makeLog } from './src/lib/log.ts';
      const { uid } = await ensureUser('${name}', makeLog({ level: 'warn', json: true }));
      console.log(uid);`;
    const run = promisify(execFile);
    const args = ['--input-type=module-typescript', '-e', script];
    const outputs = await Promise.all([1, 2, 3, 4].map(() => run(process.execPath, args)));
    const { uid } = await ensureUser(name, log);
    assert.deepEqual(logged, []);
    const lines = outputs.flatMap(({ stdout }) => stdout.trim().split('\n'));
    assert.deepEqual(
      lines.filter((line) => !line.startsWith('{')),
      Array(4).fill(String(uid)),
    );
    // Two runs of useradd can succeed at the same moment: it looks for the name before it locks the list of users.
    const said = lines.filter((line) => line.startsWith('{')).map((line) => JSON.parse(line).msg);
    assert.deepEqual(
      [...new Set(said)],
      [`created the system user ${name}, because PostgreSQL does not run as root`],
    );
  });

  test('a user that cannot be created: the command to run is named', async () => {
    const wanted = /could not be created: .*invalid user name.*useradd --system .* Not A User\n/s;
    await assert.rejects(ensureUser('Not A User', makeTestLog().log), refuses(wanted));
  });

  test('on the folder of an ordinary user, root uses that user', async (t) => {
    const scene = await Scene.make(t);
    await mkdir(scene.dataDir);
    for (const path of [scene.dataDir, join(scene.dataDir, '..')])
      await chown(path, daemon().uid, daemon().gid);
    const holder = await scene.openInChild('serve', daemon());
    await addRow(holder.url);
    await assert.rejects(scene.open('serve'), /Another Posthorn/);
    await holder.end('SIGTERM');

    assert.equal(await countRows((await scene.open('serve')).url), 1);
    assert.deepEqual(await listOwners(scene.dataDir), [daemon().uid]);
  });

  test('a data folder of nobody, or of a user who could replace the database, is refused', async (t) => {
    const scene = await Scene.makeWithCluster(t);
    const { log } = makeTestLog();
    execFileSync('chown', ['-R', 'nobody', scene.dataDir]);
    await assert.rejects(scene.open('serve'), refuses(/other programs share.*chown root '/s));
    await chown(scene.dataDir, daemon().uid, daemon().gid);
    await assert.rejects(
      chooseUser(scene.pgdata, log),
      refuses(/who could replace the database.*chown root '/s),
    );
    await rm(scene.pgdata, { recursive: true });
    await assert.rejects(scene.open('serve'), refuses(/who could replace the database/));
    assert.deepEqual(await readdir(scene.dataDir), []);
  });
});

describe('a database folder of an earlier owner', asRoot, () => {
  for (const owner of ['nobody', 'root']) {
    test(`${owner}: the server gets all of it, once`, async (t) => {
      const scene = await Scene.makeWithCluster(t);
      execFileSync('chown', ['-R', owner, scene.dataDir]);
      await chown(scene.dataDir, 0, 0);
      const first = await scene.open('serve');
      await addRow(first.url);
      await first.stop();
      assert.deepEqual(await listOwners(scene.pgdata), [idOf('posthorn')]);
      assert.equal(await countRows((await scene.open('serve')).url), 1);
      const given = scene.logged.filter(({ msg }) => /giving the database folder/.test(String(msg)));
      assert.equal(given.length, 1);
    });
  }

  test('two starts at once', async (t) => {
    const scene = await Scene.makeWithCluster(t);
    execFileSync('chown', ['-R', 'nobody', scene.pgdata]);
    const [first, second] = await Promise.all([scene.openInChild('tool'), scene.openInChild('tool')]);
    await addRow(first.url);
    assert.equal(await countRows(second.url), 1);
    assert.deepEqual(await listOwners(scene.pgdata), [idOf('posthorn')]);
  });

  for (const [kind, make] of [
    ['link', symlink],
    ['hard link', link],
  ] as const) {
    test(`a ${kind} in it to a file of root’s: that file keeps its owner`, async (t) => {
      const scene = await Scene.makeWithCluster(t);
      execFileSync('chown', ['-R', 'nobody', scene.pgdata]);
      const target = await writeSecret(scene);
      await make(target, join(scene.pgdata, 'base', 'mine'));
      await assert.rejects(scene.open('serve'), refuses(/base\/mine is a link.*chown -Rh/s));
      assert.equal((await lstat(target)).uid, 0);
    });
  }
});

describe('root opens nothing through the links of the server’s user', asRoot, () => {
  const makeFifo = async (_: string, path: string) => void execFileSync('mkfifo', [path]);
  const kinds = { 'a link': symlink, 'a hard link': link, 'a pipe': makeFifo };
  for (const [kind, make] of Object.entries(kinds)) {
    test(`${kind} instead of a file that root reads`, async (t) => {
      const scene = await Scene.makeWithCluster(t);
      const target = await writeSecret(scene);
      const aside = join(scene.dataDir, 'aside');
      // The last of them is not there while no server runs.
      for (const name of ['posthorn.password', 'PG_VERSION', 'postmaster.pid']) {
        const path = join(scene.pgdata, name);
        const isThere = await rename(path, aside).then(
          () => true,
          () => false,
        );
        await make(target, path);
        await assert.rejects(scene.open('serve'), refuses(new RegExp(`${name} is a link, or is not a file`)));
        await rm(path);
        if (isThere) await rename(aside, path);
      }
    });
  }

  test('server.log as a link or a pipe: nothing is written behind it', async (t) => {
    const scene = await Scene.makeWithCluster(t);
    const target = await writeSecret(scene);
    const path = join(scene.pgdata, 'server.log');
    for (const make of [symlink, makeFifo]) {
      await make(target, path);
      await assert.rejects(scene.open('serve'), refuses(/server.log is not a file/));
      await rm(path);
    }
    await link(target, path);
    await assert.rejects(scene.open('serve'), refuses(/server.log/));
    assert.equal(await readFile(target, 'utf8'), secret);
    assert.equal((await lstat(target)).uid, 0);
  });

  test('secret.key as a link in a folder of another user', async (t) => {
    const scene = await makeFolderOf(t, daemon());
    const file = join(scene.dataDir, 'secret.key');
    const target = join(scene.dataDir, '..', 'secret');
    await writeFile(target, Buffer.alloc(32).toString('base64'));
    for (const make of [symlink, link]) {
      await make(target, file);
      assert.throws(() => readOrMakeKeyFile(file), refuses(/secret.key is a link/));
      await rm(file);
    }
    const made = readOrMakeKeyFile(file);
    assert.equal((await lstat(file)).uid, daemon().uid, 'the user who runs the service can read it');
    assert.deepEqual(readOrMakeKeyFile(file), made);
  });

  async function makeFolderOf(t: TestContext, { uid, gid }: { uid: number; gid: number }): Promise<Scene> {
    const scene = await Scene.make(t);
    await mkdir(scene.dataDir);
    await chown(scene.dataDir, uid, gid);
    return scene;
  }

  test('a backup with a hard link to a file of root’s: refused, and nothing is left', async (t) => {
    const scene = await Scene.makeWithCluster(t);
    await link(await writeSecret(scene), join(scene.pgdata, 'base', '1', '99999'));
    const { dataDir, log } = scene;
    const to = join(dataDir, '..', 'backup');
    const backup = backUpEmbedded({ dataDir, to, usesKeyFile: false, log });
    await assert.rejects(backup, refuses(/99999 is a link, or is not a file/));
    assert.deepEqual((await readdir(join(dataDir, '..'))).sort(), ['data', 'secret']);
  });

  test('a data folder that is another user’s link', async (t) => {
    const scene = await Scene.make(t);
    await symlink('/etc', scene.dataDir);
    execFileSync('chown', ['-h', 'daemon', scene.dataDir]);
    await assert.rejects(scene.open('serve'), refuses(/is a link that another user than root made/));
  });
});
