-- What is seen of a look while it is under way, and of a takeover before it is confirmed.

alter table identities
  -- A look is under way, and one that is not proven shows as pending: until it ends, or is given up for lost.
  add column pending_until timestamptz,
  -- Since when looks have seen that the value is no longer its holder's, and whose it was.
  add column takeover_since timestamptz,
  add column takeover_of uuid;
