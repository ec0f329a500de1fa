/**
 * Every npm script runs through this file: `node scripts/run.js [--dev] <file> [arguments]`. It installs from the lockfile when
 * a package is missing or has another version (with --dev: development dependencies too), then runs the file on the pinned
 * Node. This file itself runs on Node 20 or newer.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { launch } from '../bin/launch.js';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const lock = path.join(root, '.install.lock');

if (Number(process.versions.node.split('.')[0]) < 20) {
  fail(
    `Posthorn needs Node 20 or newer to start; this is Node ${process.versions.node}. Install a newer Node.`,
  );
}

const args = process.argv.slice(2);
const needsDev = args[0] === '--dev' && Boolean(args.shift());
const [file, ...rest] = args;

if (isStale()) install();
if (rest[0] === 'serve') await preparePages();
launch(path.join(root, file), rest);

/** An installation without development dependencies cannot build: the service then starts without its dashboard and reference. */
async function preparePages() {
  const { buildDashboard, isDashboardStale } = await import('./dashboard.js');
  const { buildReference } = await import('./reference.js');
  try {
    if (isDashboardStale()) await buildDashboard();
    await buildReference();
  } catch (error) {
    if (error.code !== 'ERR_MODULE_NOT_FOUND') throw error;
    process.stderr.write('Posthorn: the dashboard is not built. To build it: npm run build\n');
  }
}

/** npm writes node_modules/.package-lock.json as the last step of an installation, so it lists what is installed. */
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
    process.stderr.write('Posthorn: installing the packages of package-lock.json (first start only) …\n');
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
      fail('Posthorn: the installation failed. Fix the npm error above, then run the same command again.');
    }
  } finally {
    rmSync(lock, { force: true });
  }
}

/** `npm ci` removes node_modules first, so it must run on the machine's Node and not on the Node in node_modules. */
function pathWithoutOurOwn() {
  const ours = path.join(root, 'node_modules');
  const folders = (process.env.PATH ?? '').split(path.delimiter);
  return folders.filter((folder) => !folder.startsWith(ours)).join(path.delimiter);
}

/** Two starts at the same time on a fresh clone must not install at the same time. */
function takeLock() {
  for (let isReported = false; ; ) {
    try {
      writeFileSync(lock, String(process.pid), { flag: 'wx' });
      return;
    } catch (error) {
      if (error.code !== 'EEXIST') throw error;
      if (!isLocked()) rmSync(lock, { force: true });
      else if (!isReported)
        process.stderr.write('Posthorn: waiting for another start that is installing …\n');
      isReported = true;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 200);
    }
  }
}

function isLocked() {
  try {
    const pid = readFileSync(lock, 'utf8');
    // Empty: the other start has created the file, but not written it yet.
    // Our own pid: the file is from an earlier start in a container, where pids repeat.
    return pid === '' || (Number(pid) !== process.pid && process.kill(Number(pid), 0));
  } catch (error) {
    return error.code === 'EPERM';
  }
}

function fail(message) {
  process.stderr.write(`${message}\n`);
  process.exit(1);
}
