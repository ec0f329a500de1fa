/**
 * scripts/run.js, which every npm script goes through: when it installs, with what, and when it does not. npm itself is
 * replaced by a program that notes how it was called; everything of ours is the real thing.
 */
import assert from 'node:assert/strict';
import { cpSync, existsSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { afterEach, beforeEach, test } from 'node:test';
import { makeFolder, root, run } from './programs.ts';

const lock = {
  packages: {
    '': {},
    'node_modules/node': { version: '24.0.0' },
    'node_modules/used': { version: '1.0.0' },
    'node_modules/linter': { version: '1.0.0', dev: true },
    'node_modules/other-platform': { version: '1.0.0', optional: true },
  },
};

let folder: ReturnType<typeof makeFolder>;

beforeEach(() => {
  folder = makeFolder();
  for (const name of ['scripts/run.js', 'bin/launch.js'])
    cpSync(path.join(root, name), path.join(folder.path, name));
  write('package.json', { type: 'module' });
  write('package-lock.json', lock);
  writeFileSync(
    path.join(folder.path, 'program.js'),
    'console.log("ran on", process.execPath, process.argv.slice(2).join());',
  );
  // Notes its arguments, and leaves what a real `npm ci` of them would.
  mkdirSync(path.join(folder.path, 'path'));
  writeFileSync(
    path.join(folder.path, 'path/npm'),
    `#!${process.execPath}
import fs from 'node:fs';
fs.appendFileSync('npm-calls', process.argv.slice(2).join(' ') + '\\n');
const lock = JSON.parse(fs.readFileSync('package-lock.json', 'utf8'));
if (process.argv.includes('--omit=dev')) delete lock.packages['node_modules/linter'];
delete lock.packages['node_modules/other-platform'];
fs.mkdirSync('node_modules/node/bin', { recursive: true });
fs.writeFileSync('node_modules/node/package.json', '{}');
fs.rmSync('node_modules/node/bin/node', { force: true });
fs.symlinkSync(${JSON.stringify(process.execPath)}, 'node_modules/node/bin/node');
fs.writeFileSync('node_modules/.package-lock.json', JSON.stringify(lock));
`,
    { mode: 0o755 },
  );
});

afterEach(() => folder.remove());

function write(name: string, value: unknown): void {
  writeFileSync(path.join(folder.path, name), JSON.stringify(value));
}

/** The calls of npm that this start made. */
async function start(args: string[] = [], settings: Record<string, string> = {}): Promise<string[]> {
  const calls = path.join(folder.path, 'npm-calls');
  rmSync(calls, { force: true });
  const PATH = `${path.join(folder.path, 'path')}${path.delimiter}${process.env.PATH}`;
  const program = run(
    process.execPath,
    ['scripts/run.js', ...args, 'program.js', 'one', 'two'],
    { PATH, ...settings },
    { cwd: folder.path },
  );
  assert.equal(await program.ended, 0, program.output());
  assert.match(program.output(), /ran on .*node_modules\/node\/bin\/node one,two|ran on .* one,two/);
  return existsSync(calls) ? readFileSync(calls, 'utf8').trim().split('\n') : [];
}

test('a fresh clone installs once, from the lockfile, and the second start does not', async () => {
  const [call = '', ...more] = await start();
  assert.match(call, /^ci --include=dev /);
  assert.deepEqual(more, []);
  assert.deepEqual(await start(), []);
});

test('a changed lockfile installs again', async () => {
  await start();
  write('package-lock.json', { packages: { ...lock.packages, 'node_modules/used': { version: '1.0.1' } } });
  assert.equal((await start()).length, 1);
});

test('in production only what the service needs is installed, which is stale for development scripts', async () => {
  const production = { NODE_ENV: 'production' };
  assert.match((await start([], production))[0] ?? '', /^ci --omit=dev /);
  assert.deepEqual(await start([], production), []);
  assert.match((await start(['--dev'], production))[0] ?? '', /^ci --include=dev /);
  assert.deepEqual(await start(['--dev'], production), []);
  assert.deepEqual(await start([], production), [], 'a full install serves production too');
});

test('two starts at once on a fresh clone install once', async () => {
  const both = await Promise.all([start(), start()]);
  assert.equal(new Set(both.flat()).size, 1);
  const calls = readFileSync(path.join(folder.path, 'npm-calls'), 'utf8').trim().split('\n');
  assert.equal(calls.length, 1);
});

test('a lock left behind by a start that was killed does not hold up the next', async () => {
  writeFileSync(path.join(folder.path, '.install.lock'), '999999999');
  assert.equal((await start()).length, 1);
  assert.equal(existsSync(path.join(folder.path, '.install.lock')), false);
});

test('an installation that fails says so and exits with 1', async () => {
  rmSync(path.join(folder.path, 'path/npm'));
  symlinkSync('/bin/false', path.join(folder.path, 'path/npm'));
  const PATH = `${path.join(folder.path, 'path')}${path.delimiter}${process.env.PATH}`;
  const program = run(process.execPath, ['scripts/run.js', 'program.js'], { PATH }, { cwd: folder.path });
  assert.equal(await program.ended, 1);
  assert.match(program.output(), /the installation failed/);
});

test('what the program exits with is what npm sees', async () => {
  await start();
  writeFileSync(path.join(folder.path, 'program.js'), 'process.exit(7);');
  const program = run(process.execPath, ['scripts/run.js', 'program.js'], {}, { cwd: folder.path });
  assert.equal(await program.ended, 7);
});
