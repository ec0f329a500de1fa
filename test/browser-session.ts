/** A browser that signed in, as tests need it: its cookie and CSRF token, and requests as our own page makes them. */
import assert from 'node:assert/strict';
import { type Answer, type CallOptions, callUrl } from './harness.ts';

export const samePage = { 'sec-fetch-site': 'same-origin' };

export interface Browser {
  id: string;
  /** `name=value`. */
  cookie: string;
  csrfToken: string;
  /** The `Set-Cookie` header of the sign-in. */
  setCookie: string;
  call(method: string, path: string, options?: CallOptions): Promise<Answer>;
}

export function signIn(
  url: string,
  body: { apiKey?: string; token?: string },
  headers: Record<string, string> = {},
): Promise<Answer> {
  return callUrl('POST', `${url}/sessions`, { body, headers: { ...samePage, ...headers } });
}

export async function openBrowser(
  url: string,
  body: { apiKey?: string; token?: string },
  headers: Record<string, string> = {},
): Promise<Browser> {
  const answer = await signIn(url, body, headers);
  assert.equal(answer.status, 201, answer.text);
  const setCookie = answer.headers.get('set-cookie') ?? '';
  const [cookie = ''] = setCookie.split(';');
  const { id, csrfToken } = answer.body;
  return {
    ...{ id, cookie, csrfToken, setCookie },
    call: (method, path, options = {}) =>
      callUrl(method, `${url}${path}`, {
        ...options,
        headers: { ...samePage, cookie, 'x-csrf-token': csrfToken, ...options.headers },
      }),
  };
}
