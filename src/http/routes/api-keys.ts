/** The owner's own API keys. */
import { Type } from 'typebox';
import { ApiKey, CreatedApiKey } from '../../contract/api-key.ts';
import {
  body,
  IdParams,
  listQuery,
  maxPage,
  NullableTimestamp,
  nullableText,
} from '../../contract/schemas.ts';
import { type Fault, Problem } from '../../problems.ts';
import { createApiKey, findApiKey, listApiKeys, revokeApiKey } from '../../store/api-keys.ts';
import type { Gate } from '../access.ts';
import type { App } from '../fastify.ts';
import { type AnswerParts, answerOnce } from '../idempotency.ts';
import { type PageParts, readPage, sendPage } from '../pagination.ts';

export const NewApiKey = body(
  {
    name: Type.Optional(nullableText(100)),
    expiresAt: Type.Optional(NullableTimestamp),
  },
  { example: { name: 'ci' } },
);

const tags = ['API keys'];

export function apiKeyRoutes(app: App, parts: AnswerParts & PageParts & { gate: Gate }): void {
  const { sql, gate } = parts;

  app.post(
    '/api-keys',
    {
      config: { access: 'key', findFaults: findPast },
      schema: { tags, summary: 'Make a key', body: NewApiKey, response: { 201: CreatedApiKey } },
    },
    (request, reply) =>
      answerOnce(parts, request, reply, async (sql) => {
        const key = await createApiKey(sql, request.ownerId, request.body);
        return { status: 201, location: `/api-keys/${key.id}`, body: key };
      }),
  );

  app.get(
    '/api-keys',
    {
      config: { access: 'key' },
      schema: {
        tags,
        summary: 'Your keys',
        querystring: listQuery({}),
        response: { 200: Type.Array(ApiKey) },
      },
    },
    async (request, reply) => {
      const found = await listApiKeys(sql, request.ownerId, readPage(request.query, maxPage));
      return sendPage(parts, request, reply, found);
    },
  );

  app.get(
    '/api-keys/:id',
    {
      config: { access: 'key' },
      schema: { tags, summary: 'One key', params: IdParams, response: { 200: ApiKey } },
    },
    async (request) => {
      const key = await findApiKey(sql, request.ownerId, request.params.id);
      if (!key) throw new Problem('not_found');
      return key;
    },
  );

  app.delete(
    '/api-keys/:id',
    {
      config: { access: 'key' },
      schema: { tags, summary: 'Revoke a key', params: IdParams, response: { 204: Type.Null() } },
    },
    async (request, reply) => {
      const { id } = request.params;
      if (!(await revokeApiKey(sql, request.ownerId, id))) throw new Problem('not_found');
      gate.forget(id);
      reply.code(204).send(null);
    },
  );
}

export function findPast({ expiresAt }: Record<string, unknown>): Fault[] {
  const past = typeof expiresAt === 'string' && Date.parse(expiresAt) <= Date.now();
  const message = '"expiresAt" must lie in the future.';
  return past ? [{ pointer: '/expiresAt', code: 'out_of_range', message }] : [];
}
