/**
 * What the generated OpenAPI document does not have by itself: names for operations and schemas, the headers of requests and
 * responses, and the events that webhooks receive. Generators of clients make methods and types of these names.
 */
import { STATUS_CODES } from 'node:http';
import type { TSchema } from 'typebox';
import { ApiKey, CreatedApiKey } from '../contract/api-key.ts';
import { Attempt, Delivery, DeliveryItem, DeliveryWithAttempts } from '../contract/delivery.ts';
import { Event, EventSummary } from '../contract/event.ts';
import { EventType, eventTypes } from '../contract/event-types.ts';
import { DnsRecord, Identity } from '../contract/identity.ts';
import { Mailbox } from '../contract/mailbox.ts';
import { Address, Attachment, Message, MessageSummary } from '../contract/message.ts';
import {
  MessageBounced,
  MessageComplained,
  MessageDelivered,
  MessageReceived,
  MessageSent,
} from '../contract/payload.ts';
import { Provider } from '../contract/provider.ts';
import { Replay } from '../contract/replay.ts';
import { SendAttempt, Sending, Suppression } from '../contract/sending.ts';
import { CurrentSession, Session } from '../contract/session.ts';
import { ServerError, SmtpAccount } from '../contract/smtp-account.ts';
import { Traffic } from '../contract/stats.ts';
import { Me, User } from '../contract/user.ts';
import { CreatedWebhook, Webhook, WebhookSecret, WebhookTest } from '../contract/webhook.ts';
import { collectForms } from './openapi-forms.ts';
import { tags } from './openapi-tags.ts';

/** By method and path. Every route must be here. */
const operationIds: Record<string, string | undefined> = {
  'get /me': 'getMe',
  'get /identities': 'listIdentities',
  'post /identities': 'createIdentity',
  'get /identities/{id}': 'getIdentity',
  'patch /identities/{id}': 'updateIdentity',
  'delete /identities/{id}': 'deleteIdentity',
  'post /identities/{id}/verify': 'verifyIdentity',
  'get /identities/{id}/dns': 'getDnsRecords',
  'get /identities/{id}/dns.zone': 'getDnsZone',
  'post /identities/{id}/dkim/rotate': 'rotateDkimKey',
  'get /webhooks': 'listWebhooks',
  'post /webhooks': 'createWebhook',
  'get /webhooks/{id}': 'getWebhook',
  'patch /webhooks/{id}': 'updateWebhook',
  'delete /webhooks/{id}': 'deleteWebhook',
  'get /webhooks/{id}/secret': 'getWebhookSecret',
  'post /webhooks/{id}/secret/rotate': 'rotateWebhookSecret',
  'post /webhooks/{id}/test': 'testWebhook',
  'post /webhooks/{id}/replay': 'createReplay',
  'get /webhooks/{id}/replays/{replayId}': 'getReplay',
  'get /webhooks/{id}/deliveries': 'listWebhookDeliveries',
  'get /deliveries': 'listDeliveries',
  'get /deliveries/{id}': 'getDelivery',
  'post /deliveries/{id}/redeliver': 'redeliver',
  'get /events': 'listEvents',
  'get /events/{id}': 'getEvent',
  'get /events/stream': 'streamEvents',
  'get /stats': 'getStats',
  'get /event-types': 'listEventTypes',
  'get /messages': 'listMessages',
  'post /messages': 'sendMessage',
  'get /identities/{id}/mailboxes': 'listMailboxes',
  'post /identities/{id}/sync': 'syncMailboxes',
  'get /messages/{id}': 'getMessage',
  'delete /messages/{id}': 'deleteMessage',
  'get /messages/{id}/raw': 'downloadMessage',
  'get /messages/{id}/attachments/{n}': 'downloadAttachment',
  'get /messages/{id}/attempts': 'listSendAttempts',
  'post /messages/{id}/cancel': 'cancelMessage',
  'post /inbound': 'receiveMessage',
  'get /suppressions': 'listSuppressions',
  'post /suppressions': 'createSuppression',
  'delete /suppressions/{address}': 'deleteSuppression',
  'get /smtp-accounts': 'listSmtpAccounts',
  'post /smtp-accounts': 'createSmtpAccount',
  'get /smtp-accounts/{id}': 'getSmtpAccount',
  'patch /smtp-accounts/{id}': 'updateSmtpAccount',
  'delete /smtp-accounts/{id}': 'deleteSmtpAccount',
  'post /smtp-accounts/{id}/verify': 'verifySmtpAccount',
  'get /api-keys': 'listApiKeys',
  'post /api-keys': 'createApiKey',
  'get /api-keys/{id}': 'getApiKey',
  'delete /api-keys/{id}': 'revokeApiKey',
  'post /sessions': 'createSession',
  'get /sessions': 'listSessions',
  'get /sessions/current': 'getCurrentSession',
  'delete /sessions/current': 'endCurrentSession',
  'delete /sessions/{id}': 'endSession',
  'get /admin/users': 'listUsers',
  'post /admin/users': 'createUser',
  'get /admin/users/{id}': 'getUser',
  'delete /admin/users/{id}': 'deleteUser',
  'post /admin/users/{id}/api-keys': 'createUserApiKey',
  'get /providers': 'listProviders',
  'post /providers': 'createProvider',
  'get /providers/{id}': 'getProvider',
  'patch /providers/{id}': 'updateProvider',
  'delete /providers/{id}': 'deleteProvider',
  'post /providers/{id}/verify': 'verifyProvider',
  'get /openapi.json': 'getOpenApi',
  'get /docs': 'getDocs',
  'get /health/live': 'getLiveness',
  'get /health/ready': 'getReadiness',
  'get /metrics': 'getMetrics',
};

