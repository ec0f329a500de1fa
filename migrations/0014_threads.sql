-- The filter `thread_id` of GET /messages. Taking mail writes one index entry more for each message. The entry is worth its cost:
-- without this index a list of one conversation, which clients read each time they show a message, reads all mail of the owner.
-- A thread can have thousands of messages, so the identity comes before the time, as in the other indexes with several filters:
-- the filters `thread_id` and `identity_id` together read the messages of this identity alone.
create index messages_by_thread on messages (owner_id, thread_id, identity_id, created_at, id);
