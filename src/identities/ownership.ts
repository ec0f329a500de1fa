/**
 * Which identities have their token published at `_posthorn.<domain>`: the holder of the domain, or a claimant. Pure.
 * Guarantee: a token is absent only when every name server that answers says so.
 */
import {
  type DnsQuestion,
  questionKey,
  type RecordAnswer,
  type RecordAnswers,
  type RecordDecision,
} from './dns-record.ts';

/** The tokens of the holder and of all claimants are at the same name. */
export function ownershipQuestion(domain: string): DnsQuestion {
  return { name: `_posthorn.${domain}`, type: 'TXT' };
}

export function ownershipValue(token: string): string {
  return `posthorn-verification=${token}`;
}

export function decideOwnershipRecord(values: readonly string[], token: string): RecordDecision {
  const value = ownershipValue(token);
  if (values.includes(value)) return { status: 'valid' };
  if (values.length === 0) {
    return {
      status: 'missing',
      note: 'There is no TXT record at this name: publish this record. If the DNS panel adds the domain itself, enter only "_posthorn" as the name.',
    };
  }
  return { status: 'mismatch', note: describeWrongToken(values, value, token) };
}

function describeWrongToken(values: readonly string[], value: string, token: string): string {
  if (values.some((found) => found.replace(/["'\\\s]/g, '') === value)) {
    return 'The value of the record contains quotation marks or spaces: enter the value without them.';
  }
  if (values.includes(token))
    return 'The record contains only the token: enter the whole value, with "posthorn-verification=" before the token.';
  if (values.some((found) => found.toLowerCase() === value.toLowerCase())) {
    return 'The upper and lower case of the token was changed: enter the value exactly as shown.';
  }
  if (values.some((found) => found.startsWith(ownershipValue('')))) {
    return 'The record contains the token of another identity: add this record as a second TXT record, or replace the other one.';
  }
  return 'There is another TXT record at this name: add this record beside it.';
}

/** A damaged token is `unknown`, not absent. */
function findToken(answer: RecordAnswer | undefined, token: string): 'valid' | 'absent' | 'unknown' {
  if (answer === undefined || answer.kind === 'unknown') return 'unknown';
  const values = answer.kind === 'records' ? answer.values : [];
  if (values.some((value) => value.trim() === ownershipValue(token))) return 'valid';
  return values.some((value) => value.toLowerCase().includes(token.toLowerCase())) ? 'unknown' : 'absent';
}

export function hasToken(answer: RecordAnswer | undefined, token: string): boolean {
  return findToken(answer, token) === 'valid';
}

/**
 * For a check of the holder. The holder's token is absent only if no name server that answers has it; if some have it, the
 * record is unknown. So one outdated or hijacked name server takes nothing away.
 */
export function confirmOwnershipAbsent(
  answers: RecordAnswers,
  /** From each name server that answers. */
  serverAnswers: readonly RecordAnswer[],
  { domain, token }: { domain: string; token: string },
): RecordAnswers {
  const key = questionKey(ownershipQuestion(domain));
  const answer = answers.get(key);
  if (answer === undefined || answer.kind === 'unknown' || hasToken(answer, token)) return answers;
  const unknown = (reason: string) => new Map(answers).set(key, { kind: 'unknown', reason });
  if (serverAnswers.some((one) => hasToken(one, token))) {
    return unknown('some name servers do not have this record; update those name servers');
  }
  const isComplete = serverAnswers.length > 0 && serverAnswers.every(({ kind }) => kind !== 'unknown');
  return isComplete ? answers : unknown('not every name server could be asked');
}

/**
 * What a claimant's check sees of both tokens.
 * - `holder_found`: at least one name server has the holder's token.
 * - `only_claimant_found`: every name server has the claimant's token, and none has the holder's.
 * - `claimant_incomplete`: no name server has the holder's token, but some do not have the claimant's either.
 * - `unknown`: the holder's token is damaged, or its lookup failed.
 */
export type TokenComparison = 'holder_found' | 'only_claimant_found' | 'claimant_incomplete' | 'unknown';

export function compareTokens(
  answer: RecordAnswer | undefined,
  /** From each name server that answers. */
  serverAnswers: readonly RecordAnswer[],
  tokens: { claimant: string; holder: string },
): TokenComparison {
  const all = [answer, ...serverAnswers];
  const holderTokens = all.map((one) => findToken(one, tokens.holder));
  if (holderTokens.includes('valid')) return 'holder_found';
  if (serverAnswers.length === 0 || holderTokens.includes('unknown')) return 'unknown';
  return all.every((one) => hasToken(one, tokens.claimant)) ? 'only_claimant_found' : 'claimant_incomplete';
}
