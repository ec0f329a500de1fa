/** Tag lists, `v=DKIM1; k=rsa; p=…` (RFC 6376 §3.2), as DKIM and DMARC records are written. Pure. */

/**
 * Null for text that is no tag list, one that names a tag twice included. Space around names and values is dropped, and so is
 * an empty tag. Leniently, as what people write in DNS is read: names in any case, and whatever is no tag is passed over.
 */
export function readTags(
  text: string,
  how: 'strictly' | 'leniently' = 'strictly',
): Map<string, string> | null {
  const tags = new Map<string, string>();
  const isLenient = how === 'leniently';
  for (const part of text.split(';')) {
    const [, written, value = ''] = /^\s*([a-z0-9][\w-]*)\s*=(.*)$/is.exec(part) ?? [];
    const name = isLenient ? written?.toLowerCase() : written;
    const isTag = name !== undefined && !tags.has(name);
    if (isTag) tags.set(name, value.trim());
    else if (!isLenient && part.trim() !== '') return null;
  }
  return tags.size > 0 ? tags : null;
}
