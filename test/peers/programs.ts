/** The programs of other projects: where they are, and their Debian packages. A missing program is a failure. */
import { spawn } from 'node:child_process';
import { accessSync, chmodSync, constants, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { TestContext } from 'node:test';

const packages = {
  postfix: 'postfix',
  postqueue: 'postfix',
  sendmail: 'postfix',
  'smtp-source': 'postfix',
  // The second is its TLS.
  swaks: 'swaks libnet-ssleay-perl',
  msmtp: 'msmtp',
  knotd: 'knot',
  knotc: 'knot',
  opendkim: 'opendkim',
  'opendkim-genkey': 'opendkim-tools',
  dovecot: 'dovecot-imapd',
  python3: 'python3',
} as const;

type PeerName = keyof typeof packages;

/** The PATH of an ordinary user lacks the last two. */
const folders = [...(process.env.PATH ?? '').split(path.delimiter), '/usr/sbin', '/sbin'].filter(Boolean);

function locate(name: PeerName): string | undefined {
  return folders.map((folder) => path.join(folder, name)).find(isExecutable);
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

export function hasPeer(name: PeerName): boolean {
  return locate(name) !== undefined;
}

export function findPeer(name: PeerName): string {
  const found = locate(name);
  if (!found) throw new Error(explainMissing([name]));
  return found;
}

/** The programs that read the OpenAPI document are not Debian packages: they have a lockfile and a requirements file of their own. */
export const openapiFolder = path.join(import.meta.dirname, 'openapi');
export const openapiTool = (name: string) => path.join(openapiFolder, 'node_modules/.bin', name);
const installOpenapiTools = `npm ci --prefix test/peers/openapi --ignore-scripts && python3 -m venv test/peers/openapi/.venv && test/peers/openapi/.venv/bin/pip install --no-deps --only-binary :all: -r test/peers/openapi/requirements.txt`;

/** What to install before the suite can run; null when nothing is missing. */
export function findWants(): string | null {
  const tools = [openapiTool('spectral'), path.join(openapiFolder, '.venv/bin/openapi-python-client')];
  if (!tools.every(isExecutable))
    return `The peers suite needs the programs of test/peers/openapi: ${installOpenapiTools}`;
  const missing = (Object.keys(packages) as PeerName[]).filter((name) => !locate(name));
  if (missing.length > 0) return explainMissing(missing);
  return process.getuid?.() === 0 ? null : 'Postfix starts as root only: run the peers suite as root.';
}

function explainMissing(names: PeerName[]): string {
  const wanted = [...new Set(names.map((name) => packages[name]))].join(' ');
  return `The peers suite needs ${names.join(', ')}. On Debian: apt-get install --no-install-recommends ${wanted}`;
}

export interface Ended {
  code: number | null;
  /** stdout and stderr. */
  output: string;
}

/** Runs a program to its end, without the configuration of the machine or the user. */
export function execute(
  name: PeerName,
  args: readonly string[],
  input: string | Buffer = '',
): Promise<Ended> {
  const child = spawn(findPeer(name), args, {
    env: { PATH: folders.join(path.delimiter), LANG: 'C.UTF-8', HOME: '/nonexistent' },
    timeout: 90_000,
  });
  let output = '';
  const collect = (chunk: Buffer) => {
    output += chunk;
  };
  child.stdout.on('data', collect);
  child.stderr.on('data', collect);
  // A program may end without reading its input.
  child.stdin.on('error', () => {});
  child.stdin.end(input);
  return new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code) => resolve({ code, output }));
  });
}

/** The same; throws when the program fails. */
export async function succeed(
  name: PeerName,
  args: readonly string[],
  input?: string | Buffer,
): Promise<string> {
  const { code, output } = await execute(name, args, input);
  if (code !== 0) throw new Error(`${name} ${args.join(' ')} ended with ${code}:\n${output}`);
  return output;
}

/** The folder of all programs of this run, so that the run can end programs that an aborted test has left. */
const runFolder = process.env.TEST_PEERS_FOLDER ?? tmpdir();

/** A folder for one program, with its pid file. The program's unprivileged user can enter. Remove it after the program has ended. */
export function makePeerFolder(name: string): { path: string; remove(): void } {
  const folder = mkdtempSync(path.join(runFolder, `posthorn-${name}-`));
  chmodSync(folder, 0o755);
  // A program that is ending may still write.
  const options = { recursive: true, force: true, maxRetries: 10, retryDelay: 200 };
  return { path: folder, remove: () => rmSync(folder, options) };
}

/** For `afterEach`: prints the end of a program's log after a failed test. */
export function tellIfFailed(context: object, name: string, log: string): void {
  // `passed` is newer than its types.
  const { passed = true, diagnostic } = context as { passed?: boolean } & Partial<TestContext>;
  if (passed) return;
  diagnostic?.call(
    context,
    `the log of ${name} ends with:\n${log.trimEnd().split('\n').slice(-30).join('\n')}`,
  );
}
