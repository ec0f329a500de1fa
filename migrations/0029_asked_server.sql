-- Older mail that was asked for after the account moved to another server, and before the first login there (src/store/imap-connections.ts).
-- `asked_key` is the `server_key` of that server.
alter table imap_connections
  add column asked_key uuid,
  add column asked_since timestamptz,
  add column asked_events_since timestamptz;
