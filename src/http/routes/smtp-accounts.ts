/** SMTP accounts: servers elsewhere that your mail leaves through and, with IMAP, arrives from. */
import { type Static, Type } from 'typebox';
import { atMostOneOf, exactlyOneOf, orNull } from '../../contract/forms.ts';
import { body, closed, describe, IdParams, listQuery, maxPage } from '../../contract/schemas.ts';
import { SmtpAccount } from '../../contract/smtp-account.ts';
import { type Pool, type Sql, transaction } from '../../db/client.ts';
import { newId } from '../../lib/ids.ts';
import { changeServer, type ServerChanges } from '../../mailboxes/account-changes.ts';
import type { Verifications } from '../../mailboxes/verifications.ts';
import { type VerifyAccountParts, verifyAccount } from '../../mailboxes/verify-account.ts';
import type { Egress } from '../../net/egress.ts';
import type { MailServer } from '../../net/mail-server.ts';
import { type Pointer, Problem } from '../../problems.ts';
import {
  createSmtpAccount,
  deleteSmtpAccount,
  findMailServer,
  findSmtpAccount,
  listAccountUsers,
  listSmtpAccounts,
  type ServerSide,
  type SmtpAccountChanges,
  updateSmtpAccount,
} from '../../store/smtp-accounts.ts';
import { lockUser } from '../../store/users.ts';
import { withAccess } from '../access.ts';
import { abortOnClose } from '../client-gone.ts';
import { orNotFound } from '../errors.ts';
import type { App } from '../fastify.ts';
import { actAndRespondOnce, type PostParts, respondOnce } from '../idempotency.ts';
import { type PageParts, readPage, sendPage } from '../pagination.ts';
import { findServerFaults } from '../server-faults.ts';

/** Text for a login: NUL and line breaks would end it. */
const loginText = (maxLength: number, description?: string) =>
  Type.String({ minLength: 1, maxLength, format: 'line', ...(description ? { description } : {}) });
const nullableLine = (maxLength: number, description: string) =>
  Type.Unsafe<string | null>({ type: ['string', 'null'], maxLength, format: 'line', description });

const oauth2 = {
  clientId: loginText(1000, 'Of the application that you registered at the provider.'),
  clientSecret: Type.Optional(nullableLine(1000, 'Null or left out: the client is public and has none.')),
  refreshToken: loginText(8000, 'What access tokens are fetched with.'),
  tokenUrl: loginText(2048, 'Where access tokens are fetched: https on port 443.'),
  scope: Type.Optional(
    nullableLine(2000, 'What the access tokens are asked for. Null or left out: the default of the server.'),
  ),
};
const server = {
  host: loginText(255, 'A name or an IP address.'),
  port: Type.Integer({
    minimum: 1,
    maximum: 65_535,
    description: '25, 465, 587 or 2525 for SMTP, 143 or 993 for IMAP.',
  }),
  secure: Type.Optional(
    Type.Boolean({
      description: 'TLS from the start. Default: true for 465 and 993. False: STARTTLS is required.',
    }),
  ),
  username: loginText(320),
  password: Type.Optional(loginText(1000, 'Or `oauth2`.')),
};

const label = Type.String({ minLength: 1, maxLength: 200, format: 'text' });
const given = {
  ...server,
  oauth2: Type.Optional(describe(closed(oauth2), 'Instead of `password`: XOAUTH2.')),
};
const GivenServer = closed(
  given,
  exactlyOneOf(given, { password: 'PasswordServer', oauth2: 'OAuth2Server' }),
);
const changes = {
  ...Type.Partial(closed(server)).properties,
  oauth2: Type.Optional(Type.Partial(closed(oauth2), { additionalProperties: false })),
};
const Changes = closed(
  changes,
  atMostOneOf(changes, { password: 'PasswordServerChanges', oauth2: 'OAuth2ServerChanges' }),
);