/** Where one of these schemas stands in the document, a reference to it stands instead. */
const schemas: Record<string, TSchema> = {
  ...{ Me, User, ApiKey, CreatedApiKey, Session, CurrentSession },
  ...{ Identity, DnsRecord },
  ...{ Webhook, CreatedWebhook, WebhookSecret, WebhookTest, Replay },
  ...{ Delivery, DeliveryItem, DeliveryWithAttempts, Attempt },
  ...{ Event, EventSummary, EventType, Traffic },
  ...{ Message, MessageSummary, Address, Attachment, Sending, SendAttempt, Suppression },
  ...{ SmtpAccount, Provider, Mailbox, ServerError },
  ...{ MessageReceived, MessageSent, MessageDelivered, MessageBounced, MessageComplained },
};

const header = (description: string, type = 'string') => ({ description, schema: { type } });
const headers = {
  RequestId: header('The id of the request in the log: yours, if you sent one.'),
  RateLimit: header('What is left in this minute (draft-ietf-httpapi-ratelimit-headers).'),
  RateLimitPolicy: header('The limit.'),
  NextPage: header('The URL of the next page, with `rel="next"` (RFC 8288). Missing on the last page.'),
  Location: header('The URL of what was created.'),
  IdempotentReplayed: header(
    '`true` if this is the stored response to an earlier request with the same key.',
  ),
  RetryAfter: header('Seconds until the request may be sent again.', 'integer'),
};

const idempotencyKey = {
  name: 'Idempotency-Key',
  in: 'header',
  required: false,
  description:
    'Makes it safe to send the request again: for 24 hours the first successful response to this key is repeated. A UUID, for example.',
  schema: { type: 'string', pattern: '^[\\x21-\\x7e]{1,255}$' },
};

const refer = (name: keyof typeof headers) => ({ $ref: `#/components/headers/${name}` });

function describeProblem(description: string, Problem: TSchema, more: Record<string, object> = {}) {
  return {
    description,
    headers: { 'X-Request-Id': refer('RequestId'), 'Retry-After': refer('RetryAfter'), ...more },
    content: { 'application/problem+json': { schema: Problem } },
  };
}

