/**
 * Recipient → identity: the exact address, then the address without its `+tag`, then a domain that takes all its mail. One
 * that is verified wins over any that is not; of several that are not, none gets it.
 */
import type { Sql } from '../db/client.ts';
import { readAddressOrDomain } from '../net/address-or-domain.ts';
import { findReceivers, type Receiver } from '../store/receivers.ts';

export interface RoutedRecipient {
  /** As the client spelled it. */
  address: string;
  tag: string | null;
  identity: Receiver;
}

export type RouteDecision = RoutedRecipient | 'unknown' | 'contested';

export interface RouteParts {
  sql: Sql;
  /** Whether identities without proof receive mail. */
  acceptUnverified: boolean;
}

/** Of all owners, or of the one who hands in the mail. */
export async function routeRecipient(
  parts: RouteParts,
  address: string,
  ownerId?: string,
): Promise<RouteDecision> {
  const keys = listKeys(address);
  if (!keys) return 'unknown';
  const found = await findReceivers(parts.sql, keys, ownerId);
  const chosen = choose(found, keys, parts.acceptUnverified);
  return typeof chosen === 'string' ? chosen : { address, tag: readTag(address, chosen), identity: chosen };
}

const maxAddressLength = 320;

interface Keys {
  /** Of addresses, the most exact first. */
  addresses: string[];
  domain: string;
}

function listKeys(address: string): Keys | undefined {
  // A catch-all takes any local part; no line break or NUL may come in by it.
  if (address.length > maxAddressLength || /\p{Cc}|\p{Zl}|\p{Zp}/u.test(address)) return undefined;
  const at = address.lastIndexOf('@');
  const read = readAddressOrDomain(address.slice(at + 1));
  if (at < 1 || 'fault' in read) return undefined;
  const { domain } = read;
  const local = address.slice(0, at);
  const plus = local.indexOf('+');
  const spellings = plus > 0 ? [local, local.slice(0, plus)] : [local];
  // A local part that no identity can have may still be the domain's.
  const keys = spellings.flatMap((spelling) => {
    const read = readAddressOrDomain(`${spelling}@${domain}`);
    return 'fault' in read ? [] : [read.key];
  });
  return { addresses: keys, domain };
}

function choose(
  found: readonly Receiver[],
  keys: Keys,
  acceptUnverified: boolean,
): Receiver | 'unknown' | 'contested' {
  const levels = [
    ...keys.addresses.map((key) => found.filter((one) => one.kind === 'email' && one.valueKey === key)),
    found.filter((one) => one.kind === 'domain'),
  ];
  const verified = levels.flat().find(({ verified }) => verified);
  if (verified) return verified;
  const claimants = acceptUnverified ? levels.find((level) => level.length > 0) : undefined;
  const [only] = claimants ?? [];
  if (!only) return 'unknown';
  return claimants?.length === 1 ? only : 'contested';
}

/** What follows the first plus, where the identity is not itself called so. */
function readTag(address: string, { kind, valueKey }: Receiver): string | null {
  const local = address.slice(0, address.lastIndexOf('@'));
  const plus = local.indexOf('+');
  if (plus < 1 || (kind === 'email' && valueKey.includes('+'))) return null;
  return local.slice(plus + 1);
}
