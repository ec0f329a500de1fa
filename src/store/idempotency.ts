/**
 * Answers kept under an Idempotency-Key. A record is written in the transaction of the effect it stands for: both
 * are there or neither, whatever crashes in between.
 */
import { only, type Sql } from '../db/client.ts';

export interface IdempotencyScope {
  ownerId: string;
  path: string;
  key: string;
}

/** How long a request whose process may have died is still taken to be under way. */
const underWaySeconds = 60;

export interface StoredResponse {
  requestHash: Buffer;
  status: number;
  location: string | null;
  body: Buffer;
}

/** Holds the key until the transaction ends; false while another request holds it. */
export async function lockKey(sql: Sql, { ownerId, path, key }: IdempotencyScope): Promise<boolean> {
  const name = `${ownerId} ${path} ${key}`;
  const row = only(
    await sql<{ held: boolean }[]>`
    select pg_try_advisory_xact_lock(hashtextextended(${name}, 0)) as held`,
  );
  return row.held;
}

export async function findResponse(
  sql: Sql,
  { ownerId, path, key }: IdempotencyScope,
): Promise<StoredResponse | { requestHash: Buffer; status: null } | undefined> {
  const [row] = await sql<StoredResponse[]>`
    select request_hash as "requestHash", status, location, body
    from idempotency_records
    where owner_id = ${ownerId} and path = ${path} and key = ${key} and created_at > now() -
      case when status is null then ${underWaySeconds} * interval '1 second' else interval '24 hours' end`;
  return row;
}

/** For all to see, once committed: a request with this key is under way, and no transaction is open for it. */
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

/** It came to nothing, so that it can be sent again at once. */
export async function clearInProgress(sql: Sql, { ownerId, path, key }: IdempotencyScope): Promise<void> {
  await sql`
    delete from idempotency_records
    where owner_id = ${ownerId} and path = ${path} and key = ${key} and status is null`;
}

export async function saveResponse(
  sql: Sql,
  { ownerId, path, key }: IdempotencyScope,
  answer: StoredResponse,
): Promise<void> {
  await sql`
    insert into idempotency_records (owner_id, path, key, request_hash, status, location, body)
    values (${ownerId}, ${path}, ${key}, ${answer.requestHash}, ${answer.status}, ${answer.location}, ${answer.body})
    on conflict (owner_id, path, key) do update set
      request_hash = excluded.request_hash, status = excluded.status, location = excluded.location,
      body = excluded.body, created_at = now()`;
}

/** Removes a batch of records past their day; true when there may be more. */
export async function purgeResponses(sql: Sql, batch = 1000): Promise<boolean> {
  const purged = await sql`
    delete from idempotency_records where ctid = any(array(
      select ctid from idempotency_records where created_at < now() - interval '24 hours'
      order by created_at limit ${batch} for update skip locked))`;
  return purged.count === batch;
}
