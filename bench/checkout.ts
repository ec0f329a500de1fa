/**
 * The folder that the service runs from: this checkout, or with `--against <commit>` a copy of that commit in a temporary folder.
 * The load, the receiver and the DNS server always run from this checkout.
 */
import { execFile } from 'node:child_process';
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import type * as launch from '../bin/launch.js';
import { OperatorError } from '../src/lib/operator-error.ts';
import type * as rows from './delivery-rows.ts';
import type { Bench, Checkout } from './scenario.ts';

export const thisCheckout: Checkout = { name: 'this', folder: path.resolve(import.meta.dirname, '..') };

/** Fills the tables as they are in a commit, so every commit has its own. */
const rowsFile = 'bench/delivery-rows.ts';

const execute = promisify(execFile);

/** The modules of a commit that the bench itself uses. A commit must not change their exports. */
interface Modules {
  'bin/launch.js': Pick<typeof launch, 'mallocSettings' | 'nodeFlags'>;
  [rowsFile]: Pick<typeof rows, 'queueDeliveries' | 'enableWebhooks' | 'hasDeliveries'>;
}

export function importFrom<Name extends keyof Modules>(
  { folder }: Checkout,
  name: Name,
): Promise<Modules[Name]> {
  return import(pathToFileURL(path.join(folder, name)).href);
}

/** The value of `--against`: a PostgreSQL server, or a commit. */
export function readAgainst(value: string | undefined): { against: string | null; commit: string | null } {
  if (value === undefined) return { against: null, commit: null };
  return /^postgres(ql)?:/.test(value) ? { against: value, commit: null } : { against: null, commit: value };
}

/** Copies a commit of this repository, with its packages. The copy is removed by `defer`, also after Ctrl-C. */
export async function openCheckout(
  { defer, signal, log }: Pick<Bench, 'defer' | 'signal' | 'log'>,
  revision: string,
): Promise<Checkout> {
  const name = await findCommit(revision);
  const folder = mkdtempSync(path.join(tmpdir(), 'posthorn-bench-commit-'));
  defer(() => rmSync(folder, { recursive: true, force: true }));
  const archive = path.join(folder, 'commit.tar');
  await git('archive', '--format=tar', `--output=${archive}`, name);
  await execute('tar', ['-xf', archive, '-C', folder]);
  rmSync(archive);
  await addRowsFile(folder);
  const lock = (root: string) => readFileSync(path.join(root, 'package-lock.json'), 'utf8');
  const packages = path.join(thisCheckout.folder, 'node_modules');
  if (lock(folder) === lock(thisCheckout.folder)) symlinkSync(packages, path.join(folder, 'node_modules'));
  else {
    log(`installing the packages of ${name}, which are not those of this checkout`);
    await execute('npm', ['ci', '--no-audit', '--no-fund', '--ignore-scripts=false'], {
      cwd: folder,
      signal,
    });
  }
  return { name, folder };
}

async function findCommit(revision: string): Promise<string> {
  try {
    return await git(
      'rev-parse',
      '--verify',
      '--quiet',
      '--short=10',
      '--end-of-options',
      `${revision}^{commit}`,
    );
  } catch (cause) {
    const wanted =
      'Give postgres://… for a PostgreSQL server, or a commit of this repository (a hash, a branch, HEAD~3).';
    throw new OperatorError(`--against: no commit with the name ${revision}. ${wanted}`, { cause });
  }
}

/** An older commit, which lacks the file, gets its first version: the tables had not changed before. */
async function addRowsFile(folder: string): Promise<void> {
  const file = path.join(folder, rowsFile);
  if (existsSync(file)) return;
  const added = await git('log', '--diff-filter=A', '--format=%H', '--', rowsFile);
  const first = added.split('\n').at(-1);
  if (first) writeFileSync(file, await git('show', `${first}:${rowsFile}`));
  else cpSync(path.join(thisCheckout.folder, rowsFile), file);
}

async function git(...args: string[]): Promise<string> {
  return (await execute('git', args, { cwd: thisCheckout.folder })).stdout.trim();
}
