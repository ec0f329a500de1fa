-- For `GET /messages?q=`: the words of the subject and of the addresses, as numbers (src/store/words.ts says which).
-- Null: the change-over has not come to this message yet.
alter table messages add column words bigint[];

-- The slots of words on a day, counted from 1970. Days that are 32 days apart share their slots.
create function word_slots(words bigint[], day bigint) returns int[] language sql immutable strict parallel safe
  as 'select array(select (day % 32 * 131072 + (key & 131071))::int from unnest(words) as word (key))';
-- In UTC. Immutable, because the epoch of a time does not depend on the time zone.
create function day_of(at timestamptz) returns bigint language sql immutable strict parallel safe
  as 'select floor(extract(epoch from at) / 86400)::bigint';

insert into change_over (position, until)
select '00000000-0000-0000-0000-000000000000', id from messages order by id desc limit 1
on conflict (is_only) do update set position = excluded.position, until = excluded.until;
