/** Whether a domain has a DMARC record that receivers read (RFC 7489 §6.3, §6.6.3). Any policy will do. Pure. */

import { readTags } from '../mailauth/tag-list.ts';
import type { RecordDecision } from './dns-record.ts';

/** Asks for nothing, so that nobody's mail is turned away by following our advice. */
export const mildestDmarc = 'v=DMARC1; p=none';

export function decideDmarc(values: readonly string[]): RecordDecision {
  const records = values.filter((value) => /^\s*v\s*=\s*DMARC1\s*(?:;|$)/.test(value));
  const [record] = records;
  if (values.length === 0) {
    return {
      status: 'missing',
      note: 'No DMARC record stands here: publish one, this or a stricter, unless that of a parent domain is meant to hold.',
    };
  }
  if (record === undefined) {
    return {
      status: 'mismatch',
      note: 'What stands here does not begin with "v=DMARC1;", so receivers ignore it: write it as shown, without quotation marks.',
    };
  }
  if (records.length > 1) {
    return {
      status: 'mismatch',
      note: `${records.length} DMARC records stand here and receivers then obey none: keep one and delete the others.`,
    };
  }
  const policy = readTags(record)?.get('p')?.toLowerCase() ?? '';
  if (!['none', 'quarantine', 'reject'].includes(policy)) {
    return {
      status: 'mismatch',
      note: 'The DMARC record has no policy that receivers know: give it "p=none", "p=quarantine" or "p=reject".',
    };
  }
  // Theirs is what should stand: ours in its place might weaken it.
  return { status: 'valid', value: record.trim() };
}
