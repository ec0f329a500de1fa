/** A DNS record of a domain identity: the question for it, the answer, and what comes of that. */
import type { DnsRecord } from '../contract/identity.ts';

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

export function questionKey({ type, name }: Question): string {
  return `${type} ${name}`;
}

/** By `questionKey`. */
export type Answers = ReadonlyMap<string, Answer>;

export type { DnsRecord };
export type RecordStatus = DnsRecord['status'];

/** What one look says of one record. */
export interface Judgement {
  status: 'missing' | 'mismatch' | 'valid';
  note?: string;
  /** What should stand, where that depends on what does. */
  value?: string;
  /** What of the answer is about this record; all of it unless told. */
  found?: readonly string[];
}
