/** Root lends the PostgreSQL programs to an unprivileged user, who may be shut out of where they are installed. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmod, lstat, mkdir, mkdtemp, readdir, readlink, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, type TestContext, test } from 'node:test';
import { findBinaries, makeReachable } from '../src/db/embedded/binaries.ts';
import { OperatorError } from '../src/lib/operator-error.ts';

const isRoot = process.getuid?.() === 0;
const nobody = { uid: 65534, gid: 65534 };

async function makeFolder(t: TestContext, mode: number): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'posthorn-test-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  await chmod(folder, mode);
  return folder;
}

/** As npm leaves it under umask 077. */
async function installPrivately(t: TestContext) {
  const native = join(await makeFolder(t, 0o700), 'native');
  await mkdir(join(native, 'bin'), { recursive: true, mode: 0o700 });
  await mkdir(join(native, 'lib'), { mode: 0o700 });
  await writeFile(join(native, 'bin', 'postgres'), '#!/bin/sh\necho it runs\n', { mode: 0o700 });
  await writeFile(join(native, 'lib', 'libpq.so.5.18'), '', { mode: 0o600 });
  await symlink('libpq.so.5.18', join(native, 'lib', 'libpq.so'));
  return { native, version: '18.4.0', major: '18' };
}

test('the programs for this machine are found, and their version', async () => {
  const binaries = await findBinaries();
  const { stdout } = spawnSync(join(binaries.native, 'bin', 'postgres'), ['--version'], { encoding: 'utf8' });
  assert.match(stdout, new RegExp(`PostgreSQL\\) ${binaries.major}\\.`));
});

describe('as root', { skip: !isRoot }, () => {
  test('programs that the user can run stay where they are', async () => {
    const binaries = await findBinaries();
    const root = { uid: 0, gid: 0 };
    assert.equal(await makeReachable(binaries, root, '/nonexistent'), binaries);
    assert.equal(await makeReachable(binaries, undefined, '/nonexistent'), binaries);
  });

  test('others are copied once, whole, for everyone to run and nobody to change', async (t) => {
    const binaries = await installPrivately(t);
    const cacheDir = join(await makeFolder(t, 0o755), 'cache');
    const copies = await Promise.all([1, 2, 3].map(() => makeReachable(binaries, nobody, cacheDir)));
    for (const copy of copies)
      assert.deepEqual(copy, { ...binaries, native: join(cacheDir, 'postgres-18.4.0') });
    assert.deepEqual(await readdir(cacheDir), ['postgres-18.4.0']);

    const native = join(cacheDir, 'postgres-18.4.0');
    const ran = spawnSync(join(native, 'bin', 'postgres'), { ...nobody, cwd: '/', encoding: 'utf8' });
    assert.equal(ran.stdout, 'it runs\n');
    assert.equal(await readlink(join(native, 'lib', 'libpq.so')), 'libpq.so.5.18');
    const { uid, mode } = await lstat(join(native, 'lib', 'libpq.so.5.18'));
    assert.deepEqual([uid, mode & 0o777], [0, 0o644]);

    const before = (await lstat(native)).ctimeMs;
    await makeReachable(binaries, nobody, cacheDir);
    assert.equal((await lstat(native)).ctimeMs, before);
  });

  test('a cache that others may write is not trusted', async (t) => {
    const binaries = await installPrivately(t);
    const cacheDir = await makeFolder(t, 0o777);
    await assert.rejects(makeReachable(binaries, nobody, cacheDir), (error) => {
      assert.ok(error instanceof OperatorError);
      assert.match(error.message, /other users than root can write.*DATABASE_URL/s);
      return true;
    });
  });
});
