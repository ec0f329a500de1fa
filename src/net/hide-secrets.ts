/**
 * Removes the secrets of a login from what a server said: some servers repeat the command that they refuse, and their words are
 * stored, logged and shown. A secret is found as it is, escaped, percent-encoded, and inside base64 with whatever was encoded
 * together with it, also if the server wrapped the base64. Servers cut what they repeat: any long enough piece of a secret is removed,
 * and a short one where it is the beginning of the secret at the end of the text.
 * Guarantee: linear time in the length of the text and of the secrets.
 */
const mark = '[removed]';
/** A piece of this length is in a usual text hardly by chance. */
const minPiece = 8;
const minDecodedPiece = 4;
/** A secret with blanks of this length is found with other blanks in it. */
const maxWhole = 200;
/** Shorter beginnings of a secret are often the end of a usual word; in base64 three bytes are hardly there by chance. */
const minStart = 4;
const minDecodedStart = 3;
/** No more of a text is kept. */
const maxLength = 4000;
/** What a caller has to give, so that a secret at the place of the cut is found before the text is cut. */
export const maxGivenLength = maxLength + 100;

export type HideSecrets = (text: string) => string;

export function hideSecrets(given: readonly (string | null | undefined)[]): HideSecrets {
  const secrets = [...new Set(given.map((secret) => (secret ?? '').toWellFormed().trim()))].filter(Boolean);
  if (secrets.length === 0) return (text) => text.slice(0, maxLength);
  const forms = [...new Set(secrets.flatMap(formsOf).map(fold))];
  // All other forms are found by their pieces.
  const short = forms.filter(
    (form) => form.length < minPiece || (form.length < maxWhole && form.includes(' ')),
  );
  const whole = new RegExp(short.map(patternOf).join('|') || '(?!)', 'gu');
  const decoded = indexDecoded(secrets);
  return (given) => {
    const text = given.slice(0, maxGivenLength);
    const folded = fold(text);
    const isHidden = new Uint8Array(text.length);
    for (const match of folded.matchAll(whole)) isHidden.fill(1, match.index, match.index + match[0].length);
    hidePieces(folded, forms, isHidden);
    hideWrapped(folded, forms, isHidden);
    hideBase64(text, decoded, isHidden);
    hideStart(folded, forms, isHidden);
    return write(text, isHidden).slice(0, maxLength).toWellFormed();
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

/** In small letters, and of the same length. Readers of replies write a blank for control characters. */
function fold(text: string): string {
  const lower = text.toLowerCase();
  const same = lower.length === text.length ? lower : text.replace(/[A-Z]+/g, (run) => run.toLowerCase());
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the expression finds control characters.
  return same.replace(/[\u0000-\u001f\u007f]/g, ' ');
}

/** A very short secret counts only where it stands alone. */
function patternOf(form: string): string {
  const pieces = form.split(/ +/).map((piece) => piece.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&'));
  const pattern = pieces.join(' +');
  return form.length < minStart ? `(?<![\\p{L}\\p{N}])${pattern}(?![\\p{L}\\p{N}])` : pattern;
}

/** The pieces of the text are indexed, not those of the secrets: a text is mostly short, and a token has thousands. */
function hidePieces(text: string, forms: readonly string[], isHidden: Uint8Array): void {
  const places = new Map<string, number[]>();
  for (let at = 0; at + minPiece <= text.length; at++) {
    const piece = text.slice(at, at + minPiece);
    const known = places.get(piece);
    if (known) known.push(at);
    else places.set(piece, [at]);
  }
  for (const form of forms)
    for (let at = 0; at + minPiece <= form.length; at++) {
      const piece = form.slice(at, at + minPiece);
      for (const place of places.get(piece) ?? []) isHidden.fill(1, place, place + minPiece);
      // Each place is hidden once, however often the form has the piece.
      places.delete(piece);
    }
}

/** A reply of several lines can break a secret anywhere: it is looked for in the text without blanks. */
function hideWrapped(text: string, forms: readonly string[], isHidden: Uint8Array): void {
  const places = [...text.matchAll(/[^ ]/g)].map(({ index }) => index);
  const joined = text.replaceAll(' ', '');
  const isFound = new Uint8Array(joined.length);
  const wanted = forms.map((form) => form.replaceAll(' ', '')).filter(({ length }) => length >= minStart);
  hidePieces(joined, wanted, isFound);
  for (const form of wanted)
    for (let at = joined.indexOf(form); at !== -1; at = joined.indexOf(form, at + 1))
      isFound.fill(1, at, at + form.length);
  for (const [n, place] of places.entries()) if (isFound[n]) isHidden[place] = 1;
}

interface Decoded {
  /** Four bytes of a secret, as a number. */
  pieces: Set<number>;
  /** Secrets of less than four bytes, after the user name (RFC 4616), or they would be found by chance. */
  short: Buffer[];
  /** Of longer secrets. */
  starts: Buffer[];
}

function indexDecoded(secrets: readonly string[]): Decoded {
  const bytes = secrets.map((secret) => Buffer.from(secret));
  const long = bytes.filter(({ length }) => length >= minDecodedPiece);
  const pieces = new Set<number>();
  for (const secret of long)
    for (let at = 0; at + minDecodedPiece <= secret.length; at++) pieces.add(secret.readUInt32BE(at));
  return {
    pieces,
    short: bytes
      .filter(({ length }) => length < minDecodedPiece)
      .map((secret) => Buffer.concat([Buffer.of(0), secret])),
    starts: long.map((secret) => secret.subarray(0, minDecodedStart)),
  };
}

/** Words of base64, with the blanks that a server wrapped them with. "=" ends the data. */
const base64Run = /[\w+/-]+(?:\s+[\w+/-]+)*={0,2}/g;
const base64Word = /[\w+/-]+={0,2}/g;
/** Of characters: in shorter words three bytes are often there by chance. */
const minWord = 8;

function hideBase64(text: string, decoded: Decoded, isHidden: Uint8Array): void {
  for (const { 0: run, index: from } of text.matchAll(base64Run)) {
    if (run.length < minWord) continue;
    /** Of each character of the data: which word it is in. */
    const wordOf: number[] = [];
    const words = [...run.matchAll(base64Word)];
    words.forEach(({ 0: word }, n) => {
      for (let i = 0; i < word.length; i++) wordOf.push(n);
    });
    const data = words.map(({ 0: word }) => word).join('');
    const isFound = new Uint8Array(words.length);
    // Wherever the base64 begins: it is read in groups of four characters.
    for (let skipped = 0; skipped < 4; skipped++) {
      const bytes = Buffer.from(data.slice(skipped), 'base64');
      for (const { at, length } of findPieces(bytes, decoded)) {
        const first = skipped + Math.floor((at * 4) / 3);
        const last = skipped + Math.floor(((at + length) * 4 - 1) / 3);
        for (let i = first; i <= last; i++) isFound[wordOf[i] ?? -1] = 1;
      }
    }
    words.forEach(({ 0: word, index }, n) => {
      if (isFound[n] || endsWithStart(word, decoded))
        isHidden.fill(1, from + index, from + index + word.length);
    });
  }
}

function* findPieces(bytes: Buffer, { pieces, short }: Decoded): Generator<{ at: number; length: number }> {
  for (let at = 0; at + minDecodedPiece <= bytes.length; at++)
    if (pieces.has(bytes.readUInt32BE(at))) yield { at, length: minDecodedPiece };
  for (const secret of short)
    for (let at = bytes.indexOf(secret); at !== -1; at = bytes.indexOf(secret, at + 1))
      yield { at, length: secret.length };
}

function endsWithStart(word: string, { starts }: Decoded): boolean {
  if (word.length < minWord) return false;
  return [0, 1, 2, 3].some((skipped) => {
    const end = Buffer.from(word.slice(skipped), 'base64').subarray(-minDecodedStart);
    return starts.some((start) => start.equals(end));
  });
}

/** What a server writes where it cut a text, and around it. */
const afterCut = /[\s.…"'>)\]\ufffd]/;

/** Longer beginnings are pieces. */
function hideStart(text: string, forms: readonly string[], isHidden: Uint8Array): void {
  let end = text.length;
  while (end > 0 && afterCut.test(text[end - 1] ?? '')) end--;
  const kept = text.slice(0, end);
  for (const form of forms)
    for (let length = Math.min(form.length, minPiece); length >= minStart; length--)
      if (kept.endsWith(form.slice(0, length))) isHidden.fill(1, kept.length - length);
}

function write(text: string, isHidden: Uint8Array): string {
  let written = '';
  for (let at = 0, next = 0; at < text.length; at = next) {
    const hidden = isHidden[at];
    for (next = at; next < text.length && isHidden[next] === hidden; ) next++;
    written += hidden ? mark : text.slice(at, next);
  }
  return written;
}
