import fc from 'fast-check';

/**
 * A unit of `fc.string`: any character of Unicode, each as often as the others. The unit `binary` of fast-check gives the same
 * strings, but takes a second of a core in every process for a table of all characters.
 */
export const anyCharacter = fc
  .oneof(
    { weight: 0xd800, arbitrary: fc.integer({ min: 0, max: 0xd7ff }) },
    { weight: 0x110000 - 0xe000, arbitrary: fc.integer({ min: 0xe000, max: 0x10ffff }) },
  )
  .map((code) => String.fromCodePoint(code), readCode);

/** With it fast-check also tries words that are known to break programs, such as `__proto__`. */
function readCode(text: unknown): number {
  const [character, ...more] = typeof text === 'string' ? text : '';
  if (character === undefined || more.length > 0) throw new Error('Not one character');
  return character.codePointAt(0) ?? 0;
}
