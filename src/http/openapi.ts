/** The OpenAPI document, generated from the same schemas that validate requests and type responses. */
import swagger from '@fastify/swagger';
import { Type } from 'typebox';
import type { Config } from '../config.ts';
import { readVersion } from '../lib/version.ts';
import { problems } from '../problems.ts';
import type { KeyScope } from '../store/api-keys.ts';
import { type Access, allowedScopes } from './access.ts';
import type { App } from './fastify.ts';
import { completeDocument, type OpenApiDocument } from './openapi-document.ts';
import { makeSessionCookie } from './session-cookie.ts';

const ProblemDocument = Type.Object(
  {
    type: Type.String(),
    title: Type.String(),
    status: Type.Integer(),
    detail: Type.String({ description: 'What is wrong, and what to do about it.' }),
    code: Type.String({ enum: Object.keys(problems), description: 'Never changes: decide by this code.' }),
    requestId: Type.String({ description: 'The id of the request in the log.' }),
    errors: Type.Optional(
      Type.Array(
        Type.Object({
          pointer: Type.String({
            description:
              'JSON Pointer (RFC 6901) into the body or, with `invalid_query`, into the query: `/limit`.',
          }),
          code: Type.String(),
          message: Type.String({ description: 'What is wrong with the field, for people.' }),
        }),
        { description: 'One entry for each invalid field.' },
      ),
    ),
  },
  { title: 'Problem', description: 'A problem document (RFC 9457).' },
);

const failure = {
  description: 'An error',
  content: { 'application/problem+json': { schema: ProblemDocument } },
};

const RawMessage = Type.String({
  format: 'binary',
  description: 'The message (RFC 5322), byte for byte.',
  examples: ['From: ada@example.com\r\nSubject: Hello\r\n\r\nIs anybody there?\r\n'],
});
const RecipientHeader = Type.Object({
  'x-recipient': Type.Optional(
    Type.String({
      description: 'More recipients, separated by commas. They are added to those of the query.',
    }),
  ),
});

/** A key needs one of the scopes, so each scope is an alternative of its own. */
function describeAccess(access: Access, scopes: readonly KeyScope[]): Record<string, string[]>[] {
  const keys = scopes.map((scope) => ({ apiKey: [scope] }));
  const security: Record<Access, Record<string, string[]>[]> = {
    key: [...keys, { session: [] }],
    'key or link': [...keys, { session: [] }, {}],
    hook: [],
    operator: [{ operatorToken: [] }],
    metrics: [{}, { metricsToken: [] }],
    public: [],
  };
  return security[access];
}

function bearer(description: string) {
  return { type: 'http', scheme: 'bearer', description } as const;
}

/** Documents every route that is registered later. */
export async function documentRoutes(app: App, config: Config): Promise<void> {
  const limit = config.rateLimitPerMinute;
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: {
        title: 'Posthorn',
        version: readVersion(),
        description:
          'Connect email identities and register webhooks. When mail arrives, Posthorn sends a signed POST to your webhooks.\n\n' +
          `Limits: request bodies up to 64 KiB (\`/inbound\`: ${config.maxMessageBytes} bytes); ${limit ? `${limit} requests a minute for each API key (see the \`RateLimit\` headers)` : 'no rate limit'}; ` +
          'pages of up to 1000 items (messages, events and deliveries: 200).',
      },
      servers: [{ url: `${config.publicUrl ?? ''}${config.basePath}` || '/' }],
      components: {
        securitySchemes: {
          apiKey: bearer(
            'An API key (`ph_…`). Each route names the scopes that it accepts; `full` keys may use all.',
          ),
          session: {
            type: 'apiKey',
            in: 'cookie',
            name: makeSessionCookie(config).name,
            description:
              'The cookie that `POST /sessions` sets. It counts on requests of the same origin without `Authorization`; all but GET need the header `X-CSRF-Token` too.',
          },
          operatorToken: bearer('The value of `POSTHORN_ADMIN_TOKEN`.'),
          metricsToken: bearer('The value of `POSTHORN_METRICS_TOKEN`.'),
        },
      },
    },
    stripBasePath: true,
    transformObject: (made) => {
      if (!('openapiObject' in made)) return made.swaggerObject;
      markOptionalBodies(made.openapiObject as Documented);
      return completeDocument(
        made.openapiObject as OpenApiDocument,
        ProblemDocument,
      ) as typeof made.openapiObject;
    },
    transform: ({ schema, url, route }) => {
      const access = route.config?.access ?? 'public';
      const consumes = route.config?.consumes;
      const scopes = allowedScopes(route.config, String(route.method));
      return {
        url,
        schema: {
          ...schema,
          ...(consumes ? { consumes: [consumes], body: RawMessage, headers: RecipientHeader } : {}),
          security: describeAccess(access, scopes),
          response: { ...(schema?.response as object), default: failure },
        },
      };
    },
  });
}

interface Documented {
  paths?: Record<string, Record<string, { requestBody?: DocumentedBody }>>;
}
interface DocumentedBody {
  required?: boolean;
  content: Record<string, { schema?: { type?: string | string[] } }>;
}

/** @fastify/swagger calls every body required. A body whose schema allows null may be missing. */
function markOptionalBodies({ paths = {} }: Documented): void {
  const operations = Object.values(paths).flatMap((methods) => Object.values(methods));
  for (const { requestBody: body } of operations) {
    const isOptional = Object.values(body?.content ?? {}).some(({ schema }) =>
      schema?.type?.includes('null'),
    );
    if (body && isOptional) body.required = false;
  }
}
