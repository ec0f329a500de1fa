/** The replies when mail cannot be stored now, for every listener: all are 4xx, so that the client keeps its mail and tries again. */
import { errorCode, isUnavailable } from '../db/client.ts';
import { Problem } from '../problems.ts';
import { type Refusal, refusal } from './reply.ts';

const diskFull = '53100';

const storageUnavailable = refusal(
  451,
  '4.3.0',
  'Mail cannot be stored right now; please try again later',
  'database_unavailable',
);
const overloaded = refusal(
  451,
  '4.3.2',
  'Too many large messages right now; please try again later',
  'overloaded',
);
const storageFull = refusal(452, '4.3.1', 'The mail storage is full; please try again later', 'disk_full');

/** Null for any other error. */
export function findStorageRefusal(error: unknown): Refusal | null {
  if (errorCode(error) === diskFull) return storageFull;
  if (isUnavailable(error)) return storageUnavailable;
  return error instanceof Problem && error.code === 'overloaded' ? overloaded : null;
}
