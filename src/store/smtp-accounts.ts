/**
 * SMTP accounts: the servers elsewhere that a user's mail leaves through (`smtp`) and arrives from (`imap`). Guarantee: passwords,
 * client secrets and tokens are stored encrypted, and only `findMailServer` decrypts them.
 */
import { type Sql, transaction } from '../db/client.ts';
import type { Fragment } from '../db/sql.ts';
import type { Sealer } from '../lib/secrets.ts';
import type { TokenSource } from '../net/access-tokens.ts';
import type { MailServer, ServerError } from '../net/mail-server.ts';
import { connectNow } from './imap-connections.ts';
import { collectPage, type Listed, type Page, type PageRequest, pageOf, position } from './page.ts';
import { lockUser } from './users.ts';

export type ServerSide = 'smtp' | 'imap';

export const serverStates = ['unknown', 'ok', 'failing'] as const;

export interface ServerState {
  state: (typeof serverStates)[number];
  checkedAt: string | null;
  error: ServerError | null;
}

/** A server without its secrets. */
interface ShownServer {
  host: string;
  port: number;
  secure: boolean;
  username: string;
  /** Null: the login is a password. */
  oauth2: { clientId: string; tokenUrl: string; scope: string | null } | null;
}

export interface SmtpAccount {
  id: string;
  ownerId: string;
  label: string;
  smtp: ShownServer;
  imap: ShownServer | null;
  send: ServerState;
  receive: ServerState;
  createdAt: string;
  updatedAt: string;
}

export interface ServerRef {
  ownerId: string;
  accountId: string;
  side: ServerSide;
}

/** The context that the secrets of a server are encrypted with. */
export function serverContext(accountId: string, side: string): string {
  return `mail server ${accountId} ${side}`;
}

function columns(sql: Sql) {
  const ofServer = (side: ServerSide, value: Fragment) => sql`(
    select ${value} from mail_servers server
    where server.owner_id = smtp_accounts.owner_id and server.account_id = smtp_accounts.id and server.side = ${side})`;
  const shown = sql`json_build_object('host', host, 'port', port, 'secure', secure, 'username', username, 'oauth2', oauth2)`;
  const state = sql`json_build_object('state', state, 'checkedAt', iso_time(checked_at), 'error', error)`;
  const unknown = sql`json_build_object('state', 'unknown', 'checkedAt', null, 'error', null)`;
  return sql`
    id, owner_id as "ownerId", label, ${ofServer('smtp', shown)} as smtp, ${ofServer('imap', shown)} as imap,
    ${ofServer('smtp', state)} as send, coalesce(${ofServer('imap', state)}, ${unknown}) as receive,
    iso_time(created_at) as "createdAt", iso_time(updated_at) as "updatedAt"`;
}

export interface NewSmtpAccount {
  id: string;
  label: string;
  smtp: MailServer;
  imap: MailServer | null;
}

/** Undefined if the owner has `maxAccounts` already. */
export function createSmtpAccount(
  sql: Sql,
  sealer: Sealer,
  ownerId: string,
  { id, label, smtp, imap }: NewSmtpAccount,
  maxAccounts: number,
): Promise<SmtpAccount | undefined> {
  return transaction(sql, async (sql) => {
    // Statements that run at the same moment do not see each other's rows.
    await lockUser(sql, ownerId);
    const { count } = await sql`
      insert into smtp_accounts (id, owner_id, label)
      select ${id}::uuid, ${ownerId}::uuid, ${label}
      where (select count(*) from smtp_accounts where owner_id = ${ownerId}) < ${maxAccounts}`;
    if (count === 0) return undefined;
    await saveServer(sql, sealer, { ownerId, accountId: id, side: 'smtp' }, smtp);
    if (imap) await saveServer(sql, sealer, { ownerId, accountId: id, side: 'imap' }, imap);
    return findSmtpAccount(sql, ownerId, id);
  });
}

export function listSmtpAccounts(
  sql: Sql,
  ownerId: string,
  page: PageRequest,
): Promise<Page<Listed<SmtpAccount>>> {
  return collectPage(
    page,
    (step) => sql<Listed<SmtpAccount>[]>`
      select ${columns(sql)}, ${position(sql)} from smtp_accounts where owner_id = ${ownerId} ${pageOf(sql, step)}`,
  );
}

