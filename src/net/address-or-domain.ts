/**
 * Reads an email address or a domain, such as an identity's value or a recipient, into the form that is stored and compared.
 * Guarantees: a wrong value is refused, never repaired; reading a value or a key again gives the same value and key; the work is
 * bounded for any input.
 */
import { isAscii } from 'node:buffer';
import { domainToASCII, domainToUnicode } from 'node:url';

export interface AddressOrDomain {
  kind: 'email' | 'domain';
  value: string;
  /** Values are compared by this key. */
  key: string;
  /** The domain itself, or the domain of the address. */
  domain: string;
}

interface InvalidText {
  fault: string;
}

// RFC 1035 §2.3.4 and RFC 5321 §4.5.3.1; 254 is the path's 256 octets without its angle brackets (§4.5.3.1.3).
const maxLabel = 63;
const maxDomain = 253;
const maxLocal = 64;
const maxAddress = 254;

/** Far above what a valid value needs, even in decomposed Hangul, which takes three characters for one. */
const maxText = 1024;

/**
 * Controls, format characters, lone surrogates and white space. Also private and unassigned code points: a later version of
 * Unicode may define their lower case, and stored keys would no longer match. Not the two joiners, which Persian and Indic words
 * need (RFC 5892 appendix A).
 */
const unwanted = /(?![\u200c\u200d])[\p{C}\p{Z}]/u;

/** Returns the normalised value, or a message that says what is wrong and what to write instead. */
export function readAddressOrDomain(text: string): AddressOrDomain | InvalidText {
  const fault = findTextFault(text);
  if (fault) return { fault };

  const at = text.lastIndexOf('@');
  const domain = readDomain(text.slice(at + 1));
  if (at === -1)
    return typeof domain === 'string' ? { kind: 'domain', value: domain, key: domain, domain } : domain;

  const local = text.slice(0, at);
  const folded = foldCase(local);
  // Folding can make a local part longer, and NFC turns U+037E into ";": the key must be a valid address too.
  const localFault = findLocalFault(local) ?? findLocalFault(folded);
  if (localFault) return { fault: localFault };
  if (typeof domain !== 'string') return domain;

  const value = `${local}@${domain}`;
  const key = `${folded}@${domain}`;
  if (Math.max(Buffer.byteLength(value), Buffer.byteLength(key)) > maxAddress) {
    return {
      fault: `The address is longer than ${maxAddress} octets, the maximum in email. Use a shorter address.`,
    };
  }
  return { kind: 'email', value, key, domain };
}

function findTextFault(text: string): string | undefined {
  if (text === '')
    return 'The value is empty. Write a domain such as "example.com" or an address such as "ada@example.com".';
  if (text.length > maxText) {
    return `The value is too long: an address has at most ${maxAddress} octets, a domain at most ${maxDomain}.`;
  }
  if (text !== text.trim()) return 'The value starts or ends with white space. Remove the white space.';
  if (text.startsWith('"') && text.includes('@')) {
    return 'Quoted addresses such as "ada b"@example.com are not supported. Use an address without quotes.';
  }
  const found = unwanted.exec(text)?.[0];
  if (found === ' ')
    return 'The value contains a space. Write only the domain or the address, without a name.';
  if (found)
    return `The value contains the invisible or unassigned character ${codePoint(found)}. Remove it.`;
  if (text.indexOf('@') !== text.lastIndexOf('@'))
    return 'The value has more than one "@". Write a single address.';
  return undefined;
}

