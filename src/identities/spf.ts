/**
 * The SPF record (RFC 7208) that lets our host send mail for a domain: the published record with one term added. Pure.
 * Guarantee: the result of `mergeSpf` authorises the host, and merging it again changes nothing.
 */

import type { RecordDecision } from './dns-record.ts';
import { plainName } from './names.ts';

export interface SpfContext {
  domain: string;
  mailHost: string;
  /** Our host is an MX of the domain, so the term `mx` authorises it. */
  isMx: boolean;
}

/** RFC 7208 §4.6.4: receivers ignore a record that needs more. */
const maxLookups = 10;
/** Far above what mail servers accept. */
const maxLength = 2048;

const mechanism = /^([+?~-]?)(all|include|a|mx|ptr|ip4|ip6|exists)(?:([:/])(.*))?$/i;
const modifier = /^[a-z][\w.-]*=/i;

interface Term {
  text: string;
  /** The mechanism in lower case, `modifier` for any modifier, or empty. */
  name: string;
  passes: boolean;
  /** The domain of the term, without a prefix length. */
  target: string;
}

export function decideSpf(values: readonly string[], context: SpfContext): RecordDecision {
  const { domain, mailHost } = context;
  const found = values.filter((value) => /v=spf1/i.test(value));
  const records = found.filter(isSpf);
  const [record = ''] = records;
  const fresh = mergeSpf([], context);
  const mismatch = (value: string, note: string) => ({ status: 'mismatch', value, found, note }) as const;
  if (found.length === 0) {
    const note = `There is no SPF record at ${domain}: publish this record, so that receivers do not treat mail from ${mailHost} as forged.`;
    return { status: 'missing', value: fresh, found, note };
  }
  if (records.length === 0) {
    return mismatch(
      fresh,
      'The record does not start with "v=spf1" and a space, so receivers ignore it: enter the value as shown, without quotation marks.',
    );
  }
  if (!records.every((text) => /^[\x20-\x7e]*$/.test(text)) || records.join(' ').length > maxLength) {
    return mismatch(
      fresh,
      'The SPF record is too long or contains characters that SPF does not allow: replace it with the value shown.',
    );
  }
  const value = mergeSpf(records, context);
  if (records.length > 1) {
    return mismatch(
      value,
      `There are ${records.length} SPF records, so receivers ignore all of them: replace them with the single record shown.`,
    );
  }
  if (findAuthority(readTerms(record), context)?.passes) return { status: 'valid', value: record, found };
  const ours = `a:${mailHost}`;
  return mismatch(
    value,
    countLookups(value) > maxLookups
      ? `The SPF record does not name ${mailHost}, and with "${ours}" it would need more than ${maxLookups} DNS lookups, which receivers refuse: first remove a term that is no longer used, then add "${ours}".`
      : `The SPF record does not name ${mailHost}: change it to the value shown, which adds "${ours}" and keeps the rest.`,
  );
}

/** Merges the published records into one that also authorises the host. */
export function mergeSpf(records: readonly string[], context: SpfContext): string {
  const terms =
    records.length > 1 ? joinTerms(records.map(readTerms)) : readTerms(records[0] ?? 'v=spf1 ~all');
  if (findAuthority(terms, context)?.passes) return writeTerms(terms);
  // Drops terms that forbid the host, or authorise it too late in the record.
  const others = terms.filter((term) => !isHost(term, context));
  const before = others.findIndex((term) => term.name === 'modifier' || matches(term, context));
  const [ours] = readTerms(`v=spf1 a:${context.mailHost}`);
  return writeTerms(others.toSpliced(before === -1 ? others.length : before, 0, ours as Term));
}

/** The version is the whole first word (RFC 7208 §4.5): `v=spf10` is not SPF. */
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

/** The first term that matches decides (RFC 7208 §4.6.2). `ip4`, `ip6` and `include` are not evaluated. */
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

/** Keeps every term of every record. If their `all` terms differ, the result has `~all`, which refuses no mail. */
function joinTerms(records: readonly Term[][]): Term[] {
  const joined = new Map<string, Term>();
  const allTerms = new Set<string>();
  for (const term of records.flat()) {
    const redirect = /^redirect=(.*)$/i.exec(term.text)?.[1];
    if (term.name === 'all') allTerms.add(term.text.toLowerCase().replace(/^\+/, ''));
    else if (redirect !== undefined) joined.set(`include:${redirect.toLowerCase()}`, include(redirect));
    else if (term.name !== 'modifier') joined.set(term.text.toLowerCase().replace(/^\+/, ''), term);
  }
  const [all] = allTerms.size === 1 ? allTerms : ['~all'];
  return [...joined.values(), ...readTerms(`v=spf1 ${all}`)];
}

function include(target: string): Term {
  return { text: `include:${target}`, name: 'include', passes: true, target: plainName(target) };
}

function countLookups(record: string): number {
  const mechanisms = ['include', 'a', 'mx', 'ptr', 'exists'];
  return readTerms(record).filter(({ name, text }) => mechanisms.includes(name) || /^redirect=/i.test(text))
    .length;
}
