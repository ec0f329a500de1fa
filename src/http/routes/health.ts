/** Liveness (the process runs) and readiness (the database responds). */
import { Type } from 'typebox';
import type { Pool } from '../../db/client.ts';
import { withAccess } from '../access.ts';
import type { App } from '../fastify.ts';

const Ok = Type.Object({ status: Type.Literal('ok') });

export function healthRoutes(app: App, { sql }: { sql: Pool }): void {
  const tags = ['Operation'];

  app.get(
    '/health/live',
    withAccess('public', tags, { summary: 'Check that the process runs', response: { 200: Ok } }),
    async () => ({ status: 'ok' as const }),
  );

  app.get(
    '/health/ready',
    withAccess('public', tags, { summary: 'Check that the database responds', response: { 200: Ok } }),
    async () => {
      await sql`select 1`;
      return { status: 'ok' as const };
    },
  );
}
