/** Connects to the IMAP server of an SMTP account, with the login that the user stored. */
import type { Sql } from '../db/client.ts';
import type { Sealer } from '../lib/secrets.ts';
import type { AccessTokens } from '../net/access-tokens.ts';
import type { MailServer, ServerError } from '../net/mail-server.ts';
import { findMailServer, readTokensFrom } from '../store/smtp-accounts.ts';
import type { ImapConnection } from './imap-connection.ts';
import { type ImapParts, openImap } from './open-imap.ts';

export interface LoginParts {
  sql: Sql;
  sealer: Sealer;
  tokens: AccessTokens;
  imap: ImapParts;
}

type LoggedIn = { version: number; server: MailServer } & (
  | { client: ImapConnection }
  | { error: ServerError }
);

/** Undefined: the account has no `imap`. */
export async function logIn(
  { sql, sealer, tokens, imap }: LoginParts,
  { ownerId, accountId }: { ownerId: string; accountId: string },
): Promise<LoggedIn | undefined> {
  const ref = { ownerId, accountId, side: 'imap' } as const;
  const found = await findMailServer(sql, sealer, ref);
  if (!found) return undefined;
  const { server, version } = found;
  const source = readTokensFrom(sql, sealer, ref, version);
  const answer = 'password' in server.login ? server.login : await tokens.take(source);
  if ('error' in answer) return { ...found, error: answer.error };
  const login = 'password' in answer ? answer : { accessToken: answer.token };
  const opened = await openImap(ownerId, server, login, imap);
  if ('client' in opened) return { ...found, ...opened };
  // The token may have been revoked before its end.
  if (opened.error.code === 'authentication_failed') tokens.forget(source.key);
  return { ...found, error: opened.error };
}
