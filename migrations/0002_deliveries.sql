-- Events, and their deliveries to webhooks. The table of deliveries is the queue.

-- An event never changes, and is kept also if no webhook is subscribed to it. data is JSON as it will be sent: no query reads its fields.
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

-- A pending delivery is ready (may be tried now) or scheduled (for next_attempt_at). While a process tries a delivery, the delivery
-- stays ready and has a lease of that process; when the lease expires, any process can claim the delivery. Taking and renewing a
-- lease changes no indexed column, so these updates stay within the heap page (HOT): this is why fillfactor is low.
-- No foreign keys here: each would cost a lookup for every delivery. One statement, which joins the events and webhooks of one
-- owner, creates deliveries; the purge, which knows their event and webhook, deletes them.
create table deliveries (
  id uuid primary key,
  owner_id uuid not null,
  event_id uuid not null,
  webhook_id uuid not null,
  event text not null,
  status text not null default 'pending' check (status in ('pending', 'delivered', 'failed', 'cancelled')),
  ready boolean not null default true,
  -- attempt_count: all recorded tries. tries: the recorded tries since the retry schedule last started.
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

-- One recorded try, which is one POST.
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
  -- Set by DELETE: every response leaves the webhook out from then on. The purge deletes its deliveries, and then the row.
  add column deleted_at timestamptz,
  -- Every try since first_failure_at failed, and failed_tries is their number. Null and 0 after a success.
  add column first_failure_at timestamptz,
  add column failed_tries int not null default 0;
create index webhooks_deleted on webhooks (deleted_at) where deleted_at is not null;
