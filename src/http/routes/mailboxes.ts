/** The mailboxes of an identity, and a check on demand of those that another server holds. */
import { Type } from 'typebox';
import { Mailbox } from '../../contract/mailbox.ts';
import { describe, IdParams, optionalBody, Timestamp } from '../../contract/schemas.ts';
import { Problem } from '../../problems.ts';
import { requestSync } from '../../store/imap-connections.ts';
import { listMailboxes } from '../../store/mailbox-sync.ts';
import { withAccess } from '../access.ts';
import { orNotFound } from '../errors.ts';
import type { App } from '../fastify.ts';
import { actAndRespondOnce, type PostParts } from '../idempotency.ts';

const tags = ['Identities'];

const SyncRequest = optionalBody(
  {
    since: Type.Optional(describe(Timestamp, 'Also import older mail that arrived at this time or later.')),
    events: Type.Optional(
      Type.Boolean({ default: false, description: 'Whether older mail makes `message.received` events.' }),
    ),
  },
  { example: { since: '2026-01-01T00:00:00Z', events: false } },
);

export function mailboxRoutes(app: App, parts: PostParts & { wakeSync(): void }): void {
  const { sql } = parts;

  app.get(
    '/identities/:id/mailboxes',
    withAccess('key', tags, {
      summary: 'List the mailboxes of an identity',
      description:
        'With the progress of the synchronisation, where another server holds the mailboxes (IMAP).',
      params: IdParams,
      response: { 200: Type.Array(Mailbox) },
    }),
    (request) => orNotFound(listMailboxes(sql, request.ownerId, request.params.id)),
  );

  app.post(
    '/identities/:id/sync',
    withAccess('key', tags, {
      summary: 'Synchronise the mailboxes of an identity now',
      description:
        'Checks the folders at the other server at once. With `since`, older mail is imported too; `backlog` of a mailbox shows how much is left. Mail that was imported before is not imported again.',
      params: IdParams,
      body: SyncRequest,
      response: { 202: Type.Array(Mailbox) },
    }),
    async (request, reply) => {
      const { ownerId, params, body } = request;
      const since = body?.since === undefined ? null : new Date(body.since);
      const check = async () => {
        await orNotFound(listMailboxes(sql, ownerId, params.id));
      };
      await actAndRespondOnce(parts, request, reply, check, async (sql) => {
        const isNoted = await requestSync(sql, ownerId, params.id, { since, events: body?.events ?? false });
        if (!isNoted) throw new Problem('no_mailbox');
        return { status: 202, body: await orNotFound(listMailboxes(sql, ownerId, params.id)) };
      });
      parts.wakeSync();
    },
  );
}
