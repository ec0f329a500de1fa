/** Reads tag lists, `v=DKIM1; k=rsa; p=…` (RFC 6376 §3.2), of DKIM and DMARC. Pure. */

/**
 * Null: the text is not a tag list, or a tag occurs twice. `leniently`, for DNS records that people write: names in any case,
 * and everything that is not a tag is skipped.
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
