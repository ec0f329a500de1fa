/** The form of a webhook's URL. `net/egress.ts` checks at each try whether Posthorn may call the host. */

export const maxUrlLength = 2048;

export interface UrlRules {
  allowHttp: boolean;
  production: boolean;
}

/** Why the URL is invalid, apart from its length: the rest of a sentence that starts with the field's name. Null when valid. */
export function findUrlFault(text: string, options: UrlRules): string | null {
  // The URL parser silently removes tabs, newlines and outer spaces.
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the expression finds control characters.
  if (/[\u0000-\u0020\u007f]/.test(text))
    return 'must not contain spaces or control characters; percent-encode them.';
  const url = URL.parse(text);
  if (!url) return 'must be an absolute URL such as https://example.com/hooks.';
  const schemes = options.allowHttp ? ['https:', 'http:'] : ['https:'];
  if (!schemes.includes(url.protocol)) {
    const why = options.production && !options.allowHttp ? ' In production, webhooks must use https://.' : '';
    return `must begin with ${schemes.map((scheme) => `${scheme}//`).join(' or ')}.${why}`;
  }
  if (!/^https?:\/\//i.test(text)) return 'must have two slashes after the scheme.';
  if (url.username || url.password || /^[^/]*\/\/[^/?#]*@/.test(text)) {
    return 'must not contain a user name or password; verify the signature of deliveries instead.';
  }
  if (text.includes('#')) return 'must not contain a fragment (#…): a fragment is never sent.';
  return null;
}
