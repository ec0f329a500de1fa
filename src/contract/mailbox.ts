/** A mailbox of an identity in responses, and how far it was read where another server holds it. */
import { Type } from 'typebox';
import { mailboxKinds } from '../store/identities.ts';
import { type Mailbox as MailboxRow, syncStates } from '../store/mailbox-sync.ts';
import { closed, describe, NullableString, NullableTimestamp, oneOf, rowSchema, Uuid } from './schemas.ts';
import { ServerError } from './smtp-account.ts';

const Sync = closed({
  state: describe(
    oneOf(syncStates),
    '`off`: the folder is not read. `syncing`: older mail is being read. `idle`: all mail was read. `failing`: see `error`.',
  ),
  lastSyncedAt: describe(NullableTimestamp, 'When all mail of the folder had been read.'),
  error: ServerError,
  backlog: Type.Integer({ description: 'Older messages that are still to be looked at.' }),
});

export const Mailbox = rowSchema<MailboxRow>()({
  id: Uuid,
  kind: describe(oneOf(mailboxKinds), 'What the mailbox is for.'),
  path: describe(NullableString, 'The folder at the other server. Null if there is none.'),
  total: Type.Unsafe<number | null>({
    type: ['integer', 'null'],
    description: 'Messages in the folder at the other server.',
  }),
  sync: describe(
    Type.Union([Sync, Type.Null()]),
    'Null if no other server holds the mailbox: the SMTP account of the identity has no `imap`.',
  ),
});
