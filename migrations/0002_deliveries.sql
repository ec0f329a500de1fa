-- Events, and their way to webhooks. The delivery row is the queue.

-- An immutable fact, kept whether or not anyone listened. data is json as it will be sent: written once, never read apart.
-- Rows of up to a page stay in one piece, because the hot path reads them once each.
create table events (
  id uuid primary key,
  owner_id uuid not null references users on delete cascade,
  event text not null,
  identity_id uuid,
  data json not null,
  test boolean not null default false,
  created_at timestamptz not null default now()
) with (toast_tuple_target = 8160);
create index events_by_owner on events (owner_id, created_at desc, id desc);

-- The id of a delivery follows from its event and webhook, so that its primary key also makes the pair unique, and begins
-- with the event's time (UUIDv7), so that keys grow at one end and retention is a range of them.
create function delivery_id(event_id uuid, webhook_id uuid) returns uuid
language sql immutable strict parallel safe
return (
  with hashed as (select encode(sha256(uuid_send(event_id) || uuid_send(webhook_id)), 'hex') as hash)
  select (substr(replace(event_id::text, '-', ''), 1, 12) || '7' || substr(hash, 1, 3) || '8' || substr(hash, 4, 15))::uuid
  from hashed
);

-- The lowest id that an event or delivery of that moment can have.
create function first_id_at(moment timestamptz) returns uuid
language sql immutable strict parallel safe
return rpad(lpad(to_hex((extract(epoch from moment) * 1000)::bigint), 12, '0'), 32, '0')::uuid;

-- A pending delivery is ready (may be tried now) or scheduled (for next_attempt_at). While a process tries it, it is still
-- ready, under that process's lease; an expired lease is claimable again. Taking and renewing a lease changes no indexed
-- column, so these updates stay within the heap page (HOT): hence the fillfactor.
-- No foreign keys here: each would cost a look-up for every delivery. Deliveries are made by one statement that joins events
-- and webhooks of one owner, and removed by the purge, which knows what they hang on.
create table deliveries (
  id uuid primary key,
  owner_id uuid not null,
  event_id uuid not null,
  webhook_id uuid not null,
  event text not null,
  status text not null default 'pending' check (status in ('pending', 'delivered', 'failed', 'cancelled')),
  ready boolean not null default true,
  -- Tries so far, and those since the schedule last began.
  attempt_count int not null default 0,
  tries int not null default 0,
  next_attempt_at timestamptz default now(),
  lease_token uuid,
  lease_until timestamptz,
  created_at timestamptz not null default now(),
  completed_at timestamptz,
  check (status = 'pending' or not ready)
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1);
create index deliveries_ready on deliveries (webhook_id, id) where ready;
create index deliveries_scheduled on deliveries (next_attempt_at) where status = 'pending' and not ready;
create index deliveries_by_webhook on deliveries (webhook_id, created_at desc, id desc);

-- One POST.
create table attempts (
  delivery_id uuid not null,
  id uuid not null,
  owner_id uuid not null,
  started_at timestamptz not null,
  duration_ms int not null,
  response_status int,
  response_headers json,
  response_body text,
  error text,
  primary key (delivery_id, id)
);

-- A request to send past events to a webhook again, worked through in batches from position on.
create table replays (
  id uuid primary key,
  owner_id uuid not null references users on delete cascade,
  webhook_id uuid not null,
  since timestamptz not null,
  until timestamptz not null,
  selection text not null check (selection in ('missing', 'failed', 'missing_or_failed', 'all')),
  position_at timestamptz not null,
  position_id uuid not null default '00000000-0000-0000-0000-000000000000',
  examined int not null default 0,
  queued int not null default 0,
  created_at timestamptz not null default now(),
  completed_at timestamptz
);
create index replays_open on replays (created_at) where completed_at is null;

alter table webhooks
  -- Set at once, so that it is gone from every answer; its deliveries and then the row go in the background.
  add column deleted_at timestamptz,
  -- Nothing but failure since then, and how many tries; null and 0 after a success.
  add column first_failure_at timestamptz,
  add column failed_tries int not null default 0;
create index webhooks_deleted on webhooks (deleted_at) where deleted_at is not null;
