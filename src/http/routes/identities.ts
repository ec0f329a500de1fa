/** Identities: an address or a domain that is connected to the service. */
import { type Static, Type } from 'typebox';
import { Identity } from '../../contract/identity.ts';
import { body, IdParams, listQuery, maxPage, NullableUuid, oneOf } from '../../contract/schemas.ts';
import { describeFollowers } from '../../identities/save-check.ts';
import { prepareProof, type VerifyParts } from '../../identities/verify.ts';
import { newId } from '../../lib/ids.ts';
import { readAddressOrDomain } from '../../net/address-or-domain.ts';
import { type Fault, Problem } from '../../problems.ts';
import {
  createIdentity,
  deleteIdentity,
  findIdentity,
  hasIdentity,
  type IdentityChanges,
  identityKinds,
  listIdentities,
  updateIdentity,
} from '../../store/identities.ts';
import { identityStatuses, makeDue } from '../../store/verification.ts';
import type { App } from '../fastify.ts';
import { type AnswerParts, answerOnce } from '../idempotency.ts';
import { type PageParts, readPage, sendPage } from '../pagination.ts';

const Meta = Type.Unsafe<Record<string, unknown> | string>({
  type: ['object', 'string'],
  format: 'json-object',
  description: 'An object, or its JSON text.',
});

const writable = {
  incoming_domain: Type.Optional(
    Type.Boolean({
      description: 'On a domain: takes the mail of addresses that have no identity of their own.',
    }),
  ),
  provider_id: Type.Optional(NullableUuid),
  smtp_account_id: Type.Optional(NullableUuid),
  meta: Type.Optional(Meta),
};

const NewIdentity = body(
  {
    value: Type.String({ format: 'identity-value', description: 'An address or a domain.' }),
    kind: Type.Optional(oneOf(identityKinds)),
    ...writable,
  },
  { example: { value: 'sales@example.com' } },
);

const readOnly = Object.keys(Identity.properties).filter((field) => !(field in writable));
const IdentityPatch = body(writable, { example: { meta: { team: 'sales' } }, readOnly });

const Filters = listQuery({
  kind: Type.Optional(oneOf(identityKinds)),
  status: Type.Optional(oneOf(identityStatuses)),
  value: Type.Optional(Type.String({ format: 'identity-value' })),
});

const tags = ['Identities'];
const references = { provider_id: 'providers', smtp_account_id: 'smtp_accounts' } as const;

export function identityRoutes(
  app: App,
  parts: AnswerParts & PageParts & { verification: VerifyParts; wakePurge(): void },
): void {
  const { sql, verification, log } = parts;

  app.post(
    '/identities',
    {
      config: { access: 'key', references, findFaults: findMismatch },
      schema: { tags, summary: 'Connect an identity', body: NewIdentity, response: { 201: Identity } },
    },
    async (request, reply) => {
      const { ownerId } = request;
      const { kind, key } = readValue(request.body.value);
      // A domain has a key made for it, which takes a while: not in vain, and no connection waits for it.
      const isKnown = await hasIdentity(sql, ownerId, kind, key);
      const given = isKnown ? null : await prepareIdentity(verification, ownerId, request.body);
      await answerOnce(parts, request, reply, async (sql) => {
        const identity = given && (await createIdentity(sql, ownerId, given));
        if (!identity) throw new Problem('identity_exists');
        return { status: 201, location: `/identities/${identity.id}`, body: identity };
      });
    },
  );

  app.get(
    '/identities',
    {
      config: { access: 'key' },
      schema: {
        tags,
        summary: 'Your identities',
        querystring: Filters,
        response: { 200: Type.Array(Identity) },
      },
    },
    async (request, reply) => {
      const { kind, status, value } = request.query;
      const valueKey = value === undefined ? undefined : readValue(value).key;
      const page = readPage(request.query, maxPage);
      const found = await listIdentities(sql, request.ownerId, { kind, status, valueKey }, page);
      return sendPage(parts, request, reply, found);
    },
  );

  app.get(
    '/identities/:id',
    {
      config: { access: 'key' },
      schema: { tags, summary: 'One identity', params: IdParams, response: { 200: Identity } },
    },
    async (request) => {
      const identity = await findIdentity(sql, request.ownerId, request.params.id);
      if (!identity) throw new Problem('not_found');
      return identity;
    },
  );

  app.patch(
    '/identities/:id',
    {
      config: { access: 'key', references },
      schema: {
        tags,
        summary: 'Change what is supplied',
        params: IdParams,
        body: IdentityPatch,
        response: { 200: Identity },
      },
    },
    async (request) => {
      const { id } = request.params;
      const identity = await updateIdentity(sql, request.ownerId, id, readChanges(request.body));
      if (!identity) throw new Problem('not_found');
      // Other records are wanted now; the next look, which is due at once, tells them.
      if (request.body.incoming_domain !== undefined) await makeDue(sql, request.ownerId, id);
      return identity;
    },
  );

  app.delete(
    '/identities/:id',
    {
      config: { access: 'key' },
      schema: {
        tags,
        summary: 'Delete it for good, with its mailboxes and the webhooks restricted to it',
        params: IdParams,
        response: { 204: Type.Null() },
      },
    },
    async (request, reply) => {
      const { ownerId } = request;
      const deleted = await deleteIdentity(sql, ownerId, request.params.id);
      if (!deleted) throw new Problem('not_found');
      parts.wakePurge();
      const { domain, followers } = deleted;
      const lost = { ownerId, domain, to: 'unverified' };
      for (const { message, ...about } of describeFollowers(
        followers,
        lost,
        'The domain identity was deleted.',
      ))
        log.info(about, message);
      reply.code(204).send(null);
    },
  );
}

function findMismatch({ kind, value }: Record<string, unknown>): Fault[] {
  const read = typeof value === 'string' ? readAddressOrDomain(value) : undefined;
  const other = identityKinds.find((name) => name === kind);
  if (!read || 'fault' in read || !other || other === read.kind) return [];
  const message = `"kind" is ${other}, and "value" is ${read.kind === 'email' ? 'an address' : 'a domain'}.`;
  return [{ pointer: '/kind', code: 'mismatch', message }];
}

async function prepareIdentity(
  verification: VerifyParts,
  ownerId: string,
  given: Static<typeof NewIdentity>,
) {
  const id = newId();
  const { kind, value, key, domain } = readValue(given.value);
  const incomingDomain = given.incoming_domain ?? false;
  const proof =
    kind === 'domain'
      ? await prepareProof(verification, verification.sealer, { id, ownerId, domain, incomingDomain })
      : null;
  return {
    id,
    proof,
    kind,
    value,
    valueKey: key,
    domain,
    incomingDomain,
    providerId: given.provider_id ?? null,
    smtpAccountId: given.smtp_account_id ?? null,
    meta: given.meta === undefined ? '{}' : toJsonText(given.meta),
  };
}

function readChanges({ meta, ...rest }: Static<typeof IdentityPatch>): IdentityChanges {
  return meta === undefined ? rest : { ...rest, meta: toJsonText(meta) };
}

/** The schema has let it pass, so it reads. */
function readValue(text: string) {
  const read = readAddressOrDomain(text);
  if ('fault' in read)
    throw new Error(`The schema let an identity value pass that does not read: ${read.fault}`);
  return read;
}

function toJsonText(value: object | string): string {
  return JSON.stringify(typeof value === 'string' ? JSON.parse(value) : value);
}
