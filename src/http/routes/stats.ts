/** `GET /stats`: how much came in and went out, by hour or day. */
import { Type } from 'typebox';
import { describe, oneOf, Timestamp } from '../../contract/schemas.ts';
import { Traffic } from '../../contract/stats.ts';
import type { Pool } from '../../db/client.ts';
import { Problem } from '../../problems.ts';
import { readTraffic, type TrafficStep, trafficSteps } from '../../store/traffic.ts';
import { withAccess } from '../access.ts';
import type { App } from '../fastify.ts';

const maxSteps = 1000;
const stepMs: Record<TrafficStep, number> = { hour: 3_600_000, day: 86_400_000 };
/** How many steps are shown without `since`. */
const usualSteps: Record<TrafficStep, number> = { hour: 24, day: 30 };

const Query = Type.Object(
  {
    since: Type.Optional(
      describe(
        Timestamp,
        `From the hour or day of this time on, up to ${maxSteps} steps ago. Left out: 24 hours or 30 days ago.`,
      ),
    ),
    step: Type.Optional(describe(oneOf(trafficSteps), 'Left out: `hour`. Days begin at 00:00 UTC.')),
  },
  { additionalProperties: false },
);

export function statsRoutes(app: App, { sql }: { sql: Pool }): void {
  app.get(
    '/stats',
    withAccess('key', ['Statistics'], {
      summary: 'Get your traffic by hour or day',
      description: 'Oldest first, without gaps. What is older than the retention of the service counts as 0.',
      querystring: Query,
      response: { 200: Type.Array(Traffic) },
    }),
    async (request) => {
      const { since: given, step = 'hour' } = request.query;
      const until = new Date();
      const since = given ? new Date(given) : new Date(until.getTime() - usualSteps[step] * stepMs[step]);
      if (until.getTime() - since.getTime() > maxSteps * stepMs[step]) throw tooLong(step);
      return readTraffic(sql, request.ownerId, { since, until, step });
    },
  );
}

function tooLong(step: TrafficStep): Problem {
  const message = `"since" must be at most ${maxSteps} ${step}s ago.`;
  return new Problem('invalid_query', { errors: [{ pointer: '/since', code: 'out_of_range', message }] });
}
