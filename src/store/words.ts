/**
 * What a message can be found by: the words of its subject and of its addresses. Each is stored as a number that is made from the
 * owner, the word and the day of the message, so that one index finds the messages of one owner and one day: without the day, a
 * search would have to read and sort all messages that have a word to find the newest.
 */
import { hash } from 'node:crypto';
import type { Sql } from '../db/client.ts';
import type { Fragment } from '../db/sql.ts';
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

/** The numbers of the message's words, without the day. */
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

/** The numbers as they are stored for a message of this time. */
export function wordsOfDay(sql: Sql, keys: Fragment, time: Fragment): Fragment {
  return sql`array(select key # ${dayOf(sql, time)} from unnest(${keys}) as word (key))`;
}

/** In UTC. */
export function dayOf(sql: Sql, time: Fragment): Fragment {
  return sql`floor(extract(epoch from ${time}) / 86400)::bigint`;
}
