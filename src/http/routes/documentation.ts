/** The API description, for programs (`/openapi.json`) and for people (`/docs`). */
import { Readable } from 'node:stream';
import { createGunzip } from 'node:zlib';
import { Type } from 'typebox';
import { once } from '../../lib/once.ts';
import { Problem } from '../../problems.ts';
import { withAccess } from '../access.ts';
import type { App } from '../fastify.ts';
import { makeReference, referencePolicy, startScript } from '../reference.ts';

const javascript = 'text/javascript; charset=utf-8';

export function documentationRoutes(app: App): void {
  const tags = ['Documentation'];
  // Written once: it takes milliseconds, and anyone may request it. As bytes, which all clients that read slowly share.
  const openApi = once(() => Buffer.from(JSON.stringify(app.swagger())));
  const reference = once(() => makeReference());

  app.get(
    '/openapi.json',
    withAccess('public', tags, {
      summary: 'Get the OpenAPI 3.1 document',
      response: { 200: Type.Unsafe({}) },
    }),
    async (_request, reply) => reply.type('application/json; charset=utf-8').send(openApi()),
  );

  app.get(
    '/docs',
    withAccess('public', tags, {
      summary: 'Get this page',
      response: { 200: { content: { 'text/html': { schema: Type.Unsafe<unknown>({ type: 'string' }) } } } },
    }),
    async (_request, reply) =>
      reply
        .headers({ 'content-security-policy': referencePolicy, 'x-content-type-options': 'nosniff' })
        .type('text/html; charset=utf-8')
        .send(reference().page),
  );

  // A file of the page, not an operation.
  const hidden = { config: { access: 'public' }, schema: { hide: true } } as const;
  app.get<{ Params: { file: string } }>('/docs/:file', hidden, async (request, reply) => {
    const { file } = request.params;
    const { script } = reference();
    if (file !== startScript.name && file !== script?.name) throw new Problem('route_not_found');
    // The name changes with the content.
    reply.header('cache-control', 'public, max-age=31536000, immutable').type(javascript);
    reply.header('x-content-type-options', 'nosniff');
    if (!script || file === startScript.name) return reply.send(startScript.bytes);
    const gzipped = await script.readGzipped();
    reply.header('vary', 'accept-encoding');
    if (/\bgzip\b/.test(request.headers['accept-encoding'] ?? ''))
      return reply.header('content-encoding', 'gzip').send(gzipped);
    return reply.send(Readable.from([gzipped]).pipe(createGunzip()));
  });
}
