/**
 * Online backup of the embedded PostgreSQL: `pg_backup_start`, copy the files, `pg_backup_stop`, add the WAL in between.
 * `pg_basebackup` is not among the bundled programs. Guarantees: the backup has all that was committed before the copying
 * ended; the folder appears when it is complete and on disk; a start on the folder recovers as after a crash.
 */
import { randomBytes } from 'node:crypto';
import { constants, createWriteStream, type Dirent } from 'node:fs';
import { chown, lstat, mkdir, open, readdir, rename, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { pipeline } from 'node:stream/promises';
import type { Log } from '../../lib/log.ts';
import { OperatorError } from '../../lib/operator-error.ts';
import { findOwners, ownedFileFlags, requireOwner } from '../../lib/owned-file.ts';
import { pinnedPath } from '../../lib/pinned-path.ts';
import { type DedicatedConnection, errorCode, only, openDedicated, type Sql } from '../client.ts';
import { syncFolder } from './cluster.ts';
import { openEmbedded } from './open.ts';

export interface Backup {
  folder: string;
  files: number;
  bytes: number;
  hasKey: boolean;
}

interface Copying {
  files: number;
  bytes: number;
  /** Owner of the files and of their copies; null unless this process is root. */
  owner: { uid: number; gid: number } | null;
}

/** Copied as empty folders: PostgreSQL creates their contents again. The WAL that is needed is added afterwards. */
const emptied = new Set(
  'pg_dynshmem pg_notify pg_replslot pg_serial pg_snapshots pg_stat_tmp pg_subtrans pg_wal'.split(' '),
);
/** Files of the running server. */
const skipped =
  /^(postmaster\.(pid|opts).*|\.s\.PGSQL\..*|server\.log|pgsql_tmp.*|pg_internal\.init.*|backup_label.*)$/;
const parallelCopies = 8;
/** Errors that the operator can fix with another folder, user or disk. */
const targetErrors = ['ENOENT', 'EACCES', 'EPERM', 'EROFS', 'ENOSPC', 'EDQUOT', 'ENAMETOOLONG'];

export async function backUpEmbedded(options: {
  dataDir: string;
  to: string;
  usesKeyFile: boolean;
  log: Log;
}): Promise<Backup> {
  const { dataDir, to, usesKeyFile, log } = options;
  const pgdata = join(dataDir, 'postgres');
  await requireCluster(pgdata);
  await requireFreeTarget(to, dataDir);
  const unfinished = `${to}.unfinished-${randomBytes(4).toString('hex')}`;
  const embedded = await openEmbedded({ dataDir, log, purpose: 'tool' });
  let connection: DedicatedConnection | undefined;
  try {
    // A backup belongs to its session. The checkpoint may take minutes, so there is no statement timeout.
    const options = { applicationName: 'posthorn backup', statementTimeoutMs: 0 };
    connection = await openDedicated(() => embedded.address, options);
    // 0700 until it is complete: root gives the files to PostgreSQL's user one by one, and that user could replace them by links.
    await mkdir(unfinished, { mode: 0o700 });
    const folder = await open(unfinished, constants.O_DIRECTORY | constants.O_NOFOLLOW);
    try {
      const target = pinnedPath(folder, unfinished);
      const copying: Copying = { files: 0, bytes: 0, owner: await findOwner(pgdata) };
      await copyCluster(connection.sql, pgdata, join(target, 'postgres'), copying);
      const hasKey = usesKeyFile && (await copyKey(dataDir, target, copying));
      await folder.chmod(0o755);
      await folder.sync();
      await rename(unfinished, to);
      await syncFolder(dirname(to));
      return { folder: to, files: copying.files, bytes: copying.bytes, hasKey };
    } catch (error) {
      await rm(unfinished, { recursive: true, force: true });
      throw error;
    } finally {
      await folder.close();
    }
  } catch (error) {
    if (!(error instanceof Error) || !targetErrors.includes(errorCode(error) ?? '')) throw error;
    throw new OperatorError(
      `The backup to ${to} failed: ${error.message}.\n` +
        'Free some space or choose another folder. The incomplete backup was removed.',
      { cause: error },
    );
  } finally {
    await connection?.end();
    await embedded.stop();
  }
}

async function copyCluster(sql: Sql, pgdata: string, target: string, copying: Copying): Promise<void> {
  // A temporary slot: until the session ends, PostgreSQL keeps all WAL that is written from now on.
  const slot = `posthorn_backup_${randomBytes(6).toString('hex')}`;
  await sql`select pg_create_physical_replication_slot(${slot}, true, true)`;
  const { first } = only(
    await sql<{ first: string }[]>`select pg_walfile_name(pg_backup_start('posthorn backup', true)) as first`,
  );
  await copyFolder(pgdata, target, copying, (name) => !skipped.test(name));
  const { label, last } = only(
    await sql<{ label: string; last: string }[]>`
      select labelfile as label, pg_walfile_name(lsn - 1) as last from pg_backup_stop(false)`,
  );
  const wal = (name: string) =>
    name.endsWith('.history') || (name >= first && name <= last && name.length === 24);
  const copied = await copyFiles(join(pgdata, 'pg_wal'), join(target, 'pg_wal'), copying, wal);
  if (!copied.includes(first) || !copied.includes(last))
    throw new Error(`PostgreSQL no longer has the WAL from ${first} to ${last}`);
  await writeFile(join(target, 'backup_label'), label, { mode: 0o600, flush: true, flag: 'wx' });
  if (copying.owner) await chown(join(target, 'backup_label'), copying.owner.uid, copying.owner.gid);
  await syncFolder(target);
}

async function copyFolder(
  from: string,
  to: string,
  copying: Copying,
  wanted: (name: string) => boolean,
): Promise<void> {
  await mkdir(to, { mode: 0o700 });
  if (copying.owner) await chown(to, copying.owner.uid, copying.owner.gid);
  await copyFiles(from, to, copying, wanted);
  for (const entry of await listFolder(from)) {
    if (!entry.isDirectory() || !wanted(entry.name)) continue;
    const isEmptied = emptied.has(entry.name);
    await copyFolder(join(from, entry.name), join(to, entry.name), copying, isEmptied ? () => false : wanted);
  }
}

/** Returns the names of the files that still existed. */
async function copyFiles(
  from: string,
  to: string,
  copying: Copying,
  wanted: (name: string) => boolean,
): Promise<string[]> {
  const names = (await listFolder(from)).filter((entry) => entry.isFile() && wanted(entry.name));
  const copied: string[] = [];
  const copyInTurn = async () => {
    for (let entry = names.pop(); entry; entry = names.pop()) {
      const { name } = entry;
      if (await copyFile(join(from, name), join(to, name), copying)) copied.push(name);
    }
  };
  const copiers = await Promise.allSettled(Array.from({ length: parallelCopies }, copyInTurn));
  for (const copier of copiers) if (copier.status === 'rejected') throw copier.reason;
  await syncFolder(to);
  return copied;
}

/**
 * The WAL repairs what changes during the copy. False when the file no longer exists because its table was dropped.
 * Streams, because `fs.copyFile` (libuv) never ends when the file is truncated meanwhile. The owner is checked,
 * because the folder belongs to an unprivileged user, and this process may be root.
 */
async function copyFile(from: string, to: string, copying: Copying): Promise<boolean> {
  const source = await open(from, ownedFileFlags).catch((error) => {
    if (errorCode(error) === 'ENOENT') return undefined;
    throw error;
  });
  if (!source) return false;
  try {
    if (copying.owner) requireOwner(from, await source.stat(), [copying.owner.uid]);
  } catch (error) {
    await source.close();
    throw error;
  }
  const target = createWriteStream(to, { flags: 'wx', mode: 0o600, flush: true });
  await pipeline(source.createReadStream({ highWaterMark: 1 << 20 }), target);
  if (copying.owner) await chown(to, copying.owner.uid, copying.owner.gid);
  copying.files += 1;
  copying.bytes += target.bytesWritten;
  return true;
}

async function listFolder(folder: string): Promise<Dirent[]> {
  const entries = await readdir(folder, { withFileTypes: true });
  const link = entries.find((entry) => entry.isSymbolicLink());
  if (!link) return entries;
  throw new OperatorError(
    `${join(folder, link.name)} is a symbolic link, and a backup does not follow links. ` +
      'Stop Posthorn and copy the folder with your own tools.',
  );
}

async function copyKey(dataDir: string, target: string, copying: Copying): Promise<boolean> {
  const from = join(dataDir, 'secret.key');
  const found = await lstat(from).catch(() => undefined);
  if (!found) return false;
  const owners = findOwners(dataDir);
  if (owners) requireOwner(from, found, owners);
  const owner = copying.owner && { uid: found.uid, gid: found.gid };
  return copyFile(from, join(target, 'secret.key'), { ...copying, owner });
}

async function findOwner(pgdata: string): Promise<Copying['owner']> {
  if (process.getuid?.() !== 0) return null;
  const { uid, gid } = await stat(pgdata);
  return { uid, gid };
}

/** Without this check a mistyped folder would become a backup of a new, empty database. */
async function requireCluster(pgdata: string): Promise<void> {
  if (await lstat(join(pgdata, 'PG_VERSION')).catch(() => undefined)) return;
  throw new OperatorError(
    `${pgdata} contains no database. Set POSTHORN_DATA_DIR to the data folder of the service.`,
  );
}

async function requireFreeTarget(to: string, dataDir: string): Promise<void> {
  if (!relative(dataDir, to).startsWith('..'))
    throw new OperatorError(
      `The backup folder is inside the data folder. Choose a folder outside ${dataDir}.`,
    );
  // Not created: the backup of a disk that is not mounted would go to the wrong disk.
  const parent = dirname(to);
  await stat(parent).catch((cause) => {
    const isMissing = errorCode(cause) === 'ENOENT';
    const advice = 'Create the folder or mount its disk, then run the backup again.';
    const message = isMissing ? `The folder ${parent} does not exist. ${advice}` : `${cause.message}.`;
    throw new OperatorError(message, { cause });
  });
  const found = await readdir(to).catch((error) => {
    if (errorCode(error) === 'ENOENT') return [];
    throw new OperatorError(`Posthorn cannot write to ${to}: ${error.message}.`, { cause: error });
  });
  if (found.length > 0)
    throw new OperatorError(`${to} is not empty. Choose a folder that does not exist yet.`);
}
