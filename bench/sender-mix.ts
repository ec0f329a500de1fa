/**
 * Mail of many senders, so that the caches of the service hit as often as with real mail: 500 senders of 200 domains, and messages of
 * 5 KB whose subjects, words and links differ. Only the keys and signatures differ from run to run.
 */
import { generateKeyPair } from 'node:crypto';
import { promisify } from 'node:util';
import { type MailMix, selector, signMail, writeMail } from './sample-mail.ts';

const senderCount = 500;
const domainCount = 200;
const messagesPerSender = 10;
const lineCount = 14;
const vocabularySize = 4000;
const provider = '_spf.provider.example';

const makeKeyPair = promisify(generateKeyPair);

interface Domain {
  name: string;
  /** Null: the domain does not sign its mail. */
  privateKey: string | null;
  records: Record<string, string>;
}

/** `size`: `bench.size`. */
export async function makeSenderMix(size: (usual: number) => number): Promise<MailMix> {
  const random = makeRandom(1);
  const words = makeWords(random);
  const domains = await Promise.all(Array.from({ length: size(domainCount) }, (_, n) => makeDomain(n)));
  const messages: MailMix['messages'] = [];
  for (let sender = 0; sender < size(senderCount); sender += 1) {
    const domain = domains[sender % domains.length];
    if (!domain) continue;
    const from = `sender-${sender}@${domain.name}`;
    const name = `${words()} ${words()}`;
    for (let n = 0; n < messagesPerSender; n += 1) {
      const lines = Array.from({ length: lineCount }, (_, line) => writeLine(line, words, random));
      const message = writeMail({
        from,
        name,
        subject: `${sentence(words, 5)} ${Math.floor(random() * 10_000)}`,
        text: lines.map((line) => `${line}\r\n`).join(''),
        html: `<html><body>\r\n${lines.map((line) => `<p class=3D"item">${line}</p>\r\n`).join('')}</body></html>\r\n`,
      });
      const { privateKey } = domain;
      const signatures = privateKey === null ? '' : await signMail(message, domain.name, privateKey);
      messages.push({ from, wire: `${signatures}${message}.\r\n` });
    }
  }
  // The messages of one sender do not follow each other.
  shuffle(messages, random);
  const records = Object.assign(
    { [provider]: 'v=spf1 ip4:127.0.0.0/8 ~all' },
    ...domains.map((d) => d.records),
  );
  return { messages, records };
}

/** A third of the domains send through a provider, a tenth do not sign, an eighth have no DMARC record. */
async function makeDomain(n: number): Promise<Domain> {
  const name = `domain-${n}.example`;
  const spf = n % 3 === 0 ? `include:${provider}` : 'ip4:127.0.0.0/8';
  const records: Domain['records'] = { [name]: `v=spf1 ${spf} -all` };
  if (n % 8 !== 7) records[`_dmarc.${name}`] = `v=DMARC1; p=${['none', 'quarantine', 'reject'][n % 3]}`;
  if (n % 10 === 9) return { name, privateKey: null, records };
  const { privateKey, publicKey } = await makeKeyPair('rsa', {
    modulusLength: 2048,
    publicKeyEncoding: { type: 'spki', format: 'der' },
    privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
  });
  records[`${selector}._domainkey.${name}`] = `v=DKIM1; k=rsa; p=${publicKey.toString('base64')}`;
  return { name, privateKey, records };
}

/** Returns the next word. As in a language, few words are frequent and many are rare (Zipf's law). */
function makeWords(random: () => number): () => string {
  const syllables = [
    'ba',
    'den',
    'fi',
    'gor',
    'hal',
    'ju',
    'ke',
    'lin',
    'mo',
    'nar',
    'pe',
    'ris',
    'so',
    'tu',
    'vel',
  ];
  const word = () =>
    Array.from({ length: 1 + Math.floor(random() * 4) }, () => pick(syllables, random)).join('');
  const vocabulary = Array.from({ length: vocabularySize }, word);
  return () => vocabulary[Math.floor(vocabularySize ** random()) - 1] ?? '';
}

function sentence(words: () => string, length: number): string {
  return Array.from({ length }, words).join(' ');
}

/** Quoted-printable, with a soft line break. Each fourth line has a link with a token that no other line has. */
function writeLine(line: number, words: () => string, random: () => number): string {
  const token = () => Math.floor(random() * 1e9).toString(36);
  const end = line % 4 === 0 ? `https://shop.example/${token()}` : sentence(words, 4);
  return `${Math.floor(random() * 10_000)} =E2=80=93 ${sentence(words, 6)}=\r\n ${sentence(words, 4)} ${end}`;
}

function pick<T>(from: readonly T[], random: () => number): T | undefined {
  return from[Math.floor(random() * from.length)];
}

function shuffle<T>(list: T[], random: () => number): void {
  const order = new Map(list.map((one) => [one, random()]));
  list.sort((a, b) => (order.get(a) ?? 0) - (order.get(b) ?? 0));
}

/** The same numbers in each run (mulberry32). */
function makeRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
