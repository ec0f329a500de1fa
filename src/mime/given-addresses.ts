/**
 * Reads the addresses that a user wants to write to or from. Unlike the reader of received mail (address-list.ts), nothing is
 * skipped or repaired: mail must not go to fewer or other people than the user meant.
 * Guarantee: linear time; every address is one that `readAddressOrDomain` accepts, with its domain in A-labels.
 */
import { readAddressOrDomain } from '../net/address-or-domain.ts';
import { type Address, readMailboxes } from './address-list.ts';
import { findCommentEnd, findQuoteEnd } from './lexical.ts';

export interface AddressFault {
  /** The rest of the sentence that begins with the name of the field. */
  fault: string;
}

/** Fifty addresses with the longest names take less. */
const maxListLength = 64 * 1024;

/** An address list in the syntax of RFC 5322 §3.4. Groups are flattened. */
export function readAddressList(text: string): Address[] | AddressFault {
  if (text.length > maxListLength) return { fault: `must have at most ${maxListLength} characters.` };
  const items = splitList(text);
  if ('fault' in items) return items;
  const addresses: Address[] = [];
  for (const item of items) {
    const [mailbox, other] = isMailbox.test(item.shape) ? readMailboxes(item.text, 2).mailboxes : [];
    if (typeof mailbox?.address !== 'string' || other) {
      return {
        fault: `has no valid address in '${item.text.trim().slice(0, 100).toWellFormed()}'. Write addresses such as "Ada Lovelace" <ada@example.com>, with commas between them.`,
      };
    }
    const read = readAddress(mailbox.address);
    if (typeof read !== 'string') return read;
    addresses.push({ name: mailbox.name, address: read });
  }
  return addresses;
}

export function readAddress(text: string): string | AddressFault {
  // The decoder writes U+FFFD for what it could not read.
  if (text.includes('\ufffd')) return { fault: 'has an address with damaged characters.' };
  const read = readAddressOrDomain(text);
  if ('fault' in read) return { fault: `is not a valid address. ${read.fault}` };
  return read.kind === 'email' ? read.value : { fault: 'must be an address, such as ada@example.com.' };
}

/** Each address once, also over several lists: it stays where it comes first. Compared as identities are. */
export function mergeAddresses(lists: readonly (readonly Address[])[]): Address[][] {
  const seen = new Set<string>();
  return lists.map((list) =>
    list.filter(({ address }) => {
      const read = readAddressOrDomain(address);
      const key = 'fault' in read ? address : read.key;
      if (seen.has(key)) return false;
      seen.add(key);
      return true;
    }),
  );
}

interface Item {
  text: string;
  /** The text with "q" for each quoted string and a space for each comment. */
  shape: string;
}

const addrSpec = String.raw`\s*(?:@[^<>:]*:\s*)?[^\s<>@.,:;]+(?:\s*[.@]\s*[^\s<>@.,:;]+)*\.?\s*`;
const isMailbox = new RegExp(`^(?:[^<>]*<${addrSpec}>\\s*|${addrSpec})$`);

const isUnclosed = 'is not an address list: a quote, bracket, comment or group does not end.';

/** Empty items are allowed (RFC 5322 §4.4). */
function splitList(text: string): Item[] | AddressFault {
  const items: Item[] = [];
  let start = 0;
  let shape = '';
  let isInAngle = false;
  let isInGroup = false;
  const endItem = (at: number) => {
    if (shape.trim() !== '') items.push({ text: text.slice(start, at), shape });
    start = at + 1;
    shape = '';
  };
  for (let i = 0; i < text.length; i++) {
    const character = text[i] ?? '';
    if (character === '"' || character === '(') {
      const end = character === '"' ? findQuoteEnd(text, i) : findCommentEnd(text, i);
      if (end === -1) return { fault: isUnclosed };
      shape += character === '"' ? 'q' : ' ';
      i = end - 1;
      continue;
    }
    if (character === '<' || character === '>') isInAngle = character === '<';
    if (isInAngle || !/[,:;]/.test(character)) shape += character;
    else if (character === ',') endItem(i);
    else if (character === ';') {
      if (!isInGroup) return { fault: 'has a ";" outside a group. Write commas between addresses.' };
      endItem(i);
      isInGroup = false;
    } else {
      if (isInGroup) return { fault: 'has a ":" in a group. Write a name with a ":" in quotes.' };
      isInGroup = true;
      start = i + 1;
      shape = '';
    }
  }
  if (isInAngle || isInGroup) return { fault: isUnclosed };
  endItem(text.length);
  return items;
}