/** A dot-atom (RFC 5321 §4.1.2) with any character beyond ASCII (RFC 6531 §3.3). */
function findLocalFault(local: string): string | undefined {
  if (local === '')
    return 'There is nothing before the "@". Write an address such as "ada@example.com", or only the domain.';
  const odd = /[^\w.!#$%&'*+/=?^`{|}~\u0080-\u{10ffff}-]/u.exec(local)?.[0];
  if (odd)
    return `The part before the "@" contains '${odd}'. Write only the address, such as "ada@example.com".`;
  // Whoever has the mailbox with U+212A (the Kelvin sign) must not count as the owner of the one with "k".
  const lookalike = [...local].find((one) => one > '\x7f' && isAscii(Buffer.from(foldCase(one))));
  if (lookalike)
    return `The part before the "@" contains ${codePoint(lookalike)}, which stands for '${foldCase(lookalike)}'. Write the ASCII character.`;
  if (`.${local}.`.includes('..')) {
    return 'The part before the "@" starts or ends with a dot, or has two dots in a row. Remove the extra dot.';
  }
  if (Buffer.byteLength(local) > maxLocal) {
    return `The part before the "@" is longer than ${maxLocal} octets in UTF-8, the maximum in email. Use a shorter address.`;
  }
  return undefined;
}

/**
 * The lower case of a sigma depends on its position, so both forms become "σ". NFC runs again after lower-casing, because "J̌"
 * has no composed form and "ǰ" has one.
 */
function foldCase(local: string): string {
  return local.normalize('NFC').toLowerCase().replaceAll('ς', 'σ').normalize('NFC');
}

/** The domain in A-labels (RFC 5890 §2.3.2.1), lower-cased and without the dot of the root. */
function readDomain(text: string): string | InvalidText {
  if (text === '')
    return { fault: 'There is no domain after the "@". Write an address such as "ada@example.com".' };
  if (text.startsWith('[')) {
    return { fault: 'An IP address in brackets is not a domain. Write a domain such as "example.com".' };
  }
  // Before the mapping, because domainToASCII decodes "%" and cuts at "/", as in a URL.
  const odd = /(?![a-z0-9.-])[!-~]/i.exec(text)?.[0];
  if (odd) {
    return {
      fault: `A domain cannot contain '${odd}', only letters, digits, hyphens and dots. Write only the domain, such as "example.com".`,
    };
  }
  const ascii = domainToASCII(text);
  // "0x7f.1" is 127.0.0.1 in a URL. A top-level domain is never a number (RFC 3696 §2).
  const numeric = /(?:^|\.)(?:\d+|0x[\da-f]*)\.?$/i;
  if (numeric.test(text) || numeric.test(ascii)) {
    return { fault: 'The value is an IP address or ends in a number. Write a domain such as "example.com".' };
  }
  if (ascii === '') {
    return {
      fault:
        'The domain contains characters that internationalised domain names do not allow, or allow only in another order. Check the spelling.',
    };
  }
  const domain = ascii.endsWith('.') ? ascii.slice(0, -1) : ascii;
  const fault = findDomainFault(domain);
  return fault ? { fault } : domain;
}

function findDomainFault(domain: string): string | undefined {
  const labels = domain.split('.');
  if (labels.includes(''))
    return 'The domain starts with a dot or has two dots in a row. Write a domain such as "example.com".';
  if (labels.length < 2)
    return 'The domain has only one part. Write the whole domain, such as "example.com".';
  if (domain.length > maxDomain) {
    return `The domain is longer than ${maxDomain} characters (letters outside ASCII count in their xn-- form). Use a shorter domain.`;
  }
  if (labels.some((label) => label.length > maxLabel)) {
    return `A part of the domain is longer than ${maxLabel} characters (letters outside ASCII count in their xn-- form). Use a shorter domain.`;
  }
  // After the mapping, because "⑴" becomes "(1)".
  if (!/^[a-z0-9.-]+$/.test(domain)) {
    return 'The domain contains a symbol that is not allowed in a domain. Write only letters, digits, hyphens and dots.';
  }
  // domainToASCII does not check a name that is all ASCII, so an xn-- label must survive the way to Unicode and back.
  const unicode = domainToUnicode(domain);
  const unicodeLabels = unicode.split('.');
  if (domainToASCII(unicode) !== domain || unicodeLabels.some((label) => label.startsWith('xn--'))) {
    return 'The domain has a part that begins with "xn--" but is not a valid encoding. Check the spelling, or write the domain in Unicode.';
  }
  // RFC 5891 §4.2.3.1: the rule also applies to the Unicode form of the label.
  if ([...labels, ...unicodeLabels].some((label) => label.startsWith('-') || label.endsWith('-'))) {
    return 'A part of the domain starts or ends with a hyphen, which is not allowed. Check the spelling.';
  }
  return undefined;
}

function codePoint(character: string): string {
  return `U+${character.codePointAt(0)?.toString(16).toUpperCase().padStart(4, '0')}`;
}
