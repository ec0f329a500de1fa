/** The OpenAPI document, generated from the same schemas that validate requests and type responses. */
import { readFileSync } from 'node:fs';
import path from 'node:path';
import swagger from '@fastify/swagger';
import { Type } from 'typebox';
import type { Config } from '../config.ts';
import { readVersion } from '../lib/version.ts';
import { problems } from '../problems.ts';
import type { KeyScope } from '../store/api-keys.ts';
import { type Access, allowedScopes } from './access.ts';
import type { App } from './fastify.ts';
import { completeDocument, type OpenApiDocument } from './openapi-document.ts';
import { writeForms } from './openapi-forms.ts';
import { addPatterns } from './openapi-patterns.ts';
import { makeSessionCookie } from './session-cookie.ts';

const ProblemDocument = Type.Object(
  {
    type: Type.String({ description: 'A URN that ends with `code`.' }),
    title: Type.String({ description: 'The same for all problems of this `code`.' }),
    status: Type.Integer({ description: 'The HTTP status.' }),
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

const RawMessage = Type.String({
  format: 'binary',
  description: 'The message (RFC 5322), byte for byte.',
  examples: ['From: Ada <ada@example.com>\nSubject: Hello\n\nIs anybody there?\n'],
});
const RecipientHeader = Type.Object({
  'x-recipient': Type.Optional(
    Type.String({
      description: 'More recipients, separated by commas. They are added to those of the query.',
    }),
  ),
});

/** The credentials, as alternatives. */
const security: Record<Access, Record<string, string[]>[]> = {
  key: [{ apiKey: [] }, { session: [] }],
  'key or link': [{ apiKey: [] }, { session: [] }, {}],
  operator: [{ operatorToken: [] }],
  metrics: [{}, { metricsToken: [] }],
  hook: [],
  public: [],
};

function describeAccess(access: Access, scopes: readonly KeyScope[]): string {
  const accepted = scopes.map((scope) => `\`${scope}\``).join(', ');
  const words: Record<Access, string> = {
    key: `Scopes of API keys: ${accepted}.`,
    'key or link': `Scopes of API keys: ${accepted}. A signed link needs no key.`,
    operator: "Needs the operator's token.",
    metrics: 'Needs the metrics token, if the operator has set one.',
    hook: 'Only a provider calls it.',
    public: 'Needs no key.',
  };
  return words[access];
}

/** The chapters of docs/guide.md, without its first words, which are about the file. */
function readGuide(): string {
  const text = readFileSync(path.join(import.meta.dirname, '../../docs/guide.md'), 'utf8');
  return text.slice(text.indexOf('\n## ') + 1);
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
          `pages of up to 1000 items (messages, events and deliveries: 200).\n\n${readGuide()}`,
        contact: { name: 'The operator of this installation' },
        license: { name: 'MIT', identifier: 'MIT' },
      },
      servers: [
        { url: `${config.publicUrl ?? ''}${config.basePath}` || '/', description: 'This installation.' },
      ],
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
      const written = writeForms(made.openapiObject as OpenApiDocument);
      const document = completeDocument(written, ProblemDocument, RawMessage);
      return addPatterns(document, config) as typeof made.openapiObject;
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
          description: [schema?.description, describeAccess(access, scopes)].filter(Boolean).join(' '),
          security: security[access],
          ...(access.startsWith('key') ? { 'x-scopes': scopes } : {}),
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
