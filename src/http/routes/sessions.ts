/** Sessions: browsers that signed in. The cookie is in http/session-cookie.ts, and http/access.ts reads it. */
import type { FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { exactlyOneOf } from '../../contract/forms.ts';
import { body, describe, IdParams, listQuery, maxPage } from '../../contract/schemas.ts';
import { CurrentSession, Session } from '../../contract/session.ts';
import { type Pool, transaction } from '../../db/client.ts';
import { hashApiKey, isApiKey } from '../../lib/api-key.ts';
import { isToken } from '../../lib/tokens.ts';
import { AuthFailures } from '../../net/auth-failures.ts';
import { clientNetwork } from '../../net/client-network.ts';
import { Problem } from '../../problems.ts';
import { findActiveKey, touchApiKey } from '../../store/api-keys.ts';
import {
  createSession,
  endSession,
  endSessionOf,
  findSession,
  listSessions,
  useSignInLink,
} from '../../store/sessions.ts';
import { type Authenticator, refuseScope, withAccess } from '../access.ts';
import { orNotFound } from '../errors.ts';
import type { App } from '../fastify.ts';
import { type PageParts, readPage, sendPage } from '../pagination.ts';
import { rateLimited } from '../rate-limit.ts';
import { csrfTokenOf, type SessionCookie } from '../session-cookie.ts';

const signIn = {
  apiKey: Type.Optional(
    Type.String({ maxLength: 200, description: 'An API key; not one with the scope `send`.' }),
  ),
  token: Type.Optional(
    describe(
      Type.String({ maxLength: 200 }),
      'The part after `#` of a sign-in link, which `posthorn sign-in-link` prints. It works once.',
    ),
  ),
};
const NewSession = body(signIn, {
  example: { apiKey: 'ph_…' },
  forms: exactlyOneOf(signIn, { apiKey: 'ApiKeySignIn', token: 'LinkSignIn' }),
});

const tags = ['Sessions'];
const failureSeconds = 60;

interface SessionParts extends PageParts {
  sql: Pool;
  authenticator: Authenticator;
  cookie: SessionCookie;
  baseUrl: string;
}

/** Who signs in. */
interface Signer {
  ownerId: string;
  keyId: string | null;
}

export function sessionRoutes(app: App, parts: SessionParts): void {
  const { sql, authenticator, cookie, baseUrl } = parts;
  const failures = new AuthFailures();

  app.post(
    '/sessions',
    {
      config: { access: 'public' },
      schema: {
        tags,
        summary: 'Sign in',
        description:
          'For browsers: the response sets a cookie, which counts as the API key on requests of the same origin that have no `Authorization`. Requests that are not a GET also need `X-CSRF-Token`. Only failures are limited: 20 a minute from an address.',
        body: NewSession,
        response: { 201: CurrentSession },
      },
    },
    async (request, reply) => {
      refuseOtherPages(request);
      const previous = cookie.read(request);
      const made = await transaction(sql, async (sql) => {
        const signer = await findSigner(sql, request.body);
        if (!signer) return undefined;
        // Signing in again replaces the session, and never keeps its token: nobody can prepare a session for someone else.
        const replacedId = previous === undefined ? undefined : await endSessionOf(sql, previous);
        const userAgent = request.headers['user-agent'] ?? null;
        const created = await createSession(sql, signer.ownerId, { keyId: signer.keyId, userAgent });
        return { ...created, replacedId };
      });
      if (!made) throw refuse(request);
      const { token, session, replacedId } = made;
      if (replacedId !== undefined) authenticator.forget(replacedId);
      reply
        .code(201)
        .headers({ 'set-cookie': cookie.write(token), 'cache-control': 'no-store' })
        .header('location', `${baseUrl}/sessions/current`)
        .send({ ...session, csrfToken: csrfTokenOf(token) });
    },
  );

  /** Counted only after the check, so that failures of others cannot lock out who has a valid key. */
  function refuse({ ip, body }: FastifyRequest): Problem {
    const network = clientNetwork(ip);
    const now = performance.now();
    if (failures.isBlocked(network, now))
      return rateLimited(failureSeconds, 'Too many failures to sign in from this address.');
    failures.add(network, now);
    return new Problem(
      (body as { token?: string }).token === undefined ? 'invalid_api_key' : 'invalid_sign_in_link',
    );
  }

  async function endAndForget(ownerId: string, id: string): Promise<void> {
    await orNotFound(endSession(sql, ownerId, id));
    authenticator.forget(id);
  }

  app.get(
    '/sessions',
    withAccess('key', tags, {
      summary: 'List your sessions',
      querystring: listQuery({}),
      response: { 200: Type.Array(Session) },
    }),
    async (request, reply) => {
      const found = await listSessions(sql, request.ownerId, await readPage(parts, request, reply, maxPage));
      return sendPage(parts, request, reply, found);
    },
  );

  app.get(
    '/sessions/current',
    withAccess('key', tags, {
      summary: 'Get the session of this request, with its CSRF token',
      description: '404 for a request with an API key.',
      response: { 200: CurrentSession },
    }),
    async (request) => {
      const { ownerId, sessionId } = request;
      const token = cookie.read(request);
      if (sessionId === null || token === undefined) throw new Problem('not_found');
      const session = await orNotFound(findSession(sql, ownerId, sessionId));
      return { ...session, csrfToken: csrfTokenOf(token) };
    },
  );

  app.delete(
    '/sessions/current',
    {
      config: { access: 'key', scopes: ['full', 'read'] },
      schema: {
        tags,
        summary: 'End the session of this request: sign out',
        description: '404 for a request with an API key.',
        response: { 204: Type.Null() },
      },
    },
    async ({ ownerId, sessionId }, reply) => {
      if (sessionId === null) throw new Problem('not_found');
      await endAndForget(ownerId, sessionId);
      reply.header('set-cookie', cookie.clear()).code(204).send(null);
    },
  );

  app.delete(
    '/sessions/:id',
    {
      config: { access: 'key', scopes: ['full', 'read'] },
      schema: {
        tags,
        summary: 'End a session: sign out',
        description: 'With the scope `read`, a session can end only itself.',
        params: IdParams,
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      const { ownerId, sessionId, keyScope } = request;
      const { id } = request.params;
      if (keyScope !== 'full' && id !== sessionId) throw new Problem('not_found');
      await endAndForget(ownerId, id);
      if (id === sessionId) reply.header('set-cookie', cookie.clear());
      reply.code(204).send(null);
    },
  );
}

/** A page of another site could otherwise sign the browser in as someone else, who then reads what the person writes. */
function refuseOtherPages({ headers }: FastifyRequest): void {
  const site = headers['sec-fetch-site'];
  if (site !== undefined && site !== 'same-origin' && site !== 'none') throw new Problem('cross_origin');
}

async function findSigner(
  sql: Parameters<typeof findActiveKey>[0],
  { apiKey, token }: { apiKey?: string; token?: string },
): Promise<Signer | undefined> {
  if (token !== undefined) {
    const ownerId = isToken(token) ? await useSignInLink(sql, token) : undefined;
    return ownerId === undefined ? undefined : { ownerId, keyId: null };
  }
  const key =
    apiKey !== undefined && isApiKey(apiKey) ? await findActiveKey(sql, hashApiKey(apiKey)) : undefined;
  if (!key) return undefined;
  if (key.scope === 'send') throw refuseScope('send', ['full', 'read']);
  if (key.stale) await touchApiKey(sql, key.ownerId, key.id);
  return { ownerId: key.ownerId, keyId: key.id };
}
