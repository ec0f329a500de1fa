/**
 * `npm run test:image`: follows the Dockerfile in empty folders, without a container engine, and runs the result as an
 * unprivileged user. The health check must fail before the start and pass after it, and SIGTERM must stop everything. Not
 * tested: the base image, and the RUN of the last stage.
 */
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import {
  chmodSync,
  chownSync,
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
} from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { readDockerfile, readEnvironment, readList, type Stage } from './dockerfile.ts';
import { requireDashboard } from './served-dashboard.ts';

const root = path.dirname(import.meta.dirname);
const folder = mkdtempSync(path.join(tmpdir(), 'posthorn-image-'));
const data = path.join(folder, 'data');
const user = process.getuid?.() === 0 ? { uid: idOf('-u'), gid: idOf('-g') } : {};
/** Keeps the machine's npm settings (registry, proxy), and removes what the npm that runs this script has added. */
const buildEnvironment = Object.fromEntries(
  Object.entries({ ...process.env, PATH: withoutOwnFolders(process.env.PATH ?? '') }).filter(
    ([name]) => !/^(npm_(lifecycle|package|command|execpath|node)|NODE$|NODE_ENV|INIT_CWD)/.test(name),
  ),
);
const allowed: string[] = readFileSync(path.join(root, '.dockerignore'), 'utf8').match(/(?<=^!).+$/gm) ?? [];

try {
  chmodSync(folder, 0o755);
  mkdirSync(data);
  if (user.uid) chownSync(data, user.uid, user.gid);
  // In place of the Node of the base image. The unprivileged user must be able to read the file.
  copyFileSync(process.execPath, path.join(folder, 'node'));
  const stages = readDockerfile(readFileSync(path.join(root, 'Dockerfile'), 'utf8'));
  for (const stage of stages) build(stage, stage === stages.at(-1));
  const last = stages.at(-1);
  if (last) await run(last);
  say('1 passed, 0 failed');
} finally {
  rmSync(folder, { recursive: true, force: true });
}

/** The folder that stands for `/app/<at>` in a stage. */
function placeIn(stage: string, at: string): string {
  return path.join(folder, stage, path.posix.resolve('/app', at));
}

function build(stage: Stage, isLast: boolean): void {
  mkdirSync(placeIn(stage.name, '.'), { recursive: true });
  for (const { verb, rest } of stage.steps) {
    if (verb === 'COPY') copy(stage.name, rest);
    if (verb !== 'RUN' || isLast) continue;
    say(`${stage.name}: ${rest}`);
    execFileSync('/bin/sh', ['-c', rest], {
      cwd: placeIn(stage.name, '.'),
      env: buildEnvironment,
      timeout: 300_000,
      stdio: ['ignore', 'ignore', 'inherit'],
    });
  }
}

function copy(stage: string, given: string): void {
  const [, from, list = ''] = /^(?:--from=(\w+) )?(.*)$/.exec(given) ?? [];
  const sources = list.split(' ');
  const target = sources.pop() ?? '';
  for (const source of sources) {
    if (!from && !allowed.includes(source))
      throw new Error(`.dockerignore excludes ${source}, which the Dockerfile copies`);
    const to = target.endsWith('/') ? path.posix.join(target, source) : target;
    const origin = from ? placeIn(from, source) : path.join(root, source);
    cpSync(origin, placeIn(stage, to), { recursive: true, verbatimSymlinks: true });
  }
}

async function run(stage: Stage): Promise<void> {
  const [port, smtpPort, metricsPort] = [await freePort(), await freePort(), await freePort()];
  const env = {
    ...{ PATH: `${folder}:/usr/bin:/bin`, HOME: data, ...readEnvironment(stage) },
    ...{ PORT: port, POSTHORN_SMTP_PORT: smtpPort, POSTHORN_METRICS_PORT: metricsPort },
    POSTHORN_DATA_DIR: data,
    POSTHORN_SECRET_KEY: randomBytes(32).toString('base64'),
    POSTHORN_MAIL_HOST: 'mx.example.com',
    POSTHORN_PUBLIC_URL: 'https://posthorn.example.com',
  };
  const options = { cwd: placeIn(stage.name, '.'), env, ...user };
  const [command = '', ...health] = readList(stage, 'HEALTHCHECK');
  const isHealthy = () => spawnSync(command, health, options).status === 0;
  if (isHealthy()) throw new Error('The health check passes before the service runs.');

  const [node = '', file = '', ...rest] = [...readList(stage, 'ENTRYPOINT'), ...readList(stage, 'CMD')];
  say(`${node} ${file} ${rest.join(' ')}`);
  const child = spawn(node, [placeIn(stage.name, file), ...rest], {
    ...options,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let output = '';
  child.stdout.on('data', (chunk) => {
    output += chunk;
  });
  const ended = new Promise<number | null>((resolve) => child.on('exit', resolve));
  try {
    for (let checks = 0; !isHealthy(); checks += 1) {
      if (checks > 60 || child.exitCode !== null)
        throw new Error(`The health check does not pass after the start:\n${output}`);
      await delay(500);
    }
    for (const at of [`${port}/health/live`, `${port}/openapi.json`, `${metricsPort}/metrics`]) {
      const { status } = await fetch(`http://127.0.0.1:${at}`);
      say(`GET :${at} ${status}`);
      if (status !== 200) throw new Error(`GET :${at} responds ${status} instead of 200`);
    }
    say(await requireDashboard(`http://127.0.0.1:${port}`));
  } finally {
    child.kill('SIGTERM');
  }
  const code = await ended;
  const isClean = code === 0 && !existsSync(path.join(data, 'postgres/postmaster.pid'));
  if (!isClean) throw new Error(`The service did not stop cleanly (exit code ${code}):\n${output}`);
}

function freePort(): Promise<string> {
  const server = createServer();
  return new Promise((resolve) => {
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address() as AddressInfo;
      server.close(() => resolve(String(port)));
    });
  });
}

/** Otherwise `npm` would run on the Node in our node_modules. */
function withoutOwnFolders(searchPath: string): string {
  return searchPath
    .split(':')
    .filter((at) => !at.startsWith(root))
    .join(':');
}

function idOf(option: '-u' | '-g'): number {
  return Number(execFileSync('id', [option, 'nobody'], { encoding: 'utf8' }));
}

function say(text: string): void {
  process.stdout.write(`${text}\n`);
}
