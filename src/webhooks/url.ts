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
  // The URL parser reads a backslash as a slash, except in the query.
  if (text.includes('\\')) return 'must not contain backslashes; use "/" in the path, or %5C.';
  const url = URL.parse(text);
  if (!url) return 'must be an absolute URL such as https://example.com/hooks.';
  const schemes = options.allowHttp ? ['https:', 'http:'] : ['https:'];
  if (!schemes.includes(url.protocol)) {
    const why = options.production && !options.allowHttp ? ' In production, webhooks must use https://.' : '';
    return `must begin with ${schemes.map((scheme) => `${scheme}//`).join(' or ')}.${why}`;
  }
  // The URL parser accepts any number of slashes here.
  if (!/^https?:\/\/[^/]/i.test(text))
    return 'must have exactly two slashes before the host, such as https://example.com/hooks.';
  if (url.username || url.password || /^[^/]*\/\/[^/?#]*@/.test(text)) {
    return 'must not contain a user name or password; verify the signature of deliveries instead.';
  }
  if (text.includes('#')) return 'must not contain a fragment (#…): a fragment is never sent.';
  // The parser has converted names in other scripts to ASCII. It leaves quotes and braces, which no host name has.
  if (!/^(?:[a-z0-9._-]+|\[[0-9a-f:]+\])$/.test(url.hostname))
    return 'must have a host of letters, digits, dots, hyphens and underscores, or an IP address.';
  if (url.port === '0') return 'must not have port 0; use the port on which your server listens.';
  return null;
}
