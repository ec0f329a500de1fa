/**
 * What the server says: a status, an enhanced status code (RFC 3463) and a text for a human postmaster.
 * Guarantee: a reply is one line for each line of its text, whatever characters a text has.
 */
export interface Reply {
  status: number;
  /** Null where RFC 2034 §3 wants none: the greeting, HELO and EHLO, and the 354 that is no verdict. */
  enhanced: string | null;
  /** Several lines are for EHLO. */
  text: string | readonly string[];
  /** What follows once it is said; the next command, if nothing is named. */
  next?: 'data' | 'tls' | 'close';
}

export function reply(status: number, enhanced: string | null, text: string, next?: Reply['next']): Reply {
  return next ? { status, enhanced, text, next } : { status, enhanced, text };
}

/** RFC 5321 §4.5.3.1.5 allows a reply line of 512 octets, and a text may repeat an address of 320. */
const maxTextLength = 480;

// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what it looks for.
const controlCharacters = /[\u0000-\u001f\u007f-\u009f\u2028\u2029]+/g;

export function formatReply({ status, enhanced, text }: Reply): string {
  if (typeof text === 'string') {
    const safe = text.replace(controlCharacters, ' ').slice(0, maxTextLength);
    return enhanced === null ? `${status} ${safe}\r\n` : `${status} ${enhanced} ${safe}\r\n`;
  }
  const last = text.length - 1;
  return text.map((line, index) => `${status}${index < last ? '-' : ' '}${line}\r\n`).join('');
}
