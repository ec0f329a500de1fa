/**
 * The user who runs PostgreSQL. PostgreSQL refuses to run as root, so root runs it as the system user `posthorn`, who owns
 * nothing else: no other program can read the data or take the server's place.
 */
import { spawnSync } from 'node:child_process';
import { lstat, stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { Log } from '../../lib/log.ts';
import { OperatorError } from '../../lib/operator-error.ts';

/** Undefined: the user of this process. */
export type ServerUser = { readonly uid: number; readonly gid: number } | undefined;

/** Other programs run as these users too. */
const sharedUsers = ['nobody', 'postgres'];
const lockedTries = 100;
/**
 * Exit codes of useradd(8) that another process can cause, which adds a user at the same moment: the list of users or groups is
 * locked (1, 10), the id is taken (4), or the name exists (9).
 */
const lostRaces = new Set([1, 4, 9, 10]);

/**
 * For root: the owner of a data folder that an ordinary user made and uses, otherwise `posthorn`.
 * Refuses a folder in which another user could replace what root is about to create or to give away.
 */
export async function chooseUser(pgdata: string, log: Log): Promise<ServerUser> {
  if (process.getuid?.() !== 0) return undefined;
  const dataDir = dirname(pgdata);
  const link = await lstat(dataDir).catch(() => undefined);
  if (link?.isSymbolicLink() && link.uid !== 0) throw foreignLink(dataDir);
  const folder = await stat(dataDir).catch(() => undefined);
  const cluster = await lstat(pgdata).catch(() => undefined);
  const isForeign = folder !== undefined && folder.uid !== 0;
  if (isForeign && cluster?.isSymbolicLink()) throw foreignLink(pgdata);
  if (isForeign && cluster?.uid === folder.uid) {
    if (!sharedUsers.some((name) => idOf('-u', name) === cluster.uid))
      return { uid: cluster.uid, gid: cluster.gid };
    throw new OperatorError(
      `${dataDir} belongs to a user that other programs share (uid ${cluster.uid}), and root does not start PostgreSQL as that ` +
        `user. Start Posthorn as that user, or give the folder to root: chown root '${dataDir}'`,
    );
  }
  const user = await ensureUser('posthorn', log);
  if (!isForeign || folder.uid === user.uid || cluster?.uid === user.uid) return user;
  throw new OperatorError(
    `${dataDir} belongs to another user (uid ${folder.uid}), who could replace the database in it. ` +
      `Start Posthorn as that user, or give the folder to root: chown root '${dataDir}'`,
  );
}

/**
 * Two `useradd` at the same moment can both succeed, and give one name two ids. The file that is locked is the list of users, which
 * useradd replaces: whoever opens the new one finds the user in it.
 */
const addUnlessThere = 'if id -u "$0" >/dev/null 2>&1; then echo exists; else exec useradd "$@"; fi';
const oneAtATime = ['/etc/passwd', 'sh', '-c', addUnlessThere];

/** Creates the user when it is missing. Other processes may do the same at the same moment. */
export async function ensureUser(name: string, log: Log): Promise<{ uid: number; gid: number }> {
  const args = ['--system', '--no-create-home', '--shell', '/usr/sbin/nologin', name];
  let failure = '';
  for (let tries = 0; tries < lockedTries; tries += 1) {
    const [uid, gid] = [idOf('-u', name), idOf('-g', name)];
    if (uid && gid) return { uid, gid };
    const env = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' };
    const { status, stdout, stderr, error } = spawnSync('flock', [...oneAtATime, name, ...args], {
      encoding: 'utf8',
      env,
    });
    failure = error?.message ?? stderr.trim();
    if (status === 0 && stdout === '')
      log.warn(`created the system user ${name}, because PostgreSQL does not run as root`);
    else if (status !== 0 && !lostRaces.has(status ?? 0)) break;
    else await delay(100);
  }
  throw new OperatorError(
    `PostgreSQL does not run as root, and the system user ${name} could not be created: ${failure}\n` +
      `Create the user, then start Posthorn again: useradd ${args.join(' ')}\n` +
      'Or start Posthorn as an ordinary user.',
  );
}

function foreignLink(path: string): OperatorError {
  return new OperatorError(
    `${path} is a link that another user than root made, and root does not follow it. ` +
      'Set POSTHORN_DATA_DIR to the folder itself.',
  );
}

/** By the program `id`, which also knows directory services: macOS has its users there and not in /etc/passwd. */
function idOf(option: '-u' | '-g', name: string): number | undefined {
  const { status, stdout } = spawnSync('id', [option, name], { encoding: 'utf8' });
  return status === 0 ? Number(stdout) : undefined;
}

/** Asks the kernel, because file modes do not show access lists and mount options. */
export function passesTest(user: ServerUser, flag: '-x' | '-w', path: string): boolean {
  const asUser = { ...user, cwd: '/', stdio: 'ignore' } as const;
  return spawnSync('/bin/sh', ['-c', `test ${flag} "$1"`, 'sh', path], asUser).status === 0;
}