const exampleServer = {
  host: 'smtp.example.com',
  port: 465,
  username: 'ada@example.com',
  password: 'secret',
};
const NewSmtpAccount = body(
  {
    label,
    smtp: GivenServer,
    imap: Type.Optional(
      describe(orNull(GivenServer), 'Where mail arrives. Null or left out: the account only sends.'),
    ),
  },
  {
    example: {
      label: 'My mail',
      smtp: exampleServer,
      imap: { ...exampleServer, host: 'imap.example.com', port: 993 },
    },
  },
);
const writable = {
  label: Type.Optional(label),
  smtp: Type.Optional(Changes),
  imap: Type.Optional(describe(orNull(Changes), 'Null removes it.')),
};
const readOnly = Object.keys(SmtpAccount.properties).filter((field) => !(field in writable));
const SmtpAccountPatch = body(writable, { example: { label: 'My mail' }, readOnly });

const tags = ['SMTP accounts'];

interface AccountParts extends PostParts, PageParts {
  sql: Pool;
  egress: Egress;
  allowHttp: boolean;
  maxAccounts: number;
  verifyAccounts: VerifyAccountParts;
  verifications: Verifications;
  wakeSync(): void;
}

export function smtpAccountRoutes(app: App, parts: AccountParts): void {
  const { sql, sealer, maxAccounts } = parts;

  app.get(
    '/smtp-accounts',
    withAccess('key', tags, {
      summary: 'List your SMTP accounts',
      querystring: listQuery({}),
      response: { 200: Type.Array(SmtpAccount) },
    }),
    async (request, reply) => {
      const page = await readPage(parts, request, reply, maxPage);
      return sendPage(parts, request, reply, await listSmtpAccounts(sql, request.ownerId, page));
    },
  );

  app.post(
    '/smtp-accounts',
    {
      config: { access: 'key', findFieldErrors: (given) => findServerFaults(parts, given) },
      schema: {
        tags,
        summary: 'Connect an SMTP account',
        description:
          'Mail of the identities that refer to the account leaves through `smtp`. Passwords and tokens are stored encrypted and never shown. Check the login with `POST /smtp-accounts/{id}/verify`.',
        body: NewSmtpAccount,
        response: { 201: SmtpAccount },
      },
    },
    (request, reply) =>
      respondOnce(parts, request, reply, async (sql) => {
        const { label, smtp, imap } = request.body;
        const id = newId();
        const given = {
          ...{ id, label, smtp: toServer('smtp', null, smtp) },
          imap: imap ? toServer('imap', null, imap) : null,
        };
        const made = await createSmtpAccount(sql, sealer, request.ownerId, given, maxAccounts);
        if (!made) throw tooManyAccounts(maxAccounts);
        return { status: 201, location: `/smtp-accounts/${id}`, body: made };
      }),
  );

  app.get(
    '/smtp-accounts/:id',
    withAccess('key', tags, {
      summary: 'Get an SMTP account',
      params: IdParams,
      response: { 200: SmtpAccount },
    }),
    async (request) => orNotFound(findSmtpAccount(sql, request.ownerId, request.params.id)),
  );

  app.patch(
    '/smtp-accounts/:id',
    {
      config: { access: 'key', findFieldErrors: (given) => findServerFaults(parts, given) },
      schema: {
        tags,
        summary: 'Update an SMTP account',
        description:
          'Only the fields in the body change. Secrets that are left out are kept, unless the host, the port, the user name or `tokenUrl` of that side changes, or `secure` is turned off: then give them again.',
        params: IdParams,
        body: SmtpAccountPatch,
        response: { 200: SmtpAccount },
      },
    },
    async (request) => {
      const { ownerId, body } = request;
      const { id } = request.params;
      const known = await orNotFound(findSmtpAccount(sql, ownerId, id));
      if (Object.keys(body).length === 0) return known;
      await refuseTargets(known, body);
      const updated = await transaction(sql, async (sql) => {
        // The secrets that are kept, and the identities of the account, must not change meanwhile.
        await lockUser(sql, ownerId);
        const account = await orNotFound(findSmtpAccount(sql, ownerId, id));
        if (body.imap && !account.imap) await requireOneAddress(sql, ownerId, id);
        const change = (side: ServerSide, given: ServerChanges) =>
          readChanges(sql, { id, ownerId, side }, given);
        const changes: SmtpAccountChanges = {
          ...(body.label === undefined ? {} : { label: body.label }),
          ...(body.smtp ? { smtp: await change('smtp', body.smtp) } : {}),
          ...(body.imap === undefined ? {} : { imap: body.imap && (await change('imap', body.imap)) }),
        };
        return orNotFound(updateSmtpAccount(sql, sealer, ownerId, id, changes));
      });
      parts.wakeSync();
      return updated;
    },
  );

  /** A port that fits the host in the body may not fit the one that is stored. */
  async function refuseTargets(
    { smtp, imap }: Static<typeof SmtpAccount>,
    given: Static<typeof SmtpAccountPatch>,
  ): Promise<void> {
    const target = (stored: typeof imap, { host, port }: ServerChanges) =>
      host === undefined && port === undefined
        ? {}
        : { host: host ?? stored?.host, port: port ?? stored?.port };
    const merged = { smtp: target(smtp, given.smtp ?? {}), imap: target(imap, given.imap ?? {}) };
    const errors = await findServerFaults(parts, merged);
    if (errors.length > 0) throw new Problem('invalid_body', { errors });
  }

  async function readChanges(
    sql: Sql,
    { id: accountId, ownerId, side }: { id: string; ownerId: string; side: ServerSide },
    given: ServerChanges,
  ): Promise<MailServer> {
    const stored = await findMailServer(sql, sealer, { ownerId, accountId, side });
    return toServer(side, stored?.server ?? null, given);
  }

  app.delete(
    '/smtp-accounts/:id',
    withAccess('key', tags, {
      summary: 'Delete an SMTP account',
      description: 'Refused with 409 while identities refer to the account.',
      params: IdParams,
      response: { 204: Type.Null() },
    }),
    async (request, reply) => {
      const { usedBy } = await orNotFound(deleteSmtpAccount(sql, request.ownerId, request.params.id));
      if (usedBy.length > 0) {
        const detail = `These identities refer to the account: ${usedBy.join(', ')}. Give them another account, or null, with PATCH.`;
        throw new Problem('in_use', { detail });
      }
      reply.code(204).send(null);
    },
  );

  app.post(
    '/smtp-accounts/:id/verify',
    withAccess('key', tags, {
      summary: 'Log in on both sides of an SMTP account now',
      description: '`send` and `receive` of the answer say how it went, and what to do.',
      params: IdParams,
      response: { 200: SmtpAccount },
    }),
    async (request, reply) => {
      const { ownerId } = request;
      const { id } = request.params;
      const check = (signal: AbortSignal) =>
        verifyAccount({ ...parts.verifyAccounts, sql }, { ownerId, accountId: id }, signal);
      const verify = async () => {
        await orNotFound(findSmtpAccount(sql, ownerId, id));
        await parts.verifications.run(ownerId, abortOnClose(reply), check);
        parts.wakeSync();
      };
      await actAndRespondOnce(parts, request, reply, verify, async (sql) => ({
        status: 200,
        body: await orNotFound(findSmtpAccount(sql, ownerId, id)),
      }));
    },
  );
}

