/** Checks that a domain has a DMARC record that receivers read (RFC 7489 §6.3, §6.6.3), with any policy. Pure. */

import { readTags } from '../mailauth/tag-list.ts';
import type { RecordDecision } from './dns-record.ts';

/** Publishing this policy makes no receiver refuse mail. */
export const mildestDmarc = 'v=DMARC1; p=none';

export function decideDmarc(values: readonly string[]): RecordDecision {
  const records = values.filter((value) => /^\s*v\s*=\s*DMARC1\s*(?:;|$)/.test(value));
  const [record] = records;
  if (values.length === 0) {
    return {
      status: 'missing',
      note: 'There is no DMARC record: publish this record or a stricter one, unless the DMARC record of the parent domain is meant to apply.',
    };
  }
  if (record === undefined) {
    return {
      status: 'mismatch',
      note: 'The TXT record at this name does not start with "v=DMARC1;", so receivers ignore it: enter the value as shown, without quotation marks.',
    };
  }
  if (records.length > 1) {
    return {
      status: 'mismatch',
      note: `There are ${records.length} DMARC records, so receivers ignore all of them: keep one and delete the others.`,
    };
  }
  const policy = readTags(record)?.get('p')?.toLowerCase() ?? '';
  if (!['none', 'quarantine', 'reject'].includes(policy)) {
    return {
      status: 'mismatch',
      note: 'The DMARC record has no policy that receivers know: add "p=none", "p=quarantine" or "p=reject".',
    };
  }
  // The published record stays the one to publish: ours might weaken it.
  return { status: 'valid', value: record.trim() };
}
