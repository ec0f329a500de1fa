-- What happened in each hour (UTC), for `GET /stats`. Each statement that records a batch of messages or outcomes counts them in the
-- row of its own database connection, so that no transaction waits for a counter of another.
create table traffic (
  owner_id uuid not null,
  hour timestamptz not null,
  -- The process id of the connection in PostgreSQL.
  backend int not null,
  received int not null default 0,
  sent int not null default 0,
  delivered int not null default 0,
  bounced int not null default 0,
  complained int not null default 0,
  deliveries_delivered int not null default 0,
  deliveries_failed int not null default 0,
  primary key (owner_id, hour, backend)
) with (fillfactor = 50);
create index traffic_by_age on traffic (hour);
