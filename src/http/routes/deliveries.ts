/** Deliveries: what became of each event for each webhook, and sending one again. */
import { Type } from 'typebox';
import { Delivery, DeliveryWithAttempts } from '../../contract/delivery.ts';
import { eventNames } from '../../contract/event-types.ts';
import {
  defaultShortPage,
  IdParams,
  listQuery,
  maxShortPage,
  oneOf,
  Timestamp,
} from '../../contract/schemas.ts';
import { Problem } from '../../problems.ts';
import {
  deliveryStatuses,
  findDelivery,
  listAttempts,
  listDeliveries,
  redeliver,
} from '../../store/deliveries.ts';
import { findWebhook } from '../../store/webhooks.ts';
import type { App } from '../fastify.ts';
import { type AnswerParts, answerOnce } from '../idempotency.ts';
import { type PageParts, readPage, sendPage } from '../pagination.ts';

const Filters = listQuery(
  {
    status: Type.Optional(oneOf(deliveryStatuses)),
    event: Type.Optional(oneOf(eventNames)),
    since: Type.Optional(Timestamp),
  },
  { max: maxShortPage, usual: defaultShortPage },
);

const tags = ['Deliveries'];

export function deliveryRoutes(app: App, parts: AnswerParts & PageParts & { wakeDelivery(): void }): void {
  const { sql, wakeDelivery } = parts;

  app.get(
    '/webhooks/:id/deliveries',
    {
      config: { access: 'key' },
      schema: {
        tags,
        summary: "A webhook's deliveries",
        params: IdParams,
        querystring: Filters,
        response: { 200: Type.Array(Delivery) },
      },
    },
    async (request, reply) => {
      const { id } = request.params;
      if (!(await findWebhook(sql, request.ownerId, id))) throw new Problem('not_found');
      const page = readPage(request.query, defaultShortPage);
      const found = await listDeliveries(sql, request.ownerId, id, request.query, page);
      return sendPage(parts, request, reply, found);
    },
  );

  app.get(
    '/deliveries/:id',
    {
      config: { access: 'key' },
      schema: {
        tags,
        summary: 'One delivery, with its tries',
        params: IdParams,
        response: { 200: DeliveryWithAttempts },
      },
    },
    async (request) => {
      const { id } = request.params;
      const delivery = await findDelivery(sql, request.ownerId, id);
      if (!delivery) throw new Problem('not_found');
      return { ...delivery, attempts: await listAttempts(sql, request.ownerId, id) };
    },
  );

  app.post(
    '/deliveries/:id/redeliver',
    {
      config: { access: 'key' },
      schema: {
        tags,
        summary: 'Send it again, whatever its status',
        params: IdParams,
        response: { 202: Delivery },
      },
    },
    async (request, reply) => {
      await answerOnce(parts, request, reply, async (sql) => {
        const { id } = request.params;
        const known = await findDelivery(sql, request.ownerId, id);
        if (!known || !(await redeliver(sql, request.ownerId, id))) throw new Problem('not_found');
        return { status: 202, body: (await findDelivery(sql, request.ownerId, id)) ?? known };
      });
      wakeDelivery();
    },
  );
}
