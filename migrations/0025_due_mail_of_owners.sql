-- Mail of many owners may be due at the same moment: the owners take turns (`promoteSends`).
drop index send_queue_scheduled;
create index send_queue_scheduled on send_queue (next_attempt_at, owner_id) where not ready;
