/** An identity and its DNS records in responses. */
import { type Static, Type } from 'typebox';
import { type Identity as IdentityRow, identityKinds } from '../store/identities.ts';
import { identityStatuses } from '../store/verification.ts';
import { describe, NullableTimestamp, NullableUuid, oneOf, rowSchema, Timestamp, Uuid } from './schemas.ts';

const SeedTimestamp = Type.String({
  description: 'In the text format of PostgreSQL, in UTC.',
  examples: ['2026-01-31 12:00:00.123456+00'],
});

export const Identity = rowSchema<IdentityRow>()({
  id: Uuid,
  owner_id: Uuid,
  kind: describe(oneOf(identityKinds), 'Whether `value` is an email address or a domain.'),
  public_id: Type.String({
    description: 'A short id for use in public: 10 characters that are safe in URLs.',
  }),
  value: Type.String({ description: 'The email address or the domain.' }),
  incoming_domain: Type.Boolean({ description: 'Whether a domain also receives mail for other addresses.' }),
  domain_identity_id: describe(NullableUuid, 'The identity through which an address is verified.'),
  dns_records: Type.String({ description: 'JSON text. See `GET /identities/{id}/dns`.' }),
  meta: Type.String({ description: 'JSON text of an object: your own data.' }),
  provider_id: describe(NullableUuid, 'The provider that its mail goes through. Null: none.'),
  smtp_account_id: describe(
    NullableUuid,
    'The SMTP account that its mail goes through and, with IMAP, arrives from. Null: none.',
  ),
  status: describe(
    oneOf(identityStatuses),
    '`unverified`: nothing is proven yet. `pending`: a check runs, or a confirmation is awaited. `verified`: the identity receives and sends mail. `failed`: the proof was lost or refused.',
  ),
  created_at: SeedTimestamp,
  updated_at: SeedTimestamp,
});

/** An entry of `dns_records`. */
export const DnsRecord = Type.Object({
  type: describe(oneOf(['TXT', 'MX']), 'The type of the DNS record.'),
  name: Type.String({ description: 'The full name of the record, without a final dot.' }),
  value: Type.String({
    description: 'The complete value to publish. For SPF: your record with our part added.',
  }),
  ttl: Type.Integer({ description: 'In seconds.' }),
  priority: Type.Optional(Type.Integer({ description: 'Of an MX record.' })),
  purpose: describe(
    oneOf(['ownership', 'mx', 'spf', 'dkim', 'dmarc']),
    '`ownership`: proves that the domain is yours. `mx`: mail arrives here. `spf`, `dkim` and `dmarc`: other servers trust the mail that you send.',
  ),
  required: Type.Boolean({ description: 'Whether the identity is verified only with this record.' }),
  status: describe(
    oneOf(['missing', 'mismatch', 'valid', 'unknown']),
    'What the last check found. `unknown`: not checked yet, or DNS did not answer.',
  ),
  found: Type.Array(Type.String(), { description: 'The values that the last check found.' }),
  checkedAt: describe(NullableTimestamp, 'Null: not checked yet.'),
  note: Type.Optional(Type.String({ description: 'What is wrong, and how to fix it.' })),
  graceUntil: Type.Optional(describe(Timestamp, 'The identity stays verified until this time.')),
  usedFor: Type.Array(oneOf(['sending', 'receiving']), {
    description:
      'What fails or suffers without this record: mail that you send, mail that you receive, or both.',
  }),
});
export type DnsRecord = Static<typeof DnsRecord>;
