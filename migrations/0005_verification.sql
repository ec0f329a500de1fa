-- Verification of domains: the state of a domain identity, the time of its next check, and its DKIM keys. In the names of columns
-- "standing" means the status, and "looked" means checked.

alter table identities
  -- The token that the ownership record in DNS must contain. Random, and different for every identity.
  add column verification_token text not null
    default replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''),
  -- The schedule of checks counts from standing_since. grace_since is when a check first saw that a required record is absent.
  add column standing_since timestamptz not null default now(),
  add column grace_since timestamptz,
  add column standing_reason text,
  -- Start of the check that the state is the result of: a check that started earlier must not overwrite the state.
  add column looked_at timestamptz,
  -- Null: no check is planned. During a check: the time at which another process may repeat the check.
  add column next_check_at timestamptz,
  -- Rate limit of requested checks: how many checks were left, and at which time.
  add column check_allowance float8 not null default 10,
  add column check_allowance_at timestamptz not null default now();
update identities set next_check_at = now() where kind = 'domain';
create index identities_due on identities (next_check_at) where next_check_at is not null;
create index identities_due_by_owner on identities (owner_id, next_check_at) where next_check_at is not null;

-- Keys that sign what an identity sends. After a rotation the old key stays until a check finds the new key in DNS.
create table dkim_keys (
  owner_id uuid not null,
  identity_id uuid not null,
  selector text not null,
  public_key text not null,
  private_key bytea not null,
  created_at timestamptz not null default now(),
  primary key (identity_id, selector),
  foreign key (owner_id, identity_id) references identities (owner_id, id) on delete cascade
);
