/** Reads the domains that a message names, into the form that is shown and the form that DNS has. Pure. */
import { domainToASCII } from 'node:url';

/** Null: not a name that is safe to query, show and store. */
export function readName(name: string | undefined): string | null {
  return name && /^[\p{L}\p{N}_][\p{L}\p{M}\p{N}._-]{0,252}$/u.test(name) ? name.toLowerCase() : null;
}

/**
 * RFC 8616 §3: DNS wants A-labels. `readName` first: `domainToASCII` parses the host of a URL. It stops at `/`, `\`, `?` and `#`,
 * so a name with one of these would count as another domain.
 */
export function toAscii(text: string | undefined): string | null {
  const name = readName(text);
  const ascii = name === null || /^[\0-\x7f]*$/.test(name) ? name : domainToASCII(name);
  return ascii !== null && /^[a-z0-9._-]+$/.test(ascii) ? ascii : null;
}

/** The form in which domains are compared: A-labels without the dot of the root. Null: not a domain. */
export function readDomain(text: string | null | undefined): string | null {
  return toAscii(text ?? undefined)?.replace(/\.+$/, '') || null;
}
