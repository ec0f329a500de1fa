/** The contract, for programs (`/openapi.json`) and for people (`/docs`). */
import { Type } from 'typebox';
import { once } from '../../lib/once.ts';
import { renderDocsPage } from '../docs-page.ts';
import type { App } from '../fastify.ts';

export function documentationRoutes(app: App): void {
  const tags = ['Documentation'];
  // Made once: anyone may ask for them, and they take milliseconds.
  const openApi = once(() => JSON.stringify(app.swagger()));
  const page = once(() => renderDocsPage(app.swagger()));

  app.get(
    '/openapi.json',
    {
      config: { access: 'public' },
      schema: { tags, summary: 'The OpenAPI 3.1 document', response: { 200: Type.Unsafe({}) } },
    },
    async (_request, reply) => reply.type('application/json; charset=utf-8').send(openApi()),
  );

  app.get(
    '/docs',
    {
      config: { access: 'public' },
      schema: {
        tags,
        summary: 'The same, to read',
        response: { 200: { content: { 'text/html': { schema: Type.String() } } } },
      },
    },
    async (_request, reply) => {
      // The page is plain HTML and CSS of ours; nothing else may run in it.
      reply.header(
        'content-security-policy',
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
      );
      reply.type('text/html; charset=utf-8').send(page());
    },
  );
}
