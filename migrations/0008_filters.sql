-- Every filter of a list has an index that begins with the owner. A list that has several filters has one index for all of them: the
-- columns of the filters come before the time, and a filter that is not given is tried with each of its values (src/store/page.ts).
-- The old indexes are dropped at the end: creating an index stops writes, dropping one stops reads too.

create index events_by_event on events (owner_id, event, created_at, id);
create index events_by_identity_and_event on events (owner_id, identity_id, event, created_at, id) where identity_id is not null;

-- An update that changes the status always changed an indexed column (ready), so the status in an index costs no further entry.
create index deliveries_by_event_and_status on deliveries (owner_id, webhook_id, event, status, created_at, id);

create index messages_by_owner_and_identity on messages (owner_id, identity_id, created_at, id);

create index identities_by_status on identities (owner_id, kind, status, created_at, id);
create index identities_under_check on identities (owner_id, pending_until) where pending_until is not null;
create index identities_by_domain_and_time on identities (owner_id, domain_identity_id, created_at, id)
  where domain_identity_id is not null;

-- Deleted webhooks and revoked keys are in no list, however many there are.
create index webhooks_listed on webhooks (owner_id, created_at desc, id desc) where deleted_at is null;
create index api_keys_listed on api_keys (owner_id, created_at desc, id desc) where revoked_at is null;

drop index events_by_identity, deliveries_by_webhook, deliveries_given_up, messages_by_identity, identities_by_domain_identity,
  webhooks_by_owner, api_keys_by_owner;
