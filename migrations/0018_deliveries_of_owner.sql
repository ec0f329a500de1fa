-- `GET /deliveries`: the deliveries of all webhooks of an owner, with every filter. The index of ended deliveries is in
-- src/db/large-indexes.ts.

create index delivery_queue_of_owner on delivery_queue (owner_id, event, created_at, id);

-- The indexes that the queue uses come last, for the reason that 0015_sending.sql gives.
drop index delivery_queue_ready;
create index delivery_queue_ready on delivery_queue (owner_id, webhook_id, id) where ready;
alter table delivery_queue drop constraint delivery_queue_pkey;
alter table delivery_queue add primary key (id);
