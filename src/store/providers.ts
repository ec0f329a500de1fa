/** Providers: services that an identity's mail comes from or goes through. Credentials and hook secrets are encrypted. */
import { only, type Sql, transaction } from '../db/client.ts';
import { assignments } from '../db/sql.ts';
import type { Sealer } from '../lib/secrets.ts';
import type { ServerError } from '../net/mail-server.ts';
import { collectPage, type Listed, type Page, type PageRequest, pageOf, position } from './page.ts';
import type { ServerState } from './smtp-accounts.ts';

export const providerKinds = ['ses', 'mailgun', 'postmark', 'sendgrid'] as const;
export type ProviderKind = (typeof providerKinds)[number];

export interface Provider {
  id: string;
  ownerId: string;
  kind: ProviderKind;
  name: string | null;
  /** Encrypted: the secret in the path of its hooks. */
  hookSecret: Buffer;
  send: ServerState;
  createdAt: string;
  updatedAt: string;
}

function columns(sql: Sql) {
  return sql`
    id, owner_id as "ownerId", kind, name, hook_secret as "hookSecret",
    json_build_object('state', state, 'checkedAt', iso_time(checked_at), 'error', error) as send,
    iso_time(created_at) as "createdAt", iso_time(updated_at) as "updatedAt"`;
}

export interface PostmarkCredentials {
  serverToken: string;
  /** What Postmark must send with each call, beside the secret in the URL. */
  basicAuth?: { username: string; password: string };
}
export interface MailgunCredentials {
  username: string;
  password: string;
  signingKey: string;
  region: 'us' | 'eu';
}
export interface SendgridCredentials {
  apiKey: string;
  /** Of signed events; also of Inbound Parse, unless `inboundVerificationKey` is set. */
  verificationKey: string;
  inboundVerificationKey?: string;
}
export interface SesCredentials {
  username: string;
  password: string;
  region: string;
  topicArn: string;
}

export type Credentials =
  | ({ kind: 'postmark' } & PostmarkCredentials)
  | ({ kind: 'mailgun' } & MailgunCredentials)
  | ({ kind: 'sendgrid' } & SendgridCredentials)
  | ({ kind: 'ses' } & SesCredentials);

/** The context that a value of this column is encrypted with. */
export function providerContext(providerId: string, column: string): string {
  return `provider ${providerId} ${column}`;
}

export interface NewProvider {
  id: string;
  kind: ProviderKind;
  name: string | null;
  /** Encrypted. */
  credentials: Buffer;
  hookSecret: Buffer;
  hookHash: Buffer;
}

export async function createProvider(sql: Sql, ownerId: string, given: NewProvider): Promise<Provider> {
  const rows = await sql<Provider[]>`
    insert into providers (id, owner_id, kind, name, credentials, hook_secret, hook_hash)
    values (${given.id}, ${ownerId}, ${given.kind}, ${given.name}, ${given.credentials}, ${given.hookSecret}, ${given.hookHash})
    returning ${columns(sql)}`;
  return only(rows);
}

export async function listProviders(
  sql: Sql,
  ownerId: string,
  page: PageRequest,
): Promise<Page<Listed<Provider>>> {
  return collectPage(
    page,
    (step) => sql<Listed<Provider>[]>`
      select ${columns(sql)}, ${position(sql)} from providers where owner_id = ${ownerId} ${pageOf(sql, step)}`,
  );
}

export async function findProvider(sql: Sql, ownerId: string, id: string): Promise<Provider | undefined> {
  const [row] = await sql<Provider[]>`
    select ${columns(sql)} from providers where owner_id = ${ownerId} and id = ${id}`;
  return row;
}

export interface ProviderChanges {
  name?: string | null;
  /** Encrypted. */
  credentials?: Buffer;
}

