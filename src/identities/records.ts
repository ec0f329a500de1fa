/**
 * What must stand in DNS for a domain identity, and what of it does. Pure.
 * Guarantees: what could not be looked up is `unknown`, never missing; every record that is not right says in one sentence what
 * is wrong and what to do; what others wrote into DNS comes back printable and bounded.
 */

import type { DnsRecord } from '../contract/identity.ts';
import { type DkimKey, decideDkim, writeDkimRecord } from './dkim.ts';
import { decideDmarc, mildestDmarc } from './dmarc.ts';
import { type Answers, type Question, questionKey, type RecordDecision } from './dns-record.ts';
import { plainName } from './names.ts';
import { decideOwnershipRecord, ownershipQuestion, ownershipValue } from './ownership.ts';
import { decideSpf } from './spf.ts';

export interface Wanted {
  domain: string;
  token: string;
  incomingDomain: boolean;
  mailHost: string;
  /** Those that sign and, while one is being replaced, the next: it is new until it is seen. */
  dkimKeys: readonly (DkimKey & { isNew?: boolean })[];
}

type Expected = Pick<DnsRecord, 'type' | 'name' | 'value' | 'priority' | 'purpose' | 'required'> & {
  decide(values: readonly string[]): RecordDecision;
};

const ttl = 3600;
const maxFound = 5;
const maxFoundLength = 500;
/** Theirs is only handed back for publishing where it can be: what is not text, or too long, is replaced by ours. */
const plainText = /^[\x20-\x7e]{1,2048}$/;

const { compare: inOrder } = new Intl.Collator('en', { numeric: true });

/** What has to be looked up to decide on them. */
export function questionsFor(wanted: Wanted): Question[] {
  return expectedOf(wanted, new Map()).map(({ name, type }) => ({ name, type }));
}

/** What an answer does not cover has not been looked up, and says nothing more. */
export function decideRecords(wanted: Wanted, answers: Answers, checkedAt: Date): DnsRecord[] {
  return expectedOf(wanted, answers).map(({ decide, ...expected }) => {
    const answer = answers.get(questionKey(expected));
    if (answer === undefined) return compose(expected, { status: 'unknown' }, [], null);
    if (answer.kind === 'unknown') {
      const note = `This could not be looked up for certain and counts neither way until it can be: ${toPrintable(answer.reason)}.`;
      return compose(expected, { status: 'unknown', note }, [], checkedAt);
    }
    // In an order of our own: a server's changes from one answer to the next.
    const values = answer.kind === 'records' ? answer.values.map((value) => value.trim()).sort(inOrder) : [];
    const decision = decide(values);
    return compose(expected, decision, decision.found ?? values, checkedAt);
  });
}

/** Keys in the order of the interface; those without a value are left out. */
function compose(
  expected: Omit<Expected, 'decide'>,
  decision: Pick<DnsRecord, 'status' | 'note'> & { value?: string },
  found: readonly string[],
  checkedAt: Date | null,
): DnsRecord {
  return {
    type: expected.type,
    name: expected.name,
    value: decision.value !== undefined && plainText.test(decision.value) ? decision.value : expected.value,
    ttl,
    ...(expected.priority === undefined ? {} : { priority: expected.priority }),
    purpose: expected.purpose,
    required: expected.required,
    status: decision.status,
    found: found.slice(0, maxFound).map(toPrintable),
    checkedAt: checkedAt?.toISOString() ?? null,
    ...(decision.note === undefined ? {} : { note: decision.note }),
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
    decide: (values) => decideMx(values, wanted),
  };
  const mxAnswer = answers.get(questionKey(mx));
  const isMx = mxAnswer?.kind === 'records' && mx.decide(mxAnswer.values).status === 'valid';
  return [
    {
      ...ownershipQuestion(domain),
      value: ownershipValue(token),
      purpose: 'ownership',
      required: true,
      decide: (values) => decideOwnershipRecord(values, token),
    },
    ...(wanted.incomingDomain ? [mx] : []),
    {
      ...text,
      name: domain,
      value: `v=spf1 a:${mailHost} ~all`,
      purpose: 'spf',
      decide: (values) => decideSpf(values, { domain, mailHost, isMx }),
    },
    ...dkimKeys.map(
      (key): Expected => ({
        ...text,
        name: `${key.selector}._domainkey.${domain}`,
        value: writeDkimRecord(key.publicKey),
        purpose: 'dkim',
        decide: (values) => noteRotation(decideDkim(values, key), key, dkimKeys),
      }),
    ),
    {
      ...text,
      name: `_dmarc.${domain}`,
      value: mildestDmarc,
      purpose: 'dmarc',
      decide: decideDmarc,
    },
  ];
}

function decideMx(values: readonly string[], { domain, mailHost }: Wanted): RecordDecision {
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

function noteRotation(
  decision: RecordDecision,
  key: { isNew?: boolean },
  keys: readonly { selector: string; isNew?: boolean }[],
): RecordDecision {
  const next = keys.find(({ isNew }) => isNew);
  if (next === undefined || key.isNew || decision.status !== 'valid') return decision;
  return {
    ...decision,
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
