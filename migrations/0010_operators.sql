-- In words, why an attempt failed: "ECONNREFUSED 127.0.0.1:4000".
alter table attempts add column error_detail text;

-- Every running process, so that a command can tell what all of them know. A process writes its row at its start and every
-- few seconds, and removes it when it stops. seen_at is by the clock of the database: a row that is too old is a dead process.
create table processes (
  id uuid primary key,
  -- For people: the host and the pid.
  name text not null,
  roles text[] not null,
  version text not null,
  -- Of the secret keys, the one that encrypts first: the same four bytes of a hash that every encrypted value begins with.
  key_ids text[] not null,
  started_at timestamptz not null default now(),
  seen_at timestamptz not null default now()
);
