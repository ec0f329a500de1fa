/** What a new message takes from the message that it answers (RFC 5322 §3.6.4 and §3.6.5), and its own Message-ID. Pure. */
import type { ParsedMessage } from './parse.ts';

/** Receivers refuse long header fields. RFC 5537 §3.4.4 also keeps the first id, which names the thread, and the last ones. */
const maxReferences = 50;
const maxReferencesLength = 8 * 1024;
/** RFC 5322 §2.1.1 allows 998 octets in a line, and an id cannot be folded. */
const maxIdLength = 900;

export interface ReplyFields {
  inReplyTo: string | null;
  references: string[];
}

/** An id that cannot be written in a header of ASCII is left out, and so the reply may have no In-Reply-To. */
export function makeReplyFields(
  parent: Pick<ParsedMessage, 'messageId' | 'inReplyTo' | 'references'>,
): ReplyFields {
  const ancestors = parent.references.length > 0 ? parent.references : [parent.inReplyTo ?? ''];
  const inReplyTo = parent.messageId !== null && isWritableId(parent.messageId) ? parent.messageId : null;
  const ids = [...ancestors.filter(isWritableId).filter((id) => id !== inReplyTo), inReplyTo ?? ''];
  const [first = '', ...rest] = [...new Set(ids)].filter((id) => id !== '');
  let room = maxReferencesLength - first.length;
  const last = rest.slice(1 - maxReferences);
  const start = last.findLastIndex((id) => {
    room -= id.length;
    return room < 0;
  });
  return { inReplyTo, references: [first, ...last.slice(start + 1)].filter((id) => id !== '') };
}

function isWritableId(id: string): boolean {
  return id.length <= maxIdLength && /^<[!-;=?-~]+>$/.test(id);
}

/** The longest subject that a user may give, too. */
export const maxSubject = 998;

export function replySubject(subject: string | null): string {
  const given = (subject ?? '').trim();
  const reply = /^re\s*(?:\[\d+\]\s*)?:/i.test(given) ? given : `Re: ${given}`;
  return reply.slice(0, maxSubject).toWellFormed().trim();
}

/** `unique` is different for each message and has only letters, digits and hyphens. */
export function makeMessageId(unique: string, fromAddress: string): string {
  return `<${unique}@${fromAddress.slice(fromAddress.lastIndexOf('@') + 1)}>`;
}
