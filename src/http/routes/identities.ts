/** Identities: email addresses and domains that the service receives mail for. */
import { type Static, Type } from 'typebox';
import { Identity } from '../../contract/identity.ts';
import { body, describe, IdParams, listQuery, maxPage, NullableUuid, oneOf } from '../../contract/schemas.ts';
import { type Sql, transaction } from '../../db/client.ts';
import { describeAddressChange, describeAddressChanges } from '../../identities/save-check.ts';
import { prepareProof, type VerifyParts } from '../../identities/verify.ts';
import { newId } from '../../lib/ids.ts';
import { readAddressOrDomain } from '../../net/address-or-domain.ts';
import { type FieldError, Problem } from '../../problems.ts';
import {
  createIdentity,
  deleteIdentity,
  findIdentity,
  hasIdentity,
  type IdentityKind,
  identityKinds,
  listIdentities,
  updateIdentity,
} from '../../store/identities.ts';
import { findRival } from '../../store/smtp-accounts.ts';
import { checkNow, identityStatuses } from '../../store/verification.ts';
import { withAccess } from '../access.ts';
import { abortOnClose } from '../client-gone.ts';
import { orNotFound } from '../errors.ts';
import type { App } from '../fastify.ts';
import { type PostParts, respondOnce } from '../idempotency.ts';
import { type PageParts, readPage, sendPage } from '../pagination.ts';

const maxMetaBytes = 16 * 1024;
const Meta = Type.Unsafe<Record<string, unknown> | string>({
  type: ['object', 'string'],
  format: 'json-object',
  description:
    'Data of your own: a JSON object, or a string with the JSON text of an object. At most 16 KiB as JSON text.',
});

const catchAll = 'On a domain: receive mail for every address of the domain that has no identity of its own.';

const writable = {
  incoming_domain: Type.Optional(Type.Boolean({ description: catchAll })),
  provider_id: Type.Optional(
    describe(
      NullableUuid,
      'The provider that mail of the identity goes through: its `id` from `GET /providers`.',
    ),
  ),
  smtp_account_id: Type.Optional(
    describe(
      NullableUuid,
      'The SMTP account that mail of the identity goes through and, with IMAP, arrives from: its `id` from `GET /smtp-accounts`.',
    ),
  ),
  meta: Type.Optional(Meta),
};

