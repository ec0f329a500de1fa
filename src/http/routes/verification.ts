/** Verification of identities: the DNS records to publish, a check on demand, and new DKIM keys. */
import { Type } from 'typebox';
import type { Config } from '../../config.ts';
import type { ConfirmationLinks } from '../../contract/confirmation-links.ts';
import { DnsRecord, Identity } from '../../contract/identity.ts';
import { IdParams } from '../../contract/schemas.ts';
import type { Sql } from '../../db/client.ts';
import { parseRecords } from '../../identities/records.ts';
import { checkDomain, makeSealedDkimKey, rotateDkim, type VerifyParts } from '../../identities/verify.ts';
import { writeZone } from '../../identities/zone.ts';
import { hashId } from '../../lib/ids.ts';
import { Problem } from '../../problems.ts';
import type { SubmitParts } from '../../sending/submit.ts';
import { requestConfirmation } from '../../store/confirmations.ts';
import { findRotationWait } from '../../store/dkim-keys.ts';
import { findIdentity } from '../../store/identities.ts';
import { findDnsRecords, findDomainIdentity, takeCheckAllowance } from '../../store/verification.ts';
import { withAccess } from '../access.ts';
import { abortOnClose } from '../client-gone.ts';
import { orNotFound } from '../errors.ts';
import type { App } from '../fastify.ts';
import { actAndRespondOnce, type PostParts } from '../idempotency.ts';
import { rateLimited } from '../rate-limit.ts';

const tags = ['Identities'];

interface VerificationParts extends PostParts {
  config: Pick<Config, 'confirmationLimit'>;
  verification: VerifyParts;
  confirmationLinks: ConfirmationLinks;
  submit: Pick<SubmitParts, 'ways' | 'wakeSending'>;
}

export function verificationRoutes(app: App, parts: VerificationParts): void {
  const { sql, verification, confirmationLinks, submit, config } = parts;

  app.post(
    '/identities/:id/verify',
    withAccess('key', tags, {
      summary: 'Verify an identity now',
      description:
        'Checks the DNS records of a domain, or of the domain of an address. Limit for each domain: 10 checks in a row, then one every 5 seconds. Posthorn also checks the records regularly by itself. An address that none of your verified domains covers gets a mail with a link, and is `pending` until the link is used or, after 24 hours, expires. Limits of these mails: 3 an hour and 5 a day for an address, 10 a day for an address of several users, and a number of addresses a day that the operator sets (50).',
      params: IdParams,
      response: { 200: Identity },
    }),
    async (request, reply) => {
      const { ownerId } = request;
      const { id } = request.params;
      const check = async () => {
        const identity = await orNotFound(findIdentity(sql, ownerId, id));
        const domain = await findDomainIdentity(sql, ownerId, identity.domain_identity_id ?? id);
        if (!domain) return identity;
        const limited = await takeCheckAllowance(sql, ownerId, domain.id);
        if (limited) throw rateLimited(limited.waitSeconds, 'This identity was checked too often.');
        await checkDomain(verification, domain, { requested: true, signal: abortOnClose(reply) });
        return identity;
      };
      let isQueued = false;
      await actAndRespondOnce(parts, request, reply, check, async (sql, { kind }) => {
        if (kind === 'email') isQueued = await sendConfirmation(sql, ownerId, id);
        return { status: 200, body: await orNotFound(findIdentity(sql, ownerId, id)) };
      });
      if (isQueued) submit.wakeSending();
    },
  );

  /** True: a mail is queued. */
  async function sendConfirmation(sql: Sql, ownerId: string, id: string): Promise<boolean> {
    const outcome = await requestConfirmation(
      sql,
      { ownerId, id },
      {
        maxAddresses: config.confirmationLimit,
        // The lane of the owner's mail to the same destination.
        laneOf: (address) => hashId('lane', ownerId, submit.ways.operator.destinationOf(address)),
        hashFor: confirmationLinks.hashFor,
      },
    );
    if (typeof outcome === 'object')
      throw rateLimited(outcome.waitSeconds, 'Too many confirmation mails were requested.');
    return outcome === 'queued';
  }

  app.get(
    '/identities/:id/dns',
    withAccess('key', tags, {
      summary: 'List the DNS records of a domain',
      description: 'The records to publish, and what the last check found. Empty for an email address.',
      params: IdParams,
      response: { 200: Type.Array(DnsRecord) },
    }),
    async (request) => {
      const { dnsRecords } = await orNotFound(findDnsRecords(sql, request.ownerId, request.params.id));
      return parseRecords(dnsRecords);
    },
  );

  app.get(
    '/identities/:id/dns.zone',
    withAccess('key', tags, {
      summary: 'Get the DNS records as text for a zone file',
      params: IdParams,
      response: { 200: { content: { 'text/plain': { schema: Type.String() } } } },
    }),
    async (request, reply) => {
      const found = await orNotFound(findDnsRecords(sql, request.ownerId, request.params.id));
      const { value, dnsRecords } = found;
      return reply.type('text/plain; charset=utf-8').send(writeZone(value, JSON.parse(dnsRecords) ?? []));
    },
  );

  app.post(
    '/identities/:id/dkim/rotate',
    withAccess('key', tags, {
      summary: 'Create a new DKIM key',
      description:
        'The current key stays in use until a check finds the new key in DNS. Another rotation before that replaces the new key. Limit: one rotation a minute.',
      params: IdParams,
      response: { 200: Identity },
    }),
    async (request, reply) => {
      const { ownerId } = request;
      const { id } = request.params;
      await actAndRespondOnce(
        parts,
        request,
        reply,
        async () => {
          const known = await orNotFound(findIdentity(sql, ownerId, id));
          if (known.kind === 'email') throw new Problem('domain_needed');
          const limited = await findRotationWait(sql, { ownerId, id });
          if (limited) throw tooManyKeys(limited.waitSeconds);
          return { known, key: await makeSealedDkimKey(verification, ownerId, id, abortOnClose(reply)) };
        },
        async (sql, { known, key }) => {
          const outcome = await rotateDkim(verification, sql, ownerId, id, key);
          if (outcome === 'not_found') throw new Problem('not_found');
          if (outcome !== 'rotated') throw tooManyKeys(outcome.waitSeconds);
          return { status: 200, body: (await findIdentity(sql, ownerId, id)) ?? known };
        },
      );
    },
  );
}

function tooManyKeys(waitSeconds: number): Problem {
  return rateLimited(waitSeconds, 'The last DKIM key is less than a minute old. Publish that key.');
}
