/**
 * A reply of the server: a status, an enhanced status code (RFC 3463) and a text for a human postmaster.
 * Guarantee: control characters in a text cannot start another reply line.
 */
export interface Reply {
  status: number;
  /** Null where RFC 2034 §3 wants none: the greeting, the replies to HELO and EHLO, and 354. */
  enhanced: string | null;
  /** Only EHLO is answered with several lines. */
  text: string | readonly string[];
  /** What the connection does after the reply. Default: read the next command. */
  next?: 'data' | 'tls' | 'close';
  /** Why mail is refused (5xx) or put off (4xx), for the mail log. Not sent to the client. */
  reason?: string;
  /** The refused recipient or sender, for the mail log. */
  recipient?: string;
  mailFrom?: string | null;
}

/** A reply that refuses a recipient or a message: for now (4xx) or for good (5xx). */
export interface Refusal extends Reply {
  status: 450 | 451 | 452 | 550 | 551 | 552 | 553 | 554;
}

export function reply(status: number, enhanced: string | null, text: string, next?: Reply['next']): Reply {
  return next ? { status, enhanced, text, next } : { status, enhanced, text };
}

export function refusal(
  status: Refusal['status'],
  enhanced: string,
  text: string,
  reason: string,
): Refusal & { reason: string } {
  return { status, enhanced, text, reason };
}

/** RFC 5321 §4.5.3.1.5 allows a reply line of 512 octets, and a text may repeat an address of 320. */
const maxTextLength = 480;

// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what it removes.
const controlCharacters = /[\u0000-\u001f\u007f-\u009f\u2028\u2029]+/g;

export function formatReply({ status, enhanced, text }: Reply): string {
  if (typeof text === 'string') {
    const safe = text.replace(controlCharacters, ' ').slice(0, maxTextLength);
    return enhanced === null ? `${status} ${safe}\r\n` : `${status} ${enhanced} ${safe}\r\n`;
  }
  const last = text.length - 1;
  return text.map((line, index) => `${status}${index < last ? '-' : ' '}${line}\r\n`).join('');
}
