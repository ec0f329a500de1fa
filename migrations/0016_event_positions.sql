-- Where deleted events stood, until the retention ends: a reader of the event stream can resume after one of them.
create table event_positions (
  id uuid primary key,
  owner_id uuid not null,
  xact xid8 not null,
  created_at timestamptz not null
);
create index event_positions_by_age on event_positions (created_at);
