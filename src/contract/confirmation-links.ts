/**
 * Links that confirm an address. The token of a link is derived from the id of the confirmation, so that the process which sends the
 * mail can write the link, and the database has only the hash of the token.
 */
import { createHmac, createSecretKey, hkdfSync, type KeyObject } from 'node:crypto';
import { hashToken } from '../lib/tokens.ts';

export interface ConfirmationLinks {
  hashFor(id: string): Buffer;
  /** The link whose token has this hash. Null: its key is no longer in use. */
  to(id: string, tokenHash: Buffer): string | null;
}

/** 160 bits in hex: parameters in a path are read in lower case. */
const tokenBytes = 20;

export function makeConfirmationLinks(
  secretKeys: readonly Buffer[],
  baseUrl: () => string,
): ConfirmationLinks {
  const keys = secretKeys.map(deriveKey);
  const [current] = keys;
  if (!current) throw new Error('makeConfirmationLinks needs at least one key');
  return {
    hashFor: (id) => hashToken(makeToken(current, id)),
    to(id, tokenHash) {
      const tokens = keys.map((key) => makeToken(key, id));
      const token = tokens.find((one) => hashToken(one).equals(tokenHash));
      return token === undefined ? null : `${baseUrl()}/confirm/${token}`;
    },
  };
}

export function isConfirmationToken(text: string): boolean {
  return /^[0-9a-f]{40}$/.test(text);
}

/** A key for these links only: a leak of it does not reveal the key that encrypts secrets. */
function deriveKey(secretKey: Buffer): KeyObject {
  return createSecretKey(Buffer.from(hkdfSync('sha256', secretKey, '', 'posthorn confirmations', 32)));
}

function makeToken(key: KeyObject, id: string): string {
  return createHmac('sha256', key).update(id).digest().subarray(0, tokenBytes).toString('hex');
}
