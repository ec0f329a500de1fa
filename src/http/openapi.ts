/** The OpenAPI document: generated from the schemas that validate, so it cannot say what the service does not do. */
import swagger, { type FastifyDynamicSwaggerOptions } from '@fastify/swagger';
import { Type } from 'typebox';
import type { Config } from '../config.ts';
import { readVersion } from '../lib/version.ts';
import { problems } from '../problems.ts';
import type { Access } from './access.ts';
import type { App } from './fastify.ts';

const ProblemDocument = Type.Object(
  {
    type: Type.String(),
    title: Type.String(),
    status: Type.Integer(),
    detail: Type.String({ description: 'What is wrong and what to do.' }),
    code: Type.String({ enum: Object.keys(problems), description: 'Stable; see docs/errors.md.' }),
    requestId: Type.String(),
    errors: Type.Optional(
      Type.Array(Type.Object({ pointer: Type.String(), code: Type.String(), message: Type.String() })),
    ),
  },
  { title: 'Problem', description: 'RFC 9457' },
);

const RawMessage = Type.String({
  format: 'binary',
  description: 'The message (RFC 5322) as it is.',
  examples: ['From: ada@example.com\r\nSubject: Hello\r\n\r\nIs anybody there?\r\n'],
});
const RecipientHeader = Type.Object({
  'x-recipient': Type.Optional(
    Type.String({ description: 'Recipients, with commas, beside those of the query.' }),
  ),
});

const security: Record<Access, Record<string, string[]>[]> = {
  key: [{ apiKey: [] }],
  'key or link': [{ apiKey: [] }, {}],
  operator: [{ operatorToken: [] }],
  metrics: [{}, { metricsToken: [] }],
  public: [],
};

/** Collects every route that is registered after it. */
export async function documentRoutes(app: App, config: Config): Promise<void> {
  await app.register(swagger, openApiOptions(config));
}

function openApiOptions(config: Config): FastifyDynamicSwaggerOptions {
  const limit = config.rateLimitPerMinute;
  return {
    openapi: {
      openapi: '3.1.0',
      info: {
        title: 'Posthorn',
        version: readVersion(),
        description:
          'Connect email identities, register webhooks, and be told by a signed POST when mail arrives.\n\n' +
          `Limits: bodies up to 64 KiB (\`/inbound\`: ${config.maxMessageBytes} bytes); ${limit ? `${limit} requests a minute for each key (\`RateLimit\` headers)` : 'no rate limit'}; ` +
          'pages of up to 1000 items (200 of messages, events and deliveries), the next one in the `Link` header. Errors are problem documents (RFC 9457).',
      },
      servers: [{ url: `${config.publicUrl ?? ''}${config.basePath}` || '/' }],
      components: {
        securitySchemes: {
          apiKey: { type: 'http', scheme: 'bearer', description: 'An API key (`ph_…`).' },
          operatorToken: {
            type: 'http',
            scheme: 'bearer',
            description: 'The value of `POSTHORN_ADMIN_TOKEN`.',
          },
          metricsToken: {
            type: 'http',
            scheme: 'bearer',
            description: 'The value of `POSTHORN_METRICS_TOKEN`.',
          },
        },
      },
    },
    stripBasePath: true,
    transform: ({ schema, url, route }) => {
      const access = route.config?.access ?? 'public';
      const failures = {
        default: {
          description: 'A problem',
          content: { 'application/problem+json': { schema: ProblemDocument } },
        },
      };
      const takes = route.config?.takes;
      return {
        url,
        schema: {
          ...schema,
          ...(takes ? { consumes: [takes], body: RawMessage, headers: RecipientHeader } : {}),
          security: security[access],
          response: { ...(schema?.response as object), ...failures },
        },
      };
    },
  };
}
