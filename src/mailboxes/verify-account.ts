/** Logs in on both sides of an SMTP account, so that its owner learns what is wrong before mail waits. */
import type { AccountRef, AccountServers } from '../sending/account-servers.ts';
import { recordReceiveState } from '../store/smtp-accounts.ts';
import { type LoginParts, logIn } from './login.ts';

export interface VerifyAccountParts extends LoginParts {
  accounts: AccountServers;
}

/** The result is recorded in `send` and `receive` of the account. */
export async function verifyAccount(
  parts: VerifyAccountParts,
  ref: AccountRef,
  signal: AbortSignal,
): Promise<void> {
  await Promise.all([parts.accounts.check(ref, signal), checkImap(parts, ref, signal)]);
}

async function checkImap(parts: VerifyAccountParts, ref: AccountRef, signal: AbortSignal): Promise<void> {
  const found = await logIn({ ...parts, imap: { ...parts.imap, signal } }, ref);
  if (!found || signal.aborted) return;
  const error = 'error' in found ? found.error : null;
  if ('client' in found) await found.client.logout().catch(() => {});
  const { ownerId, accountId } = ref;
  await recordReceiveState(parts.sql, ownerId, accountId, error ? 'failing' : 'ok', error, found.version);
}
