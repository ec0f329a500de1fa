/** Deliveries: the state of each event at each webhook, and sending an event again. */
import { Type } from 'typebox';
import { Delivery, DeliveryItem, DeliveryWithAttempts } from '../../contract/delivery.ts';
import { eventNames } from '../../contract/event-types.ts';
import { cutText } from '../../contract/message.ts';
import {
  defaultShortPage,
  describe,
  IdParams,
  oneOf,
  Since,
  shortListQuery,
  Uuid,
} from '../../contract/schemas.ts';
import { Problem } from '../../problems.ts';
import {
  deliveryStatuses,
  findDelivery,
  listAttempts,
  listDeliveries,
  outlineDeliveries,
  redeliver,
} from '../../store/deliveries.ts';
import { hasEvent } from '../../store/events.ts';
import { maxPageBytes } from '../../store/page.ts';
import { findWebhook } from '../../store/webhooks.ts';
import { withAccess } from '../access.ts';
import { orNotFound } from '../errors.ts';
import type { App } from '../fastify.ts';
import { type PostParts, respondOnce } from '../idempotency.ts';
import { type PageParts, readPage, sendPage } from '../pagination.ts';

const filters = {
  status: Type.Optional(oneOf(deliveryStatuses)),
  event: Type.Optional(oneOf(eventNames)),
  since: Since,
};
const Filters = shortListQuery(filters);
const AllFilters = shortListQuery({
  webhook_id: Type.Optional(Uuid),
  message_id: Type.Optional(
    Type.String({
      format: 'uuid-list',
      maxLength: 50 * 37,
      description: 'Deliveries of the events of this message, or of up to 50 messages, separated by commas.',
    }),
  ),
  event_id: Type.Optional(describe(Uuid, 'Deliveries of this event.')),
  ...filters,
});

const tags = ['Deliveries'];

export function deliveryRoutes(app: App, parts: PostParts & PageParts & { wakeDelivery(): void }): void {
  const { sql, wakeDelivery } = parts;

  app.get(
    '/webhooks/:id/deliveries',
    withAccess('key', tags, {
      summary: 'List the deliveries of a webhook',
      params: IdParams,
      querystring: Filters,
      response: { 200: Type.Array(Delivery) },
    }),
    async (request, reply) => {
      const { id } = request.params;
      await orNotFound(findWebhook(sql, request.ownerId, id));
      const page = await readPage(parts, request, reply, defaultShortPage);
      const found = await listDeliveries(sql, request.ownerId, { ...request.query, webhookId: id }, page);
      return sendPage(parts, request, reply, found);
    },
  );

  app.get(
    '/deliveries',
    withAccess('key', tags, {
      summary: 'List the deliveries of all your webhooks',
      querystring: AllFilters,
      response: { 200: Type.Array(DeliveryItem) },
    }),
    async (request, reply) => {
      const { ownerId, query } = request;
      const { webhook_id: webhookId, event_id: eventId, message_id: messageIds } = query;
      const page = await readPage(parts, request, reply, defaultShortPage);
      if (webhookId && !(await findWebhook(sql, ownerId, webhookId)))
        return sendPage(parts, request, reply, { rows: [], next: null });
      const filter = { ...query, webhookId, eventId, messageIds: messageIds?.split(',') };
      const found = await listDeliveries(sql, ownerId, filter, page);
      const outlined = await outlineDeliveries(sql, ownerId, found.rows);
      const rows = outlined.map((row) => ({ ...row, subject: readSubject(row.subject) }));
      return sendPage(parts, request, reply, { ...found, rows });
    },
  );

  app.get(
    '/deliveries/:id',
    withAccess('key', tags, {
      summary: 'Get a delivery and its attempts',
      params: IdParams,
      response: { 200: DeliveryWithAttempts },
    }),
    async (request, reply) => {
      await parts.answers.reserve(request, reply, maxPageBytes);
      const { id } = request.params;
      const delivery = await orNotFound(findDelivery(sql, request.ownerId, id));
      return { ...delivery, attempts: await listAttempts(sql, request.ownerId, id) };
    },
  );

  app.post(
    '/deliveries/:id/redeliver',
    withAccess('key', tags, {
      summary: 'Send a delivery again',
      description: 'Works in every status. The retry schedule starts again from the beginning.',
      params: IdParams,
      response: { 202: Delivery },
    }),
    async (request, reply) => {
      await respondOnce(parts, request, reply, async (sql) => {
        const { id } = request.params;
        const known = await orNotFound(findDelivery(sql, request.ownerId, id));
        if (!(await hasEvent(sql, request.ownerId, known.eventId))) throw new Problem('message_deleted');
        await orNotFound(redeliver(sql, request.ownerId, id));
        return { status: 202, body: (await findDelivery(sql, request.ownerId, id)) ?? known };
      });
      wakeDelivery();
    },
  );
}

function readSubject(json: string | null): string | null {
  const subject = json === null ? null : (JSON.parse(json) as string | null);
  return subject === null ? null : cutText(subject);
}
