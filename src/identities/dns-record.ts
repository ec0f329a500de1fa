/** The DNS question for a record of a domain identity, the answer, and what the answer says about the record. */
import type { DnsRecord } from '../contract/identity.ts';
import type { DnsAnswer } from '../net/dns.ts';

export interface DnsQuestion {
  name: string;
  type: 'TXT' | 'MX';
}

/** A TXT record as its text; an MX record as `10 mail.example`, the null MX as `0 .`. */
export type RecordAnswer = DnsAnswer<string>;

export function questionKey({ type, name }: DnsQuestion): string {
  return `${type} ${name}`;
}

/** By `questionKey`. */
export type RecordAnswers = ReadonlyMap<string, RecordAnswer>;

export type RecordStatus = DnsRecord['status'];

export interface RecordDecision {
  status: 'missing' | 'mismatch' | 'valid';
  note?: string;
  /** The value to publish, where it depends on the value that is published. */
  value?: string;
  /** The part of the answer that is about this record; by default all of it. */
  found?: readonly string[];
}
