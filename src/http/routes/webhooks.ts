/** Webhooks: where events are POSTed to, and the secret each signs with. */
import type { FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import { eventNames } from '../../contract/event-types.ts';
import {
  body,
  IdParams,
  listQuery,
  maxPage,
  NullableUuid,
  nullableText,
  oneOf,
  Uuid,
} from '../../contract/schemas.ts';
import { CreatedWebhook, Webhook, WebhookSecret } from '../../contract/webhook.ts';
import { newId } from '../../lib/ids.ts';
import type { Egress } from '../../net/egress.ts';
import { type Fault, Problem } from '../../problems.ts';
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
import { maxUrlLength } from '../../webhooks/url.ts';
import type { App } from '../fastify.ts';
import { type AnswerParts, answerOnce } from '../idempotency.ts';
import { type PageParts, readPage, sendPage } from '../pagination.ts';

const Url = Type.String({ maxLength: maxUrlLength, format: 'webhook-url' });
const Events = Type.Array(oneOf(eventNames), { minItems: 1, uniqueItems: true });
const optional = {
  identityId: Type.Optional(NullableUuid),
  enabled: Type.Optional(Type.Boolean({ default: true })),
  description: Type.Optional(nullableText(500)),
};
const NewWebhook = body(
  { url: Url, events: Events, ownerId: Uuid, ...optional },
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
  { ...writable, ownerId: Type.Optional(Uuid) },
  { example: { enabled: false }, readOnly },
);

const tags = ['Webhooks'];
const references = { identityId: 'identities' } as const;

export function webhookRoutes(
  app: App,
  parts: AnswerParts & PageParts & { egress: Egress; wakePurge(): void },
): void {
  const { sql, sealer, egress } = parts;

  /** Whom a try may reach is checked at every try; here it makes for a clear early error. */
  async function findTargetFault({ url }: Record<string, unknown>): Promise<Fault[]> {
    const target = typeof url === 'string' && /^https?:/i.test(url) ? URL.parse(url) : null;
    const reason = target && (await egress.findFault(target.hostname));
    return reason ? [{ pointer: '/url', code: 'target_refused', message: `"url" ${reason}` }] : [];
  }

  app.post(
    '/webhooks',
    {
      config: { access: 'key', references, findFaults: findTargetFault },
      schema: { tags, summary: 'Register a webhook', body: NewWebhook, response: { 201: CreatedWebhook } },
    },
    (request, reply) =>
      answerOnce(parts, request, reply, async (sql) => {
        const { url, events, identityId = null, enabled = true, description = null } = request.body;
        refuseOtherOwner(request, request.body.ownerId);
        const id = newId();
        const secret = makeSecret();
        const sealedSecret = sealer.seal(secret, secretContext(id));
        const given = { id, url, events, identityId, enabled, description, sealedSecret };
        const webhook = await createWebhook(sql, request.ownerId, given);
        return { status: 201, location: `/webhooks/${id}`, body: { ...webhook, secret } };
      }),
  );

  app.get(
    '/webhooks',
    {
      config: { access: 'key' },
      schema: {
        tags,
        summary: 'Your webhooks',
        querystring: listQuery({}),
        response: { 200: Type.Array(Webhook) },
      },
    },
    async (request, reply) => {
      const found = await listWebhooks(sql, request.ownerId, readPage(request.query, maxPage));
      return sendPage(parts, request, reply, found);
    },
  );

  app.get(
    '/webhooks/:id',
    {
      config: { access: 'key' },
      schema: { tags, summary: 'One webhook', params: IdParams, response: { 200: Webhook } },
    },
    async (request) => {
      const webhook = await findWebhook(sql, request.ownerId, request.params.id);
      if (!webhook) throw new Problem('not_found');
      return webhook;
    },
  );

  app.patch(
    '/webhooks/:id',
    {
      config: { access: 'key', references, findFaults: findTargetFault },
      schema: {
        tags,
        summary: 'Change what is supplied',
        params: IdParams,
        body: WebhookPatch,
        response: { 200: Webhook },
      },
    },
    async (request) => {
      const { ownerId, identityId, ...rest } = request.body;
      const changes = identityId === undefined ? rest : { ...rest, identity_id: identityId };
      if (ownerId !== undefined) refuseOtherOwner(request, ownerId);
      const webhook = await updateWebhook(sql, request.ownerId, request.params.id, changes);
      if (!webhook) throw new Problem('not_found');
      return webhook;
    },
  );

  app.delete(
    '/webhooks/:id',
    {
      config: { access: 'key' },
      schema: { tags, summary: 'Delete it for good', params: IdParams, response: { 204: Type.Null() } },
    },
    async (request, reply) => {
      if (!(await deleteWebhook(sql, request.ownerId, request.params.id))) throw new Problem('not_found');
      parts.wakePurge();
      reply.code(204).send(null);
    },
  );

  app.get(
    '/webhooks/:id/secret',
    {
      config: { access: 'key' },
      schema: {
        tags,
        summary: 'The secret that signs its deliveries',
        params: IdParams,
        response: { 200: WebhookSecret },
      },
    },
    async (request, reply) => {
      const { id } = request.params;
      const sealed = await findSealedSecret(sql, request.ownerId, id);
      if (!sealed) throw new Problem('not_found');
      reply.header('cache-control', 'no-store');
      return { secret: sealer.open(sealed, secretContext(id)) };
    },
  );

  app.post(
    '/webhooks/:id/secret/rotate',
    {
      config: { access: 'key' },
      schema: {
        tags,
        summary: `Make a new secret, up to ${maxRotationsPerDay} times a day; the old one signs along for 24 hours`,
        params: IdParams,
        response: { 200: WebhookSecret },
      },
    },
    (request, reply) =>
      answerOnce(parts, request, reply, async (sql) => {
        const { id } = request.params;
        const secret = makeSecret();
        const sealed = sealer.seal(secret, secretContext(id));
        const rotated = await rotateSecret(sql, request.ownerId, id, sealed);
        if (!rotated) throw new Problem('not_found');
        if (rotated.waitSeconds !== null) throw tooManyRotations(rotated.waitSeconds);
        return { status: 200, body: { secret } };
      }),
  );
}

function tooManyRotations(waitSeconds: number): Problem {
  return new Problem('rate_limited', {
    detail: `A secret can be rotated ${maxRotationsPerDay} times a day. Wait ${waitSeconds} s.`,
    headers: { 'retry-after': String(waitSeconds) },
  });
}

function refuseOtherOwner(request: FastifyRequest, ownerId: string): void {
  if (ownerId.toLowerCase() !== request.ownerId) throw new Problem('owner_mismatch');
}
