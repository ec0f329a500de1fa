/** The operator's token creates users and their API keys, without a terminal. */
import { Type } from 'typebox';
import { CreatedApiKey } from '../../contract/api-key.ts';
import { body, IdParams } from '../../contract/schemas.ts';
import { User } from '../../contract/user.ts';
import { readAddressOrDomain } from '../../net/address-or-domain.ts';
import { createApiKey } from '../../store/api-keys.ts';
import { ensureUser, findUser } from '../../store/users.ts';
import { withAccess } from '../access.ts';
import { orNotFound } from '../errors.ts';
import type { App } from '../fastify.ts';
import { type PostParts, respondOnce } from '../idempotency.ts';
import { findPastExpiry, NewApiKey } from './api-keys.ts';

const NewUser = body(
  { email: Type.String({ format: 'email-address' }) },
  { example: { email: 'ada@example.com' } },
);

const tags = ['Operator'];

export function adminRoutes(app: App, parts: PostParts): void {
  app.post(
    '/admin/users',
    withAccess('operator', tags, {
      summary: 'Create a user',
      description: 'If a user with this email address exists, the response is 200 with that user.',
      body: NewUser,
      response: { 200: User, 201: User },
    }),
    (request, reply) =>
      respondOnce(parts, request, reply, async (sql) => {
        const read = readAddressOrDomain(request.body.email);
        if ('fault' in read) throw new Error('The schema accepted an invalid email address');
        const { user, created } = await ensureUser(sql, read.value);
        if (!created) return { status: 200, body: user };
        return { status: 201, location: `/admin/users/${user.userId}`, body: user };
      }),
  );

  app.get(
    '/admin/users/:id',
    withAccess('operator', tags, { summary: 'Get a user', params: IdParams, response: { 200: User } }),
    async (request) => orNotFound(findUser(parts.sql, request.params.id)),
  );

  app.post(
    '/admin/users/:id/api-keys',
    {
      config: { access: 'operator', findFieldErrors: findPastExpiry },
      schema: {
        tags,
        summary: 'Create an API key for a user',
        params: IdParams,
        body: NewApiKey,
        response: { 201: CreatedApiKey },
      },
    },
    (request, reply) =>
      respondOnce(parts, request, reply, async (sql) => {
        const user = await orNotFound(findUser(sql, request.params.id));
        const key = await createApiKey(sql, user.userId, request.body);
        return { status: 201, location: `/api-keys/${key.id}`, body: key };
      }),
  );
}
