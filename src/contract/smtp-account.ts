/** An SMTP account in responses: never with its passwords, client secrets or tokens. */
import { Type } from 'typebox';
import { type SmtpAccount as SmtpAccountRow, serverStates } from '../store/smtp-accounts.ts';
import {
  closed,
  describe,
  NullableString,
  NullableTimestamp,
  oneOf,
  rowSchema,
  Timestamp,
  Uuid,
} from './schemas.ts';

const Server = closed({
  host: Type.String(),
  port: Type.Integer(),
  secure: Type.Boolean({ description: 'TLS from the start. False: STARTTLS.' }),
  username: Type.String(),
  oauth2: Type.Union(
    [
      closed({
        clientId: Type.String(),
        tokenUrl: Type.String({ description: 'Where access tokens are fetched.' }),
        scope: describe(
          NullableString,
          'What the access tokens are asked for. Null: the default of the server.',
        ),
      }),
      Type.Null(),
    ],
    { description: 'Null: the login is a password.' },
  ),
});

/** Why a mail server elsewhere cannot be used; also of a mailbox. */
export const ServerError = Type.Union(
  [
    closed({
      code: Type.String({
        description: 'Such as `authentication_failed`, `certificate_invalid`, `host_not_found` or `timeout`.',
      }),
      message: Type.String({ description: 'What to do.' }),
      response: describe(NullableString, 'What the server replied, up to 200 characters.'),
    }),
    Type.Null(),
  ],
  { description: 'Null: nothing is wrong.' },
);

/** Whether mail can go in this direction; also of a provider. */
export const ServerState = closed({
  state: describe(oneOf(serverStates), '`unknown`: neither used nor verified yet. `failing`: see `error`.'),
  checkedAt: describe(NullableTimestamp, 'When it was last used or verified.'),
  error: ServerError,
});

export const SmtpAccount = rowSchema<SmtpAccountRow>()({
  id: Uuid,
  ownerId: Uuid,
  label: Type.String(),
  smtp: Server,
  imap: Type.Union([Server, Type.Null()], { description: 'Null: the account only sends.' }),
  send: describe(ServerState, 'Whether mail can be sent through the account.'),
  receive: describe(ServerState, 'Whether the mailbox can be read.'),
  createdAt: Timestamp,
  updatedAt: Timestamp,
});
