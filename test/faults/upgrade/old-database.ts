/**
 * A database as version 0.1.0 (schema 11) left it, filled by SQL: messages with their bytes, events, deliveries that ended with
 * their attempts, and deliveries that wait. Nothing here may follow later versions of the schema.
 */
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import type { Pool, Sql } from '../../../src/db/client.ts';
import { describeApiKey, hashApiKey, makeApiKey } from '../../../src/lib/api-key.ts';
import { newId, newPublicId } from '../../../src/lib/ids.ts';
import type { Sealer } from '../../../src/lib/secrets.ts';
import { makeSecret, secretContext } from '../../../src/webhooks/secret.ts';
import { root } from '../../programs.ts';
import { mailTemplate, storedEvent, storedSummary } from './old-mail.ts';

const lastOldMigration = 11;
const ownerCount = 4;
const days = 20;
const batch = 5000;

/** How the deliveries of a webhook wait. `ended`: all of them were delivered or given up. */
const kinds = ['ended', 'ready', 'scheduled', 'leased', 'held'] as const;
type Kind = (typeof kinds)[number];

interface OldWebhook {
  id: string;
  kind: Kind;
  /** Of its URL. */
  path: string;
}

export interface OldOwner {
  id: string;
  apiKey: string;
  address: string;
  identityId: string;
  webhooks: OldWebhook[];
}

interface Filling {
  messages: number;
  waiting: number;
  sealer: Sealer;
  /** Of the receiver, without a path. */
  url: string;
  log(line: string): void;
}

export async function fillOldDatabase(sql: Pool, filling: Filling): Promise<OldOwner[]> {
  await migrateToOld(sql);
  await sql.script(makeIdFunction);
  const owners: OldOwner[] = [];
  for (let n = 1; n <= ownerCount; n += 1) owners.push(await addOwner(sql, n, filling));
  const messages = Math.ceil(filling.messages / ownerCount);
  const waitingKinds = kinds.length - 1;
  const waiting = Math.min(messages, Math.ceil(filling.waiting / ownerCount / waitingKinds));
  for (let first = 1; first <= messages; first += batch) {
    for (const owner of owners) {
      const range = { first, last: Math.min(first + batch - 1, messages), messages };
      await addMessages(sql, owner, range);
      await addEnded(sql, owner, range);
    }
    if (first % (10 * batch) === 1)
      filling.log(`filling: ${(first - 1) * ownerCount} of ${filling.messages} messages`);
  }
  for (const owner of owners) await addWaiting(sql, owner, waiting);
  await sql.script('drop table numbers; drop function old_id; analyze');
  return owners;
}

async function migrateToOld(sql: Pool): Promise<void> {
  await sql`
    create table schema_migrations (version int primary key, name text not null, applied_at timestamptz not null default now())`;
  const folder = path.join(root, 'migrations');
  for (const name of readdirSync(folder).sort()) {
    const version = Number(name.slice(0, 4));
    if (version > lastOldMigration) continue;
    await sql.begin((sql) => sql.script(readFileSync(path.join(folder, name), 'utf8')));
    await sql`insert into schema_migrations (version, name) values (${version}, ${name})`;
  }
}

/** UUIDs of version 7 for a moment; and the numbers of the messages, to find their rows by. */
const makeIdFunction = `
  create function old_id(kind text, owner uuid, n int, moment timestamptz) returns uuid
  language sql immutable parallel safe return (
    with hashed as (select md5(kind || owner || n) as hash)
    select (lpad(to_hex((extract(epoch from moment) * 1000)::bigint), 12, '0')
      || '7' || substr(hash, 1, 3) || '8' || substr(hash, 4, 15))::uuid
    from hashed
  );
  create unlogged table numbers (owner_id uuid, n int, id uuid, event_id uuid, moment timestamptz, primary key (owner_id, n))`;

export async function addUser(sql: Pool, name: string): Promise<{ id: string; apiKey: string }> {
  const id = newId();
  await sql`insert into users (id, email) values (${id}, ${`${name}@users.example`})`;
  const apiKey = makeApiKey();
  const { prefix, suffix } = describeApiKey(apiKey);
  // Not by `createApiKey`, which writes a column that the old schema does not have.
  await sql`
    insert into api_keys (id, owner_id, key_hash, prefix, suffix)
    values (${newId()}, ${id}, ${hashApiKey(apiKey)}, ${prefix}, ${suffix})`;
  return { id, apiKey };
}

