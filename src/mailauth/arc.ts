/** Validates a chain of ARC sets (RFC 8617 §5.2): each forwarder of a message signs the results that it saw. Pure. */
import { canonicalField } from './canonical.ts';
import { type DkimResult, type Signature, type Verifier, withoutValue } from './dkim.ts';

export type ArcResult = 'pass' | 'fail' | 'none' | 'temperror';

type ArcFieldName = 'arc-authentication-results' | 'arc-message-signature' | 'arc-seal';
type ArcSet = Record<ArcFieldName, Signature>;

export const arcField = /^(arc-(?:authentication-results|message-signature|seal))[ \t]*:/i;
/** RFC 8617 §4.2.1. */
const maxSets = 50;

/** `signatures`: all fields that match `arcField`. */
export function validateArc(signatures: readonly Signature[], verifier: Verifier): ArcResult {
  if (signatures.length === 0) return 'none';
  const sets = gatherSets(signatures);
  const last = sets?.at(-1);
  if (!sets || !last) return 'fail';
  const results: DkimResult[] = [verifier.verify(last['arc-message-signature'], 'arc').result];
  let previous = '';
  for (const set of sets) {
    // RFC 8617 §5.1.1: a seal signs all sets up to its own, in order.
    const canonical = (name: ArcFieldName) => `${canonicalField(set[name].field, 'relaxed')}\r\n`;
    const own = `${previous}${canonical('arc-authentication-results')}${canonical('arc-message-signature')}`;
    const seal = set['arc-seal'];
    const text = `${own}${canonicalField(withoutValue(seal.field), 'relaxed')}`;
    results.push(verifier.verifyText(seal, text).result);
    previous = `${own}${canonical('arc-seal')}`;
  }
  if (results.every((result) => result === 'pass')) return 'pass';
  // A missing DNS answer is not a failure, but does not hide one.
  return results.every((result) => result === 'pass' || result === 'temperror') ? 'temperror' : 'fail';
}

/** Null: the fields do not form a valid chain from 1 on. */
function gatherSets(signatures: readonly Signature[]): ArcSet[] | null {
  const sets: Partial<ArcSet>[] = [];
  for (const signature of signatures) {
    const name = arcField.exec(signature.field)?.[1]?.toLowerCase() as ArcFieldName;
    const instance = readInstance(name, signature);
    if (instance === null) return null;
    sets[instance - 1] ??= {};
    const set = sets[instance - 1] as Partial<ArcSet>;
    if (set[name]) return null;
    set[name] = signature;
  }
  // The copy turns holes into `undefined`; `every` of the array itself would skip them.
  const isValid = [...sets].every((set, n) => set && isValidSet(set, n === 0 ? 'none' : 'pass'));
  return isValid ? (sets as ArcSet[]) : null;
}

function isValidSet(set: Partial<ArcSet>, validation: 'none' | 'pass'): boolean {
  const { 'arc-message-signature': message, 'arc-seal': seal } = set;
  if (!set['arc-authentication-results'] || !message || !seal) return false;
  if (seal.tags.get('cv')?.toLowerCase() !== validation || seal.tags.has('h')) return false;
  const signed = (message.tags.get('h') ?? '').toLowerCase().split(':');
  const isValid = [seal, message].every((signature) => isStrong(signature) && !hasEmptyTag(signature));
  return isValid && !signed.some((name) => name.trim() === 'arc-seal');
}

/** RFC 8617 §4.1: ARC does not allow SHA-1. */
function isStrong({ tags }: Signature): boolean {
  return /-sha256$/i.test(tags.get('a') ?? '');
}

/** RFC 6376 §3.2: only the last tag may be empty. DKIM signatures with `;;` exist and verify; a chain has no such habit. */
function hasEmptyTag({ field }: Signature): boolean {
  return /;[ \t\r\n]*;/.test(field);
}

function readInstance(name: ArcFieldName, { field, tags }: Signature): number | null {
  // ARC-Authentication-Results is not a tag list, but it begins with this tag.
  const first = /^[^:]+:[ \t\r\n]*i[ \t\r\n]*=[ \t\r\n]*(\d+)[ \t\r\n]*;/i;
  const text = name === 'arc-authentication-results' ? first.exec(field)?.[1] : tags.get('i');
  const instance = /^\d{1,2}$/.test(text ?? '') ? Number(text) : 0;
  return instance >= 1 && instance <= maxSets ? instance : null;
}