export async function findSmtpAccount(
  sql: Sql,
  ownerId: string,
  id: string,
): Promise<SmtpAccount | undefined> {
  const [row] = await sql<SmtpAccount[]>`
    select ${columns(sql)} from smtp_accounts where owner_id = ${ownerId} and id = ${id}`;
  return row;
}

export interface SmtpAccountChanges {
  label?: string;
  smtp?: MailServer;
  /** Null removes it. */
  imap?: MailServer | null;
}

/** Within a transaction that locked the user: what the changes were made from must not change meanwhile. */
export async function updateSmtpAccount(
  sql: Sql,
  sealer: Sealer,
  ownerId: string,
  id: string,
  { label, smtp, imap }: SmtpAccountChanges,
): Promise<SmtpAccount | undefined> {
  const ref = { ownerId, accountId: id };
  if (smtp) await saveServer(sql, sealer, { ...ref, side: 'smtp' }, smtp);
  if (imap) await saveServer(sql, sealer, { ...ref, side: 'imap' }, imap);
  if (imap === null)
    await sql`delete from mail_servers where owner_id = ${ownerId} and account_id = ${id} and side = 'imap'`;
  await sql`
    update smtp_accounts set label = coalesce(${label ?? null}, label), updated_at = now()
    where owner_id = ${ownerId} and id = ${id}`;
  return findSmtpAccount(sql, ownerId, id);
}

/** Deletes the account, or returns the identities that refer to it. Undefined: no such account. */
export function deleteSmtpAccount(
  sql: Sql,
  ownerId: string,
  id: string,
): Promise<{ usedBy: string[] } | undefined> {
  return transaction(sql, async (sql) => {
    await lockUser(sql, ownerId);
    const found = await sql`select from smtp_accounts where owner_id = ${ownerId} and id = ${id}`;
    if (found.count === 0) return undefined;
    const usedBy = await listAccountUsers(sql, ownerId, id);
    if (usedBy.length === 0) await sql`delete from smtp_accounts where owner_id = ${ownerId} and id = ${id}`;
    return { usedBy: usedBy.map(({ value }) => value) };
  });
}

/** The identities that refer to the account, the oldest first. */
export async function listAccountUsers(
  sql: Sql,
  ownerId: string,
  accountId: string,
): Promise<{ id: string; kind: 'email' | 'domain'; value: string }[]> {
  return sql<{ id: string; kind: 'email' | 'domain'; value: string }[]>`
    select id, kind, value from identities
    where owner_id = ${ownerId} and smtp_account_id = ${accountId} order by created_at, id`;
}

/**
 * Another address that refers to the account, if the account has `imap`: two identities would both get the mail of one mailbox. Locks
 * the user until the transaction ends, so that two addresses cannot refer to it at the same moment.
 */
export async function findRival(
  sql: Sql,
  ownerId: string,
  accountId: string,
  identityId: string,
): Promise<string | undefined> {
  await lockUser(sql, ownerId);
  const [row] = await sql<{ value: string }[]>`
    select value from identities
    where owner_id = ${ownerId} and smtp_account_id = ${accountId} and kind = 'email' and id <> ${identityId}
      and exists (
        select from mail_servers
        where mail_servers.owner_id = identities.owner_id and account_id = smtp_account_id and side = 'imap')
    limit 1`;
  return row?.value;
}

/** A server with its secrets, for a connection. */
export interface OpenedServer {
  server: MailServer;
  /** Changes when the user changes the server, and not when a token is renewed. */
  version: number;
}

/** Undefined: no such account, or it has no such side. */
export async function findMailServer(
  sql: Sql,
  sealer: Sealer,
  { ownerId, accountId, side }: ServerRef,
): Promise<OpenedServer | undefined> {
  const [row] = await sql<(ShownServer & { secret: Buffer; version: number })[]>`
    select host, port, secure, username, oauth2, secret, version from mail_servers
    where owner_id = ${ownerId} and account_id = ${accountId} and side = ${side}`;
  if (!row) return undefined;
  const { secret, version, oauth2, ...server } = row;
  const opened = JSON.parse(sealer.open(secret, serverContext(accountId, side)));
  const login = oauth2 ? { oauth2: { ...oauth2, ...(opened as SealedTokens) } } : (opened as SealedPassword);
  return { server: { ...server, login }, version };
}

interface SealedPassword {
  password: string;
}
interface SealedTokens {
  clientSecret: string | null;
  refreshToken: string;
}

