/** Connects to the IMAP server of an SMTP account, with the login that the user stored. */
import type { Sql } from '../db/client.ts';
import type { Sealer } from '../lib/secrets.ts';
import type { AccessTokens } from '../net/access-tokens.ts';
import { type HideSecrets, hideSecrets } from '../net/hide-secrets.ts';
import { hideInError, type MailServer, type ServerError } from '../net/mail-server.ts';
import { findMailServer, readTokensFrom } from '../store/smtp-accounts.ts';
import { type ImapFlow, type ImapParts, openImap } from './imap-client.ts';

export interface LoginParts {
  sql: Sql;
  sealer: Sealer;
  tokens: AccessTokens;
  imap: ImapParts;
}

type ImapLogin = { version: number; server: MailServer } & (
  | { client: ImapFlow /** For what the server says later. */; hide: HideSecrets }
  | { error: ServerError }
);

/** Undefined: the account has no `imap`. */
export async function logIn(
  { sql, sealer, tokens, imap }: LoginParts,
  { ownerId, accountId }: { ownerId: string; accountId: string },
): Promise<ImapLogin | undefined> {
  const ref = { ownerId, accountId, side: 'imap' } as const;
  const found = await findMailServer(sql, sealer, ref);
  if (!found) return undefined;
  const { server, version } = found;
  const source = readTokensFrom(sql, sealer, ref, version);
  const answer = 'password' in server.login ? server.login : await tokens.take(source);
  if ('error' in answer) return { ...found, error: answer.error };
  const login = 'password' in answer ? answer : { accessToken: answer.token };
  const opened = await openImap(server, login, imap);
  const hide = hideSecrets(Object.values(login));
  if ('client' in opened) return { ...found, ...opened, hide };
  // The token may have been revoked before its end.
  if (opened.error.code === 'authentication_failed') tokens.forget(source.key);
  return { ...found, error: hideInError(opened.error, hide) };
}
