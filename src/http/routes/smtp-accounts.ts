/** SMTP accounts: servers elsewhere that your mail leaves through and, with IMAP, arrives from. */
import { Type } from 'typebox';
import { IdParams, listQuery, maxPage } from '../../contract/schemas.ts';
import { SmtpAccount } from '../../contract/smtp-account.ts';
import type { Pool } from '../../db/client.ts';
import { Problem } from '../../problems.ts';
import { deleteSmtpAccount, findSmtpAccount, listSmtpAccounts } from '../../store/smtp-accounts.ts';
import { withAccess } from '../access.ts';
import { orNotFound } from '../errors.ts';
import type { App } from '../fastify.ts';
import { type PageParts, readPage, sendPage } from '../pagination.ts';

const tags = ['SMTP accounts'];

export function smtpAccountRoutes(app: App, parts: PageParts & { sql: Pool }): void {
  const { sql } = parts;

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

  app.get(
    '/smtp-accounts/:id',
    withAccess('key', tags, {
      summary: 'Get an SMTP account',
      params: IdParams,
      response: { 200: SmtpAccount },
    }),
    async (request) => orNotFound(findSmtpAccount(sql, request.ownerId, request.params.id)),
  );

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
}
