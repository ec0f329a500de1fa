/** The form of the SPF vectors: a record of example.com, a client, and the result that RFC 7208 asks for. */
import type { Authentication } from '../../src/mailauth/authenticate.ts';
import type { Answer } from '../dns.ts';

type SpfResult = Authentication['spf']['result'];

export type Zone = Record<string, Answer>;

export interface Given {
  /** What the vector shows, where the record does not say it. */
  shows?: string;
  /** Default: 192.0.2.7. */
  ip?: string;
  /** Default: ada@example.com. Null: `<>`. */
  from?: string | null;
  /** Default: mail.example.com. */
  helo?: string | null;
  /** Beside the zone of the section. */
  zone?: Zone;
}

/** `record`: the TXT record, or records, of example.com. */
export type Vector = readonly [record: string | readonly string[], result: SpfResult, given?: Given];

export interface Section {
  /** The section of RFC 7208, and what it is about. */
  title: string;
  zone?: Zone;
  vectors: readonly Vector[];
}

/** RFC 7208 asks for `rfc`, and Posthorn returns `ours`. */
export interface Exception {
  section: string;
  reason: string;
  cases: readonly (readonly [record: string, rfc: SpfResult, ours: SpfResult, given?: Given])[];
}
