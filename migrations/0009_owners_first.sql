-- Deliveries by owner, and deliveries of disabled webhooks out of the way.

-- A claim goes from owner to owner, and within an owner from webhook to webhook. This index replaces deliveries_ready at the end,
-- because dropping an index stops reads too.
create index deliveries_ready_by_owner on deliveries (owner_id, webhook_id, id) where ready;

-- A pending delivery of a disabled webhook is held: not ready, and scheduled for 'infinity'.
create index deliveries_held on deliveries (webhook_id, id) where next_attempt_at = 'infinity';

-- A webhook whose `enabled` changed is unsettled until a background loop has held or resumed all its deliveries, in batches. Null:
-- settled. A trigger sets this column, because several statements change `enabled`, and a webhook that one of them forgot would
-- never be delivered to again.
alter table webhooks add column unsettled_at timestamptz;
create index webhooks_unsettled on webhooks (unsettled_at) where unsettled_at is not null;

create function note_unsettled() returns trigger language plpgsql as $$
begin
  new.unsettled_at := now();
  return new;
end
$$;
create trigger webhooks_note_unsettled before update of enabled on webhooks
  for each row when (old.enabled <> new.enabled) execute function note_unsettled();

-- The loop holds the deliveries of webhooks that are disabled already.
update webhooks set unsettled_at = now() where not enabled and deleted_at is null;

drop index deliveries_ready;
alter index deliveries_ready_by_owner rename to deliveries_ready;
