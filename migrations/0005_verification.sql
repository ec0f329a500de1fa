-- Proof of domains. The standing of a domain identity, when it is looked at next, and its DKIM keys.

alter table identities
  -- What must stand in DNS; made anew for every owner and identity, and unguessable.
  add column verification_token text not null
    default replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''),
  -- When the present checks began, and since when required records have been gone.
  add column standing_since timestamptz not null default now(),
  add column grace_since timestamptz,
  add column standing_reason text,
  -- When the look began that it rests on: an older one must not overrule it.
  add column looked_at timestamptz,
  -- Null: not looked at again by itself. While a check is under way, when it is given up for lost.
  add column next_check_at timestamptz,
  -- Checks that a person may ask for at once: how many were left, and when.
  add column check_allowance float8 not null default 10,
  add column check_allowance_at timestamptz not null default now();
update identities set next_check_at = now() where kind = 'domain';
create index identities_due on identities (next_check_at) where next_check_at is not null;
create index identities_due_by_owner on identities (owner_id, next_check_at) where next_check_at is not null;

-- Signs what an identity sends. After a rotation the old one stays until the new one is seen in DNS.
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
