/**
 * The DNS records that a domain identity needs, and the status of each. Pure.
 * Guarantees: a record whose lookup failed is `unknown`, never `missing`; the note of a record that is not valid says what is
 * wrong and what to do; text from DNS is returned printable and with a bounded length.
 */

import type { DnsRecord } from '../contract/identity.ts';
import { type DkimKey, decideDkim, writeDkimRecord } from './dkim.ts';
import { decideDmarc, mildestDmarc } from './dmarc.ts';
import { type DnsQuestion, questionKey, type RecordAnswers, type RecordDecision } from './dns-record.ts';
import { plainName } from './names.ts';
import { decideOwnershipRecord, ownershipQuestion, ownershipValue } from './ownership.ts';
import { decideSpf } from './spf.ts';

/** What the records of a domain identity depend on. */
export interface DomainSetup {
  domain: string;
  token: string;
  incomingDomain: boolean;
  mailHost: string;
  /** The newest last. During a rotation the last key is not in use yet. */
  dkimKeys: readonly DkimKey[];
}

type Expected = Pick<DnsRecord, 'type' | 'name' | 'value' | 'priority' | 'purpose' | 'required'> & {
  decide(values: readonly string[]): RecordDecision;
};

const uses: Record<DnsRecord['purpose'], DnsRecord['usedFor']> = {
  // Only a verified identity sends and receives.
  ownership: ['sending', 'receiving'],
  mx: ['receiving'],
  spf: ['sending'],
  dkim: ['sending'],
  dmarc: ['sending'],
};
const ttl = 3600;
const maxFound = 5;
const maxFoundLength = 500;
/** A published value is shown as the value to keep only if it can be typed into a DNS panel. */
const plainText = /^[\x20-\x7e]{1,2048}$/;

const { compare: inOrder } = new Intl.Collator('en', { numeric: true });

export function questionsFor(setup: DomainSetup): DnsQuestion[] {
  return expectRecords(setup, new Map()).map(({ name, type }) => ({ name, type }));
}

/** A record without an answer was not looked up: it is `unknown`, without a note. The ownership record is the first. */
export function decideRecords(setup: DomainSetup, answers: RecordAnswers, checkedAt: Date): DnsRecord[] {
  const records = decideAll(setup, answers, checkedAt);
  return setup.mailHost === unsetMailHost ? records.map(noteUnsetMailHost) : records;
}

/** The name of the mail server in development, until POSTHORN_MAIL_HOST is set. */
const unsetMailHost = 'localhost';

/** Whatever DNS has: a record that names localhost must not be published. */
function noteUnsetMailHost(record: DnsRecord): DnsRecord {
  if (record.purpose !== 'mx' && record.purpose !== 'spf') return record;
  const note = `This record names ${unsetMailHost}, so it is of no use yet: set POSTHORN_MAIL_HOST to the public name of this mail server, such as mx.example.com, and start the service again. Then publish the value that is shown.`;
  return { ...record, note };
}

function decideAll(setup: DomainSetup, answers: RecordAnswers, checkedAt: Date): DnsRecord[] {
  return expectRecords(setup, answers).map(({ decide, ...expected }) => {
    const answer = answers.get(questionKey(expected));
    if (answer === undefined) return compose(expected, { status: 'unknown' }, [], null);
    if (answer.kind === 'unknown') {
      const note = `This record could not be checked with certainty: ${toPrintable(answer.reason)}. The next check tries again.`;
      return compose(expected, { status: 'unknown', note }, [], checkedAt);
    }
    // Sorted, because a server may change the order from one answer to the next.
    const values = answer.kind === 'records' ? answer.values.map((value) => value.trim()).sort(inOrder) : [];
    const decision = decide(values);
    return compose(expected, decision, decision.found ?? values, checkedAt);
  });
}

/** With its keys in the order of the interface. */
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
    usedFor: uses[expected.purpose],
  };
}

/** Reads stored records. Those that an older version stored have no `usedFor`. */
export function parseRecords(dnsRecords: string): DnsRecord[] {
  const records: (Omit<DnsRecord, 'usedFor'> & Partial<DnsRecord>)[] = JSON.parse(dnsRecords) ?? [];
  return records.map((record) => ({ ...record, usedFor: record.usedFor ?? uses[record.purpose] }));
}

function expectRecords(setup: DomainSetup, answers: RecordAnswers): Expected[] {
  const { domain, token, mailHost, dkimKeys } = setup;
  const text = { type: 'TXT', required: false } as const;
  const mx: Expected = {
    type: 'MX',
    name: domain,
    value: mailHost,
    priority: 10,
    purpose: 'mx',
    required: true,
    decide: (values) => decideMx(values, setup),
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
    ...(setup.incomingDomain ? [mx] : []),
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

function decideMx(values: readonly string[], { domain, mailHost }: DomainSetup): RecordDecision {
  const hosts = values.map((value) => {
    const [priority, host = ''] = value.split(' ');
    return { priority: Number(priority), host: plainName(host) };
  });
  const ours = hosts.filter(({ host }) => host === plainName(mailHost));
  if (ours.length > 0) {
    const best = Math.min(...ours.map(({ priority }) => priority));
    const others = hosts.filter(({ host, priority }) => host !== plainName(mailHost) && priority <= best);
    if (others.length === 0) return { status: 'valid' };
    const names = others.slice(0, 3).map(({ host }) => toPrintable(host || 'the null MX ("0 .")'));
    return {
      status: 'valid',
      note: `Some or all mail goes to ${names.join(', ')}, because its priority number is not higher than the number of ${mailHost}: remove that MX record, or give it a higher number.`,
    };
  }
  if (hosts.length === 0) {
    return {
      status: 'missing',
      note: `There is no MX record at ${domain}: publish this record, so that mail for the domain reaches this service.`,
    };
  }
  if (hosts.some(({ host }) => host === '')) {
    return {
      status: 'mismatch',
      note: `There is a null MX record ("0 ."), which says that ${domain} accepts no mail: replace it with this record.`,
    };
  }
  return {
    status: 'mismatch',
    note: `The MX records of ${domain} name another host: add this record, or replace them with this record.`,
  };
}

function noteRotation(decision: RecordDecision, key: DkimKey, keys: readonly DkimKey[]): RecordDecision {
  const newest = keys.at(-1);
  if (newest === undefined || key === newest || decision.status !== 'valid') return decision;
  return {
    ...decision,
    note: `Keep this record until a check has found the new key ${newest.selector} in DNS. Then delete this record.`,
  };
}

/** Escapes like `dig`: text from DNS must not control a terminal. */
function toPrintable(text: string): string {
  const printable = text.slice(0, maxFoundLength).replace(/[^\x20-\x7e]/g, escapeDecimal);
  const isCut = text.length > maxFoundLength || printable.length > maxFoundLength;
  return isCut ? `${printable.slice(0, maxFoundLength)}…` : printable;
}

function escapeDecimal(character: string): string {
  return `\\${String(character.charCodeAt(0)).padStart(3, '0')}`;
}
