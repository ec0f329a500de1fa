/** Providers: services that your identities' mail comes from or goes through. */
import type { FastifyRequest } from 'fastify';
import { type Static, Type } from 'typebox';
import { Provider } from '../../contract/provider.ts';
import { body, describe, IdParams, listQuery, maxPage, nullableText, oneOf } from '../../contract/schemas.ts';
import { newId } from '../../lib/ids.ts';
import { hashToken, makeHookSecret } from '../../lib/tokens.ts';
import type { Verifications } from '../../mailboxes/verifications.ts';
import { Problem } from '../../problems.ts';
import { describeCredentials, findCredentialFaults, titleOf } from '../../providers/credentials.ts';
import type { AccountServers } from '../../sending/account-servers.ts';
import {
  createProvider,
  deleteProvider,
  findProvider,
  listProviders,
  type ProviderKind,
  type Provider as ProviderRow,
  providerContext,
  providerKinds,
  updateProvider,
} from '../../store/providers.ts';
import { withAccess } from '../access.ts';
import { abortOnClose } from '../client-gone.ts';
import { orNotFound } from '../errors.ts';
import type { App } from '../fastify.ts';
import { actAndRespondOnce, type PostParts, respondOnce } from '../idempotency.ts';
import { type PageParts, readPage, sendPage } from '../pagination.ts';

/** `findCredentialFaults` validates them: a schema cannot express all of its rules, and its errors name the kind. */
const Credentials = Type.Unsafe<Record<string, unknown>>({
  type: 'object',
  documentedAs: { oneOf: providerKinds.map(describeCredentials) },
});
const Name = describe(nullableText(200), 'For you.');

const NewProvider = body(
  {
    kind: describe(oneOf(providerKinds), 'The service.'),
    name: Type.Optional(Name),
    credentials: Credentials,
  },
  {
    example: {
      kind: 'postmark',
      name: 'Support mail',
      credentials: { serverToken: '5a31b7fe-0000-4000-8000-000000000000' },
    },
    forms: { documentedAs: { oneOf: providerKinds.map(describeNewProvider) } },
  },
);

function describeNewProvider(kind: ProviderKind): object {
  return {
    title: `New${titleOf(kind)}Provider`,
    type: 'object',
    properties: {
      kind: { type: 'string', const: kind },
      name: Name,
      credentials: describeCredentials(kind),
    },
    required: ['kind', 'credentials'],
    additionalProperties: false,
  };
}

const ProviderPatch = body(
  {
    name: Type.Optional(Name),
    credentials: Type.Optional(describe(Credentials, 'All of them: they replace the stored ones.')),
  },
  {
    example: { name: 'Support mail' },
    readOnly: Object.keys(Provider.properties).filter((field) => field !== 'name'),
  },
);

const tags = ['Providers'];

interface ProviderParts extends PostParts, PageParts {
  readBaseUrl(): string;
  verifyAccounts: { accounts: Pick<AccountServers, 'check'> };
  verifications: Verifications;
}

