/**
 * What a message can be found by: the words of its subject and of its addresses. Each has two numbers:
 * - its key (`messages.words`), made from the owner and the word, which decides whether a message has the word;
 * - its slot (`word_slots` in the database), which the index has: one of 2^15 for the word, in one of 768 blocks for the period of an
 *   hour. With the period, a search finds the newest messages without reading and sorting all that have the word. Slots are used again
 *   and again, because an index of this kind (GIN) never forgets a value: with the keys it would grow for ever, by 370 bytes a message.
 */
import { hash } from 'node:crypto';
import { toCompatibilityForm } from '../lib/compatibility-form.ts';

interface Correspondent {
  name: string | null;
  address: string | null;
}

/** A part of the message in lists. */
export interface Searchable {
  subject: string | null;
  from: Correspondent | null;
  sender: Correspondent | null;
  replyTo: readonly Correspondent[];
  to: readonly Correspondent[];
  cc: readonly Correspondent[];
  bcc: readonly Correspondent[];
  recipient: string | null;
}

/** A sender chooses them, and each takes space in the index. */
const maxWords = 100;

/** The keys of the message's words. */
export function wordKeysOf(ownerId: string, message: Searchable): bigint[] {
  const { subject, from, sender, replyTo, to, cc, bcc, recipient } = message;
  const people = [from, sender, ...replyTo, ...to, ...cc, ...bcc].flatMap((one) =>
    one ? [one.name, one.address] : [],
  );
  const words = new Set<string>();
  // The subject and the author first, because the rest of a long list is left out.
  for (const text of [subject, recipient, ...people]) {
    for (const word of readWords(text ?? '')) words.add(word);
    if (words.size >= maxWords) break;
  }
  return [...words].slice(0, maxWords).map((word) => wordKey(ownerId, word));
}

export function wordKey(ownerId: string, word: string): bigint {
  return hash('sha256', `${ownerId} ${word}`, 'buffer').readBigInt64LE();
}

/** Writing without spaces between words: each character counts as a word. */
const wordPattern =
  /[\p{sc=Han}\p{sc=Hira}\p{sc=Kana}\p{sc=Thai}\p{sc=Laoo}\p{sc=Khmr}\p{sc=Mymr}]|[[\p{L}\p{N}\p{M}]--[\p{sc=Han}\p{sc=Hira}\p{sc=Kana}\p{sc=Thai}\p{sc=Laoo}\p{sc=Khmr}\p{sc=Mymr}]]+/gv;

/** Without regard to case. `ada@example.com` is three words. */
export function readWords(text: string): string[] {
  return toCompatibilityForm(text).toLowerCase().match(wordPattern) ?? [];
}
