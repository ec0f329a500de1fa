/** Tag lists, `v=DKIM1; k=rsa; p=…` (RFC 6376 §3.2), as DKIM and DMARC records are written. Pure. */

/** Null for text that is no tag list, one that names a tag twice included. Space around names and values is dropped. */
export function readTags(text: string): Map<string, string> | null {
  const tags = new Map<string, string>();
  const parts = text.split(';');
  if (parts.at(-1)?.trim() === '') parts.pop();
  for (const part of parts) {
    const [, name, value = ''] = /^\s*([a-z]\w*)\s*=(.*)$/is.exec(part) ?? [];
    if (name === undefined || tags.has(name)) return null;
    tags.set(name, value.trim());
  }
  return tags.size > 0 ? tags : null;
}
