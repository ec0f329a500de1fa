/** Whether the process lives, and whether it can do its work. */
import { Type } from 'typebox';
import type { Pool } from '../../db/client.ts';
import type { App } from '../fastify.ts';

const Ok = Type.Object({ status: Type.Literal('ok') });

export function healthRoutes(app: App, { sql }: { sql: Pool }): void {
  const tags = ['Operation'];

  app.get(
    '/health/live',
    { config: { access: 'public' }, schema: { tags, summary: 'The process runs', response: { 200: Ok } } },
    async () => ({ status: 'ok' as const }),
  );

  app.get(
    '/health/ready',
    {
      config: { access: 'public' },
      schema: { tags, summary: 'The database answers', response: { 200: Ok } },
    },
    async () => {
      await sql`select 1`;
      return { status: 'ok' as const };
    },
  );
}
