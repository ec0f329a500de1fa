/** Liveness (the process runs) and readiness (the start is complete, and the database responds). */
import { Type } from 'typebox';
import type { Pool } from '../../db/client.ts';
import { Problem } from '../../problems.ts';
import { withAccess } from '../access.ts';
import type { App } from '../fastify.ts';

const Ok = Type.Object({ status: Type.Literal('ok') });

export interface HealthParts {
  sql: Pool;
  /** False until the start is complete: the first API key must be shown before others see a ready service. */
  isReady(): boolean;
}

export function healthRoutes(app: App, { sql, isReady }: HealthParts): void {
  const tags = ['Operation'];

  app.get(
    '/health/live',
    withAccess('public', tags, { summary: 'Check that the process runs', response: { 200: Ok } }),
    async () => ({ status: 'ok' as const }),
  );

  app.get(
    '/health/ready',
    withAccess('public', tags, {
      summary: 'Check that the service has started and that the database responds',
      response: { 200: Ok },
    }),
    async () => {
      if (!isReady()) throw new Problem('starting', { headers: { 'retry-after': '1' } });
      await sql`select 1`;
      return { status: 'ok' as const };
    },
  );
}
