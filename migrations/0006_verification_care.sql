-- What users see during a check, and the first of the two checks of a takeover.

alter table identities
  -- A check is running: an identity that is not verified shows as pending until the check ends, at the latest until this time.
  add column pending_until timestamptz,
  -- Of a claimant: the start of the first check that saw that the holder's token was removed, and the identity of that holder.
  add column takeover_since timestamptz,
  add column takeover_of uuid;
