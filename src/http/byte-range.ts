/** Conditional and partial answers for bytes that never change (RFC 9110 §13 and §14). */

export interface ByteRange {
  start: number;
  /** Not included. */
  end: number;
}

/** The one range that is asked for; null for the whole, also where several are asked for; 'unsatisfiable' for none of it. */
export function readRange(header: string | undefined, size: number): ByteRange | null | 'unsatisfiable' {
  const match = /^bytes=(\d*)-(\d*)$/i.exec(header?.replaceAll(/\s/g, '') ?? '');
  if (!match) return null;
  const [, first = '', last = ''] = match;
  if (first === '' && last === '') return null;
  // The last so many.
  if (first === '') {
    const start = Math.max(0, size - Number(last));
    return start < size ? { start, end: size } : 'unsatisfiable';
  }
  const start = Number(first);
  const end = last === '' ? size : Math.min(Number(last) + 1, size);
  if (last !== '' && Number(last) < start) return null;
  return start < size ? { start, end } : 'unsatisfiable';
}

export function matchesTag(header: string | undefined, tag: string): boolean {
  if (header === undefined) return false;
  return header.split(',').some((one) => one.trim() === '*' || one.trim().replace(/^W\//, '') === tag);
}
