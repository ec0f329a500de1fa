/**
 * Responses stored under an Idempotency-Key. Guarantee: a response is stored in the transaction of its request's effect, so a
 * crash keeps both or neither.
 */
import { only, type Sql } from '../db/client.ts';

export interface IdempotencyScope {
  ownerId: string;
  path: string;
  key: string;
}

/** After this time the process of a request in progress is assumed to be dead. */
const inProgressSeconds = 60;

export interface StoredResponse {
  requestHash: Buffer;
  status: number;
  location: string | null;
  body: Buffer;
}

/** Locks the key until the transaction ends; false if another request has the lock. */
export async function lockKey(sql: Sql, { ownerId, path, key }: IdempotencyScope): Promise<boolean> {
  const name = `${ownerId} ${path} ${key}`;
  const row = only(
    await sql<{ isLocked: boolean }[]>`
    select pg_try_advisory_xact_lock(hashtextextended(${name}, 0)) as "isLocked"`,
  );
  return row.isLocked;
}

export async function findResponse(
  sql: Sql,
  { ownerId, path, key }: IdempotencyScope,
): Promise<StoredResponse | { requestHash: Buffer; status: null } | undefined> {
  const [row] = await sql<StoredResponse[]>`
    select request_hash as "requestHash", status, location, body
    from idempotency_records
    where owner_id = ${ownerId} and path = ${path} and key = ${key} and created_at > now() -
      case when status is null then ${inProgressSeconds} * interval '1 second' else interval '24 hours' end`;
  return row;
}

/** For requests that work outside a transaction: commit this before the work starts. */
export async function markInProgress(
  sql: Sql,
  { ownerId, path, key }: IdempotencyScope,
  requestHash: Buffer,
): Promise<void> {
  await sql`
    insert into idempotency_records (owner_id, path, key, request_hash)
    values (${ownerId}, ${path}, ${key}, ${requestHash})
    on conflict (owner_id, path, key) do update set
      request_hash = excluded.request_hash, status = null, location = null, body = null, created_at = now()`;
}

/** While the work goes on. */
export async function renewInProgress(sql: Sql, { ownerId, path, key }: IdempotencyScope): Promise<void> {
  await sql`
    update idempotency_records set created_at = now()
    where owner_id = ${ownerId} and path = ${path} and key = ${key} and status is null`;
}

/** After a failure, so that the request can be repeated at once. */
export async function clearInProgress(sql: Sql, { ownerId, path, key }: IdempotencyScope): Promise<void> {
  await sql`
    delete from idempotency_records
    where owner_id = ${ownerId} and path = ${path} and key = ${key} and status is null`;
}

export async function saveResponse(
  sql: Sql,
  { ownerId, path, key }: IdempotencyScope,
  response: StoredResponse,
): Promise<void> {
  await sql`
    insert into idempotency_records (owner_id, path, key, request_hash, status, location, body)
    values (${ownerId}, ${path}, ${key}, ${response.requestHash}, ${response.status}, ${response.location}, ${response.body})
    on conflict (owner_id, path, key) do update set
      request_hash = excluded.request_hash, status = excluded.status, location = excluded.location,
      body = excluded.body, created_at = now()`;
}

/** Deletes a batch of responses older than a day; true if there may be more. */
export async function purgeResponses(sql: Sql, batch = 1000): Promise<boolean> {
  const purged = await sql`
    delete from idempotency_records where ctid = any(array(
      select ctid from idempotency_records where created_at < now() - interval '24 hours'
      order by created_at limit ${batch} for update skip locked))`;
  return purged.count === batch;
}
