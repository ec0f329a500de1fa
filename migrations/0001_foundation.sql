-- Users and what they own. Every table has the user as owner_id, so that every query can filter by owner, and so that rows can be
-- distributed by owner. Composite foreign keys make a reference to a row of another owner impossible.

create table users (
  id uuid primary key,
  email text not null,
  created_at timestamptz not null default now()
);
create unique index users_email_key on users (lower(email));

create table api_keys (
  id uuid primary key,
  owner_id uuid not null references users on delete cascade,
  name text,
  key_hash bytea not null unique check (octet_length(key_hash) = 32),
  prefix text not null,
  suffix text not null,
  created_at timestamptz not null default now(),
  expires_at timestamptz,
  revoked_at timestamptz,
  last_used_at timestamptz
);
create index api_keys_by_owner on api_keys (owner_id, created_at desc, id desc);

-- Where an identity's mail comes from or goes through. No route creates a provider yet.
create table providers (
  id uuid primary key,
  owner_id uuid not null references users on delete cascade,
  kind text not null,
  name text,
  credentials bytea,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  unique (owner_id, id)
);

create table smtp_accounts (
  id uuid primary key,
  owner_id uuid not null references users on delete cascade,
  host text not null,
  port int not null check (port between 1 and 65535),
  username text,
  password bytea,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  unique (owner_id, id)
);

create table identities (
  id uuid primary key,
  owner_id uuid not null references users on delete cascade,
  kind text not null check (kind in ('email', 'domain')),
  public_id text not null unique,
  value text not null,
  -- Values are compared by this key: the local part of an address is compared without regard to case.
  value_key text not null,
  domain text not null generated always as (substring(value from '[^@]*$')) stored,
  incoming_domain boolean not null default false,
  domain_identity_id uuid,
  -- json, not jsonb: it takes \u0000 and keeps the order of keys.
  dns_records json not null default 'null',
  meta json not null default '{}',
  provider_id uuid,
  smtp_account_id uuid,
  status text not null default 'unverified' check (status in ('unverified', 'pending', 'verified', 'failed')),
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  unique (owner_id, id),
  check (kind = 'email' or domain_identity_id is null),
  foreign key (owner_id, domain_identity_id) references identities (owner_id, id)
    on delete set null (domain_identity_id),
  foreign key (owner_id, provider_id) references providers (owner_id, id) on delete set null (provider_id),
  foreign key (owner_id, smtp_account_id) references smtp_accounts (owner_id, id) on delete set null (smtp_account_id)
);
create unique index identities_once_per_owner on identities (owner_id, kind, value_key);
-- The holder of a domain is the identity that is verified for the domain.
create unique index identities_one_verified_holder on identities (kind, value_key) where status = 'verified';
create index identities_by_owner on identities (owner_id, created_at desc, id desc);
create index identities_of_domain on identities (owner_id, domain) where kind = 'email';
-- Foreign keys are searched when what they point at is deleted.
create index identities_by_domain_identity on identities (owner_id, domain_identity_id) where domain_identity_id is not null;
create index identities_by_provider on identities (owner_id, provider_id) where provider_id is not null;
create index identities_by_smtp_account on identities (owner_id, smtp_account_id) where smtp_account_id is not null;

create table mailboxes (
  id uuid primary key,
  owner_id uuid not null,
  identity_id uuid not null,
  kind text not null check (kind in ('inbox', 'sent', 'spam', 'trash')),
  created_at timestamptz not null default now(),
  unique (owner_id, id),
  unique (identity_id, kind),
  foreign key (owner_id, identity_id) references identities (owner_id, id) on delete cascade
);

-- How far a worker has read a mailbox that lies elsewhere.
create table mailbox_sync (
  mailbox_id uuid primary key,
  owner_id uuid not null,
  position text,
  synced_at timestamptz,
  foreign key (owner_id, mailbox_id) references mailboxes (owner_id, id) on delete cascade
);

create table webhooks (
  id uuid primary key,
  owner_id uuid not null references users on delete cascade,
  -- null: the events of all identities of the owner.
  identity_id uuid,
  url text not null,
  events text[] not null check (cardinality(events) > 0),
  enabled boolean not null default true,
  description text,
  disabled_reason text check (disabled_reason in ('gone', 'failing')),
  secret bytea not null,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  unique (owner_id, id),
  foreign key (owner_id, identity_id) references identities (owner_id, id) on delete cascade
);
create index webhooks_by_owner on webhooks (owner_id, created_at desc, id desc);
create index webhooks_by_identity on webhooks (owner_id, identity_id) where identity_id is not null;

-- A replaced secret also signs for a day, so that a receiver can change over without losing a delivery.
create table retired_webhook_secrets (
  webhook_id uuid not null,
  owner_id uuid not null,
  secret bytea not null,
  retired_at timestamptz not null default now(),
  foreign key (owner_id, webhook_id) references webhooks (owner_id, id) on delete cascade
);
create index retired_webhook_secrets_by_webhook on retired_webhook_secrets (owner_id, webhook_id, retired_at);

-- The first 2xx answer to a POST with an Idempotency-Key. owner_id is all zeros for the operator.
create table idempotency_records (
  owner_id uuid not null,
  path text not null,
  key text not null,
  request_hash bytea not null,
  status int not null,
  location text,
  body bytea not null,
  created_at timestamptz not null default now(),
  primary key (owner_id, path, key)
);
create index idempotency_records_by_age on idempotency_records (created_at);
