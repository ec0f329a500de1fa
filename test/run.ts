/**
 * `npm test [-- <files or node --test options>]`: one real PostgreSQL for the whole run (embedded, or TEST_DATABASE_URL),
 * a migrated template in it that every test file clones, an unused cluster for tests that need a server of their own, then
 * the files in several processes, each of which runs one file after the other.
 */
import { spawn } from 'node:child_process';
import { globSync, mkdtempSync, rmSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import path from 'node:path';
import { connect } from '../src/db/client.ts';
import { openCluster } from '../src/db/embedded/cluster.ts';
import { openEmbedded } from '../src/db/embedded/open.ts';
import { migrate } from '../src/db/migrate.ts';
import { Fragment, identifier } from '../src/db/sql.ts';
import { makeLog } from '../src/lib/log.ts';
import { databaseUrl, templateName } from './harness.ts';
import { copyCluster, freePort, urlOf } from './own-postgres.ts';
import { runFiles } from './run-files.ts';

const log = makeLog({ level: 'warn', json: false, stream: process.stderr });
const root = path.dirname(import.meta.dirname);

/** More than there are cores: many tests wait for timers and for each other's answers. */
const filesAtOnce = Math.max(6, availableParallelism());
/**
 * With these, loading the service takes a quarter less of a core: no garbage is collected meanwhile, and the real path of every
 * module is not looked up. Every test file inherits them.
 */
const quickLoading = ['--min-semi-space-size=32', '--max-semi-space-size=32', '--preserve-symlinks'];
/** Nothing has to survive a crash of this server. Tests of durability start a server of their own. */
const forgetful = { fsync: 'off', synchronous_commit: 'off', full_page_writes: 'off' };

const folder = mkdtempSync(path.join(tmpdir(), 'posthorn test '));
const place = (name: string) => path.join(folder, name);
process.env.TEST_CLUSTER = place('cluster');
await openCluster(place('cluster'), log);
const given = process.env.TEST_DATABASE_URL;
const server = given ? { url: given, stop: async () => {} } : await startServer(place('server'));
try {
  const template = await makeTemplate(server.url);
  process.exitCode = await runTests({
    TEST_DATABASE_URL: server.url,
    TEST_TEMPLATE: template,
    // Halves the start of every test file, command and service, which is much of the run.
    NODE_COMPILE_CACHE: place('compiled'),
  });
  await dropTemplate(server.url, template);
} finally {
  await server.stop();
  rmSync(folder, { recursive: true, force: true });
}

/** On a port: tests put a network of their own between a service and the server. */
async function startServer(dataDir: string) {
  copyCluster(dataDir);
  const port = await freePort();
  const onPort = { listen_addresses: '127.0.0.1', port: String(port) };
  const settings = { ...forgetful, ...onPort, max_connections: '500' };
  const { address, stop } = await openEmbedded({ dataDir, log, purpose: 'tool', settings });
  const url = urlOf({ ...address, endpoints: [{ host: '127.0.0.1', port, ssl: false, isFallback: false }] });
  await makeLoginsCheap(url);
  return { url, stop };
}

/** A run has thousands of logins, each with 4,096 rounds of SHA-256 unless the server says otherwise. */
async function makeLoginsCheap(url: string): Promise<void> {
  const { username, password } = new URL(url);
  const sql = connect(url, { max: 1, applicationName: 'posthorn tests' });
  await sql`set scram_iterations = 1`;
  // No parameters are allowed here. The password is one that we made, of letters and digits.
  await sql`alter role ${identifier(username)} password ${new Fragment([`'${password}'`], [])}`;
  await sql.end();
}

async function makeTemplate(url: string): Promise<string> {
  const name = templateName();
  const admin = connect(url, { max: 1, applicationName: 'posthorn tests' });
  await admin`create database ${identifier(name)}`;
  await admin.end();
  const sql = connect(databaseUrl(url, name), { max: 1, applicationName: 'posthorn tests' });
  await migrate(sql, log);
  await sql.end();
  return name;
}

async function dropTemplate(url: string, name: string): Promise<void> {
  const admin = connect(url, { max: 1, applicationName: 'posthorn tests' });
  await admin`drop database ${identifier(name)} with (force)`;
  await admin.end();
}

function runTests(environment: Record<string, string>): Promise<number> {
  const { options, files } = splitArguments(process.argv.slice(2));
  const all = globSync('test/**/*.test.ts', { cwd: root, exclude: ['test/peers/**', 'test/browser/**'] });
  const chosen = files.length > 0 ? files : all.sort();
  const env = { ...process.env, ...environment };
  // Options are those of node's own runner, which gives each file a process.
  return options.length > 0
    ? runNode([...options, ...chosen], env)
    : runFiles(chosen, { processes: filesAtOnce, execArgv: quickLoading, env });
}

function runNode(args: string[], env: NodeJS.ProcessEnv): Promise<number> {
  const standard = ['--test', '--test-timeout=600000', `--test-concurrency=${filesAtOnce}`];
  const child = spawn(process.execPath, [...quickLoading, ...standard, ...args], {
    cwd: root,
    stdio: 'inherit',
    env,
  });
  const pass = (signal: NodeJS.Signals) => process.on(signal, () => child.kill(signal));
  pass('SIGINT');
  pass('SIGTERM');
  return new Promise((resolve) => child.on('exit', (code) => resolve(code ?? 1)));
}

function splitArguments(args: string[]) {
  return {
    options: args.filter((arg) => arg.startsWith('-')),
    files: args.filter((arg) => !arg.startsWith('-')),
  };
}
