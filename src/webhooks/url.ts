/** What a webhook's URL must look like. Whom it may reach is checked where it is called. */

export const maxUrlLength = 2048;

/** What is wrong with it besides its length, in a sentence for the person who wrote it; null when nothing is. */
export function findUrlFault(text: string, options: { allowHttp: boolean }): string | null {
  // The URL parser drops tabs, newlines and outer spaces in silence.
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what it looks for.
  if (/[\u0000-\u0020\u007f]/.test(text))
    return 'must not hold spaces or control characters; percent-encode them.';
  const url = URL.parse(text);
  if (!url) return 'must be an absolute URL such as https://example.com/hooks.';
  const schemes = options.allowHttp ? ['https:', 'http:'] : ['https:'];
  if (!schemes.includes(url.protocol))
    return `must begin with ${schemes.map((scheme) => `${scheme}//`).join(' or ')}.`;
  if (!/^https?:\/\//i.test(text)) return 'must have two slashes after its scheme.';
  if (url.username || url.password || /^[^/]*\/\/[^/?#]*@/.test(text)) {
    return 'must not hold a user name or password; verify the signature of deliveries instead.';
  }
  if (text.includes('#')) return 'must not hold a fragment (#…); it would never be sent.';
  return null;
}
