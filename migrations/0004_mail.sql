-- Mail. A message, its event and the event's deliveries are born in one transaction.

-- The bytes as received, in rows of up to 1 MiB, once for each owner: raw_id is the id of the first message they belong to.
-- Rows of up to a page stay in one piece, and nothing is compressed: they are read back whole or in ranges.
create table raw_chunks (
  raw_id uuid not null,
  n int not null,
  owner_id uuid not null,
  bytes bytea not null,
  primary key (raw_id, n)
) with (toast_tuple_target = 8160);
alter table raw_chunks alter column bytes set storage external;

-- What lists and look-ups need. The message whole is in its event's data. No foreign keys, as with deliveries.
create table messages (
  id uuid primary key,
  owner_id uuid not null,
  identity_id uuid not null,
  event_id uuid not null,
  raw_id uuid not null,
  size int not null,
  sha256 bytea not null,
  thread_id uuid not null,
  -- The message as lists show it: without text, html and headers.
  summary json not null,
  -- Hash of the Message-ID: replies find their thread by it. Null without one.
  message_key uuid,
  -- Hash of envelope and bytes: the same message sent again by a client that missed our answer. Null without a Message-ID.
  repeat_key uuid,
  received_on date not null default (now() at time zone 'utc')::date,
  created_at timestamptz not null default now()
) with (toast_tuple_target = 8160);
create index messages_by_owner on messages (owner_id, created_at desc, id desc);
create index messages_by_identity on messages (identity_id, created_at desc, id desc);
create index messages_by_message_key on messages (identity_id, message_key, created_at desc)
  where message_key is not null;
-- A day's worth, so that two of the same at the same moment meet; beyond midnight a look does.
create unique index messages_once_a_day on messages (identity_id, repeat_key, received_on) where repeat_key is not null;
create index messages_sharing_raw on messages (raw_id) where raw_id <> id;

alter table events
  add column message_id uuid,
  -- Set where the raw message goes into the body of deliveries.
  add column inline_raw_id uuid;

-- Identities that were deleted, whose mail goes in the background.
create table identity_purges (
  identity_id uuid primary key,
  owner_id uuid not null,
  created_at timestamptz not null default now()
);

-- Who gets mail for an address.
create index identities_by_value on identities (value_key, kind);

-- The bounds of all ids of one moment: of an event's deliveries, for one.
create function first_id_with(id uuid) returns uuid
language sql immutable strict parallel safe
return rpad(substr(replace(id::text, '-', ''), 1, 12), 32, '0')::uuid;

create function last_id_with(id uuid) returns uuid
language sql immutable strict parallel safe
return rpad(substr(replace(id::text, '-', ''), 1, 12), 32, 'f')::uuid;