async function addOwner(sql: Pool, number: number, { sealer, url }: Filling): Promise<OldOwner> {
  const { id, apiKey } = await addUser(sql, `owner${number}`);
  const [identityId, address] = [newId(), `inbox${number}@upgrade.example`];
  await sql`
    insert into identities (id, owner_id, kind, public_id, value, value_key)
    values (${identityId}, ${id}, 'email', ${newPublicId()}, ${address}, ${address})`;
  for (const kind of ['inbox', 'sent', 'spam', 'trash'])
    await sql`
      insert into mailboxes (id, owner_id, identity_id, kind) values (${newId()}, ${id}, ${identityId}, ${kind})`;
  const webhooks: OldWebhook[] = [];
  for (const kind of kinds) {
    const webhook = { id: newId(), kind, path: `/${number}/${kind}` };
    await sql`
      insert into webhooks (id, owner_id, url, events, enabled, secret)
      values (${webhook.id}, ${id}, ${`${url}${webhook.path}`}, '{message.received}', ${kind !== 'held'},
        ${sealer.seal(makeSecret(), secretContext(webhook.id))})`;
    webhooks.push(webhook);
  }
  return { id, apiKey, address, identityId, webhooks };
}

interface Range {
  first: number;
  last: number;
  /** Of the owner, in all. */
  messages: number;
}

/** «word» becomes a place of PostgreSQL's format(). */
function toFormat(template: string): string {
  const places = [
    'number',
    'words',
    'address',
    'id',
    'identity',
    'publicId',
    'mailbox',
    'thread',
    'receivedAt',
  ];
  const all = [...places, 'size', 'sha256'];
  return template
    .replaceAll('%', '%%')
    .replaceAll(/«(\w+)»/g, (_, place: string) => `%${all.indexOf(place) + 1}$s`);
}

/** Every hundredth message has the bytes of the message before it. The fifth has more than a row of bytes takes. */
async function addMessages(sql: Sql, owner: OldOwner, { first, last, messages }: Range): Promise<void> {
  const places = sql`lpad(number::text, 8, '0'), words, ${owner.address}::text, id, ${owner.identityId}::text, public_id,
    mailbox_id, thread_id, iso_time(moment), octet_length(raw), encode(sha256(raw), 'hex')`;
  await sql`
    with given as materialized (
      select n, moment, old_id('message', owner_id, n, moment) as id, old_id('event', owner_id, n, moment) as event_id,
        case when n % 100 = 0 then n - 1 else n end as number
      from generate_series(${first}::int, ${last}::int) n, (values (${owner.id}::uuid)) as owners (owner_id), lateral (
        select date_trunc('milliseconds', now() - interval '1 hour' - (${messages}::int - n)::float8 / ${messages}::int
          * interval '1 day' * ${days}::int) as moment
      ) moments
    ), worded as materialized (
      select given.*, public_id, mailboxes.id as mailbox_id, words,
        md5('thread' || number || ${owner.id}::text)::uuid as thread_id
      from given
      join identities on identities.id = ${owner.identityId}
      join mailboxes on mailboxes.identity_id = identities.id and mailboxes.kind = 'inbox'
      cross join lateral (
        select string_agg(md5(number::text || k), ' ') as words from generate_series(1, 24) k
      ) worded
    ), written as materialized (
      select *, convert_to(format(${toFormat(mailTemplate)}, lpad(number::text, 8, '0'), words, ${owner.address}::text)
        || case when n = 5 then repeat('A line of a large message.' || chr(13) || chr(10), 50000) else '' end, 'utf8') as raw
      from worded
    ), composed as materialized (
      select *, format(${toFormat(storedEvent)}, ${places}) as data, format(${toFormat(storedSummary)}, ${places}) as summary,
        coalesce((select id from given before where before.n = written.number), id) as raw_id
      from written
    ), kept as (
      insert into raw_chunks (raw_id, n, owner_id, bytes)
      select id, k, ${owner.id}, substring(raw from k * 1048576 + 1 for 1048576)
      from composed, generate_series(0, (octet_length(raw) - 1) / 1048576) k where raw_id = id
    ), happened as (
      insert into events (id, owner_id, event, identity_id, data, bytes, message_id, inline_raw_id, created_at)
      select event_id, ${owner.id}, 'message.received', ${owner.identityId}, data::json, octet_length(data) + octet_length(raw),
        id, case when octet_length(raw) <= 1048576 then raw_id end, moment
      from composed
    ), numbered as (
      insert into numbers (owner_id, n, id, event_id, moment) select ${owner.id}, n, id, event_id, moment from composed
    )
    insert into messages (id, owner_id, identity_id, event_id, raw_id, size, sha256, thread_id, summary, message_key,
      repeat_key, received_on, created_at)
    select id, ${owner.id}, ${owner.identityId}, event_id, raw_id, octet_length(raw), sha256(raw), thread_id, summary::json,
      md5('message' || number)::uuid, md5('repeat' || n)::uuid, (moment at time zone 'utc')::date, moment
    from composed`;
}

