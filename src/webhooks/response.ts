/** Which part of a response is kept: 16 KiB of its headers and 16 KiB of its body, as text that PostgreSQL accepts. Pure. */

export const maxKeptBytes = 16 * 1024;

export type IncomingHeaders = Record<string, string | string[] | undefined>;

/** Joins repeated headers, and leaves out headers beyond the limit. Usually neither is needed: then no object is made. */
export function keepHeaders(headers: IncomingHeaders): Record<string, string> {
  let size = 0;
  let isFit = true;
  for (const name in headers) {
    const value = headers[name];
    if (typeof value === 'string') size += name.length + value.length;
    else isFit = false;
  }
  if (isFit && size <= maxKeptBytes) return headers as Record<string, string>;

  size = 0;
  const kept: [string, string][] = [];
  for (const [name, value] of Object.entries(headers)) {
    const joined = Array.isArray(value) ? value.join(', ') : (value ?? '');
    size += name.length + joined.length;
    if (size > maxKeptBytes) break;
    kept.push([name, joined]);
  }
  return Object.fromEntries(kept);
}

/** Replaces bytes that are not UTF-8, and removes NUL characters, which PostgreSQL does not store. */
export function readText(chunks: readonly Buffer[], size: number): string {
  const [first] = chunks;
  if (first === undefined) return '';
  const bytes = chunks.length === 1 ? first : Buffer.concat(chunks, Math.min(size, maxKeptBytes));
  return bytes.toString('utf8', 0, maxKeptBytes).replaceAll('\0', '');
}
