/** Webhooks: the URLs that events are sent to, and the secrets that sign them. */
import type { FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { eventNames } from '../../contract/event-types.ts';
import { type SampledEvent, sampledEvents } from '../../contract/sample.ts';
import {
  body,
  describe,
  IdParams,
  listQuery,
  maxPage,
  NullableUuid,
  nullableText,
  oneOf,
  optionalBody,
  Uuid,
} from '../../contract/schemas.ts';
import { CreatedWebhook, Webhook, WebhookSecret, WebhookTest } from '../../contract/webhook.ts';
import { newId } from '../../lib/ids.ts';
import type { Egress } from '../../net/egress.ts';
import { type FieldError, Problem } from '../../problems.ts';
import {
  createWebhook,
  deleteWebhook,
  findSealedSecret,
  findWebhook,
  listWebhooks,
  maxRotationsPerDay,
  rotateSecret,
  updateWebhook,
} from '../../store/webhooks.ts';
import { makeSecret, secretContext } from '../../webhooks/secret.ts';
import { keepTestTry, tryWebhook } from '../../webhooks/test-event.ts';
import { maxUrlLength } from '../../webhooks/url.ts';
import { withAccess } from '../access.ts';
import { orNotFound } from '../errors.ts';
import type { App } from '../fastify.ts';
import { actAndRespondOnce, type PostParts, respondOnce } from '../idempotency.ts';
import { type PageParts, readPage, sendPage } from '../pagination.ts';
import { rateLimited } from '../rate-limit.ts';

const Url = Type.String({
  maxLength: maxUrlLength,
  format: 'webhook-url',
  description: 'Where events are POSTed.',
});
const Events = Type.Array(oneOf(eventNames), {
  minItems: 1,
  uniqueItems: true,
  description: 'The events to send: see `GET /event-types`.',
});
const optional = {
  identityId: Type.Optional(describe(NullableUuid, 'Send only the events of this identity. Null: of all.')),
  enabled: Type.Optional(
    Type.Boolean({
      default: true,
      description: 'False: no new deliveries are made, and pending ones wait until the webhook is enabled.',
    }),
  ),
  description: Type.Optional(describe(nullableText(500), 'Your own words.')),
};
const NewWebhook = body(
  { url: Url, events: Events, ownerId: describe(Uuid, 'The `userId` of `GET /me`.'), ...optional },
  {
    example: {
      url: 'https://example.com/hooks',
      events: ['message.received'],
      ownerId: '01a1dcf7-c357-700e-a78a-57a267febce8',
    },
  },
);
const writable = { url: Type.Optional(Url), events: Type.Optional(Events), ...optional };
const readOnly = Object.keys(Webhook.properties).filter(
  (field) => !(field in writable) && field !== 'ownerId',
);
const WebhookPatch = body(
  {
    ...writable,
    ownerId: Type.Optional(describe(Uuid, 'Cannot be changed: only your own `userId` is accepted.')),
  },
  { example: { enabled: false }, readOnly },
);

const TestBody = optionalBody(
  {
    event: Type.Optional(
      Type.Unsafe<SampledEvent>({
        ...oneOf(sampledEvents),
        default: 'message.received',
        description: 'The event whose sample is sent: one that `GET /event-types` calls supported.',
      }),
    ),
  },
  { example: { event: 'message.received' } },
);

type TestParts = Parameters<typeof tryWebhook>[0];

const tags = ['Webhooks'];
const references = { identityId: 'identities' } as const;

export function webhookRoutes(
  app: App,
  parts: PostParts &
    PageParts &
    TestParts & { egress: Egress; maxWebhooks: number; wakePurge(): void; wakeSettling(): void },
): void {
  const { sql, sealer, egress, maxWebhooks } = parts;

  /** Every delivery checks its address again; this check only reports the error early. */
  async function findForbiddenHost({ url }: Record<string, unknown>): Promise<FieldError[]> {
    const target = typeof url === 'string' && /^https?:/i.test(url) ? URL.parse(url) : null;
    const reason = target && (await egress.findRefusal(target.hostname));
    return reason ? [{ pointer: '/url', code: 'target_refused', message: `"url": ${reason}` }] : [];
  }

  app.post(
    '/webhooks',
    {
      config: { access: 'key', references, findFieldErrors: findForbiddenHost },
      schema: { tags, summary: 'Create a webhook', body: NewWebhook, response: { 201: CreatedWebhook } },
    },
    (request, reply) =>
      respondOnce(parts, request, reply, async (sql) => {
        const { url, events, identityId = null, enabled = true, description = null } = request.body;
        refuseOtherOwner(request, request.body.ownerId);
        const id = newId();
        const secret = makeSecret();
        const sealedSecret = sealer.seal(secret, secretContext(id));
        const given = { id, url, events, identityId, enabled, description, sealedSecret };
        const webhook = await createWebhook(sql, request.ownerId, given, maxWebhooks);
        if (!webhook) throw tooManyWebhooks(maxWebhooks);
        return { status: 201, location: `/webhooks/${id}`, body: { ...webhook, secret } };
      }),
  );

  app.get(
    '/webhooks',
    withAccess('key', tags, {
      summary: 'List your webhooks',
      querystring: listQuery({}),
      response: { 200: Type.Array(Webhook) },
    }),
    async (request, reply) => {
      const found = await listWebhooks(sql, request.ownerId, await readPage(parts, request, reply, maxPage));
      return sendPage(parts, request, reply, found);
    },
  );

  app.get(
    '/webhooks/:id',
    withAccess('key', tags, { summary: 'Get a webhook', params: IdParams, response: { 200: Webhook } }),
    async (request) => orNotFound(findWebhook(sql, request.ownerId, request.params.id)),
  );

  app.patch(
    '/webhooks/:id',
    {
      config: { access: 'key', references, findFieldErrors: findForbiddenHost },
      schema: {
        tags,
        summary: 'Update a webhook',
        description: 'Only the fields in the body change. Waiting deliveries use the new `url`.',
        params: IdParams,
        body: WebhookPatch,
        response: { 200: Webhook },
      },
    },
    async (request) => {
      const { ownerId, identityId, ...rest } = request.body;
      const changes = identityId === undefined ? rest : { ...rest, identity_id: identityId };
      if (ownerId !== undefined) refuseOtherOwner(request, ownerId);
      const updated = await orNotFound(updateWebhook(sql, request.ownerId, request.params.id, changes));
      if (rest.enabled !== undefined) parts.wakeSettling();
      return updated;
    },
  );

  app.delete(
    '/webhooks/:id',
    withAccess('key', tags, {
      summary: 'Delete a webhook',
      description: 'Also deletes its deliveries. This cannot be undone.',
      params: IdParams,
      response: { 204: Type.Null() },
    }),
    async (request, reply) => {
      await orNotFound(deleteWebhook(sql, request.ownerId, request.params.id));
      parts.wakePurge();
      reply.code(204).send(null);
    },
  );

  app.get(
    '/webhooks/:id/secret',
    {
      // Who has the secret can sign events: that is more than reading.
      config: { access: 'key', scopes: ['full'] },
      schema: {
        tags,
        summary: 'Get the secret that signs the deliveries of a webhook',
        params: IdParams,
        response: { 200: WebhookSecret },
      },
    },
    async (request) => {
      const { id } = request.params;
      const sealed = await orNotFound(findSealedSecret(sql, request.ownerId, id));
      return { secret: sealer.open(sealed, secretContext(id)) };
    },
  );

  app.post(
    '/webhooks/:id/secret/rotate',
    withAccess('key', tags, {
      summary: 'Create a new secret for a webhook',
      description: `For 24 hours, deliveries are signed with the old and the new secret. Limit: ${maxRotationsPerDay} rotations a day.`,
      params: IdParams,
      response: { 200: WebhookSecret },
    }),
    (request, reply) =>
      respondOnce(parts, request, reply, async (sql) => {
        const { id } = request.params;
        const secret = makeSecret();
        const sealed = sealer.seal(secret, secretContext(id));
        const { waitSeconds } = await orNotFound(rotateSecret(sql, request.ownerId, id, sealed));
        if (waitSeconds !== null)
          throw rateLimited(waitSeconds, `The limit is ${maxRotationsPerDay} rotations of a secret a day.`);
        return { status: 200, body: { secret } };
      }),
  );

  app.post(
    '/webhooks/:id/test',
    withAccess('key', tags, {
      summary: 'Send a sample event to a webhook now',
      description: 'Also works while the webhook is disabled. The event is sent once and never retried.',
      params: IdParams,
      body: TestBody,
      response: { 200: WebhookTest },
    }),
    async (request, reply) => {
      const { ownerId, span } = request;
      const event = request.body?.event ?? 'message.received';
      const send = () => orNotFound(tryWebhook(parts, ownerId, request.params.id, event, span));
      await actAndRespondOnce(parts, request, reply, send, async (sql, tried) => ({
        status: 200,
        body: await keepTestTry(sql, ownerId, tried),
      }));
    },
  );
}

function tooManyWebhooks(maxWebhooks: number): Problem {
  return new Problem('too_many_webhooks', {
    detail: `You have ${maxWebhooks} webhooks, which is the limit. Delete a webhook, then send the request again.`,
  });
}

function refuseOtherOwner(request: FastifyRequest, ownerId: string): void {
  if (ownerId.toLowerCase() !== request.ownerId) throw new Problem('owner_mismatch');
}
