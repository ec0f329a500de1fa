-- The identities of the other addresses in From and Sender: each try checks that they may stand in the mail (src/sending/authors.ts).
alter table outgoing add column coauthor_ids uuid[];
