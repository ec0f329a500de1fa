/** Reads the URL of a relay: `smtp://` or `smtps://user:password@host:port`. Pure. */
import { isIP } from 'node:net';

export interface Relay {
  /** A name, or an IP address without brackets. */
  host: string;
  port: number;
  /** TLS before the greeting. */
  isImplicitTls: boolean;
  security: 'verified' | 'opportunistic';
  login: { user: string; password: string } | null;
}

/** RFC 8314 §3.3 for `smtps`; a relay within an organisation listens on 25. */
const standardPorts: Record<string, number | undefined> = { 'smtp:': 25, 'smtps:': 465 };

/** Returns the relay, or the end of a sentence that says what is wrong; it never repeats the password. */
export function parseRelayUrl(text: string): Relay | { fault: string } {
  const url = URL.parse(text);
  const standardPort = standardPorts[url?.protocol ?? ''];
  if (!url || standardPort === undefined) return { fault: 'must start with smtp:// or smtps://' };
  const host = url.hostname.replace(/^\[|\]$/g, '').toLowerCase();
  if (!/^[\w.:-]+$/.test(host)) return { fault: 'has no valid host; write xn-- for letters outside ASCII' };
  if (!/^\/?$/.test(url.pathname) || url.search !== '' || url.hash !== '') {
    return { fault: 'has text after the host and port; write % and / in a password as %25 and %2F' };
  }
  const [user, password] = [url.username, url.password].map(decode);
  if (user === null || password === null) {
    return { fault: 'has a user or password with a wrong % sequence; write % as %25' };
  }
  if ((user === '') !== (password === '')) return { fault: 'needs a user and a password, or neither' };
  const isLocal =
    host === 'localhost' ||
    host.endsWith('.localhost') ||
    host === '::1' ||
    (isIP(host) === 4 && host.startsWith('127.'));
  const isImplicit = url.protocol === 'smtps:';
  return {
    host,
    port: url.port === '' ? standardPort : Number(url.port),
    isImplicitTls: isImplicit,
    // A password must not go to someone who only claims to be the relay. On this machine there is nobody in between.
    security: (isImplicit || password !== '') && !isLocal ? 'verified' : 'opportunistic',
    login: user && password ? { user, password } : null,
  };
}

/** Null: not a percent-encoding, or with a NUL, which AUTH PLAIN cannot carry. */
function decode(text: string): string | null {
  try {
    const decoded = decodeURIComponent(text);
    return decoded.includes('\0') ? null : decoded;
  } catch {
    return null;
  }
}
