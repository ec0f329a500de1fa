/**
 * Finds the identity of a recipient: the exact address, then the address without its `+tag`, then a catch-all domain.
 * Guarantee: a verified identity wins over every unverified one; if several unverified ones match, none gets the mail.
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

/** `unverified`: an identity has the address, but receives mail only after its verification. */
export type RouteDecision = RoutedRecipient | 'unknown' | 'unverified' | 'contested';

export interface RouteParts {
  sql: Sql;
  /** Whether unverified identities receive mail. */
  acceptUnverified: boolean;
}

/** With `ownerId`, only identities of this owner are found. */
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

/** For mail that the owner's own server vouches for: the most exact identity of the owner, whatever its status. */
export async function routeVouched(
  sql: Sql,
  address: string,
  ownerId: string,
): Promise<RoutedRecipient | 'unknown'> {
  const keys = listKeys(address);
  const found = keys ? await findReceivers(sql, keys, ownerId, true) : [];
  const [identity] = keys ? listLevels(found, keys).flat() : [];
  return identity ? { address, tag: readTag(address, identity), identity } : 'unknown';
}

const cacheMs = 1000;
const maxCached = 10_000;

/**
 * The same as `routeRecipient`, for a listener that asks for the same recipients again and again. Safe to cache: `acceptMail` checks
 * the identity again when it records, so a deleted identity gets no more mail. Other refusals than `contested` are not cached: a new
 * or newly verified identity receives at once.
 */
export function cacheRoutes(parts: RouteParts) {
  const cached = new Map<string, { found: RouteDecision; until: number }>();
  return async (address: string, ownerId?: string): Promise<RouteDecision> => {
    const key = `${ownerId ?? ''} ${address}`;
    const entry = cached.get(key);
    if (entry && entry.until > performance.now()) return entry.found;
    const found = await routeRecipient(parts, address, ownerId);
    if (cached.size >= maxCached) cached.clear();
    if (typeof found !== 'string' || found === 'contested')
      cached.set(key, { found, until: performance.now() + cacheMs });
    return found;
  };
}

const maxAddressLength = 320;

interface RecipientKeys {
  /** The most exact first. */
  addresses: string[];
  domain: string;
}

function listKeys(address: string): RecipientKeys | undefined {
  // A catch-all domain accepts any local part, so line breaks and NUL must be refused.
  if (address.length > maxAddressLength || /\p{Cc}|\p{Zl}|\p{Zp}/u.test(address)) return undefined;
  const at = address.lastIndexOf('@');
  const read = readAddressOrDomain(address.slice(at + 1));
  if (at < 1 || 'fault' in read) return undefined;
  const { domain } = read;
  const local = address.slice(0, at);
  const plus = local.indexOf('+');
  const spellings = plus > 0 ? [local, local.slice(0, plus)] : [local];
  // A local part that no identity can have may still match a catch-all domain.
  const addresses = spellings.flatMap((spelling) => {
    const read = readAddressOrDomain(`${spelling}@${domain}`);
    return 'fault' in read ? [] : [read.key];
  });
  return { addresses, domain };
}

function choose(
  found: readonly Receiver[],
  keys: RecipientKeys,
  acceptUnverified: boolean,
): Receiver | 'unknown' | 'unverified' | 'contested' {
  const levels = listLevels(found, keys);
  const verified = levels.flat().find(({ verified }) => verified);
  if (verified) return verified;
  const [unverified, another] = levels.find((level) => level.length > 0) ?? [];
  if (!unverified) return 'unknown';
  if (!acceptUnverified) return 'unverified';
  return another ? 'contested' : unverified;
}

/** The most exact first. */
function listLevels(found: readonly Receiver[], keys: RecipientKeys): Receiver[][] {
  return [
    ...keys.addresses.map((key) => found.filter((one) => one.kind === 'email' && one.valueKey === key)),
    found.filter((one) => one.kind === 'domain'),
  ];
}

/** Whether the address, with or without its `+tag`, is that of the identity. */
export function matchesAddress(address: string, { kind, valueKey }: Receiver): boolean {
  return kind === 'email' && (listKeys(address)?.addresses.includes(valueKey) ?? false);
}

/** The text after the first "+"; null if the "+" belongs to the identity's own address. */
export function readTag(address: string, { kind, valueKey }: Receiver): string | null {
  const local = address.slice(0, address.lastIndexOf('@'));
  const plus = local.indexOf('+');
  if (plus < 1 || (kind === 'email' && valueKey.includes('+'))) return null;
  return local.slice(plus + 1);
}
