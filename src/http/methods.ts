/**
 * Requests without a route of their own: OPTIONS (204 with `Allow`, and CORS headers if origins are allowed), a wrong
 * method on a known path (405 with `Allow`), and unknown paths (404).
 */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { Problem } from '../problems.ts';
import type { App } from './fastify.ts';

export function answerOtherMethods(app: App, corsOrigins: readonly string[]): void {
  const routes = new Map<string, Set<string>>();
  app.addHook('onRoute', ({ url, method }) => {
    const methods = routes.get(url) ?? new Set();
    for (const name of [method].flat()) methods.add(name);
    routes.set(url, methods);
  });

  const answer = (request: FastifyRequest, reply: FastifyReply) => {
    const [path = ''] = request.url.split('?', 1);
    const found = [...routes].filter(([pattern]) => matches(pattern, path));
    const methods = new Set(found.flatMap(([, names]) => [...names]));
    if (methods.size === 0) throw new Problem('route_not_found');
    const allow = [...methods, 'OPTIONS'].join(', ');
    if (request.method !== 'OPTIONS') {
      throw new Problem('method_not_allowed', { detail: `This path takes ${allow}.`, headers: { allow } });
    }
    if (corsOrigins.length > 0) {
      reply.headers({
        'access-control-allow-methods': allow,
        'access-control-allow-headers': 'authorization, content-type, idempotency-key, x-request-id',
        'access-control-max-age': '600',
      });
    }
    reply.code(204).header('allow', allow).send();
  };
  app.setNotFoundHandler(answer);
  // Before the body is read: without a route, its type and size do not matter.
  app.addHook('onRequest', (request, reply, done) => {
    if (!request.is404) return done();
    try {
      answer(request, reply);
    } catch (error) {
      done(error as Error);
    }
  });
}

/** CORS: pages of the allowed origins may read responses. Off unless the operator configures origins. */
export function allowOrigin(
  request: FastifyRequest,
  reply: FastifyReply,
  corsOrigins: readonly string[],
): void {
  const { origin } = request.headers;
  if (corsOrigins.length === 0) return;
  reply.header('vary', 'origin');
  if (origin === undefined || !(corsOrigins.includes('*') || corsOrigins.includes(origin))) return;
  reply.headers({
    'access-control-allow-origin': origin,
    'access-control-expose-headers': 'link, location, ratelimit, ratelimit-policy, retry-after, x-request-id',
  });
}

/** Whether a path such as `/identities/1234` matches a pattern such as `/identities/:id`. */
function matches(pattern: string, path: string): boolean {
  if (pattern.endsWith('/*')) return path.startsWith(pattern.slice(0, -1));
  const wanted = pattern.split('/');
  const given = path.split('/');
  return (
    wanted.length === given.length &&
    wanted.every((part, i) => part === given[i] || (part.startsWith(':') && given[i]))
  );
}