interface Response {
  description?: string;
  headers?: Record<string, unknown>;
  content?: unknown;
  $ref?: string;
}
interface Operation {
  operationId?: string;
  tags?: string[];
  parameters?: unknown[];
  security?: Record<string, unknown>[];
  requestBody?: { content: Record<string, { schema?: unknown }> };
  responses: Record<string, Response>;
}

export interface OpenApiDocument {
  tags?: unknown[];
  paths?: Record<string, Record<string, Operation>>;
  components?: Record<string, unknown>;
  webhooks?: Record<string, unknown>;
}

/** `Problem` is the schema of errors, `RawMessage` that of a message as bytes. */
export function completeDocument(
  document: OpenApiDocument,
  Problem: TSchema,
  RawMessage: TSchema,
): OpenApiDocument {
  const { paths = {} } = document;
  for (const [path, operations] of Object.entries(paths)) {
    for (const [method, operation] of Object.entries(operations)) nameOperation(operation, method, path);
  }
  // Its route reads these bytes itself: they have no schema that validates.
  const sendMessage = paths['/messages']?.post?.requestBody;
  if (sendMessage) sendMessage.content['message/rfc822'] = { schema: RawMessage };
  const limits = { RateLimit: refer('RateLimit'), 'RateLimit-Policy': refer('RateLimitPolicy') };
  const bodies = collectBodies(paths);
  // By the schema. A body that two operations share has the name of the first.
  const named = new Map<string, string>();
  for (const [name, schema] of Object.entries({ ...schemas, Problem, ...collectForms(bodies), ...bodies })) {
    const json = JSON.stringify(schema);
    if (!named.has(json)) named.set(json, name);
  }
  const used = new Set(Object.values(paths).flatMap((one) => Object.values(one).flatMap(({ tags }) => tags)));
  return dropUnused({
    ...document,
    tags: tags.filter(({ name }) => used.has(name)),
    paths: replaceNamed(paths, named) as typeof paths,
    webhooks: Object.fromEntries(eventTypes.map((type) => [type.name, describeWebhook(type, named)])),
    components: {
      ...document.components,
      headers,
      parameters: { IdempotencyKey: idempotencyKey },
      responses: {
        Refused: replaceNamed(
          describeProblem('The request was refused: `code` says why.', Problem, limits),
          named,
        ),
        Failed: replaceNamed(describeProblem('The request may succeed later.', Problem), named),
      },
      schemas: Object.fromEntries(
        [...named].map(([json, name]) => [name, replaceInside(JSON.parse(json), named)]),
      ),
    },
  });
}

/** The JSON bodies of requests by the name of their operation, such as `CreateWebhookRequest`. */
function collectBodies(paths: Record<string, Record<string, Operation>>): Record<string, unknown> {
  const operations = Object.values(paths).flatMap((methods) => Object.values(methods));
  return Object.fromEntries(
    operations.flatMap(({ operationId = '', requestBody }) => {
      const schema = requestBody?.content['application/json']?.schema;
      return schema ? [[`${operationId[0]?.toUpperCase()}${operationId.slice(1)}Request`, schema]] : [];
    }),
  );
}

