/**
 * What every npm script goes through: `node scripts/run.js [--dev] <file> [arguments]`.
 * Installs from the lockfile when something of it is missing or of another version (with --dev: the
 * development dependencies too), then runs the file on the pinned Node. Runs on any Node from 20 on.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { launch } from '../bin/launch.js';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const lock = path.join(root, '.install.lock');

if (Number(process.versions.node.split('.')[0]) < 20) {
  fail(`Posthorn needs Node 20 or newer to start (this is ${process.versions.node}).`);
}

const args = process.argv.slice(2);
const needsDev = args[0] === '--dev' && Boolean(args.shift());
const [file, ...rest] = args;

if (isStale()) install();
launch(path.join(root, file), rest);

/** npm writes what it installed beside it, last of all; holding that against the lockfile needs no stamp of ours. */
function isStale() {
  const wanted = readPackages('package-lock.json');
  const installed = readPackages('node_modules/.package-lock.json');
  if (!existsSync(path.join(root, 'node_modules/node/package.json'))) return true;
  return Object.entries(wanted).some(([where, { version, dev, optional }]) => {
    if (where === '' || optional || (dev && !needsDev)) return false;
    return installed[where]?.version !== version;
  });
}

function readPackages(name) {
  const full = path.join(root, name);
  return existsSync(full) ? JSON.parse(readFileSync(full, 'utf8')).packages : {};
}

function install() {
  takeLock();
  try {
    if (!isStale()) return; // Another start installed while we waited.
    process.stderr.write('Posthorn: installing what package-lock.json names (once) …\n');
    const withDev = needsDev || process.env.NODE_ENV !== 'production';
    const options = ['--no-audit', '--no-fund', '--loglevel=error', '--ignore-scripts=false'];
    const result = spawnSync('npm', ['ci', withDev ? '--include=dev' : '--omit=dev', ...options], {
      cwd: root,
      // stdout belongs to the program that runs next (`--json`).
      stdio: ['ignore', 2, 2],
      env: { ...process.env, PATH: pathWithoutOurOwn() },
    });
    if (result.status !== 0) {
      rmSync(lock, { force: true });
      fail('Posthorn: the installation failed; npm says why above. Mend it and run the same command again.');
    }
  } finally {
    rmSync(lock, { force: true });
  }
}

/** `npm ci` removes node_modules first, and with it the Node it would run on, were ours found before the machine's. */
function pathWithoutOurOwn() {
  const ours = path.join(root, 'node_modules');
  const folders = (process.env.PATH ?? '').split(path.delimiter);
  return folders.filter((folder) => !folder.startsWith(ours)).join(path.delimiter);
}

/** Two starts at once on a fresh clone must not install over each other. */
function takeLock() {
  for (let told = false; ; ) {
    try {
      writeFileSync(lock, String(process.pid), { flag: 'wx' });
      return;
    } catch (error) {
      if (error.code !== 'EEXIST') throw error;
      if (!isHeld()) rmSync(lock, { force: true });
      else if (!told) process.stderr.write('Posthorn: another start is installing; waiting for it …\n');
      told = true;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 200);
    }
  }
}

function isHeld() {
  try {
    const pid = readFileSync(lock, 'utf8');
    // Empty: its maker is between creating and writing it.
    // Our own pid: left behind by an earlier start in a container, where pids repeat.
    return pid === '' || (Number(pid) !== process.pid && process.kill(Number(pid), 0));
  } catch (error) {
    return error.code === 'EPERM';
  }
}

function fail(message) {
  process.stderr.write(`${message}\n`);
  process.exit(1);
}
