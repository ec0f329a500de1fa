/** What is kept of an answer: 16 KiB of its headers and as much of its body, in a form that PostgreSQL takes. Pure. */

export const maxKeptBytes = 16 * 1024;

export type IncomingHeaders = Record<string, string | string[] | undefined>;

/** Repeated ones joined; those beyond the limit left out. Nearly always the very object that came. */
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

/** Bytes that are no UTF-8 are replaced, NULs left out. */
export function readText(chunks: readonly Buffer[], size: number): string {
  const [first] = chunks;
  if (first === undefined) return '';
  const bytes = chunks.length === 1 ? first : Buffer.concat(chunks, Math.min(size, maxKeptBytes));
  const text = bytes.toString('utf8', 0, maxKeptBytes);
  return text.includes('\0') ? text.replaceAll('\0', '') : text;
}