/** Without the schemas of routes that this service does not have. */
function dropUnused(document: OpenApiDocument): OpenApiDocument {
  const used = new Set(JSON.stringify(document).match(/(?<="#\/components\/schemas\/)\w+/g));
  const { schemas: all, ...others } = document.components as { schemas: Record<string, unknown> };
  const kept = Object.entries(all).filter(([name]) => used.has(name));
  return { ...document, components: { ...others, schemas: Object.fromEntries(kept) } };
}

function nameOperation(operation: Operation, method: string, path: string): void {
  const operationId = operationIds[`${method} ${path}`];
  if (operationId === undefined) throw new Error(`openapi-document.ts has no name for ${method} ${path}`);
  operation.operationId = operationId;
  const takesKey = operation.security?.some((one) => 'apiKey' in one) ?? false;
  if (method === 'post' && takesKey) {
    operation.parameters = [
      ...(operation.parameters ?? []),
      { $ref: '#/components/parameters/IdempotencyKey' },
    ];
  }
  for (const [status, response] of Object.entries(operation.responses)) {
    // @fastify/swagger writes "Default Response" where a schema has no description.
    response.description = STATUS_CODES[status] ?? status;
    response.headers = { ...response.headers, ...describeHeaders(status, operationId, method, takesKey) };
  }
  operation.responses['4XX'] = { $ref: '#/components/responses/Refused' };
  operation.responses['5XX'] = { $ref: '#/components/responses/Failed' };
}

function describeHeaders(status: string, operationId: string, method: string, takesKey: boolean) {
  const isGood = status.startsWith('2');
  return {
    'X-Request-Id': refer('RequestId'),
    ...(takesKey ? { RateLimit: refer('RateLimit'), 'RateLimit-Policy': refer('RateLimitPolicy') } : {}),
    ...(isGood && operationId.startsWith('list') ? { Link: refer('NextPage') } : {}),
    ...(isGood && method === 'post' && status !== '200' ? { Location: refer('Location') } : {}),
    ...(isGood && method === 'post' && takesKey
      ? { 'Idempotent-Replayed': refer('IdempotentReplayed') }
      : {}),
  };
}

function describeWebhook(
  { name, description, schema }: (typeof eventTypes)[number],
  named: Map<string, string>,
) {
  const text = (about: string, example: string) => ({
    required: true,
    description: about,
    schema: { type: 'string', examples: [example] },
  });
  return {
    post: {
      operationId: `on${name.replaceAll(/(?:^|\.)(\w)/g, (_, letter: string) => letter.toUpperCase())}`,
      summary: description,
      tags: ['Events'],
      parameters: [
        {
          name: 'webhook-id',
          in: 'header',
          ...text('The id of the event: the same at every try.', '01a1dcf7-c357-700e-a78a-57a267febce8'),
        },
        {
          name: 'webhook-timestamp',
          in: 'header',
          ...text('When this try was made, in seconds since 1970.', '1769860800'),
        },
        {
          ...{ name: 'webhook-signature', in: 'header' },
          ...text(
            'Standard Webhooks: `v1,` and the HMAC-SHA256 in base64 of `id.timestamp.body` under the secret of the webhook. Several, with spaces between them, after a rotation.',
            'v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=',
          ),
        },
      ],
      requestBody: {
        required: true,
        content: { 'application/json': { schema: replaceNamed(schema, named) } },
      },
      responses: {
        '2XX': { description: 'The event is delivered.' },
        '410': { description: 'The webhook is switched off.' },
        default: { description: 'The event is sent again later.' },
      },
      security: [],
    },
  };
}

function replaceNamed(value: unknown, named: ReadonlyMap<string, string>): unknown {
  if (typeof value !== 'object' || value === null) return value;
  const name = named.get(JSON.stringify(value));
  return name === undefined ? replaceInside(value, named) : { $ref: `#/components/schemas/${name}` };
}

function replaceInside(value: unknown, named: ReadonlyMap<string, string>): unknown {
  if (Array.isArray(value)) return value.map((one) => replaceNamed(one, named));
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, replaceNamed(one, named)]));
}

/** The document with every reference replaced by what it names. */
export function dereference<Document extends object>(document: Document): Document {
  const resolve = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(resolve);
    if (typeof value !== 'object' || value === null) return value;
    if ('$ref' in value) return resolve(findPart(document, String(value.$ref)));
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, resolve(one)]));
  };
  return resolve(document) as Document;
}

function findPart(document: object, reference: string): unknown {
  const steps = reference.split('/').slice(1);
  return steps.reduce<unknown>((part, step) => (part as Record<string, unknown>)[step], document);
}
