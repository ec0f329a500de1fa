/** Logs in on both sides of an SMTP account, so that its owner learns what is wrong before mail waits. */
import { transaction } from '../db/client.ts';
import { describeServerError } from '../net/mail-server.ts';
import { type AccountRef, type AccountServers, isLate } from '../sending/account-servers.ts';
import { connectNow } from '../store/imap-connections.ts';
import { recordReceiveState } from '../store/smtp-accounts.ts';
import type { ImapFlow } from './imap-client.ts';
import { type LoginParts, logIn } from './login.ts';
import type { Verifications } from './verifications.ts';

export interface VerifyAccountParts extends LoginParts {
  accounts: AccountServers;
  verifications: Verifications;
}

/** The result is recorded in `send` and `receive` of the account. `signal`: of the place that the check has (`Verifications`). */
export async function verifyAccount(
  parts: Omit<VerifyAccountParts, 'verifications'>,
  ref: AccountRef,
  signal: AbortSignal,
): Promise<void> {
  await Promise.all([parts.accounts.check(ref, signal), checkImap(parts, ref, signal)]);
}

async function checkImap(parts: LoginParts, ref: AccountRef, signal: AbortSignal): Promise<void> {
  const found = await logIn({ ...parts, imap: { ...parts.imap, signal } }, ref);
  if (!found) return;
  const isIn = 'client' in found;
  // The client has gone: an end that we caused says nothing about the server.
  if (!isIn && signal.aborted && !isLate(signal)) return;
  const error = isIn ? null : isLate(signal) ? describeServerError('timeout') : found.error;
  const { ownerId, accountId } = ref;
  try {
    await transaction(parts.sql, async (sql) => {
      await recordReceiveState(sql, ownerId, accountId, error ? 'failing' : 'ok', error, found.version);
      if (!error) await connectNow(sql, ownerId, { accountId });
    });
  } finally {
    if (isIn) await leave(found.client, signal);
  }
}

/** A server that does not answer the logout is left at the end of the check. */
async function leave(client: ImapFlow, signal: AbortSignal): Promise<void> {
  const close = () => client.close();
  if (signal.aborted) return close();
  signal.addEventListener('abort', close, { once: true });
  await client.logout().catch(() => {});
  signal.removeEventListener('abort', close);
}
