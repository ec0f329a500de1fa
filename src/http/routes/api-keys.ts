/** The owner's own API keys. */
import { Type } from 'typebox';
import { ApiKey, CreatedApiKey, KeyScope } from '../../contract/api-key.ts';
import {
  body,
  describe,
  IdParams,
  listQuery,
  maxPage,
  NullableTimestamp,
  nullableText,
} from '../../contract/schemas.ts';
import type { FieldError } from '../../problems.ts';
import { createApiKey, findApiKey, listApiKeys, revokeApiKey } from '../../store/api-keys.ts';
import { type Authenticator, withAccess } from '../access.ts';
import { orNotFound } from '../errors.ts';
import type { App } from '../fastify.ts';
import { type PostParts, respondOnce } from '../idempotency.ts';
import { type PageParts, readPage, sendPage } from '../pagination.ts';

export const NewApiKey = body(
  {
    name: Type.Optional(describe(nullableText(100), 'For you.')),
    scope: Type.Optional(
      describe(
        KeyScope,
        '`full`: everything. `send`: only sending mail. `read`: only GET, without webhook secrets. Left out: `full`.',
      ),
    ),
    expiresAt: Type.Optional(describe(NullableTimestamp, 'Null or left out: the key does not expire.')),
  },
  { example: { name: 'ci' } },
);

const tags = ['API keys'];

export function apiKeyRoutes(
  app: App,
  parts: PostParts & PageParts & { authenticator: Authenticator },
): void {
  const { sql, authenticator } = parts;

  app.post(
    '/api-keys',
    {
      config: { access: 'key', findFieldErrors: findPastExpiry },
      schema: {
        tags,
        summary: 'Create an API key',
        description: 'Store `apiKey` of the response: no other response contains it.',
        body: NewApiKey,
        response: { 201: CreatedApiKey },
      },
    },
    (request, reply) =>
      respondOnce(parts, request, reply, async (sql) => {
        const key = await createApiKey(sql, request.ownerId, request.body);
        return { status: 201, location: `/api-keys/${key.id}`, body: key };
      }),
  );

  app.get(
    '/api-keys',
    withAccess('key', tags, {
      summary: 'List your API keys',
      querystring: listQuery({}),
      response: { 200: Type.Array(ApiKey) },
    }),
    async (request, reply) => {
      const found = await listApiKeys(sql, request.ownerId, await readPage(parts, request, reply, maxPage));
      return sendPage(parts, request, reply, found);
    },
  );

  app.get(
    '/api-keys/:id',
    withAccess('key', tags, { summary: 'Get an API key', params: IdParams, response: { 200: ApiKey } }),
    async (request) => orNotFound(findApiKey(sql, request.ownerId, request.params.id)),
  );

  app.delete(
    '/api-keys/:id',
    withAccess('key', tags, {
      summary: 'Revoke an API key',
      params: IdParams,
      response: { 204: Type.Null() },
    }),
    async (request, reply) => {
      const { id } = request.params;
      await orNotFound(revokeApiKey(sql, request.ownerId, id));
      authenticator.forget(id);
      reply.code(204).send(null);
    },
  );
}

export function findPastExpiry({ expiresAt }: Record<string, unknown>): FieldError[] {
  const isPast = typeof expiresAt === 'string' && Date.parse(expiresAt) <= Date.now();
  const message = '"expiresAt" must be in the future.';
  return isPast ? [{ pointer: '/expiresAt', code: 'out_of_range', message }] : [];
}
