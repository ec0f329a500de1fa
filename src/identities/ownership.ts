/**
 * Who owns a domain, by the tokens that are published at `_posthorn.<domain>`. Pure.
 * Guarantee: a token is gone only when every name server that answers says so.
 */
import {
  type DnsQuestion,
  questionKey,
  type RecordAnswer,
  type RecordAnswers,
  type RecordDecision,
} from './dns-record.ts';

/** The tokens of the owner and of all claimants are at the same name. */
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

/** A damaged token is `unknown`, not gone. */
function findToken(answer: RecordAnswer | undefined, token: string): 'valid' | 'gone' | 'unknown' {
  if (answer === undefined || answer.kind === 'unknown') return 'unknown';
  const values = answer.kind === 'records' ? answer.values : [];
  if (values.some((value) => value.trim() === ownershipValue(token))) return 'valid';
  return values.some((value) => value.toLowerCase().includes(token.toLowerCase())) ? 'unknown' : 'gone';
}

export function hasToken(answer: RecordAnswer | undefined, token: string): boolean {
  return findToken(answer, token) === 'valid';
}

/**
 * For a check of the owner. The owner's token is gone only if no name server that answers has it; if some have it, the
 * record is unknown. So one outdated or hijacked name server takes nothing away.
 */
export function confirmOwnershipGone(
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
 * - `owner_found`: at least one name server has the owner's token.
 * - `owner_gone`: every name server has the claimant's token, and none has the owner's.
 * - `claimant_incomplete`: no name server has the owner's token, but some do not have the claimant's either.
 * - `unknown`: the owner's token is damaged, or its lookup failed.
 */
export type TokenComparison = 'owner_found' | 'owner_gone' | 'claimant_incomplete' | 'unknown';

export function compareTokens(
  answer: RecordAnswer | undefined,
  /** From each name server that answers. */
  serverAnswers: readonly RecordAnswer[],
  tokens: { claimant: string; owner: string },
): TokenComparison {
  const all = [answer, ...serverAnswers];
  const ownerTokens = all.map((one) => findToken(one, tokens.owner));
  if (ownerTokens.includes('valid')) return 'owner_found';
  if (serverAnswers.length === 0 || ownerTokens.includes('unknown')) return 'unknown';
  return all.every((one) => hasToken(one, tokens.claimant)) ? 'owner_gone' : 'claimant_incomplete';
}
