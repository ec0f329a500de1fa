/**
 * Appends messages that left through an account to its Sent folder. Guarantees: a message is appended at most once; a copy that the
 * server refuses is logged, and changes nothing else.
 */
import type { Sql } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import { readWhole, type StoredRaw } from '../store/messages.ts';
import { findCopy, takeCopy } from '../store/sent-copies.ts';
import { ServerFailure } from './imap-failure.ts';
import type { AnswerMemory, MailboxClient } from './mailbox-client.ts';

interface CopyParts {
  sql: Sql;
  log: Log;
  memory: AnswerMemory;
}

/** `path`: null if the server keeps copies by itself, or has no Sent folder. */
export async function appendCopies(
  parts: CopyParts,
  client: MailboxClient,
  { ownerId, accountId }: { ownerId: string; accountId: string },
  path: string | null,
): Promise<void> {
  let copy = await findCopy(parts.sql, ownerId, accountId);
  while (copy) {
    await appendCopy(parts, client, copy, path);
    copy = await findCopy(parts.sql, ownerId, accountId);
  }
}

async function appendCopy(
  { sql, log, memory }: CopyParts,
  client: MailboxClient,
  copy: StoredRaw,
  path: string | null,
): Promise<void> {
  const { id, ownerId, size } = copy;
  using _share = await memory.take(size);
  const raw = path === null ? null : await readWhole(sql, copy);
  if (!(await takeCopy(sql, ownerId, id)) || raw === null || path === null) return;
  try {
    await client.append(path, raw);
  } catch (error) {
    if (!(error instanceof ServerFailure)) throw error;
    const { code, response } = error.error;
    log.warn({ messageId: id, code, response }, 'a sent message was not copied to the Sent folder');
    if (!error.isRefusal) throw error;
  }
}
