-- Claiming connections to mailboxes costs the same however many are due. A connection is either scheduled (until next_try_at, and
-- while a process has its lease) or ready: it waits for the turn of its owner. While a process has the lease, next_try_at is -infinity.
-- Any later time during a lease means that the account was changed or verified since the claim.
-- Renewing a lease changes an index. That costs little: a thousand rows every eight seconds.

alter table imap_connections add column ready boolean not null default false;

-- From now on, the statement that gives an identity a mailbox elsewhere also creates its connection (`connectNow`).
insert into imap_connections (identity_id, owner_id)
select identities.id, identities.owner_id
from identities join mail_servers server on server.owner_id = identities.owner_id
  and server.account_id = identities.smtp_account_id and server.side = 'imap'
where identities.kind = 'email'
on conflict do nothing;
-- Accounts may have been changed or verified since the last try.
update imap_connections set next_try_at = now(), lease_token = null, lease_until = null;

create index imap_connections_ready on imap_connections (owner_id, next_try_at) where ready;
create index imap_connections_scheduled on imap_connections (greatest(next_try_at, lease_until)) where not ready;
create index imap_connections_leased on imap_connections (lease_token) where lease_token is not null;
-- Only the poll used it. The poll now asks for connections that are due.
drop index mail_servers_by_side;
