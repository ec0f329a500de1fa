-- Finds the owners whose mail is due, however much of it one of them has.
create index send_queue_due_of_owner on send_queue (owner_id, next_attempt_at) where not ready;
