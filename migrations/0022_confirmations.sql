-- Stops older processes: they would drop the mails that confirm addresses.
-- Addresses that are confirmed by mail.

alter table identities
  -- When the owner proved, by a link in a mail, to read the mail of the address. It holds until another owner proves the domain.
  add column confirmed_at timestamptz;
-- By domain, for the owner who proves the domain; by value, for the claims that wait for an address.
create index identities_confirmed on identities (domain, value_key) where confirmed_at is not null;

-- Each mail that was asked for, for a day: its link, and what the limits count. Not by identity: who deletes an identity and adds it
-- again has no new allowance. The mail is a row of send_queue with this id as its message, and has no row in messages.
create table confirmations (
  id uuid primary key,
  owner_id uuid not null,
  identity_id uuid not null,
  address_key text not null,
  token_hash bytea not null unique check (octet_length(token_hash) = 32),
  created_at timestamptz not null default now(),
  expires_at timestamptz not null,
  used_at timestamptz
);
create index confirmations_by_owner on confirmations (owner_id, address_key, created_at);
create index confirmations_by_address on confirmations (address_key, created_at);
create index confirmations_by_age on confirmations (created_at);
