/** Who may send: which identity an author address belongs to, and whether that identity may send. */
import type { Message } from '../contract/message.ts';
import type { Sql } from '../db/client.ts';
import type { Address } from '../mime/address-list.ts';
import { readAddressOrDomain } from '../net/address-or-domain.ts';
import { type FieldError, Problem } from '../problems.ts';
import { findSender, findSenderOf, type Sender, type SenderWay } from '../store/senders.ts';
import type { Way } from './way.ts';

interface AuthorParts {
  sql: Sql;
  ways: { operator: Pick<Way, 'kind'> };
}

export async function findSenderOrThrow(
  { sql, ways }: AuthorParts,
  ownerId: string,
  identityId: string,
): Promise<Sender> {
  const sender = await findSender(sql, ownerId, identityId);
  if (!sender) throw invalid('/identityId', 'not_found', '"identityId" is not one of your identities.');
  requireSending(sender, ways);
  return sender;
}

/** The owner's identity that may send from this address. */
export async function findSenderFor(
  { sql, ways }: AuthorParts,
  ownerId: string,
  address: string,
): Promise<Sender> {
  const read = readAddressOrDomain(address);
  const sender =
    'fault' in read || read.kind !== 'email'
      ? undefined
      : await findSenderOf(sql, ownerId, { addressKey: read.key, domain: read.domain });
  if (!sender) {
    const advice = 'connect the address or its domain with POST /identities';
    throw invalid('', 'not_allowed', `None of your identities may send from ${address}; ${advice}.`);
  }
  requireSending(sender, ways);
  return sender;
}

/**
 * The identities of the addresses; that of the first address is the author, which chooses the way out. Throws unless the owner has an
 * identity for each address that may stand in this mail.
 */
export async function findAuthors(
  parts: AuthorParts,
  ownerId: string,
  [first = '', ...others]: string[],
): Promise<[author: Sender, ...coauthors: Sender[]]> {
  const author = await findSenderFor(parts, ownerId, first);
  const found: [Sender, ...Sender[]] = [author];
  for (const address of others) {
    if (found.some((sender) => mayUse(sender, address))) continue;
    const coauthor = await findSenderFor(parts, ownerId, address);
    if (parts.ways.operator.kind !== 'capture' && !mayJoin(author, coauthor)) {
      const message = `${address} is not verified, and its SMTP account or provider is not the one that mail from ${first} leaves through.`;
      throw invalid('', 'not_allowed', message);
    }
    found.push(coauthor);
  }
  return found;
}

/**
 * Whether mail that leaves by the author's way may also be from this identity. An account or a provider vouches only for what leaves
 * through it: otherwise anyone could send in the name of any address by the operator's way.
 */
export function mayJoin(author: SenderWay, coauthor: SenderWay): boolean {
  const isSameWay = coauthor.accountId === author.accountId && coauthor.providerId === author.providerId;
  return coauthor.isVerified || (coauthor.hasOwnWay && isSameWay);
}

function requireSending(sender: Sender, { operator }: AuthorParts['ways']): void {
  const maySend = sender.isVerified || sender.hasOwnWay || operator.kind === 'capture';
  if (!maySend) throw new Problem('identity_not_verified');
}

/** Throws unless the identity may be the author of mail from each of these addresses. */
export function requireAuthor(sender: Sender, addresses: readonly string[]): void {
  const other = addresses.find((address) => !mayUse(sender, address));
  if (other !== undefined) throw invalid('', 'not_allowed', refuseAddress(sender, other));
}

/** Whether the identity may be the author of mail from this address. */
function mayUse(sender: Sender, address: string): boolean {
  const read = readAddressOrDomain(address);
  if ('fault' in read || read.kind !== 'email') return false;
  return (sender.kind === 'email' ? read.key : read.domain) === sender.valueKey;
}

function refuseAddress(sender: Sender, address: string): string {
  return sender.kind === 'email'
    ? `The message must be from ${sender.value}, the address of the identity, and not from ${address}.`
    : `The message must be from an address at ${sender.value}, the domain of the identity, and not from ${address}.`;
}

export function invalid(pointer: FieldError['pointer'], code: string, message: string): Problem {
  return new Problem('invalid_body', { errors: [{ pointer, code, message }] });
}

export function readFrom(sender: Sender, given: Address | null, parent: Message | null): Address {
  if (given) {
    if (!mayUse(sender, given.address))
      throw invalid('/from', 'not_allowed', refuseAddress(sender, given.address));
    return given;
  }
  if (sender.kind === 'email') return { name: null, address: sender.value };
  const cameTo = parent?.recipient ?? null;
  if (cameTo !== null && mayUse(sender, cameTo)) return { name: null, address: cameTo };
  const message = `"from" is required for a domain identity: an address at ${sender.value}.`;
  throw invalid('/from', 'required', message);
}
