-- Mail. A message, its event and the event's deliveries are created in one transaction.

-- The bytes as received, in rows of up to 1 MiB, once for each owner: raw_id is the id of the first message with these bytes.
-- Rows of up to a page stay in one piece, and nothing is compressed, because the bytes are read whole or in ranges.
create table raw_chunks (
  raw_id uuid not null,
  n int not null,
  owner_id uuid not null,
  bytes bytea not null,
  primary key (raw_id, n)
) with (toast_tuple_target = 8160);
alter table raw_chunks alter column bytes set storage external;

-- What lists and lookups need. The whole message is in the data of its event. No foreign keys, for the same reason as deliveries.
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
  -- Hash of the Message-ID: replies find their thread by this key. Null for a message without a Message-ID.
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
-- Refuses the second of two equal messages that arrive at the same moment on one day. The insert itself also searches the day before.
create unique index messages_once_a_day on messages (identity_id, repeat_key, received_on) where repeat_key is not null;
create index messages_sharing_raw on messages (raw_id) where raw_id <> id;

alter table events
  add column message_id uuid,
  -- Set if the raw message is a part of the request body.
  add column inline_raw_id uuid;

-- Deleted identities whose mail the purge still has to delete.
create table identity_purges (
  identity_id uuid primary key,
  owner_id uuid not null,
  created_at timestamptz not null default now()
);

-- Finds the identity that receives the mail for an address.
create index identities_by_value on identities (value_key, kind);

-- The lowest and the highest id with the same time as this id. An event and its deliveries have the same time.
create function first_id_with(id uuid) returns uuid
language sql immutable strict parallel safe
return rpad(substr(replace(id::text, '-', ''), 1, 12), 32, '0')::uuid;

create function last_id_with(id uuid) returns uuid
language sql immutable strict parallel safe
return rpad(substr(replace(id::text, '-', ''), 1, 12), 32, 'f')::uuid;
