/**
 * Who owns a domain, by the tokens that stand at `_posthorn.<domain>`. Pure.
 * Guarantee: a token is gone only where every name server that answers says so.
 */
import { type Answer, type Answers, type Question, questionKey, type RecordDecision } from './dns-record.ts';

/** Where the tokens of all owners who want the domain stand side by side. */
export function ownershipQuestion(domain: string): Question {
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
      note: 'No TXT record stands at this name: publish it, entering only "_posthorn" as the name where the DNS panel adds the domain by itself.',
    };
  }
  return { status: 'mismatch', note: describeWrongToken(values, value, token) };
}

function describeWrongToken(values: readonly string[], value: string, token: string): string {
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

/** One answer says both that one owner's token is there and that another's is not. A damaged token is not gone. */
function findToken(answer: Answer | undefined, token: string): 'valid' | 'gone' | 'unknown' {
  if (answer === undefined || answer.kind === 'unknown') return 'unknown';
  const values = answer.kind === 'records' ? answer.values : [];
  if (values.some((value) => value.trim() === ownershipValue(token))) return 'valid';
  return values.some((value) => value.toLowerCase().includes(token.toLowerCase())) ? 'unknown' : 'gone';
}

/** Whether a server says that a token stands. */
export function hasToken(answer: Answer | undefined, token: string): boolean {
  return findToken(answer, token) === 'valid';
}

/**
 * For the identity that holds the domain. Its token is gone only if no server that answers has it; if some have it, that is
 * unknown. So a single server that is behind, or in other hands, takes nothing away.
 */
export function confirmOwnershipGone(
  answers: Answers,
  /** What each server says, as far as they answer. */
  everywhere: readonly Answer[],
  { domain, token }: { domain: string; token: string },
): Answers {
  const key = questionKey(ownershipQuestion(domain));
  const answer = answers.get(key);
  if (answer === undefined || answer.kind === 'unknown' || hasToken(answer, token)) return answers;
  const unknown = (reason: string) => new Map(answers).set(key, { kind: 'unknown', reason });
  if (everywhere.some((one) => hasToken(one, token))) {
    return unknown('it is not on all name servers; bring those up to date that lack it');
  }
  const isWhole = everywhere.length > 0 && everywhere.every(({ kind }) => kind !== 'unknown');
  return isWhole ? answers : unknown('not all name servers could be asked');
}

/**
 * The token of the identity that holds the domain verified, as the check of another identity saw it. `not_everywhere`: it is
 * gone, but the token of the identity that was checked is not on all servers yet.
 */
export type HolderToken = 'valid' | 'gone' | 'unknown' | 'not_everywhere';

/**
 * Gone only if every server that answers says so and has the token of the identity that was checked: a server that still has the
 * holder's, or not yet the other, may be the one that is right.
 */
export function findHolderToken(
  answer: Answer | undefined,
  /** What each server says, as far as they answer. */
  everywhere: readonly Answer[],
  tokens: { own: string; holder: string },
): HolderToken {
  const all = [answer, ...everywhere];
  const theirs = all.map((one) => findToken(one, tokens.holder));
  if (theirs.includes('valid')) return 'valid';
  if (everywhere.length === 0 || theirs.includes('unknown')) return 'unknown';
  return all.every((one) => hasToken(one, tokens.own)) ? 'gone' : 'not_everywhere';
}
