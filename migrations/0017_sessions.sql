-- Browsers that signed in. The token of the cookie is not stored, only its hash.

alter table api_keys add unique (owner_id, id);

create table sessions (
  id uuid primary key,
  owner_id uuid not null references users on delete cascade,
  -- The key that was used to sign in. null: a sign-in link.
  key_id uuid,
  token_hash bytea not null unique check (octet_length(token_hash) = 32),
  user_agent text,
  created_at timestamptz not null default now(),
  last_used_at timestamptz not null default now(),
  foreign key (owner_id, key_id) references api_keys (owner_id, id) on delete cascade
);
create index sessions_by_owner on sessions (owner_id, created_at desc, id desc);
create index sessions_by_key on sessions (owner_id, key_id) where key_id is not null;

-- A link signs in once: the row is deleted then.
create table sign_in_links (
  token_hash bytea primary key check (octet_length(token_hash) = 32),
  owner_id uuid not null references users on delete cascade,
  expires_at timestamptz not null
);
create index sign_in_links_by_owner on sign_in_links (owner_id);
