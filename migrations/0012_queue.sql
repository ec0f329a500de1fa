-- Stops older processes: they know neither the queue nor where the content of a message is now.
-- Blocks for a few seconds. The rows of older messages change afterwards, in the background (src/store/change-over.ts).

-- Deliveries that have not ended. A delivery is ready (may be tried now) or scheduled (for next_attempt_at). While a process tries a
-- delivery, the delivery stays ready and has a lease of that process; when the lease expires, any process can claim it. Taking and
-- renewing a lease changes no indexed column, so these updates stay within the heap page (HOT): this is why fillfactor is low.
-- A row is deleted when its delivery ends: the table stays small, whatever the retention is.
-- No foreign keys: each would cost a lookup for every delivery. One statement, which joins the events and webhooks of one owner,
-- creates deliveries; the purge, which knows their event and webhook, deletes them.
create table delivery_queue (
  id uuid primary key,
  owner_id uuid not null,
  webhook_id uuid not null,
  event_id uuid not null,
  event text not null,
  ready boolean not null default true,
  -- attempt_count: all recorded tries. tries: the recorded tries since the retry schedule last started.
  attempt_count int not null default 0,
  tries int not null default 0,
  next_attempt_at timestamptz not null default now(),
  lease_token uuid,
  lease_until timestamptz,
  created_at timestamptz not null default now()
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

insert into delivery_queue (id, owner_id, webhook_id, event_id, event, ready, attempt_count, tries, next_attempt_at, lease_token,
  lease_until, created_at)
select id, owner_id, webhook_id, event_id, event, ready, attempt_count, tries, coalesce(next_attempt_at, now()), lease_token,
  lease_until, created_at
from deliveries where ready
union all
select id, owner_id, webhook_id, event_id, event, ready, attempt_count, tries, coalesce(next_attempt_at, now()), lease_token,
  lease_until, created_at
from deliveries where status = 'pending' and not ready;
delete from deliveries where ready or status = 'pending' and not ready;

create index delivery_queue_ready on delivery_queue (owner_id, webhook_id, id) where ready;
create index delivery_queue_scheduled on delivery_queue (next_attempt_at) where not ready;
create index delivery_queue_held on delivery_queue (webhook_id, id) where next_attempt_at = 'infinity';
create index delivery_queue_listed on delivery_queue (owner_id, webhook_id, event, created_at, id);
analyze delivery_queue;

-- Deliveries that have ended, written once. The last attempt is part of the row; the attempts before it are in
-- earlier_attempts.
alter table deliveries rename to ended_deliveries;
drop index deliveries_ready, deliveries_scheduled, deliveries_held;
alter index deliveries_pkey rename to ended_deliveries_pkey;
alter index deliveries_by_event_and_status rename to ended_deliveries_listed;
alter table ended_deliveries
  drop constraint deliveries_status_check,
  drop column ready,
  drop column tries,
  drop column next_attempt_at,
  drop column lease_token,
  drop column lease_until,
  alter column status drop default,
  alter column attempt_count drop default,
  add check (status in ('delivered', 'failed', 'cancelled')) not valid,
  -- Null where the last attempt is in earlier_attempts, as older versions stored it, and where there was none.
  add column attempt_id uuid,
  add column started_at timestamptz,
  add column duration_ms int,
  add column response_status int,
  add column response_headers json,
  add column response_body text,
  add column error text,
  add column error_detail text,
  set (fillfactor = 100);

alter table attempts rename to earlier_attempts;
alter index attempts_pkey rename to earlier_attempts_pkey;

-- Deliveries and attempts, whichever of the two tables they are in.
create view deliveries as
  select id, owner_id, event_id, webhook_id, event, 'pending' as status, attempt_count, next_attempt_at, created_at,
    null::timestamptz as completed_at
  from delivery_queue
  union all
  select id, owner_id, event_id, webhook_id, event, status, attempt_count, null, created_at, completed_at
  from ended_deliveries;
create view attempts as
  select delivery_id, id, owner_id, started_at, duration_ms, response_status, response_headers, response_body, error, error_detail
  from earlier_attempts
  union all
  select id, attempt_id, owner_id, started_at, duration_ms, response_status, response_headers, response_body, error, error_detail
  from ended_deliveries where attempt_id is not null;

-- The same result as before, in one expression that PostgreSQL puts into the query: as a function with a WITH clause it cost more
-- than the insert of the delivery.
create or replace function delivery_id(event_id uuid, webhook_id uuid) returns uuid
language sql immutable strict parallel safe
return (substr(replace(event_id::text, '-', ''), 1, 12)
  || overlay('7' || substr(encode(sha256(uuid_send(event_id) || uuid_send(webhook_id)), 'hex'), 1, 18) placing '8' from 5 for 0))::uuid;

-- The content of a message is a part of the message, because a message may have several events, or none.
alter table messages
  -- Compressed by zstd: the raw bytes, if raw_id is null, and then the message as JSON. Null: an older version stored the message as
  -- the data of the event event_id.
  add column content bytea,
  alter column content set storage external,
  -- Null: the raw bytes are in `content`. Larger ones, and those that several messages share, are in raw_chunks.
  alter column raw_id drop not null,
  -- Null except where content is null.
  alter column event_id drop not null;

alter table raw_chunks add column is_compressed boolean not null default false;

alter table events
  -- Null: the event is about a message, and its data is the content of the message.
  alter column data drop not null,
  -- The raw message is a part of the request body. (Older versions: inline_raw_id is not null.)
  add column is_inline boolean not null default false,
  -- The transaction that created the event. In the order of (xact, id), nothing appears behind what all can see: ids are made before
  -- the commit. 0: events of older versions, which are in the order of their ids.
  add column xact xid8 not null default '0',
  -- A lookup, and a lock of the row of the user, for every event.
  drop constraint events_owner_id_fkey;
alter table events alter column xact set default pg_current_xact_id();
-- src/db/large-indexes.ts has the indexes of events, messages and ended deliveries.

-- How far the change of older rows has come. No row: all are changed.
create table change_over (
  is_only boolean primary key default true check (is_only),
  position uuid not null,
  changed bigint not null default 0,
  -- The last of the older messages.
  until uuid not null
);
insert into change_over (position, until)
select '00000000-0000-0000-0000-000000000000', id from messages order by id desc limit 1;