/**
 * The state becomes unknown: nobody has logged in with these values. The first version is random: a side that was removed and is given
 * again is another server, and neither connections nor access tokens of the first one may be used for it.
 */
async function saveServer(
  sql: Sql,
  sealer: Sealer,
  { ownerId, accountId, side }: ServerRef,
  { host, port, secure, username, login }: MailServer,
): Promise<void> {
  const { shown, secret } = splitLogin(login);
  const sealed = sealer.seal(JSON.stringify(secret), serverContext(accountId, side));
  await sql`
    insert into mail_servers (owner_id, account_id, side, host, port, secure, username, oauth2, secret, version)
    values (${ownerId}, ${accountId}, ${side}, ${host}, ${port}, ${secure}, ${username},
      ${shown && JSON.stringify(shown)}::text::json, ${sealed}, floor(random() * 1e9))
    on conflict (account_id, side, owner_id) do update
    set host = excluded.host, port = excluded.port, secure = excluded.secure, username = excluded.username,
      oauth2 = excluded.oauth2, secret = excluded.secret, version = mail_servers.version + 1,
      state = 'unknown', checked_at = null, error = null`;
  if (side === 'imap') await connectNow(sql, ownerId, { accountId });
}

function splitLogin(login: MailServer['login']): {
  shown: ShownServer['oauth2'];
  secret: SealedPassword | SealedTokens;
} {
  if ('password' in login) return { shown: null, secret: { password: login.password } };
  const { clientId, tokenUrl, scope, clientSecret, refreshToken } = login.oauth2;
  return { shown: { clientId, tokenUrl, scope }, secret: { clientSecret, refreshToken } };
}

/** For `AccessTokens`. `version`: of the server that the token is for. */
export function readTokensFrom(sql: Sql, sealer: Sealer, ref: ServerRef, version: number): TokenSource {
  return {
    key: `${ref.accountId} ${ref.side} ${version}`,
    async read() {
      const found = await findMailServer(sql, sealer, ref);
      return found && found.version === version && 'oauth2' in found.server.login
        ? found.server.login.oauth2
        : null;
    },
    save: (old, renewed) => replaceRefreshToken(sql, sealer, ref, old, renewed),
  };
}

/**
 * Stores the refresh token that a token server gave in exchange for `old`. Does nothing if the stored token is another one: the user
 * changed it, or another process renewed it.
 */
export function replaceRefreshToken(
  sql: Sql,
  sealer: Sealer,
  { ownerId, accountId, side }: ServerRef,
  old: string,
  renewed: string,
): Promise<void> {
  return transaction(sql, async (sql) => {
    const isServer = sql`owner_id = ${ownerId} and account_id = ${accountId} and side = ${side}`;
    const [row] = await sql<{ secret: Buffer }[]>`
      select secret from mail_servers where ${isServer} and oauth2 is not null for update`;
    if (!row) return;
    const context = serverContext(accountId, side);
    const tokens: SealedTokens = JSON.parse(sealer.open(row.secret, context));
    if (tokens.refreshToken !== old) return;
    const sealed = sealer.seal(JSON.stringify({ ...tokens, refreshToken: renewed }), context);
    await sql`update mail_servers set secret = ${sealed} where ${isServer}`;
  });
}

/** How sending through the account went. `version`: of the server that was called; another one is left alone. */
export async function recordSendState(
  sql: Sql,
  ownerId: string,
  accountId: string,
  state: 'ok' | 'failing',
  error: ServerError | null,
  version?: number,
): Promise<void> {
  await recordState(sql, { ownerId, accountId, side: 'smtp' }, { state, error, version });
}

/** How receiving through the account went. `version`: of the server that was called; another one is left alone. */
export async function recordReceiveState(
  sql: Sql,
  ownerId: string,
  accountId: string,
  state: 'ok' | 'failing',
  error: ServerError | null,
  version?: number,
): Promise<void> {
  await recordState(sql, { ownerId, accountId, side: 'imap' }, { state, error, version });
}

async function recordState(
  sql: Sql,
  { ownerId, accountId, side }: ServerRef,
  given: { state: 'ok' | 'failing'; error: ServerError | null; version: number | undefined },
): Promise<void> {
  const { state, error, version = null } = given;
  await sql`
    update mail_servers
    set state = ${state}, checked_at = now(), error = ${error && JSON.stringify(error)}::text::json
    where owner_id = ${ownerId} and account_id = ${accountId} and side = ${side}
      and version = coalesce(${version}::int, version)`;
}
