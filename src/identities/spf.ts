/**
 * The SPF record (RFC 7208) that a domain should have so that our host may send for it: theirs with one term more. Pure.
 * Guarantee: what `mergeSpf` answers authorises the host, and merging it again changes nothing.
 */

import type { RecordDecision } from './dns-record.ts';
import { plainName } from './names.ts';

export interface SpfContext {
  domain: string;
  mailHost: string;
  /** Our host is among the domain's MXs, so that `mx` stands for it as well. */
  isMx: boolean;
}

/** RFC 7208 §4.6.4: with more, receivers give up and the record counts for nothing. */
const maxLookups = 10;
/** Far above what mail servers take; what is longer is not repeated back. */
const maxLength = 2048;

const mechanism = /^([+?~-]?)(all|include|a|mx|ptr|ip4|ip6|exists)(?:([:/])(.*))?$/i;
const modifier = /^[a-z][\w.-]*=/i;

interface Term {
  text: string;
  /** Lower-cased; `modifier` for all of those, empty for what is neither. */
  name: string;
  passes: boolean;
  /** The domain that it speaks of, without a prefix length. */
  target: string;
}

export function decideSpf(values: readonly string[], context: SpfContext): RecordDecision {
  const found = values.filter((value) => /v=spf1/i.test(value));
  const records = found.filter(isSpf);
  const [record = ''] = records;
  const ours = `a:${context.mailHost}`;
  const fresh = mergeSpf([], context);
  if (found.length === 0) {
    return {
      status: 'missing',
      value: fresh,
      found,
      note: `No SPF record stands at ${context.domain}: publish this one, so that mail sent through ${context.mailHost} is not taken for forged.`,
    };
  }
  if (records.length === 0) {
    return {
      status: 'mismatch',
      value: fresh,
      found,
      note: 'The record does not begin with "v=spf1" and a space, so receivers ignore it: write it as shown, without quotation marks.',
    };
  }
  if (!records.every((text) => /^[\x20-\x7e]*$/.test(text)) || records.join(' ').length > maxLength) {
    return {
      status: 'mismatch',
      value: fresh,
      found,
      note: 'The SPF record is too long or has characters that no SPF record may have: replace it.',
    };
  }
  const value = mergeSpf(records, context);
  if (records.length > 1) {
    return {
      status: 'mismatch',
      value,
      found,
      note: `${records.length} SPF records stand here and receivers then obey none: join them into this single one and delete the others.`,
    };
  }
  if (findAuthority(readTerms(record), context)?.passes) return { status: 'valid', value: record, found };
  return {
    status: 'mismatch',
    value,
    found,
    note:
      countLookups(value) > maxLookups
        ? `The SPF record does not name ${context.mailHost}, and with "${ours}" it would need more than ${maxLookups} look-ups, which receivers refuse: remove a term that is no longer used, then add it.`
        : `The SPF record does not name ${context.mailHost}: change it to the value shown, which adds "${ours}" and keeps the rest.`,
  };
}

/** One record from those that stand, few or none, that lets the host send as well. */
export function mergeSpf(records: readonly string[], context: SpfContext): string {
  const terms =
    records.length > 1 ? joinTerms(records.map(readTerms)) : readTerms(records[0] ?? 'v=spf1 ~all');
  if (findAuthority(terms, context)?.passes) return writeTerms(terms);
  // A term that forbids the host, or allows it too late, would only confuse beside the one that allows it.
  const others = terms.filter((term) => !isHost(term, context));
  const before = others.findIndex((term) => term.name === 'modifier' || matches(term, context));
  const [ours] = readTerms(`v=spf1 a:${context.mailHost}`);
  return writeTerms(others.toSpliced(before === -1 ? others.length : before, 0, ours as Term));
}

/** The version is the whole first word (RFC 7208 §4.5): `v=spf10` is something else. */
function isSpf(value: string): boolean {
  return /^v=spf1(?: |$)/i.test(value.trim());
}

function readTerms(record: string): Term[] {
  return record
    .trim()
    .split(/\s+/)
    .slice(1)
    .map((text) => {
      const [, qualifier = '', name = '', separator, rest = ''] = mechanism.exec(text) ?? [];
      return {
        text,
        name: name === '' && modifier.test(text) ? 'modifier' : name.toLowerCase(),
        passes: qualifier === '' || qualifier === '+',
        target: separator === ':' ? plainName(rest.replace(/\/.*$/, '')) : '',
      };
    });
}

function writeTerms(terms: readonly Term[]): string {
  return ['v=spf1', ...terms.map(({ text }) => text)].join(' ');
}

/** The first term that matches decides (RFC 7208 §4.6.2). Addresses and other domains' records are not looked into. */
function findAuthority(terms: readonly Term[], context: SpfContext): Term | undefined {
  return terms.find((term) => matches(term, context));
}

function matches(term: Term, context: SpfContext): boolean {
  const isOwnMx = term.name === 'mx' && context.isMx && ['', plainName(context.domain)].includes(term.target);
  return term.name === 'all' || isOwnMx || isHost(term, context);
}

function isHost({ name, target }: Term, { domain, mailHost }: SpfContext): boolean {
  return name === 'a' && (target || plainName(domain)) === plainName(mailHost);
}

/** All that any of them allows. Their last words differ: the mild one, which turns no mail away that one of them let in. */
function joinTerms(records: readonly Term[][]): Term[] {
  const joined = new Map<string, Term>();
  const last = new Set<string>();
  for (const term of records.flat()) {
    const redirect = /^redirect=(.*)$/i.exec(term.text)?.[1];
    if (term.name === 'all') last.add(term.text.toLowerCase().replace(/^\+/, ''));
    else if (redirect !== undefined) joined.set(`include:${redirect.toLowerCase()}`, include(redirect));
    else if (term.name !== 'modifier') joined.set(term.text.toLowerCase().replace(/^\+/, ''), term);
  }
  const [all] = last.size === 1 ? last : ['~all'];
  return [...joined.values(), ...readTerms(`v=spf1 ${all}`)];
}

function include(target: string): Term {
  return { text: `include:${target}`, name: 'include', passes: true, target: plainName(target) };
}

function countLookups(record: string): number {
  const asking = ['include', 'a', 'mx', 'ptr', 'exists'];
  return readTerms(record).filter(({ name, text }) => asking.includes(name) || /^redirect=/i.test(text))
    .length;
}
