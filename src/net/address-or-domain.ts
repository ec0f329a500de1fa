/**
 * An email address or a domain name, such as an identity's value or a recipient, in the one form that is stored and compared.
 * Guarantee: nothing is repaired in silence beyond that form, reading a value or a key again gives the same
 * value and key, and the work is bounded whatever the input.
 */
import { domainToASCII, domainToUnicode } from 'node:url';

export interface AddressOrDomain {
  kind: 'email' | 'domain';
  value: string;
  /** what values are compared by */
  key: string;
  /** the domain itself, or the domain of the address */
  domain: string;
}

interface Fault {
  fault: string;
}

// RFC 1035 §2.3.4 and RFC 5321 §4.5.3.1; 254 is the path's 256 octets without its angle brackets (§4.5.3.1.3).
const maxLabel = 63;
const maxDomain = 253;
const maxLocal = 64;
const maxAddress = 254;

/** Far above what any spelling of an acceptable value needs: decomposed Hangul takes three characters for one. */
const maxText = 1024;

/**
 * Controls, format characters, lone surrogates and white space. Private and unassigned code points too: a later
 * Unicode may give those a lower case, and stored keys would no longer match. The two joiners are letters' glue
 * in Persian and Indic words (RFC 5892 appendix A).
 */
const unwanted = /(?![\u200c\u200d])[\p{C}\p{Z}]/u;

/** The normalised value, or a sentence that tells a person what is wrong with it and what to write instead. */
export function readAddressOrDomain(text: string): AddressOrDomain | Fault {
  const fault = findTextFault(text);
  if (fault) return { fault };

  const at = text.lastIndexOf('@');
  const domain = readDomain(text.slice(at + 1));
  if (at === -1)
    return typeof domain === 'string' ? { kind: 'domain', value: domain, key: domain, domain } : domain;

  const local = text.slice(0, at);
  const folded = foldCase(local);
  // Folding can lengthen a local part, and NFC turns U+037E into ";": the key has to be an address as well.
  const localFault = findLocalFault(local) ?? findLocalFault(folded);
  if (localFault) return { fault: localFault };
  if (typeof domain !== 'string') return domain;

  const value = `${local}@${domain}`;
  const key = `${folded}@${domain}`;
  if (Math.max(Buffer.byteLength(value), Buffer.byteLength(key)) > maxAddress) {
    return {
      fault: `The address is longer than ${maxAddress} octets, the most that mail can carry. Use a shorter one.`,
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
  if (text !== text.trim()) return 'The value begins or ends with white space. Send it without.';
  if (text.startsWith('"') && text.includes('@')) {
    return 'Quoted addresses such as "ada b"@example.com are not supported. Use an address that needs no quotes.';
  }
  const found = unwanted.exec(text)?.[0];
  if (found === ' ')
    return 'The value contains a space. Write the domain or the address alone, without a name beside it.';
  if (found)
    return `The value contains the invisible or unassigned character ${codePoint(found)}. Remove it.`;
  if (text.indexOf('@') !== text.lastIndexOf('@'))
    return 'The value has more than one "@". Write a single address.';
  return undefined;
}

/** A dot-atom (RFC 5321 §4.1.2) in which any character beyond ASCII is welcome (RFC 6531 §3.3). */
function findLocalFault(local: string): string | undefined {
  if (local === '')
    return 'There is nothing before the "@". Write an address such as "ada@example.com", or the domain alone.';
  const odd = /[^\w.!#$%&'*+/=?^`{|}~\u0080-\u{10ffff}-]/u.exec(local)?.[0];
  if (odd)
    return `The part before the "@" contains '${odd}'. Write the bare address, such as "ada@example.com".`;
  if (`.${local}.`.includes('..')) {
    return 'The part before the "@" begins or ends with a dot, or has two in a row. Put each dot between other characters.';
  }
  if (Buffer.byteLength(local) > maxLocal) {
    return `The part before the "@" is longer than ${maxLocal} octets in UTF-8, the most that mail can carry. Use a shorter one.`;
  }
  return undefined;
}

/**
 * Lower case that does not depend on the neighbours: the final sigma is the one letter whose lower case does.
 * NFC comes first and last because lower-casing can bring letter and accent together ("J̌" has no composed form, "ǰ" has).
 */
function foldCase(local: string): string {
  return local.normalize('NFC').toLowerCase().replaceAll('ς', 'σ').normalize('NFC');
}

/** The domain in A-labels (RFC 5890 §2.3.2.1), lower-cased and without the dot of the root. */
function readDomain(text: string): string | Fault {
  if (text === '')
    return { fault: 'There is no domain after the "@". Write an address such as "ada@example.com".' };
  if (text.startsWith('[')) {
    return { fault: 'An address literal in brackets is not a domain. Write a domain such as "example.com".' };
  }
  // Before the mapping, because domainToASCII decodes "%" and cuts at "/", as for the host of a URL.
  const odd = /(?![a-z0-9.-])[!-~]/i.exec(text)?.[0];
  if (odd) {
    return {
      fault: `A domain has no '${odd}': letters, digits, hyphens and dots only. Write it alone, such as "example.com".`,
    };
  }
  const ascii = domainToASCII(text);
  // As a URL's host "0x7f.1" is 127.0.0.1; a top-level domain is never a number (RFC 3696 §2).
  const numeric = /(?:^|\.)(?:\d+|0x[\da-f]*)\.?$/i;
  if (numeric.test(text) || numeric.test(ascii)) {
    return { fault: 'This is an IP address or ends in a number. Write a domain such as "example.com".' };
  }
  if (ascii === '') {
    return {
      fault:
        'The domain contains characters, or an order of them, that internationalised domain names do not allow. Check its spelling.',
    };
  }
  const domain = ascii.endsWith('.') ? ascii.slice(0, -1) : ascii;
  const fault = findDomainFault(domain);
  return fault ? { fault } : domain;
}

function findDomainFault(domain: string): string | undefined {
  const labels = domain.split('.');
  if (labels.includes(''))
    return 'The domain begins with a dot or has two in a row. Write it such as "example.com".';
  if (labels.length < 2) return 'The domain has only one part. Write it in full, such as "example.com".';
  if (domain.length > maxDomain) {
    return `The domain is longer than ${maxDomain} characters (international letters count as their xn-- form). Use a shorter one.`;
  }
  if (labels.some((label) => label.length > maxLabel)) {
    return `A part of the domain is longer than ${maxLabel} characters (international letters count as their xn-- form). Use a shorter one.`;
  }
  // After the mapping, because "⑴" becomes "(1)".
  if (!/^[a-z0-9.-]+$/.test(domain)) {
    return 'The domain contains a symbol that stands for something else than letters, digits and hyphens. Write it plainly.';
  }
  // An all-ASCII name passes through domainToASCII unread, so an xn-- label proves itself by coming back the same.
  const unicode = domainToUnicode(domain);
  const unicodeLabels = unicode.split('.');
  if (domainToASCII(unicode) !== domain || unicodeLabels.some((label) => label.startsWith('xn--'))) {
    return 'The domain has a part that begins with "xn--" but encodes no valid name. Check it, or write the name in its own letters.';
  }
  // RFC 5891 §4.2.3.1: the rule holds for the label as people read it as well.
  if ([...labels, ...unicodeLabels].some((label) => label.startsWith('-') || label.endsWith('-'))) {
    return 'A part of the domain begins or ends with a hyphen, which no domain may. Check its spelling.';
  }
  return undefined;
}

function codePoint(character: string): string {
  return `U+${character.codePointAt(0)?.toString(16).toUpperCase().padStart(4, '0')}`;
}