const NewIdentity = body(
  {
    value: Type.String({ format: 'identity-value', description: 'An email address or a domain.' }),
    kind: Type.Optional(describe(oneOf(identityKinds), 'Left out: `email` if `value` contains an @.')),
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
  parts: PostParts & PageParts & { verification: VerifyParts; wakePurge(): void; wakeSync(): void },
): void {
  const { sql, verification, log } = parts;

  app.post(
    '/identities',
    {
      config: {
        access: 'key',
        references,
        findFieldErrors: (given) => [...findKindMismatch(given), ...findLongMeta(given)],
      },
      schema: {
        tags,
        summary: 'Connect an email address or a domain',
        description:
          'A domain is verified when its DNS records are published (`dns_records`). An address is verified through its domain, or by a mail to it (`POST /identities/{id}/verify`).',
        body: NewIdentity,
        response: { 201: Identity },
      },
    },
    async (request, reply) => {
      const { ownerId } = request;
      const { kind, key } = readValue(request.body.value);
      // Creating the DKIM key of a domain is slow: do it outside the transaction, and not for an identity that exists.
      const exists = await hasIdentity(sql, ownerId, kind, key);
      const given = exists
        ? null
        : await prepareIdentity(verification, ownerId, request.body, abortOnClose(reply));
      await respondOnce(parts, request, reply, async (sql) => {
        const identity =
          given &&
          (await withFreeAccount(
            sql,
            { ownerId, id: given.id, kind, accountId: given.smtpAccountId },
            (sql) => createIdentity(sql, ownerId, given),
          ));
        if (!identity) throw new Problem('identity_exists');
        return { status: 201, location: `/identities/${identity.id}`, body: identity };
      });
      if (given?.smtpAccountId) parts.wakeSync();
    },
  );

  app.get(
    '/identities',
    withAccess('key', tags, {
      summary: 'List your identities',
      querystring: Filters,
      response: { 200: Type.Array(Identity) },
    }),
    async (request, reply) => {
      const { kind, status, value } = request.query;
      const page = await readPage(parts, request, reply, maxPage);
      const found = await listIdentities(
        sql,
        request.ownerId,
        { kind, status, value: value === undefined ? undefined : readValue(value) },
        page,
      );
      return sendPage(parts, request, reply, found);
    },
  );

  app.get(
    '/identities/:id',
    withAccess('key', tags, { summary: 'Get an identity', params: IdParams, response: { 200: Identity } }),
    async (request) => orNotFound(findIdentity(sql, request.ownerId, request.params.id)),
  );

  app.patch(
    '/identities/:id',
    {
      config: { access: 'key', references, findFieldErrors: findLongMeta },
      schema: {
        tags,
        summary: 'Update an identity',
        description: 'Only the fields in the body change.',
        params: IdParams,
        body: IdentityPatch,
        response: { 200: Identity },
      },
    },
    async (request) => {
      const { id } = request.params;
      const { meta, ...rest } = request.body;
      const changes = meta === undefined ? rest : { ...rest, meta: toJsonText(meta) };
      const { ownerId } = request;
      const accountId = rest.smtp_account_id ?? null;
      const known = accountId === null ? null : await orNotFound(findIdentity(sql, ownerId, id));
      const user = { ownerId, id, kind: known?.kind ?? 'domain', accountId };
      const identity = await withFreeAccount(sql, user, (sql) =>
        orNotFound(updateIdentity(sql, ownerId, id, changes)),
      );
      // The identity needs other DNS records now: the next check, which is due at once, writes them.
      if (request.body.incoming_domain !== undefined) await checkNow(sql, request.ownerId, id);
      if (rest.smtp_account_id !== undefined) parts.wakeSync();
      return identity;
    },
  );

  app.delete(
    '/identities/:id',
    withAccess('key', tags, {
      summary: 'Delete an identity',
      description:
        'Also deletes its mailboxes, its messages and the webhooks restricted to it. This cannot be undone.',
      params: IdParams,
      response: { 204: Type.Null() },
    }),
    async (request, reply) => {
      const { ownerId } = request;
      const deleted = await orNotFound(deleteIdentity(sql, ownerId, request.params.id));
      const { domain, addresses, promoted } = deleted;
      parts.wakePurge();
      parts.wakeSync();
      const change = { ownerId, domain, to: 'unverified' };
      const reason = 'The domain identity was deleted.';
      const changes = describeAddressChanges(addresses, change, reason);
      if (promoted)
        changes.push(describeAddressChange(promoted, 'It was confirmed, and its holder has gone.'));
      for (const { message, ...fields } of changes) log.info(fields, message);
      reply.code(204).send(null);
    },
  );
}

/** Throws if the account has `imap` and serves another address. */
function withFreeAccount<Result>(
  sql: Sql,
  user: { ownerId: string; id: string; kind: IdentityKind; accountId: string | null },
  work: (sql: Sql) => Promise<Result>,
): Promise<Result> {
  const { ownerId, id, kind, accountId } = user;
  if (accountId === null || kind === 'domain') return work(sql);
  return transaction(sql, async (sql) => {
    const rival = await findRival(sql, ownerId, accountId, id);
    if (rival === undefined) return work(sql);
    const detail = `The SMTP account has "imap", so it serves one address, and ${rival} refers to it. Make an account for each address.`;
    throw new Problem('in_use', { detail });
  });
}

function findKindMismatch({ kind, value }: Record<string, unknown>): FieldError[] {
  const read = typeof value === 'string' ? readAddressOrDomain(value) : undefined;
  const given = identityKinds.find((name) => name === kind);
  if (!read || 'fault' in read || !given || given === read.kind) return [];
  const noun = read.kind === 'email' ? 'an email address' : 'a domain';
  const message = `"kind" is ${given}, but "value" is ${noun}. Change one of them, or leave out "kind".`;
  return [{ pointer: '/kind', code: 'mismatch', message }];
}

/** A value that is not the JSON of an object is reported by the schema. */
function findLongMeta({ meta }: Record<string, unknown>): FieldError[] {
  if ((typeof meta !== 'object' && typeof meta !== 'string') || meta === null) return [];
  let bytes: number;
  try {
    bytes = Buffer.byteLength(toJsonText(meta));
  } catch {
    return [];
  }
  if (bytes <= maxMetaBytes) return [];
  const message = `"meta" has ${bytes} bytes as JSON text. The limit is ${maxMetaBytes} bytes.`;
  return [{ pointer: '/meta', code: 'too_long', message }];
}

async function prepareIdentity(
  verification: VerifyParts,
  ownerId: string,
  given: Static<typeof NewIdentity>,
  signal: AbortSignal,
) {
  const id = newId();
  const { kind, value, key, domain } = readValue(given.value);
  const incomingDomain = given.incoming_domain ?? false;
  const proof =
    kind === 'domain'
      ? await prepareProof(verification, { id, ownerId, domain, incomingDomain, signal })
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

function readValue(text: string) {
  const read = readAddressOrDomain(text);
  if ('fault' in read) throw new Error(`The schema accepted an invalid identity value: ${read.fault}`);
  return read;
}

function toJsonText(value: object | string): string {
  return JSON.stringify(typeof value === 'string' ? JSON.parse(value) : value);
}
