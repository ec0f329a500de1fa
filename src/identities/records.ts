/**
 * What must stand in DNS for a domain identity, and what of it does. Pure.
 * Guarantees: what could not be looked up is `unknown`, never missing; every record that is not right says in one sentence what
 * is wrong and what to do; what others wrote into DNS comes back printable and bounded.
 */
import { type DkimKey, judgeDkim, writeDkimRecord } from './dkim.ts';
import { judgeDmarc, mildestDmarc } from './dmarc.ts';
import { type Answers, type DnsRecord, type Judgement, type Question, questionKey } from './dns-record.ts';
import { plainName } from './names.ts';
import { judgeOwnership, ownershipQuestion, ownershipValue } from './ownership.ts';
import { judgeSpf } from './spf.ts';

export interface Wanted {
  domain: string;
  token: string;
  incomingDomain: boolean;
  mailHost: string;
  /** Those that sign and, while one is being replaced, the next: it is new until it is seen. */
  dkimKeys: readonly (DkimKey & { isNew?: boolean })[];
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

/** What has to be looked up to judge them. */
export function questionsFor(wanted: Wanted): Question[] {
  return expectedOf(wanted, new Map()).map(({ name, type }) => ({ name, type }));
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
      ...ownershipQuestion(domain),
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
