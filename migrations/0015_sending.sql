-- Mail that goes out. A message, its recipients and their rows in the queue are created in one transaction, before the answer.

alter table messages
  add column direction text not null default 'incoming',
  add constraint messages_direction_check check (direction in ('incoming', 'outgoing')) not valid;

-- What a message that goes out has more than others. The row is also the lock of all that changes while the message is sent.
create table outgoing (
  -- Of the message.
  id uuid not null,
  owner_id uuid not null,
  identity_id uuid not null,
  -- The API key that it was made with: a key with the scope `send` sees only its own messages.
  key_id uuid,
  transport text not null,
  send_at timestamptz,
  metadata json,
  -- What a server must offer.
  eight_bit boolean not null,
  smtp_utf8 boolean not null,
  -- Of the message as lists show it, for the size of events.
  summary_bytes int not null,
  -- How many recipients have each status. Added up and not counted anew, so that two servers which answer at the same moment
  -- cannot make the status of the message wrong.
  queued smallint not null default 0,
  sent smallint not null default 0,
  delivered smallint not null default 0,
  bounced smallint not null default 0,
  suppressed smallint not null default 0,
  cancelled smallint not null default 0,
  status text not null generated always as (
    case
      when queued > 0 then 'queued'
      when bounced + suppressed + cancelled = 0 then case when sent > 0 then 'sent' else 'delivered' end
      when sent + delivered + suppressed + cancelled = 0 then 'bounced'
      when sent + delivered + bounced + cancelled = 0 then 'suppressed'
      when sent + delivered + bounced + suppressed = 0 then 'cancelled'
      else 'mixed'
    end
  ) stored,
  -- When the last recipient ended: the retention starts here.
  ended_at timestamptz,
  created_at timestamptz not null default now()
) with (fillfactor = 80);
create index outgoing_by_status on outgoing (owner_id, status, created_at, id);
create index outgoing_by_identity_and_status on outgoing (owner_id, identity_id, status, created_at, id);
create index outgoing_by_key on outgoing (owner_id, key_id, created_at, id);
create index outgoing_ended on outgoing (ended_at) where ended_at is not null;
alter table outgoing add primary key (id);

create table recipients (
  message_id uuid not null,
  -- Its place in the message, from 0.
  n smallint not null,
  owner_id uuid not null,
  address text not null,
  -- Addresses are compared by this key.
  address_key text not null,
  kind text not null check (kind in ('to', 'cc', 'bcc')),
  status text not null check (status in ('queued', 'sent', 'delivered', 'bounced', 'suppressed', 'cancelled')),
  attempt_count int not null default 0,
  next_attempt_at timestamptz,
  last_response json,
  -- It was cancelled while it was being tried: a temporary failure ends it.
  is_cancelling boolean not null default false,
  updated_at timestamptz not null default now(),
  primary key (message_id, n)
) with (fillfactor = 80);

-- Recipients that have not ended, in the form of delivery_queue: see there. A lane is what the mail of one owner waits for
-- together: the domain of the recipients, or the relay.
create table send_queue (
  id uuid not null,
  owner_id uuid not null,
  lane_id uuid not null,
  message_id uuid not null,
  n smallint not null,
  ready boolean not null default true,
  tries int not null default 0,
  next_attempt_at timestamptz not null default now(),
  lease_token uuid,
  lease_until timestamptz,
  created_at timestamptz not null default now()
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index send_queue_ready on send_queue (owner_id, lane_id, id) where ready;
create index send_queue_scheduled on send_queue (next_attempt_at) where not ready;
create index send_queue_by_message on send_queue (message_id);

-- Primary keys, and indexes of ready rows, come last: while a table is empty all its indexes seem to cost the same, the planner takes the newest, and a prepared
-- statement keeps that plan. By an index that ends with the id, it would go through all rows.
alter table send_queue add primary key (id);
drop index delivery_queue_ready;
create index delivery_queue_ready on delivery_queue (owner_id, webhook_id, id) where ready;
alter table delivery_queue drop constraint delivery_queue_pkey;
alter table delivery_queue add primary key (id);

-- One conversation with a server, or why there was none.
create table send_attempts (
  message_id uuid not null,
  id uuid not null,
  owner_id uuid not null,
  recipients text[] not null,
  started_at timestamptz not null,
  duration_ms int not null,
  host text,
  address text,
  tls json,
  response json,
  error text,
  error_detail text,
  primary key (message_id, id)
);

-- Reports that came back to a bounce address. `content`: of a report that could not be read, its beginning.
create table send_reports (
  id uuid primary key,
  message_id uuid not null,
  n smallint not null,
  owner_id uuid not null,
  action text not null,
  status text,
  diagnostic text,
  remote_mta text,
  content bytea,
  created_at timestamptz not null default now()
);
create index send_reports_by_message on send_reports (message_id);

create table suppressions (
  owner_id uuid not null references users (id) on delete cascade,
  address_key text not null,
  -- As it was given.
  address text not null,
  reason text not null check (reason in ('bounce', 'complaint', 'manual')),
  message_id uuid,
  -- For the order of lists.
  id uuid not null,
  created_at timestamptz not null default now()
);
create index suppressions_by_owner on suppressions (owner_id, created_at, id);
alter table suppressions add primary key (owner_id, address_key);
