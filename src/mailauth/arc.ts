/** Validates a chain of ARC sets (RFC 8617 §5.2): who forwarded a message, and what they say they saw. Pure. */
import { canonicalField } from './canonical.ts';
import { type DkimResult, readSignature, type Signature, type Verifier, withoutValue } from './dkim.ts';

export type ArcResult = 'pass' | 'fail' | 'none' | 'temperror';

const names = ['arc-authentication-results', 'arc-message-signature', 'arc-seal'] as const;
type Name = (typeof names)[number];
type ArcSet = Partial<Record<Name, Signature>>;

const arcField = /^(arc-(?:authentication-results|message-signature|seal))[ \t]*:/i;
/** RFC 8617 §4.2.1. */
const maxSets = 50;

export function validateArc(fields: readonly string[], verifier: Verifier): ArcResult {
  const sets = gatherSets(fields);
  if (sets === 'none' || sets === 'fail') return sets;
  const last = sets.at(-1) as Required<ArcSet>;
  const results = [
    verifier.verify(last['arc-message-signature'], 'arc'),
    ...sealTexts(sets).map((text, n) => verifier.verifyText((sets[n] as Required<ArcSet>)['arc-seal'], text)),
  ];
  return summarize(results);
}

/** A key that did not come makes no failure, unless there is one anyway. */
function summarize(results: readonly DkimResult[]): ArcResult {
  if (results.every((result) => result === 'pass')) return 'pass';
  return results.every((result) => result === 'pass' || result === 'temperror') ? 'temperror' : 'fail';
}

/** From the first on, each whole and in the form that a chain must have. */
function gatherSets(fields: readonly string[]): Required<ArcSet>[] | 'none' | 'fail' {
  const found = fields.flatMap((field) => {
    const name = arcField.exec(field)?.[1]?.toLowerCase() as Name | undefined;
    return name ? [{ name, signature: readSignature(field) }] : [];
  });
  if (found.length === 0) return 'none';
  const sets: ArcSet[] = [];
  for (const { name, signature } of found) {
    const instance = readInstance(name, signature);
    if (instance === null) return 'fail';
    sets[instance - 1] ??= {};
    const set = sets[instance - 1] as ArcSet;
    if (set[name]) return 'fail';
    set[name] = signature;
  }
  // A hole is `undefined` to `every` of a copy.
  const isWhole = [...sets].every((set, n) => set && isWholeSet(set, n === 0 ? 'none' : 'pass'));
  return isWhole ? (sets as Required<ArcSet>[]) : 'fail';
}

function isWholeSet(set: ArcSet, validation: 'none' | 'pass'): boolean {
  const { 'arc-message-signature': message, 'arc-seal': seal } = set;
  if (!set['arc-authentication-results'] || !message || !seal) return false;
  if (seal.tags.get('cv')?.toLowerCase() !== validation || seal.tags.has('h')) return false;
  const signed = (message.tags.get('h') ?? '').toLowerCase().split(':');
  return [seal, message].every(isStrong) && !signed.some((name) => name.trim() === 'arc-seal');
}

/** RFC 8617 §4.1: ARC has no SHA-1. */
function isStrong({ tags }: Signature): boolean {
  return /-sha256$/i.test(tags.get('a') ?? '');
}

function readInstance(name: Name, { field, tags }: Signature): number | null {
  // Results are no list of tags, but they begin with this one.
  const first = /^[^:]+:[ \t\r\n]*i[ \t\r\n]*=[ \t\r\n]*(\d+)[ \t\r\n]*;/i;
  const text = name === 'arc-authentication-results' ? first.exec(field)?.[1] : tags.get('i');
  const instance = /^\d{1,2}$/.test(text ?? '') ? Number(text) : 0;
  return instance >= 1 && instance <= maxSets ? instance : null;
}

/** What each seal is made over: all sets up to its own, in order (RFC 8617 §5.1.1). */
function sealTexts(sets: readonly Required<ArcSet>[]): string[] {
  let before = '';
  return sets.map((set) => {
    const canonical = (name: Name) => `${canonicalField(set[name].field, 'relaxed')}\r\n`;
    const own = `${before}${canonical('arc-authentication-results')}${canonical('arc-message-signature')}`;
    before = `${own}${canonical('arc-seal')}`;
    return `${own}${canonicalField(withoutValue(set['arc-seal'].field), 'relaxed')}`;
  });
}
