/** Logs in on both sides of an SMTP account, so that its owner learns what is wrong before mail waits. */
import { transaction } from '../db/client.ts';
import { describeServerError } from '../net/mail-server.ts';
import { Problem } from '../problems.ts';
import { type AccountRef, type AccountServers, isLate } from '../sending/account-servers.ts';
import { connectNow } from '../store/imap-connections.ts';
import { recordReceiveState } from '../store/smtp-accounts.ts';
import type { ImapConnection } from './imap-connection.ts';
import { ThreadFailure } from './imap-failure.ts';
import { type LoginParts, logIn } from './login.ts';

export interface VerifyAccountParts extends LoginParts {
  accounts: AccountServers;
}

/** Records the result in `send` and `receive` of the account. `signal`: from `Verifications.run`. */
export async function verifyAccount(
  parts: VerifyAccountParts,
  ref: AccountRef,
  signal: AbortSignal,
): Promise<void> {
  await Promise.all([parts.accounts.check(ref, signal), checkImap(parts, ref, signal)]);
}

async function checkImap(parts: LoginParts, ref: AccountRef, signal: AbortSignal): Promise<void> {
  const found = await logIn({ ...parts, imap: { ...parts.imap, signal } }, ref).catch(askAgain);
  if (!found) return;
  const isLoggedIn = 'client' in found;
  // The API client has gone. We ended the login ourselves, so the failure says nothing about the server.
  if (!isLoggedIn && signal.aborted && !isLate(signal)) return;
  const error = isLoggedIn ? null : isLate(signal) ? describeServerError('timeout') : found.error;
  const { ownerId, accountId } = ref;
  try {
    await transaction(parts.sql, async (sql) => {
      await recordReceiveState(sql, ownerId, accountId, error ? 'failing' : 'ok', error, found.version);
      if (!error) await connectNow(sql, ownerId, { accountId });
    });
  } finally {
    if (isLoggedIn) await logOut(found.client, signal);
  }
}

/** A thread of our own says nothing about the server. */
function askAgain(error: unknown): never {
  if (!(error instanceof ThreadFailure)) throw error;
  throw new Problem('verifications_busy', { headers: { 'retry-after': '5' }, cause: error });
}

/** If the server does not answer, `signal` closes the connection. */
async function logOut(client: ImapConnection, signal: AbortSignal): Promise<void> {
  const close = () => client.close();
  if (signal.aborted) return close();
  signal.addEventListener('abort', close, { once: true });
  await client.logOut();
  signal.removeEventListener('abort', close);
}
