/**
 * Who owns a domain, by the tokens that stand at `_posthorn.<domain>`. Pure.
 * Guarantee: a token is gone only where every name server that answers says so.
 */
import { type Answer, type Answers, type Judgement, type Question, questionKey } from './dns-record.ts';

/** Where all claimants' tokens stand. */
export function ownershipQuestion(domain: string): Question {
  return { name: `_posthorn.${domain}`, type: 'TXT' };
}

export function ownershipValue(token: string): string {
  return `posthorn-verification=${token}`;
}

export function judgeOwnership(values: readonly string[], token: string): Judgement {
  const value = ownershipValue(token);
  if (values.includes(value)) return { status: 'valid' };
  if (values.length === 0) {
    return {
      status: 'missing',
      note: 'No TXT record stands at this name: publish it, entering only "_posthorn" as the name where the DNS panel adds the domain by itself.',
    };
  }
  return { status: 'mismatch', note: tellWrongToken(values, value, token) };
}

function tellWrongToken(values: readonly string[], value: string, token: string): string {
  if (values.some((found) => found.replace(/["'\\\s]/g, '') === value)) {
    return 'The record has quotation marks or spaces inside its value: enter the value without them.';
  }
  if (values.includes(token))
    return 'The record holds the token alone: enter the whole value, with what stands before it.';
  if (values.some((found) => found.toLowerCase() === value.toLowerCase())) {
    return 'Capital and small letters of the token were changed: enter the value exactly as shown.';
  }
  if (values.some((found) => found.startsWith(ownershipValue('')))) {
    return 'The record holds the token of another identity: add this one beside it, or put it in its place.';
  }
  return 'Something else stands at this name: add this record beside it.';
}

/**
 * Someone's token in the answer for `_posthorn.<domain>`, where all claimants' tokens stand side by side: one answer says both
 * that the claimant's is there and that the holder's is not. One that is there in a damaged form is not gone.
 */
function sightToken(answer: Answer | undefined, token: string): 'valid' | 'gone' | 'unknown' {
  if (answer === undefined || answer.kind === 'unknown') return 'unknown';
  const values = answer.kind === 'records' ? answer.values : [];
  if (values.some((value) => value.trim() === ownershipValue(token))) return 'valid';
  return values.some((value) => value.toLowerCase().includes(token.toLowerCase())) ? 'unknown' : 'gone';
}

/** Whether a server says that a token stands. */
export function hasToken(answer: Answer | undefined, token: string): boolean {
  return sightToken(answer, token) === 'valid';
}

/**
 * The answers as they count for who holds the value: the own token is gone only where no server that answers has it, and counts
 * neither way where some have it. One server that is behind, or in other hands, takes nothing away.
 */
export function settleOwnership(
  answers: Answers,
  /** What each server says, as far as they answer. */
  everywhere: readonly Answer[],
  { domain, token }: { domain: string; token: string },
): Answers {
  const key = questionKey(ownershipQuestion(domain));
  const answer = answers.get(key);
  if (answer === undefined || answer.kind === 'unknown' || hasToken(answer, token)) return answers;
  const unsettle = (reason: string) => new Map(answers).set(key, { kind: 'unknown', reason });
  if (everywhere.some((one) => hasToken(one, token))) {
    return unsettle('it is not on all name servers; bring those up to date that lack it');
  }
  const isWhole = everywhere.length > 0 && everywhere.every(({ kind }) => kind !== 'unknown');
  return isWhole ? answers : unsettle('not all name servers could be asked');
}

/** The token of who holds a value verified, as a claimant's look saw it; unsettled where the claimant's own is not everywhere. */
export type HolderToken = 'valid' | 'gone' | 'unknown' | 'unsettled';

/**
 * Gone only where every server that answers says so and has the claimant's token: one that the holder still stands on, or that
 * has not heard of the claimant, may be the one that is right.
 */
export function sightHolder(
  answer: Answer | undefined,
  /** What each server says, as far as they answer. */
  everywhere: readonly Answer[],
  tokens: { own: string; holder: string },
): HolderToken {
  const all = [answer, ...everywhere];
  const theirs = all.map((one) => sightToken(one, tokens.holder));
  if (theirs.includes('valid')) return 'valid';
  if (everywhere.length === 0 || theirs.includes('unknown')) return 'unknown';
  return all.every((one) => hasToken(one, tokens.own)) ? 'gone' : 'unsettled';
}
