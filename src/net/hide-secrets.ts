/**
 * Removes the secrets of a login from what a server said: some servers repeat the command that they refuse, and their words are
 * stored, logged and shown. A secret is found as it is, escaped, percent-encoded, and inside base64 with whatever was encoded
 * together with it; also its beginning at the end of the text, where the server or the reader cut it.
 */
const mark = '[removed]';
/** Shorter beginnings of a secret are often the end of a usual word; in base64 three bytes are hardly there by chance. */
const minStart = 4;
const minDecodedStart = 3;
/** Texts of this length were perhaps cut by us, at any place: at their end one character of a secret is enough. */
const cutLength = 200;
/** No more of a text is kept: it costs time, and nobody stores more. */
const maxLength = 4096;
const base64Word = /[\w+/-]{8,}={0,2}/g;

export type HideSecrets = (text: string) => string;

export function hideSecrets(given: readonly (string | null | undefined)[]): HideSecrets {
  const secrets = [...new Set(given.map((secret) => (secret ?? '').toWellFormed().trim()))].filter(Boolean);
  if (secrets.length === 0) return (text) => text;
  const forms = [...new Set(secrets.flatMap(formsOf))].sort((a, b) => b.length - a.length);
  const whole = new RegExp(forms.map(patternOf).join('|'), 'giu');
  return (given) => {
    const text = given.slice(0, maxLength);
    const isCut = text.length >= cutLength;
    const hideWord = (word: string, at: number) => {
      const isLast = at + word.length === text.length;
      return hasSecret(word, secrets, isCut && isLast ? 1 : minDecodedStart) ? mark : word;
    };
    const plain = text.replace(base64Word, hideWord).replace(whole, mark);
    return hideStart(plain, forms, isCut ? 1 : minStart);
  };
}

/** As the protocols write it: IMAP strings, JSON, forms and URLs, `AUTH LOGIN`. */
function formsOf(secret: string): string[] {
  return [
    secret,
    secret.replace(/["\\]/g, '\\$&'),
    JSON.stringify(secret).slice(1, -1),
    encodeURIComponent(secret),
    new URLSearchParams([['', secret]]).toString().slice(1),
    Buffer.from(secret).toString('base64'),
  ];
}

/** Readers of replies write a blank for control characters. A very short secret counts only where it stands alone. */
function patternOf(form: string): string {
  const pieces = form
    // biome-ignore lint/suspicious/noControlCharactersInRegex: the expression finds control characters.
    .split(/[\u0000-\u0020\u007f]+/)
    .map((piece) => piece.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&'));
  const pattern = pieces.join('[\\u0000-\\u0020\\u007f]+');
  return form.length < minStart ? `(?<![\\p{L}\\p{N}])${pattern}(?![\\p{L}\\p{N}])` : pattern;
}

/** Wherever in the word the base64 begins: it is read in groups of four characters. */
function hasSecret(word: string, secrets: readonly string[], minLength: number): boolean {
  return [0, 1, 2, 3].some((skipped) => {
    const bytes = Buffer.from(word.slice(skipped), 'base64');
    return secrets.some((secret) => {
      // A short one comes after the user name (RFC 4616), or it would be found by chance.
      const wanted = Buffer.from(secret.length < minStart ? `\0${secret}` : secret);
      return bytes.includes(wanted) || endsWithStart(bytes, wanted, minLength);
    });
  });
}

function endsWithStart(bytes: Buffer, wanted: Buffer, minLength: number): boolean {
  for (let length = Math.min(wanted.length, bytes.length); length >= minLength; length--)
    if (bytes.subarray(-length).equals(wanted.subarray(0, length))) return true;
  return false;
}

function hideStart(text: string, forms: readonly string[], minLength: number): string {
  const kept = text.replace(/[\s.…"'>)\]\ufffd]+$/u, '').toLowerCase();
  for (const form of forms) {
    const wanted = form.toLowerCase();
    for (let length = Math.min(wanted.length, kept.length); length >= minLength; length--)
      if (kept.endsWith(wanted.slice(0, length))) return text.slice(0, kept.length - length) + mark;
  }
  return text;
}
