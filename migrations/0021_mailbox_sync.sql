-- Reading mailboxes that another server holds, by IMAP. No process wrote the old form of mailbox_sync.

drop table mailbox_sync;

-- The connection to the mailbox of an identity: which process has it, and when the next one is opened.
create table imap_connections (
  identity_id uuid not null,
  owner_id uuid not null,
  -- Of the server that was called last: a user's change of the account is a reason to call again at once.
  account_id uuid,
  version int,
  -- A hash of host, port and user name: positions are those of this server. null: no login has succeeded yet.
  server_key uuid,
  -- Older mail (by INTERNALDATE) is not imported, and mail from before `events_since` makes no event. At first both are the time of
  -- the first connection.
  import_since timestamptz,
  events_since timestamptz,
  -- Counts the calls to check now, and those of them that asked for older mail.
  requests int not null default 0,
  scan int not null default 0,
  failures int not null default 0,
  refused_logins int not null default 0,
  next_try_at timestamptz not null default now(),
  -- {code, message, response}
  error json,
  -- Each claim has a new token: a process that lost its lease cannot release a later lease.
  lease_token uuid,
  lease_until timestamptz,
  foreign key (owner_id, identity_id) references identities (owner_id, id) on delete cascade
) with (fillfactor = 70);
alter table imap_connections add primary key (identity_id);

-- How far a mailbox has been read.
create table mailbox_sync (
  mailbox_id uuid not null,
  owner_id uuid not null,
  -- null: the server has no such folder.
  path text,
  uid_validity bigint,
  -- All mail with lower UIDs was there before, or has been read.
  next_uid bigint,
  -- Older mail from this UID on, up to the second (exclusive), is still to be read; null: none.
  older_uid bigint,
  older_end bigint,
  -- The value of imap_connections.scan that the older mail was last read for.
  scan int not null default 0,
  backlog int not null default 0,
  total int,
  is_syncing boolean not null default false,
  synced_at timestamptz,
  -- {code, message, response}
  error json,
  foreign key (owner_id, mailbox_id) references mailboxes (owner_id, id) on delete cascade
) with (fillfactor = 70);
alter table mailbox_sync add primary key (mailbox_id);

-- Every message that was seen and recorded, or is a copy of one that was sent from here. A message that has a row here is not new,
-- whatever folder it is in. Rows live as long as the identity, so that a folder can be read again after the retention.
create table mailbox_ledger (
  identity_id uuid not null,
  -- A hash of INTERNALDATE, size and all bytes of the header.
  fingerprint uuid not null,
  owner_id uuid not null,
  mailbox_id uuid not null,
  uid_validity bigint not null,
  uid bigint not null,
  foreign key (owner_id, identity_id) references identities (owner_id, id) on delete cascade
);
alter table mailbox_ledger add primary key (identity_id, fingerprint);

-- Neither an event nor the queue knows the age of such a message: it was imported without an event, or found in a Sent folder.
alter table messages add column is_silent boolean not null default false;

-- A message that left through an SMTP account is copied to the Sent folder of the account, once.
alter table outgoing
  -- The account with `imap` that the first recipient was sent to through.
  add column copy_account_id uuid,
  add column is_copy_due boolean not null default false;
create index outgoing_copies_due on outgoing (owner_id, copy_account_id, created_at) where is_copy_due;
