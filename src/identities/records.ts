/**
 * What must stand in DNS for a domain identity, and what of it does. Pure.
 * Guarantees: what could not be looked up is `unknown`, never missing; every record that is not right says in one sentence what
 * is wrong and what to do; what others wrote into DNS comes back printable and bounded.
 */
import type { DnsRecord } from '../contract/identity.ts';
import { type DkimKey, judgeDkim, writeDkimRecord } from './dkim.ts';
import { judgeDmarc, mildestDmarc } from './dmarc.ts';
import { plainName } from './names.ts';
import { judgeSpf } from './spf.ts';

export type { DnsRecord };
export type RecordStatus = DnsRecord['status'];

export interface Question {
  name: string;
  type: 'TXT' | 'MX';
}

/** The strings of a TXT record joined; an MX as `10 mail.example`, the null MX as `0 .`. */
export type Answer =
  | { kind: 'records'; values: string[] }
  | { kind: 'none' }
  /** The end of a sentence, without its full stop. */
  | { kind: 'unknown'; reason: string };

/** By `questionKey`. */
export type Answers = ReadonlyMap<string, Answer>;

export interface Wanted {
  domain: string;
  token: string;
  incomingDomain: boolean;
  mailHost: string;
  /** Those that sign and, while one is being replaced, the next: it is new until it is seen. */
  dkimKeys: readonly (DkimKey & { isNew?: boolean })[];
}

/** What one look says of one record. */
export interface Judgement {
  status: 'missing' | 'mismatch' | 'valid';
  note?: string;
  /** What should stand, where that depends on what does. */
  value?: string;
  /** What of the answer is about this record; all of it unless told. */
  found?: readonly string[];
}

type Expected = Pick<DnsRecord, 'type' | 'name' | 'value' | 'priority' | 'purpose' | 'required'> & {
  judge(values: readonly string[]): Judgement;
};

const ttl = 3600;
const maxFound = 5;
const maxFoundLength = 500;
/** Theirs is only handed back for publishing where it can be: what is not text, or too long, is replaced by ours. */
const plainText = /^[\x20-\x7e]{1,2048}$/;

const { compare: inOrder } = new Intl.Collator('en', { numeric: true });

export function questionKey({ type, name }: Question): string {
  return `${type} ${name}`;
}

/** What has to be looked up to judge them. */
export function questionsFor(wanted: Wanted): Question[] {
  return expectedOf(wanted, new Map()).map(({ name, type }) => ({ name, type }));
}

/** Where all claimants' tokens stand. */
export function ownershipQuestion(domain: string): Question {
  return { name: `_posthorn.${domain}`, type: 'TXT' };
}

/** What an answer does not cover has not been looked up, and says nothing more. */
export function judgeRecords(wanted: Wanted, answers: Answers, checkedAt: Date): DnsRecord[] {
  return expectedOf(wanted, answers).map(({ judge, ...expected }) => {
    const answer = answers.get(questionKey(expected));
    if (answer === undefined) return compose(expected, { status: 'unknown' }, [], null);
    if (answer.kind === 'unknown') {
      const note = `This could not be looked up for certain and counts neither way until it can be: ${toPrintable(answer.reason)}.`;
      return compose(expected, { status: 'unknown', note }, [], checkedAt);
    }
    // In an order of our own: a server's changes from one answer to the next.
    const values = answer.kind === 'records' ? answer.values.map((value) => value.trim()).sort(inOrder) : [];
    const judgement = judge(values);
    return compose(expected, judgement, judgement.found ?? values, checkedAt);
  });
}

/** Keys in the order of the interface; those without a value are left out. */
function compose(
  expected: Omit<Expected, 'judge'>,
  judgement: Pick<DnsRecord, 'status' | 'note'> & { value?: string },
  found: readonly string[],
  checkedAt: Date | null,
): DnsRecord {
  return {
    type: expected.type,
    name: expected.name,
    value:
      judgement.value !== undefined && plainText.test(judgement.value) ? judgement.value : expected.value,
    ttl,
    ...(expected.priority === undefined ? {} : { priority: expected.priority }),
    purpose: expected.purpose,
    required: expected.required,
    status: judgement.status,
    found: found.slice(0, maxFound).map(toPrintable),
    checkedAt: checkedAt?.toISOString() ?? null,
    ...(judgement.note === undefined ? {} : { note: judgement.note }),
  };
}

