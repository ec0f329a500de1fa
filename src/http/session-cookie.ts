/**
 * The cookie of a session, and when it counts: only on requests of our own pages, and never beside `Authorization`. A write also needs
 * the CSRF token, which a page of another origin cannot read.
 */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { FastifyRequest } from 'fastify';
import type { Config } from '../config.ts';
import { originOf } from '../lib/origin.ts';
import { isToken } from '../lib/tokens.ts';
import { Problem } from '../problems.ts';

const lifetimeSeconds = 7 * 86_400;

export interface SessionCookie {
  name: string;
  /** The token in the cookie; undefined if there is none, or if it does not count. */
  read(request: FastifyRequest): string | undefined;
  /** A `Set-Cookie` header. */
  write(token: string): string;
  clear(): string;
}

type CookieConfig = Pick<Config, 'publicUrl' | 'basePath' | 'host'>;

export function makeSessionCookie({ publicUrl, basePath, host }: CookieConfig): SessionCookie {
  const isSecure = publicUrl?.startsWith('https:') ?? false;
  // Browsers take a cookie with such a prefix from a secure page of this host only, so a page of another subdomain cannot replace
  // ours (RFC 6265bis §4.1.3). `__Host-` requires the path /.
  const prefix = isSecure ? (basePath === '' ? '__Host-' : '__Secure-') : '';
  const name = `${prefix}posthorn_session`;
  const attributes = `Path=${basePath || '/'}; HttpOnly; SameSite=Strict${isSecure ? '; Secure' : ''}`;

  function isOurPage({ headers, socket }: FastifyRequest): boolean {
    const site = headers['sec-fetch-site'];
    // Browsers send this header to https and to localhost, and no page can change it.
    if (site !== undefined) return site === 'same-origin';
    const own = publicUrl ? new URL(publicUrl).origin : originOf(host, socket.localPort ?? 0);
    return headers.origin === own;
  }

  return {
    name,
    read(request) {
      const { authorization, cookie } = request.headers;
      if (authorization !== undefined || cookie === undefined || !isOurPage(request)) return undefined;
      const found = cookie.split(/; */).find((pair) => pair.startsWith(`${name}=`));
      return found?.slice(name.length + 1);
    },
    write: (token) => `${name}=${token}; Max-Age=${lifetimeSeconds}; ${attributes}`,
    clear: () => `${name}=; Max-Age=0; ${attributes}`,
  };
}

/** Follows from the token of the session, which does not follow from it. */
export function csrfTokenOf(token: string): string {
  return createHash('sha256').update(`csrf ${token}`).digest('base64url');
}

/** Throws for a write that lacks the CSRF token of its session. */
export function requireCsrfToken({ method, headers }: FastifyRequest, token: string): void {
  if (method === 'GET' || method === 'HEAD') return;
  const given = headers['x-csrf-token'];
  const isRight =
    typeof given === 'string' &&
    isToken(given) &&
    timingSafeEqual(Buffer.from(given), Buffer.from(csrfTokenOf(token)));
  if (!isRight) throw new Problem('invalid_csrf_token');
}
