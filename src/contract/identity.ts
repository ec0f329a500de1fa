/** An identity and its DNS records, as the interface shows them. */
import { type Static, Type } from 'typebox';
import { type Identity as IdentityRow, identityKinds } from '../store/identities.ts';
import { identityStatuses } from '../store/verification.ts';
import { NullableTimestamp, NullableUuid, oneOf, rowSchema, Timestamp, Uuid } from './schemas.ts';

const SeedTimestamp = Type.String({ examples: ['2026-01-31 12:00:00.123456+00'] });

export const Identity = rowSchema<IdentityRow>()({
  id: Uuid,
  owner_id: Uuid,
  kind: oneOf(identityKinds),
  public_id: Type.String(),
  value: Type.String(),
  incoming_domain: Type.Boolean(),
  domain_identity_id: NullableUuid,
  dns_records: Type.String({ description: 'JSON as text.' }),
  meta: Type.String({ description: 'JSON as text.' }),
  provider_id: NullableUuid,
  smtp_account_id: NullableUuid,
  status: oneOf(identityStatuses),
  created_at: SeedTimestamp,
  updated_at: SeedTimestamp,
});

/** One of `dns_records`, in the interface's words and order. */
export const DnsRecord = Type.Object({
  type: oneOf(['TXT', 'MX']),
  name: Type.String(),
  value: Type.String({
    description: 'What must stand there, whole; of SPF, what your record should become.',
  }),
  ttl: Type.Integer(),
  priority: Type.Optional(Type.Integer()),
  purpose: oneOf(['ownership', 'mx', 'spf', 'dkim', 'dmarc']),
  required: Type.Boolean({ description: 'Whether it must stand for the identity to be verified.' }),
  status: oneOf(['missing', 'mismatch', 'valid', 'unknown']),
  found: Type.Array(Type.String()),
  checkedAt: NullableTimestamp,
  note: Type.Optional(Type.String()),
  graceUntil: Type.Optional(Timestamp),
});
export type DnsRecord = Static<typeof DnsRecord>;