export async function updateProvider(
  sql: Sql,
  ownerId: string,
  id: string,
  changes: ProviderChanges,
): Promise<Provider | undefined> {
  if (Object.keys(changes).length === 0) return findProvider(sql, ownerId, id);
  // Nobody has logged in with the new credentials.
  const unknown = changes.credentials
    ? sql`, version = version + 1, state = 'unknown', checked_at = null, error = null`
    : sql``;
  const [row] = await sql<Provider[]>`
    update providers set ${assignments({ ...changes })}, updated_at = now() ${unknown}
    where owner_id = ${ownerId} and id = ${id} returning ${columns(sql)}`;
  return row;
}

/** Deletes the provider, or returns the identities that refer to it. Undefined: no such provider. */
export function deleteProvider(
  sql: Sql,
  ownerId: string,
  id: string,
): Promise<{ usedBy: string[] } | undefined> {
  return transaction(sql, async (sql) => {
    // The lock keeps an identity that is being saved from referring to it.
    const [row] = await sql`select from providers where owner_id = ${ownerId} and id = ${id} for update`;
    if (!row) return undefined;
    const users = await sql<{ value: string }[]>`
      select value from identities where owner_id = ${ownerId} and provider_id = ${id} order by created_at, id limit 20`;
    if (users.length === 0) await sql`delete from providers where owner_id = ${ownerId} and id = ${id}`;
    return { usedBy: users.map(({ value }) => value) };
  });
}

/** A provider with its encrypted credentials. */
export interface SealedProvider {
  id: string;
  ownerId: string;
  kind: ProviderKind;
  credentials: Buffer;
}

/** With its credentials, for a connection. Undefined: no such provider. */
export async function findProviderLogin(
  sql: Sql,
  sealer: Sealer,
  ownerId: string,
  id: string,
): Promise<{ credentials: Credentials; version: number } | undefined> {
  const [row] = await sql<(SealedProvider & { version: number })[]>`
    select id, owner_id as "ownerId", kind, credentials, version from providers
    where owner_id = ${ownerId} and id = ${id}`;
  return row && { credentials: openCredentials(sealer, row), version: row.version };
}

/** How sending through the provider went. `version`: of the credentials that were used; others are left alone. */
export async function recordProviderState(
  sql: Sql,
  ownerId: string,
  id: string,
  error: ServerError | null,
  version: number,
): Promise<void> {
  await sql`
    update providers
    set state = ${error ? 'failing' : 'ok'}, checked_at = now(), error = ${error && JSON.stringify(error)}::text::json
    where owner_id = ${ownerId} and id = ${id} and version = ${version}`;
}

export function openCredentials(sealer: Sealer, { id, kind, credentials }: SealedProvider): Credentials {
  return { ...JSON.parse(sealer.open(credentials, providerContext(id, 'credentials'))), kind };
}

/** Not by owner: the secret in the path of the hook is the permission, and it finds the owner. */
export async function findHookProvider(sql: Sql, hookHash: Buffer): Promise<SealedProvider | undefined> {
  const [row] = await sql<SealedProvider[]>`
    select id, owner_id as "ownerId", kind, credentials from providers where hook_hash = ${hookHash}`;
  return row;
}

/**
 * Stores the key of a call in the transaction of what the call does. False: the call was taken before. A call that is being taken at
 * the same moment is waited for.
 */
export async function recordCall(
  sql: Sql,
  { ownerId, id }: Pick<SealedProvider, 'ownerId' | 'id'>,
  callKey: string,
): Promise<boolean> {
  const made = await sql`
    insert into provider_calls (owner_id, provider_id, call_key) values (${ownerId}, ${id}, ${callKey})
    on conflict do nothing`;
  return made.count > 0;
}

export async function isTakenCall(
  sql: Sql,
  { ownerId, id }: Pick<SealedProvider, 'ownerId' | 'id'>,
  callKey: string,
): Promise<boolean> {
  const found = await sql`
    select from provider_calls where owner_id = ${ownerId} and provider_id = ${id} and call_key = ${callKey}`;
  return found.count > 0;
}
