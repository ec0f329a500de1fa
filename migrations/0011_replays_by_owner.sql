-- Owners take turns with their replays: the owners that have an open replay, the owner's last turn, and the owner's next replay.
create index replays_open_by_owner on replays (owner_id, coalesce(worked_at, created_at)) where completed_at is null;
create index replays_by_turn on replays (owner_id, worked_at);
