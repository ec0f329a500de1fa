-- Stops older processes: they would send the mail of an identity with a provider on the way of the operator.
-- Providers: their credentials and the secret in the path of their hooks are encrypted. A hook is found by the hash of its secret.
-- No route created a provider before this migration.
delete from providers;
alter table providers
  alter column credentials set not null,
  -- Counts the changes of the credentials: a connection of an older version must not be used again.
  add column version int not null default 1,
  add column state text not null default 'unknown' check (state in ('unknown', 'ok', 'failing')),
  add column checked_at timestamptz,
  -- {code, message, response}
  add column error json,
  add column hook_secret bytea not null,
  add column hook_hash bytea not null unique check (octet_length(hook_hash) = 32),
  add constraint providers_kind check (kind in ('ses', 'mailgun', 'postmark', 'sendgrid'));
create index providers_by_owner on providers (owner_id, created_at desc, id desc);

-- Calls of providers that were taken: a call that comes again does nothing. A call is too old after 24 hours, so the purge deletes
-- its row after 25.
create table provider_calls (
  owner_id uuid not null,
  provider_id uuid not null,
  call_key uuid not null,
  created_at timestamptz not null default now(),
  primary key (owner_id, provider_id, call_key),
  foreign key (owner_id, provider_id) references providers (owner_id, id) on delete cascade
);
create index provider_calls_by_time on provider_calls (created_at);

-- Reports of providers and of other servers name the Message-ID. Null for a message that was sent before this migration.
alter table outgoing add column message_key uuid;
create index outgoing_by_message_key on outgoing (owner_id, message_key, created_at desc) where message_key is not null;
