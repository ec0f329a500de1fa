/**
 * OAuth2 access tokens for mail servers (RFC 6749 §6). Guarantees: never rejects for what the token server does; a token is kept in
 * memory until shortly before it expires; while one request for a token is under way, others wait for it, because a token server may
 * take each refresh token only once.
 */
import tls from 'node:tls';
import type { Egress } from './egress.ts';
import { type HideSecrets, hideSecrets } from './hide-secrets.ts';
import {
  describeServerError,
  findTokenUrlFault,
  limitToTokenServer,
  type OAuth2,
  type ServerError,
} from './mail-server.ts';
import { requestSmall, type SmallResponse } from './small-request.ts';

/** Where the login of a server is stored. */
export interface TokenSource {
  /** Another one for each server, and after each change that the user made. */
  key: string;
  /** Null: the server does not log in by OAuth2 any more. */
  read(): Promise<OAuth2 | null>;
  /** Stores a new refresh token in the place of `old`. */
  save(old: string, renewed: string): Promise<void>;
}

export type TokenAnswer = { token: string } | { error: ServerError };

interface KeptToken {
  token: string;
  untilMs: number;
}

const maxKept = 10_000;
const maxBytes = 64 * 1024;
/** A token is not used in the last minute of its life. */
const marginSeconds = 60;
/** RFC 6749 §5.1 does not require `expires_in`. */
const usualSeconds = 300;
/** The refresh token or the client is not accepted (RFC 6749 §5.2): only the user can change that. */
const finalErrors = ['invalid_grant', 'invalid_client', 'unauthorized_client'];

export class AccessTokens {
  readonly #egress: Egress;
  readonly #allowHttp: boolean;
  readonly #secure: tls.SecureContext;
  readonly #withinMs: number;
  readonly #now: () => number;
  readonly #kept = new Map<string, KeptToken>();
  readonly #open = new Map<string, Promise<TokenAnswer>>();

  constructor(parts: {
    egress: Egress;
    allowHttp: boolean;
    /** Certificate authorities (PEM) instead of the well-known ones. */
    ca?: string;
    withinMs?: number;
    /** Milliseconds of a clock that only goes forward. */
    now?: () => number;
  }) {
    this.#egress = parts.egress;
    this.#allowHttp = parts.allowHttp;
    this.#secure = tls.createSecureContext(parts.ca === undefined ? {} : { ca: parts.ca });
    this.#withinMs = parts.withinMs ?? 10_000;
    this.#now = parts.now ?? (() => performance.now());
  }

  take(source: TokenSource): Promise<TokenAnswer> {
    const kept = this.#kept.get(source.key);
    if (kept && kept.untilMs > this.#now()) return Promise.resolve({ token: kept.token });
    const open = this.#open.get(source.key);
    if (open) return open;
    const started = this.#renew(source).finally(() => this.#open.delete(source.key));
    this.#open.set(source.key, started);
    return started;
  }

  /** After a mail server refused a token: the next one is asked for anew. */
  forget(key: string): void {
    this.#kept.delete(key);
  }

  async #renew(source: TokenSource): Promise<TokenAnswer> {
    const first = await source.read();
    if (!first) return { error: refuseRefreshToken('') };
    const answer = await this.#ask(source, first);
    if ('token' in answer || answer.error.code !== 'authentication_failed') return answer;
    // Another process may have used the refresh token a moment ago, and stored the next one.
    const second = await source.read();
    return second && second.refreshToken !== first.refreshToken ? this.#ask(source, second) : answer;
  }

  async #ask(source: TokenSource, oauth2: OAuth2): Promise<TokenAnswer> {
    const { clientId, clientSecret, refreshToken, tokenUrl, scope } = oauth2;
    const fault = findTokenUrlFault(tokenUrl, { allowHttp: this.#allowHttp });
    if (fault) return { error: describeServerError('target_refused', { detail: `"tokenUrl" ${fault}` }) };
    const url = new URL(tokenUrl);
    const body = new URLSearchParams({
      grant_type: 'refresh_token',
      refresh_token: refreshToken,
      client_id: clientId,
      ...(clientSecret === null ? {} : { client_secret: clientSecret }),
      ...(scope === null ? {} : { scope }),
    }).toString();
    const headers = {
      'content-type': 'application/x-www-form-urlencoded',
      'content-length': String(Buffer.byteLength(body)),
      accept: 'application/json',
    };
    const egress = limitToTokenServer(this.#egress, url);
    const limits = { egress, secure: this.#secure, withinMs: this.#withinMs, maxBytes };
    const hide = hideSecrets([refreshToken, clientSecret]);
    const read = readAnswer(await requestSmall({ url, headers, body }, limits), hide);
    if ('error' in read) return read;
    if (read.refreshToken !== null && read.refreshToken !== refreshToken)
      await source.save(refreshToken, read.refreshToken);
    this.#keep(source.key, read);
    return { token: read.token };
  }

  #keep(key: string, { token, expiresIn }: GivenToken): void {
    const [oldest] = this.#kept.size >= maxKept ? this.#kept.keys() : [];
    if (oldest !== undefined) this.#kept.delete(oldest);
    this.#kept.set(key, { token, untilMs: this.#now() + (expiresIn - marginSeconds) * 1000 });
  }
}

interface GivenToken {
  token: string;
  expiresIn: number;
  refreshToken: string | null;
}

function readAnswer(answer: SmallResponse, hide: HideSecrets): GivenToken | { error: ServerError } {
  if (answer.kind === 'failed') {
    const isLate = /timeout$/.test(answer.code);
    const isRefused = answer.code === 'target_refused';
    const code = isLate ? 'timeout' : isRefused ? 'target_refused' : 'token_server_failed';
    return { error: describeServerError(code, { detail: `token server: ${answer.detail}` }) };
  }
  const { status } = answer;
  const fields = readObject(answer.body);
  const text = (name: string) => (typeof fields[name] === 'string' ? (fields[name] as string) : null);
  const token = text('access_token');
  // A token with a line break or another control character would end the command of the mail server.
  if (status === 200 && token && /^[\x21-\x7e]+$/.test(token)) {
    const seconds = Number(fields.expires_in ?? usualSeconds);
    return {
      token,
      expiresIn: Number.isFinite(seconds) ? seconds : usualSeconds,
      refreshToken: text('refresh_token'),
    };
  }
  const error = text('error');
  const response = hide([error, text('error_description')].filter(Boolean).join(': '));
  if (error && finalErrors.includes(error)) return { error: refuseRefreshToken(response) };
  const detail = `token server: status ${status}`;
  return { error: describeServerError('token_server_failed', { detail, response }) };
}

function refuseRefreshToken(response: string): ServerError {
  const message =
    'The token server no longer accepts the refresh token or the client. Authorize Posthorn at the service again, and enter the new refresh token.';
  return { ...describeServerError('authentication_failed', { response }), message };
}

function readObject(json: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(json);
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}
