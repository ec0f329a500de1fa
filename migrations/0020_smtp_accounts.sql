-- SMTP accounts: servers elsewhere that a user's mail leaves through and, with IMAP, arrives from. No route ever created a row of the
-- old form.

delete from smtp_accounts;
alter table smtp_accounts
  drop column host,
  drop column port,
  drop column username,
  drop column password,
  add column label text not null;
create index smtp_accounts_by_owner on smtp_accounts (owner_id, created_at, id);

-- The two sides of an account: `smtp` sends, `imap` receives.
create table mail_servers (
  owner_id uuid not null,
  account_id uuid not null,
  side text not null check (side in ('smtp', 'imap')),
  host text not null,
  port int not null check (port between 1 and 65535),
  -- TLS from the start.
  secure boolean not null,
  username text not null,
  -- What is not secret of a login by OAuth2: clientId, tokenUrl, scope. null: the login is a password.
  oauth2 json,
  -- Encrypted JSON: the password, or the client secret and the refresh token.
  secret bytea not null,
  -- Counts the changes that a user made: a connection of an older version must not be used again.
  version int not null default 1,
  state text not null default 'unknown' check (state in ('unknown', 'ok', 'failing')),
  checked_at timestamptz,
  -- {code, message, response}
  error json,
  primary key (account_id, side, owner_id),
  foreign key (owner_id, account_id) references smtp_accounts (owner_id, id) on delete cascade
);
-- For the poll that asks every second whether there are mailboxes to watch.
create index mail_servers_by_side on mail_servers (side, account_id);
