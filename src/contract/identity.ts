/** An identity and its DNS records in responses. */
import { type Static, Type } from 'typebox';
import { type Identity as IdentityRow, identityKinds } from '../store/identities.ts';
import { identityStatuses } from '../store/verification.ts';
import { describe, NullableTimestamp, NullableUuid, oneOf, rowSchema, Timestamp, Uuid } from './schemas.ts';

const SeedTimestamp = Type.String({ examples: ['2026-01-31 12:00:00.123456+00'] });

export const Identity = rowSchema<IdentityRow>()({
  id: Uuid,
  owner_id: Uuid,
  kind: oneOf(identityKinds),
  public_id: Type.String(),
  value: Type.String({ description: 'The email address or the domain.' }),
  incoming_domain: Type.Boolean({ description: 'Whether a domain also receives mail for other addresses.' }),
  domain_identity_id: describe(NullableUuid, 'The identity through which an address is verified.'),
  dns_records: Type.String({ description: 'JSON text. See `GET /identities/{id}/dns`.' }),
  meta: Type.String({ description: 'JSON text of an object: your own data.' }),
  provider_id: NullableUuid,
  smtp_account_id: NullableUuid,
  status: oneOf(identityStatuses),
  created_at: SeedTimestamp,
  updated_at: SeedTimestamp,
});

/** An entry of `dns_records`. */
export const DnsRecord = Type.Object({
  type: oneOf(['TXT', 'MX']),
  name: Type.String(),
  value: Type.String({
    description: 'The complete value to publish. For SPF: your record with our part added.',
  }),
  ttl: Type.Integer(),
  priority: Type.Optional(Type.Integer()),
  purpose: oneOf(['ownership', 'mx', 'spf', 'dkim', 'dmarc']),
  required: Type.Boolean({ description: 'Whether the identity is verified only with this record.' }),
  status: oneOf(['missing', 'mismatch', 'valid', 'unknown']),
  found: Type.Array(Type.String(), { description: 'The values that the last check found.' }),
  checkedAt: NullableTimestamp,
  note: Type.Optional(Type.String({ description: 'What is wrong, and how to fix it.' })),
  graceUntil: Type.Optional(describe(Timestamp, 'The identity stays verified until this time.')),
  usedFor: Type.Array(oneOf(['sending', 'receiving']), {
    description:
      'What fails or suffers without this record: mail that you send, mail that you receive, or both.',
  }),
});
export type DnsRecord = Static<typeof DnsRecord>;
