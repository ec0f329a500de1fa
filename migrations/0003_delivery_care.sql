-- What the delivery engine needs to stay bounded and fair.

-- How large the body of an event's deliveries is, about: small ones are fetched ahead, large ones when they are tried.
alter table events add column bytes int not null default 0;
create index events_by_identity on events (owner_id, identity_id, created_at desc, id desc) where identity_id is not null;

-- What people look for among millions that were delivered. Touched by failures alone.
create index deliveries_given_up on deliveries (webhook_id, status, created_at desc, id desc)
  where status in ('failed', 'cancelled');

-- Replays take turns: the one that was worked on longest ago is next.
alter table replays add column worked_at timestamptz;
drop index replays_open;
create index replays_open on replays (coalesce(worked_at, created_at)) where completed_at is null;
create index replays_by_age on replays (completed_at) where completed_at is not null;

create index retired_webhook_secrets_by_age on retired_webhook_secrets (retired_at);

-- Without an answer, it is still under way: a POST that acts on the world outside has no transaction open meanwhile.
alter table idempotency_records
  alter column status drop not null,
  alter column body drop not null;
