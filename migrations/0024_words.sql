-- For `GET /messages?q=`: the words of the subject and of the addresses, as numbers (src/store/words.ts says which).
-- Null: the change-over has not come to this message yet.
alter table messages add column words bigint[], add column word_slots int[];
-- Not "fastupdate": the message that fills its list would wait until all of it is moved.
create index messages_by_words on messages using gin (word_slots) with (fastupdate = off) where word_slots is not null;

insert into change_over (position, until)
select '00000000-0000-0000-0000-000000000000', id from messages order by id desc limit 1
on conflict (is_only) do update set position = excluded.position, until = excluded.until;
