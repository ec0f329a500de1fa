-- How many recipients each owner has sent to in the current minute, in all processes (`admitRecipients`).
-- Unlogged: the count of a minute need not survive a crash, and without WAL the statement that counts does not wait for the disk.
create unlogged table send_rates (
  owner_id uuid primary key references users (id) on delete cascade,
  started_at timestamptz not null,
  recipients int not null
) with (fillfactor = 50);