function expectedOf(wanted: Wanted, answers: Answers): Expected[] {
  const { domain, token, mailHost, dkimKeys } = wanted;
  const text = { type: 'TXT', required: false } as const;
  const mx: Expected = {
    type: 'MX',
    name: domain,
    value: mailHost,
    priority: 10,
    purpose: 'mx',
    required: true,
    judge: (values) => judgeMx(values, wanted),
  };
  const mxAnswer = answers.get(questionKey(mx));
  const isMx = mxAnswer?.kind === 'records' && mx.judge(mxAnswer.values).status === 'valid';
  return [
    {
      ...text,
      name: `_posthorn.${domain}`,
      value: ownershipValue(token),
      purpose: 'ownership',
      required: true,
      judge: (values) => judgeOwnership(values, token),
    },
    ...(wanted.incomingDomain ? [mx] : []),
    {
      ...text,
      name: domain,
      value: `v=spf1 a:${mailHost} ~all`,
      purpose: 'spf',
      judge: (values) => judgeSpf(values, { domain, mailHost, isMx }),
    },
    ...dkimKeys.map(
      (key): Expected => ({
        ...text,
        name: `${key.selector}._domainkey.${domain}`,
        value: writeDkimRecord(key.publicKey),
        purpose: 'dkim',
        judge: (values) => tellRotation(judgeDkim(values, key), key, dkimKeys),
      }),
    ),
    {
      ...text,
      name: `_dmarc.${domain}`,
      value: mildestDmarc,
      purpose: 'dmarc',
      judge: judgeDmarc,
    },
  ];
}

function ownershipValue(token: string): string {
  return `posthorn-verification=${token}`;
}

function judgeOwnership(values: readonly string[], token: string): Judgement {
  const value = ownershipValue(token);
  if (values.includes(value)) return { status: 'valid' };
  if (values.length === 0) {
    return {
      status: 'missing',
      note: 'No TXT record stands at this name: publish it, entering only "_posthorn" as the name where the DNS panel adds the domain by itself.',
    };
  }
  return { status: 'mismatch', note: tellWrongToken(values, value, token) };
}

