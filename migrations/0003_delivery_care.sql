-- What the delivery engine needs to stay bounded and fair.

-- About the size of the request body for this event: small bodies are read ahead, large bodies when a delivery is tried.
alter table events add column bytes int not null default 0;
create index events_by_identity on events (owner_id, identity_id, created_at desc, id desc) where identity_id is not null;

-- People search for failed and cancelled deliveries among millions of delivered ones. Only a failure writes to this index.
create index deliveries_given_up on deliveries (webhook_id, status, created_at desc, id desc)
  where status in ('failed', 'cancelled');

-- Replays take turns: the replay whose last batch is the oldest comes next.
alter table replays add column worked_at timestamptz;
drop index replays_open;
create index replays_open on replays (coalesce(worked_at, created_at)) where completed_at is null;
create index replays_by_age on replays (completed_at) where completed_at is not null;

create index retired_webhook_secrets_by_age on retired_webhook_secrets (retired_at);

-- A record without status and body marks a request in progress: a POST that first works outside the database keeps no transaction
-- open during that work.
alter table idempotency_records
  alter column status drop not null,
  alter column body drop not null;