/** Two identities would both get the mail of one mailbox. */
async function requireOneAddress(sql: Sql, ownerId: string, accountId: string): Promise<void> {
  const users = await listAccountUsers(sql, ownerId, accountId);
  const addresses = users.filter(({ kind }) => kind === 'email').map(({ value }) => value);
  if (addresses.length <= 1) return;
  const detail = `An account with "imap" serves one address, and these refer to it: ${addresses.join(', ')}. Give all but one another account, or null, with PATCH.`;
  throw new Problem('in_use', { detail });
}

function toServer(side: ServerSide, stored: MailServer | null, given: ServerChanges): MailServer {
  const changed = changeServer(stored, given);
  if ('server' in changed) return changed.server;
  const pointerTo = (pointer: string): Pointer => `/${side}${pointer}`;
  if ('missing' in changed) {
    const errors = changed.missing.map((pointer) => ({
      ...{ pointer: pointerTo(pointer), code: 'required' },
      message: `"${side}${pointer}" is required.${pointer === '/password' ? ' Or give "oauth2".' : ''}`,
    }));
    throw new Problem('invalid_body', { errors });
  }
  const errors = changed.secretsNeeded.map((pointer) => ({
    ...{ pointer: pointerTo(pointer), code: 'required' },
    message: `Give "${side}${pointer}" again: a stored secret is not sent to another server.`,
  }));
  throw new Problem('secret_required', { errors });
}

function tooManyAccounts(maxAccounts: number): Problem {
  return new Problem('too_many_accounts', {
    detail: `You have ${maxAccounts} SMTP accounts, which is the limit. Delete an SMTP account, then send the request again.`,
  });
}
