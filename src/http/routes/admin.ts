/** Provisioning without a terminal: the operator's token makes users and their keys. */
import { Type } from 'typebox';
import { CreatedApiKey } from '../../contract/api-key.ts';
import { body, IdParams } from '../../contract/schemas.ts';
import { User } from '../../contract/user.ts';
import { readAddressOrDomain } from '../../net/address-or-domain.ts';
import { Problem } from '../../problems.ts';
import { createApiKey } from '../../store/api-keys.ts';
import { ensureUser, findUser } from '../../store/users.ts';
import type { App } from '../fastify.ts';
import { type AnswerParts, answerOnce } from '../idempotency.ts';
import { findPast, NewApiKey } from './api-keys.ts';

const NewUser = body(
  { email: Type.String({ format: 'email-address' }) },
  { example: { email: 'ada@example.com' } },
);

const tags = ['Operator'];

export function adminRoutes(app: App, parts: AnswerParts): void {
  const { sql } = parts;

  app.post(
    '/admin/users',
    {
      config: { access: 'operator' },
      schema: {
        tags,
        summary: 'Make a user, or find the one with that address',
        body: NewUser,
        response: { 200: User, 201: User },
      },
    },
    (request, reply) =>
      answerOnce(parts, request, reply, async (sql) => {
        const read = readAddressOrDomain(request.body.email);
        if ('fault' in read) throw new Error('The schema let an address pass that does not read');
        const { user, created } = await ensureUser(sql, read.value);
        if (!created) return { status: 200, body: user };
        return { status: 201, location: `/admin/users/${user.userId}`, body: user };
      }),
  );

  app.get(
    '/admin/users/:id',
    {
      config: { access: 'operator' },
      schema: { tags, summary: 'One user', params: IdParams, response: { 200: User } },
    },
    async (request) => {
      const user = await findUser(sql, request.params.id);
      if (!user) throw new Problem('not_found');
      return user;
    },
  );

  app.post(
    '/admin/users/:id/api-keys',
    {
      config: { access: 'operator', findFaults: findPast },
      schema: {
        tags,
        summary: 'Make a key for a user',
        params: IdParams,
        body: NewApiKey,
        response: { 201: CreatedApiKey },
      },
    },
    (request, reply) =>
      answerOnce(parts, request, reply, async (sql) => {
        const user = await findUser(sql, request.params.id);
        if (!user) throw new Problem('not_found');
        const key = await createApiKey(sql, user.userId, request.body);
        return { status: 201, location: `/api-keys/${key.id}`, body: key };
      }),
  );
}
