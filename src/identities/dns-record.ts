/** A DNS record of a domain identity: the question for it, the answer, and what comes of that. */
import type { DnsRecord } from '../contract/identity.ts';
import type { DnsAnswer } from '../net/dns.ts';

export interface Question {
  name: string;
  type: 'TXT' | 'MX';
}

/** A TXT record as its text; an MX as `10 mail.example`, the null MX as `0 .`. */
export type Answer = DnsAnswer<string>;

export function questionKey({ type, name }: Question): string {
  return `${type} ${name}`;
}

/** By `questionKey`. */
export type Answers = ReadonlyMap<string, Answer>;

export type RecordStatus = DnsRecord['status'];

/** What one answer says of one record. */
export interface RecordDecision {
  status: 'missing' | 'mismatch' | 'valid';
  note?: string;
  /** What should stand, where that depends on what does. */
  value?: string;
  /** What of the answer is about this record; all of it unless told. */
  found?: readonly string[];
}