function tellWrongToken(values: readonly string[], value: string, token: string): string {
  if (values.some((found) => found.replace(/["'\\\s]/g, '') === value)) {
    return 'The record has quotation marks or spaces inside its value: enter the value without them.';
  }
  if (values.includes(token))
    return 'The record holds the token alone: enter the whole value, with what stands before it.';
  if (values.some((found) => found.toLowerCase() === value.toLowerCase())) {
    return 'Capital and small letters of the token were changed: enter the value exactly as shown.';
  }
  if (values.some((found) => found.startsWith(ownershipValue('')))) {
    return 'The record holds the token of another identity: add this one beside it, or put it in its place.';
  }
  return 'Something else stands at this name: add this record beside it.';
}

/**
 * Someone's token in the answer for `_posthorn.<domain>`, where all claimants' tokens stand side by side: one answer says both
 * that the claimant's is there and that the holder's is not. One that is there in a damaged form is not gone.
 */
function sightToken(answer: Answer | undefined, token: string): 'valid' | 'gone' | 'unknown' {
  if (answer === undefined || answer.kind === 'unknown') return 'unknown';
  const values = answer.kind === 'records' ? answer.values : [];
  if (values.some((value) => value.trim() === ownershipValue(token))) return 'valid';
  return values.some((value) => value.toLowerCase().includes(token.toLowerCase())) ? 'unknown' : 'gone';
}

/** Whether a server says that a token stands. */
export function hasToken(answer: Answer | undefined, token: string): boolean {
  return sightToken(answer, token) === 'valid';
}

/**
 * The answers as they count for who holds the value: the own token is gone only where no server that answers has it, and counts
 * neither way where some have it. One server that is behind, or in other hands, takes nothing away.
 */
export function settleOwnership(
  answers: Answers,
  /** What each server says, as far as they answer. */
  everywhere: readonly Answer[],
  { domain, token }: { domain: string; token: string },
): Answers {
  const key = questionKey(ownershipQuestion(domain));
  const answer = answers.get(key);
  if (answer === undefined || answer.kind === 'unknown' || hasToken(answer, token)) return answers;
  const unsettle = (reason: string) => new Map(answers).set(key, { kind: 'unknown', reason });
  if (everywhere.some((one) => hasToken(one, token))) {
    return unsettle('it is not on all name servers; bring those up to date that lack it');
  }
  const isWhole = everywhere.length > 0 && everywhere.every(({ kind }) => kind !== 'unknown');
  return isWhole ? answers : unsettle('not all name servers could be asked');
}

/** The token of who holds a value verified, as a claimant's look saw it; unsettled where the claimant's own is not everywhere. */
export type HolderToken = 'valid' | 'gone' | 'unknown' | 'unsettled';

/**
 * Gone only where every server that answers says so and has the claimant's token: one that the holder still stands on, or that
 * has not heard of the claimant, may be the one that is right.
 */
export function sightHolder(
  answer: Answer | undefined,
  /** What each server says, as far as they answer. */
  everywhere: readonly Answer[],
  tokens: { own: string; holder: string },
): HolderToken {
  const all = [answer, ...everywhere];
  const theirs = all.map((one) => sightToken(one, tokens.holder));
  if (theirs.includes('valid')) return 'valid';
  if (everywhere.length === 0 || theirs.includes('unknown')) return 'unknown';
  return all.every((one) => hasToken(one, tokens.own)) ? 'gone' : 'unsettled';
}

function judgeMx(values: readonly string[], { domain, mailHost }: Wanted): Judgement {
  const hosts = values.map((value) => {
    const [priority, host = ''] = value.split(' ');
    return { priority: Number(priority), host: plainName(host) };
  });
  const ours = hosts.filter(({ host }) => host === plainName(mailHost));
  if (ours.length > 0) {
    const best = Math.min(...ours.map(({ priority }) => priority));
    const rivals = hosts.filter(({ host, priority }) => host !== plainName(mailHost) && priority <= best);
    if (rivals.length === 0) return { status: 'valid' };
    const names = rivals.slice(0, 3).map(({ host }) => toPrintable(host || 'the null MX ("0 .")'));
    return {
      status: 'valid',
      note: `Some or all mail goes to ${names.join(', ')}, which no higher number sets behind ${mailHost}: remove what should not have it.`,
    };
  }
  if (hosts.length === 0) {
    return {
      status: 'missing',
      note: `No MX record stands at ${domain}: publish this one, so that mail finds its way here.`,
    };
  }
  if (hosts.some(({ host }) => host === '')) {
    return {
      status: 'mismatch',
      note: `The null MX ("0 .") stands here, which says that ${domain} takes no mail: replace it with this record.`,
    };
  }
  return {
    status: 'mismatch',
    note: `The mail of ${domain} goes to another host: add this record, or put it in the place of what stands there.`,
  };
}

function tellRotation(
  judgement: Judgement,
  key: { isNew?: boolean },
  keys: readonly { selector: string; isNew?: boolean }[],
): Judgement {
  const next = keys.find(({ isNew }) => isNew);
  if (next === undefined || key.isNew || judgement.status !== 'valid') return judgement;
  return {
    ...judgement,
    note: `Leave this record until ${next.selector}, which replaces it, has been seen.`,
  };
}

/** Bytes that do not print as `dig` shows them: nothing from DNS may steer a terminal. */
function toPrintable(text: string): string {
  const printable = text.slice(0, maxFoundLength).replace(/[^\x20-\x7e]/g, escapeDecimal);
  const isCut = text.length > maxFoundLength || printable.length > maxFoundLength;
  return isCut ? `${printable.slice(0, maxFoundLength)}…` : printable;
}

function escapeDecimal(character: string): string {
  return `\\${String(character.charCodeAt(0)).padStart(3, '0')}`;
}
