/** Range and If-None-Match for bytes that never change (RFC 9110 §13 and §14). */

export interface ByteRange {
  start: number;
  /** Exclusive. */
  end: number;
}

/** Null: send everything. That includes several ranges and a malformed header, both of which a server may ignore (§14.2). */
export function readRange(header: string | undefined, size: number): ByteRange | null | 'unsatisfiable' {
  const match = /^bytes=(\d*)-(\d*)$/i.exec(header?.replaceAll(/\s/g, '') ?? '');
  if (!match) return null;
  const [, first = '', last = ''] = match;
  if (first === '' && last === '') return null;
  // `bytes=-500`: the last 500 bytes.
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
  return header.split(',').some((part) => part.trim() === '*' || part.trim().replace(/^W\//, '') === tag);
}
