/** The proof of identities: what must stand in DNS, a look at it now, and new DKIM keys. */
import type { FastifyReply } from 'fastify';
import { Type } from 'typebox';
import { DnsRecord, Identity } from '../../contract/identity.ts';
import { IdParams } from '../../contract/schemas.ts';
import type { Pool } from '../../db/client.ts';
import { checkDomain, makeSealedDkimKey, rotateDkim, type VerifyParts } from '../../identities/verify.ts';
import { writeZone } from '../../identities/zone.ts';
import { Problem } from '../../problems.ts';
import { findRotationWait } from '../../store/dkim-keys.ts';
import { findIdentity } from '../../store/identities.ts';
import { findDomainIdentity, readRecords, takeCheck } from '../../store/verification.ts';
import type { App } from '../fastify.ts';
import { type AnswerParts, actAndAnswerOnce } from '../idempotency.ts';

const tags = ['Identities'];

export function verificationRoutes(app: App, parts: AnswerParts & { verification: VerifyParts }): void {
  const { sql, sealer, verification } = parts;

  app.post(
    '/identities/:id/verify',
    {
      config: { access: 'key' },
      schema: {
        tags,
        summary: 'Look at its DNS records now: ten times at once, then once in 5 s',
        params: IdParams,
        response: { 200: Identity },
      },
    },
    async (request, reply) => {
      const { ownerId } = request;
      const { id } = request.params;
      const check = async () => {
        const identity = await findIdentity(sql, ownerId, id);
        if (!identity) throw new Problem('not_found');
        const domain = await findDomainIdentity(sql, ownerId, identity.domain_identity_id ?? id);
        if (!domain) throw new Problem('domain_needed');
        const limited = await takeCheck(sql, ownerId, domain.id);
        if (limited) throw tooManyChecks(limited.waitSeconds);
        await checkDomain(verification, domain, { asked: true, signal: abortedWith(reply) });
      };
      await actAndAnswerOnce(parts, request, reply, check, async (sql) => {
        const checked = await findIdentity(sql, ownerId, id);
        if (!checked) throw new Problem('not_found');
        return { status: 200, body: checked };
      });
    },
  );

  app.get(
    '/identities/:id/dns',
    {
      config: { access: 'key' },
      schema: {
        tags,
        summary: 'What must stand in DNS, and what was found; empty for an address',
        params: IdParams,
        response: { 200: Type.Array(DnsRecord) },
      },
    },
    async (request) => JSON.parse((await requireRecords(sql, request)).dnsRecords) ?? [],
  );

  app.get(
    '/identities/:id/dns.zone',
    {
      config: { access: 'key' },
      schema: {
        tags,
        summary: 'The same, to be pasted into a zone file',
        params: IdParams,
        response: { 200: { content: { 'text/plain': { schema: Type.String() } } } },
      },
    },
    async (request, reply) => {
      const { value, dnsRecords } = await requireRecords(sql, request);
      return reply.type('text/plain; charset=utf-8').send(writeZone(value, JSON.parse(dnsRecords) ?? []));
    },
  );

  app.post(
    '/identities/:id/dkim/rotate',
    {
      config: { access: 'key' },
      schema: {
        tags,
        summary:
          'Make a new DKIM key; the one in use stays until the new one is seen in DNS. Again before that replaces the new one, a minute after it was made at the earliest',
        params: IdParams,
        response: { 200: Identity },
      },
    },
    async (request, reply) => {
      const { ownerId } = request;
      const { id } = request.params;
      await actAndAnswerOnce(
        parts,
        request,
        reply,
        async () => {
          const known = await findIdentity(sql, ownerId, id);
          if (!known) throw new Problem('not_found');
          if (known.kind === 'email') throw new Problem('domain_needed');
          const limited = await findRotationWait(sql, { ownerId, id });
          if (limited) throw tooManyKeys(limited.waitSeconds);
          return { known, key: await makeSealedDkimKey(sealer, ownerId, id) };
        },
        async (sql, { known, key }) => {
          const outcome = await rotateDkim(verification, sql, ownerId, id, key);
          if (outcome === 'gone') throw new Problem('not_found');
          if (outcome !== 'rotated') throw tooManyKeys(outcome.waitSeconds);
          return { status: 200, body: (await findIdentity(sql, ownerId, id)) ?? known };
        },
      );
    },
  );
}

async function requireRecords(sql: Pool, request: { ownerId: string; params: { id: string } }) {
  const found = await readRecords(sql, request.ownerId, request.params.id);
  if (!found) throw new Problem('not_found');
  return found;
}

/** A look for a caller who has gone is given up. */
function abortedWith(reply: FastifyReply): AbortSignal {
  const gone = new AbortController();
  reply.raw.once('close', () => gone.abort());
  return gone.signal;
}

function tooManyKeys(waitSeconds: number): Problem {
  return new Problem('rate_limited', {
    detail: `A new DKIM key was just made. Publish that one, or wait ${waitSeconds} s for another.`,
    headers: { 'retry-after': String(waitSeconds) },
  });
}

function tooManyChecks(waitSeconds: number): Problem {
  return new Problem('rate_limited', {
    detail: `This identity was checked often of late. Wait ${waitSeconds} s; it is checked by itself as well.`,
    headers: { 'retry-after': String(waitSeconds) },
  });
}
