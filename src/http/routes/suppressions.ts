/** Suppressions: addresses that the owner's mail no longer goes to. */
import { Type } from 'typebox';
import { body, describe, listQuery, maxPage, oneOf } from '../../contract/schemas.ts';
import { Suppression } from '../../contract/sending.ts';
import type { Pool } from '../../db/client.ts';
import { readAddressOrDomain } from '../../net/address-or-domain.ts';
import { Problem } from '../../problems.ts';
import {
  deleteSuppression,
  findSuppression,
  listSuppressions,
  suppress,
  suppressionReasons,
} from '../../store/suppressions.ts';
import { withAccess } from '../access.ts';
import { orNotFound } from '../errors.ts';
import type { App } from '../fastify.ts';
import { type PostParts, respondOnce } from '../idempotency.ts';
import { type PageParts, readPage, sendPage } from '../pagination.ts';

const Address = Type.String({ format: 'email-address' });
const NewSuppression = body(
  { address: Address, reason: Type.Optional(describe(oneOf(suppressionReasons), 'Default: `manual`.')) },
  { example: { address: 'ada@example.com' } },
);
const tags = ['Suppressions'];

export function suppressionRoutes(app: App, parts: PostParts & PageParts & { sql: Pool }): void {
  const { sql } = parts;

  app.get(
    '/suppressions',
    withAccess('key', tags, {
      summary: 'List the addresses that your mail no longer goes to',
      description: 'An address that bounced for good, or that complained, is suppressed.',
      querystring: listQuery({ address: Type.Optional(Address) }),
      response: { 200: Type.Array(Suppression) },
    }),
    async (request, reply) => {
      const { address } = request.query;
      const page = await readPage(parts, request, reply, maxPage);
      if (address === undefined) {
        const found = await listSuppressions(sql, request.ownerId, page);
        return sendPage(parts, request, reply, found);
      }
      const found = await findSuppression(sql, request.ownerId, readAddress(address).key);
      return found ? [found] : [];
    },
  );

  app.post(
    '/suppressions',
    withAccess('key', tags, {
      summary: 'Suppress an address',
      description: 'An address that is suppressed already keeps its record.',
      body: NewSuppression,
      response: { 201: Suppression },
    }),
    (request, reply) =>
      respondOnce(parts, request, reply, async (sql) => {
        const { ownerId } = request;
        const { reason = 'manual' } = request.body;
        const { value: address, key: addressKey } = readAddress(request.body.address);
        await suppress(sql, [{ ownerId, address, addressKey, reason, messageId: null }]);
        const made = await orNotFound(findSuppression(sql, ownerId, addressKey));
        return { status: 201, location: `/suppressions/${encodeURIComponent(address)}`, body: made };
      }),
  );

  app.delete(
    '/suppressions/:address',
    withAccess('key', tags, {
      summary: 'Allow mail to an address again',
      params: Type.Object({ address: Type.String() }),
      response: { 204: Type.Null() },
    }),
    async (request, reply) => {
      await orNotFound(deleteSuppression(sql, request.ownerId, readAddress(request.params.address).key));
      reply.code(204).send(null);
    },
  );
}

/** With its domain in lower case, as messages have it. */
function readAddress(text: string): { value: string; key: string } {
  const read = readAddressOrDomain(text);
  if ('fault' in read || read.kind !== 'email') throw new Problem('not_found');
  return read;
}
