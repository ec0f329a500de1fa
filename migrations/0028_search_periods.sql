-- Stops older processes: their search uses functions that this migration drops.
-- `GET /messages?q=` goes back through the mail in periods of an hour instead of days: for a word of all older mail, the index gave all
-- messages of a day. The index is built again while the service runs (src/db/large-indexes.ts).
drop index if exists messages_by_words;
drop function word_slots(bigint[], bigint);
drop function day_of(timestamptz);

-- The slots of words in a period, counted from 1970. Periods that are 32 days apart share their slots. src/store/message-search.ts
-- computes the same.
create function word_slots(words bigint[], period bigint) returns int[] language sql immutable strict parallel safe
  as 'select array(select (period % 768 * 32768 + (key & 32767))::int from unnest(words) as word (key))';
-- Immutable, because the epoch of a time does not depend on the time zone.
create function period_of(at timestamptz) returns bigint language sql immutable strict parallel safe
  as 'select floor(extract(epoch from at) / 3600)::bigint';
