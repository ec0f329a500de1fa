/** Logs in on both sides of an SMTP account, so that its owner learns what is wrong before mail waits. */
import type { Sql } from '../db/client.ts';
import type { Sealer } from '../lib/secrets.ts';
import type { AccessTokens } from '../net/access-tokens.ts';
import type { ServerError } from '../net/mail-server.ts';
import type { AccountRef, AccountServers } from '../sending/account-servers.ts';
import { findMailServer, readTokensFrom, recordReceiveState } from '../store/smtp-accounts.ts';
import { type ImapParts, openImap } from './imap-client.ts';

export interface VerifyAccountParts {
  sql: Sql;
  sealer: Sealer;
  tokens: AccessTokens;
  accounts: AccountServers;
  imap: ImapParts;
}

/** The result is recorded in `send` and `receive` of the account. */
export async function verifyAccount(
  parts: VerifyAccountParts,
  ref: AccountRef,
  signal: AbortSignal,
): Promise<void> {
  await Promise.all([parts.accounts.check(ref, signal), checkImap(parts, ref)]);
}

async function checkImap(parts: VerifyAccountParts, ref: AccountRef): Promise<void> {
  const { sql, sealer, tokens } = parts;
  const found = await findMailServer(sql, sealer, { ...ref, side: 'imap' });
  if (!found) return;
  const { server, version } = found;
  const record = (error: ServerError | null) =>
    recordReceiveState(sql, ref.ownerId, ref.accountId, error ? 'failing' : 'ok', error, version);
  const source = readTokensFrom(sql, sealer, { ...ref, side: 'imap' }, version);
  const answer = 'password' in server.login ? server.login : await tokens.take(source);
  if ('error' in answer) return record(answer.error);
  const login = 'password' in answer ? answer : { accessToken: answer.token };
  const opened = await openImap(server, login, parts.imap);
  if ('error' in opened) {
    // The token may have been revoked before its end.
    if (opened.error.code === 'authentication_failed') tokens.forget(source.key);
    return record(opened.error);
  }
  await opened.client.logout().catch(() => {});
  return record(null);
}