export function providerRoutes(app: App, parts: ProviderParts): void {
  const { sql, sealer } = parts;

  /**
   * Its answers have the URLs of its hooks in place of the secret. Whoever knows them can bring in mail of Postmark, which signs
   * nothing, so only `full` keys see them, as the secrets of webhooks.
   */
  function show(
    { keyScope }: FastifyRequest,
    { hookSecret, ...provider }: ProviderRow,
  ): Static<typeof Provider> {
    if (keyScope !== 'full') return { ...provider, inboundUrl: null, eventsUrl: null };
    const hooks = `${parts.readBaseUrl()}/hooks/${sealer.open(hookSecret, providerContext(provider.id, 'hook_secret'))}`;
    // Mailgun sends the whole message only to a URL that ends so.
    const inboundUrl = `${hooks}/inbound${provider.kind === 'mailgun' ? '/mime' : ''}`;
    return { ...provider, inboundUrl, eventsUrl: `${hooks}/events` };
  }

  const sealCredentials = (id: string, credentials: Record<string, unknown>) =>
    sealer.seal(JSON.stringify(credentials), providerContext(id, 'credentials'));

  app.post(
    '/providers',
    {
      config: { access: 'key', findFieldErrors: ({ kind, credentials }) => findFaults(kind, credentials) },
      schema: {
        tags,
        summary: 'Connect a provider',
        description:
          'Then give its id to identities as `provider_id`: their mail goes out by the SMTP service of the provider. Enter `inboundUrl` and `eventsUrl` at the provider.',
        body: NewProvider,
        response: { 201: Provider },
      },
    },
    (request, reply) =>
      respondOnce(parts, request, reply, async (sql) => {
        const { kind, name = null, credentials } = request.body;
        const [id, secret] = [newId(), makeHookSecret()];
        const made = await createProvider(sql, request.ownerId, {
          ...{ id, kind, name, credentials: sealCredentials(id, credentials) },
          ...{
            hookSecret: sealer.seal(secret, providerContext(id, 'hook_secret')),
            hookHash: hashToken(secret),
          },
        });
        return { status: 201, location: `/providers/${id}`, body: show(request, made) };
      }),
  );

  app.get(
    '/providers',
    withAccess('key', tags, {
      summary: 'List your providers',
      querystring: listQuery({}),
      response: { 200: Type.Array(Provider) },
    }),
    async (request, reply) => {
      const page = await readPage(parts, request, reply, maxPage);
      const { rows, next } = await listProviders(sql, request.ownerId, page);
      const shown = rows.map(({ position, ...row }) => show(request, row));
      return sendPage(parts, request, reply, { rows: shown, next });
    },
  );

  app.get(
    '/providers/:id',
    withAccess('key', tags, { summary: 'Get a provider', params: IdParams, response: { 200: Provider } }),
    async (request) => show(request, await orNotFound(findProvider(sql, request.ownerId, request.params.id))),
  );

  app.patch(
    '/providers/:id',
    withAccess('key', tags, {
      summary: 'Update a provider',
      description: 'Only the fields in the body change. The kind and the URLs of the hooks never change.',
      params: IdParams,
      body: ProviderPatch,
      response: { 200: Provider },
    }),
    async (request) => {
      const { ownerId, params } = request;
      const { credentials, ...rest } = request.body;
      const { kind } = await orNotFound(findProvider(sql, ownerId, params.id));
      const errors = credentials === undefined ? [] : findFaults(kind, credentials);
      if (errors.length > 0) throw new Problem('invalid_body', { errors });
      const sealed =
        credentials === undefined ? {} : { credentials: sealCredentials(params.id, credentials) };
      return show(request, await orNotFound(updateProvider(sql, ownerId, params.id, { ...rest, ...sealed })));
    },
  );

  app.delete(
    '/providers/:id',
    withAccess('key', tags, {
      summary: 'Delete a provider',
      description: 'Refused with 409 while identities refer to the provider. Its hooks end at once.',
      params: IdParams,
      response: { 204: Type.Null() },
    }),
    async (request, reply) => {
      const { usedBy } = await orNotFound(deleteProvider(sql, request.ownerId, request.params.id));
      if (usedBy.length > 0) {
        const detail = `These identities refer to the provider: ${usedBy.join(', ')}. Give them another provider, or null, with PATCH.`;
        throw new Problem('in_use', { detail });
      }
      reply.code(204).send(null);
    },
  );

  app.post(
    '/providers/:id/verify',
    withAccess('key', tags, {
      summary: 'Log in at the SMTP service of a provider now',
      description: '`send` of the answer says how it went, and what to do.',
      params: IdParams,
      response: { 200: Provider },
    }),
    async (request, reply) => {
      const { ownerId } = request;
      const { id } = request.params;
      const verify = async () => {
        await orNotFound(findProvider(sql, ownerId, id));
        const { accounts } = parts.verifyAccounts;
        const check = (signal: AbortSignal) => accounts.check({ ownerId, providerId: id }, signal);
        await parts.verifications.run(ownerId, abortOnClose(reply), check);
      };
      await actAndRespondOnce(parts, request, reply, verify, async (sql) => ({
        status: 200,
        body: show(request, await orNotFound(findProvider(sql, ownerId, id))),
      }));
    },
  );
}

/** A kind that does not exist is reported by the schema. */
function findFaults(kind: unknown, credentials: unknown) {
  const known = providerKinds.find((one): one is ProviderKind => one === kind);
  return known ? findCredentialFaults(known, credentials) : [];
}
