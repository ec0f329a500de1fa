/**
 * A backup of the embedded PostgreSQL while it works, by PostgreSQL's own rules for one (`pg_backup_start`, copy the files,
 * `pg_backup_stop`, add the WAL in between), because `pg_basebackup` is not among the programs that come along.
 * Guarantee: whatever was committed before the copying ended is in it. The folder appears when it is whole and on disk, and
 * is a data folder like any other: a start on it recovers, as after a crash.
 */
import { randomBytes } from 'node:crypto';
import { constants, createWriteStream, type Dirent } from 'node:fs';
import { chmod, chown, lstat, mkdir, open, readdir, rename, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { pipeline } from 'node:stream/promises';
import type { Log } from '../../lib/log.ts';
import { OperatorError } from '../../lib/operator-error.ts';
import { only, openSession, type Session, type Sql } from '../client.ts';
import { codeOf, syncFolder } from './cluster.ts';
import { openEmbedded } from './open.ts';

export interface Backup {
  folder: string;
  files: number;
  bytes: number;
  /** Whether the key that opens its secrets lies in it. */
  hasKey: boolean;
}

interface Copying {
  files: number;
  bytes: number;
  /** Whose the copies are to be; set when we are root and PostgreSQL is not. */
  owner: { uid: number; gid: number } | null;
}

/** Kept as empty folders: PostgreSQL makes their contents anew, and the WAL that is needed is added afterwards. */
const emptied = new Set(
  'pg_dynshmem pg_notify pg_replslot pg_serial pg_snapshots pg_stat_tmp pg_subtrans pg_wal'.split(' '),
);
/** Of this server or this moment alone. */
const leftOut = /^(postmaster\.(pid|opts).*|server\.log|pgsql_tmp.*|pg_internal\.init.*|backup_label.*)$/;
const atOnce = 8;

export async function backUpEmbedded(options: {
  dataDir: string;
  to: string;
  /** Whether the service goes by the key that it made for itself, in the data folder. */
  usesKeyFile: boolean;
  log: Log;
}): Promise<Backup> {
  const { dataDir, to, usesKeyFile, log } = options;
  const pgdata = join(dataDir, 'postgres');
  await requireCluster(pgdata);
  await requireFreePlace(to, dataDir);
  const unfinished = `${to}.unfinished-${randomBytes(4).toString('hex')}`;
  const embedded = await openEmbedded({ dataDir, log, purpose: 'tool' });
  let session: Session | undefined;
  try {
    // One connection for the whole: a backup belongs to its session. Its checkpoint may take minutes.
    const patient = { applicationName: 'posthorn backup', statementTimeoutMs: 0 };
    session = await openSession(embedded.url, patient);
    // Nobody else may enter until it is whole: as root we hand its files to PostgreSQL's user one by one, who could put links
    // in their place.
    await mkdir(unfinished, { mode: 0o700 });
    try {
      const copying: Copying = { files: 0, bytes: 0, owner: await findOwner(pgdata) };
      await copyCluster(session.sql, pgdata, join(unfinished, 'postgres'), copying);
      const hasKey = usesKeyFile && (await copyKey(dataDir, unfinished, copying));
      await chmod(unfinished, 0o755);
      await syncFolder(unfinished);
      await rename(unfinished, to);
      await syncFolder(dirname(to));
      return { folder: to, files: copying.files, bytes: copying.bytes, hasKey };
    } catch (error) {
      await rm(unfinished, { recursive: true, force: true });
      throw error;
    }
  } catch (error) {
    if (!isOfThePlace(error)) throw error;
    throw new OperatorError(
      `The backup to ${to} was given up: ${error.message}.\nMake room or choose another place; nothing was left there.`,
      { cause: error },
    );
  } finally {
    await session?.end();
    await embedded.stop();
  }
}

const placeFaults = new Set(['ENOENT', 'EACCES', 'EPERM', 'EROFS', 'ENOSPC', 'EDQUOT', 'ENAMETOOLONG']);

/** Not a defect of ours: the operator chose where the backup goes, and as whom. */
function isOfThePlace(error: unknown): error is Error {
  return placeFaults.has(codeOf(error) ?? '');
}

async function copyCluster(sql: Sql, pgdata: string, target: string, copying: Copying): Promise<void> {
  // Of this session and gone with it: until then PostgreSQL keeps the WAL that is written from here on.
  const slot = `posthorn_backup_${randomBytes(6).toString('hex')}`;
  await sql`select pg_create_physical_replication_slot(${slot}, true, true)`;
  const { first } = only(
    await sql<{ first: string }[]>`select pg_walfile_name(pg_backup_start('posthorn backup', true)) as first`,
  );
  await copyFolder(pgdata, target, copying, (name) => !leftOut.test(name));
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

/** The files of one folder, a few at once. Returns the names of those that were still there. */
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
  const copiers = await Promise.allSettled(Array.from({ length: atOnce }, copyInTurn));
  for (const copier of copiers) if (copier.status === 'rejected') throw copier.reason;
  await syncFolder(to);
  return copied;
}

/**
 * As far as it goes at this moment; the WAL mends what changes meanwhile. False when the file is gone: a table was dropped.
 * By streams: `fs.copyFile` (libuv) never ends on a file that is cut short under it. Not through a link: the folder
 * belongs to an unprivileged user, and we may be root.
 */
async function copyFile(from: string, to: string, copying: Copying): Promise<boolean> {
  const source = await open(from, constants.O_RDONLY | constants.O_NOFOLLOW).catch((error) => {
    if (codeOf(error) === 'ENOENT') return undefined;
    throw error;
  });
  if (!source) return false;
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
    `${join(folder, link.name)} is a link, which a backup does not follow. Stop Posthorn and copy the folder with your own tools.`,
  );
}

async function copyKey(dataDir: string, unfinished: string, copying: Copying): Promise<boolean> {
  const from = join(dataDir, 'secret.key');
  const found = await lstat(from).catch(() => undefined);
  if (!found) return false;
  const owner = copying.owner && { uid: found.uid, gid: found.gid };
  return copyFile(from, join(unfinished, 'secret.key'), { ...copying, owner });
}

async function findOwner(pgdata: string): Promise<Copying['owner']> {
  if (process.getuid?.() !== 0) return null;
  const { uid, gid } = await stat(pgdata);
  return { uid, gid };
}

/** Else an empty database would be made, and a mistyped folder would be backed up with success. */
async function requireCluster(pgdata: string): Promise<void> {
  if (await lstat(join(pgdata, 'PG_VERSION')).catch(() => undefined)) return;
  throw new OperatorError(
    `There is no database in ${pgdata}. Set POSTHORN_DATA_DIR to the folder of the service.`,
  );
}

async function requireFreePlace(to: string, dataDir: string): Promise<void> {
  if (!relative(dataDir, to).startsWith('..'))
    throw new OperatorError(
      `A backup cannot lie in the folder that it is made of. Choose one outside ${dataDir}.`,
    );
  // Not made here: a disk that is not mounted would be told as a backup on it.
  const parent = dirname(to);
  await stat(parent).catch((cause) => {
    const next = 'Make it, or mount what belongs there, and try again.';
    const told = cause.code === 'ENOENT' ? `There is no folder ${parent}. ${next}` : `${cause.message}.`;
    throw new OperatorError(told, { cause });
  });
  const found = await readdir(to).catch((error) => {
    if (codeOf(error) === 'ENOENT') return [];
    throw new OperatorError(`${to} cannot be written: ${error.message}.`, { cause: error });
  });
  if (found.length > 0) throw new OperatorError(`${to} is not empty. Name a folder that is not there yet.`);
}
