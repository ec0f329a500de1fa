/** The API description, for programs (`/openapi.json`) and for people (`/docs`). */
import { Type } from 'typebox';
import { once } from '../../lib/once.ts';
import { withAccess } from '../access.ts';
import { renderDocsPage } from '../docs-page.ts';
import type { App } from '../fastify.ts';
import { dereference } from '../openapi-document.ts';

export function documentationRoutes(app: App): void {
  const tags = ['Documentation'];
  // Rendered once: each takes milliseconds, and anyone may request them. As bytes, which all clients that read slowly share.
  const openApi = once(() => Buffer.from(JSON.stringify(app.swagger())));
  const page = once(() => Buffer.from(renderDocsPage(dereference(app.swagger()))));

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
    async (_request, reply) => {
      reply.header(
        'content-security-policy',
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
      );
      reply.type('text/html; charset=utf-8').send(page());
    },
  );
}