/** One delivery for each message: delivered at the first try, and one in fifty given up after two. */
async function addEnded(sql: Sql, owner: OldOwner, { first, last }: Range): Promise<void> {
  const webhookId = findWebhook(owner, 'ended');
  await sql`
    with ended as materialized (
      select delivery_id(event_id, ${webhookId}) as id, event_id, moment, n, case when n % 50 = 0 then 2 else 1 end as tries
      from numbers where owner_id = ${owner.id} and n between ${first} and ${last}
    ), tried as (
      insert into attempts (delivery_id, id, owner_id, started_at, duration_ms, response_status, response_headers,
        response_body, error, error_detail)
      select id, old_id('attempt' || k, ${owner.id}, n, moment + k * interval '1 second'), ${owner.id},
        moment + k * interval '1 second', n % 100, case when tries = 1 then 200 else 500 end,
        '{"content-type":"text/plain","content-length":"2"}', 'ok', case when tries > 1 then 'http_error' end,
        case when tries > 1 then 'HTTP 500' end
      from ended, generate_series(1, tries) k
    )
    insert into deliveries (id, owner_id, event_id, webhook_id, event, status, ready, attempt_count, tries, next_attempt_at,
      created_at, completed_at)
    select id, ${owner.id}, event_id, ${webhookId}, 'message.received', case when tries = 1 then 'delivered' else 'failed' end,
      false, tries, tries, null, moment, moment + tries * interval '1 second'
    from ended`;
}

/** The newest messages wait for each of the other webhooks. A scheduled delivery has failed once. */
async function addWaiting(sql: Sql, owner: OldOwner, count: number): Promise<void> {
  for (const { id: webhookId, kind } of owner.webhooks) {
    if (kind === 'ended') continue;
    await sql`
      with waiting as materialized (
        select delivery_id(event_id, ${webhookId}) as id, event_id, moment, n
        from numbers where owner_id = ${owner.id} order by n desc limit ${count}
      ), tried as (
        insert into attempts (delivery_id, id, owner_id, started_at, duration_ms, error, error_detail)
        select id, old_id('attempt', ${owner.id}, n, moment), ${owner.id}, moment, 3, 'connection_refused',
          'ECONNREFUSED 127.0.0.1:4000'
        from waiting where ${kind === 'scheduled'}
      )
      insert into deliveries (id, owner_id, event_id, webhook_id, event, ready, attempt_count, tries, next_attempt_at,
        lease_token, lease_until, created_at)
      select id, ${owner.id}, event_id, ${webhookId}, 'message.received', ${kind === 'ready' || kind === 'leased'},
        ${kind === 'scheduled' ? 1 : 0}::int, ${kind === 'scheduled' ? 1 : 0}::int,
        ${nextAttempt(sql, kind)}, ${kind === 'leased' ? sql`gen_random_uuid()` : sql`null::uuid`},
        ${kind === 'leased' ? sql`now() - interval '1 second'` : sql`null::timestamptz`}, moment
      from waiting`;
  }
}

/** Scheduled deliveries become due one after another, while the upgrade and the start go on. */
function nextAttempt(sql: Sql, kind: Kind) {
  if (kind === 'held') return sql`timestamptz 'infinity'`;
  return kind === 'scheduled' ? sql`now() + n % 30 * interval '1 second'` : sql`moment`;
}

function findWebhook({ webhooks }: OldOwner, wanted: Kind): string {
  return webhooks.find(({ kind }) => kind === wanted)?.id ?? '';
}
