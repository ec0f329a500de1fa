/** A mail server of a user: the login, which is never shown or logged, and whom a user may have called. */
import { isIP } from 'node:net';
import type { Egress, Resolution } from './egress.ts';

export interface OAuth2 {
  clientId: string;
  clientSecret: string | null;
  refreshToken: string;
  tokenUrl: string;
  scope: string | null;
}

export interface MailServer {
  /** A name, or an IP address without brackets. */
  host: string;
  port: number;
  /** TLS from the start. */
  secure: boolean;
  username: string;
  login: { password: string } | { oauth2: OAuth2 };
}

/** Why a mail server cannot be used, for its user. */
export interface ServerError {
  /** Stable, such as `authentication_failed`. */
  code: ServerErrorCode;
  /** What to do. */
  message: string;
  /** The server's own words, cut. */
  response: string | null;
}

export type ServerErrorCode = keyof typeof advice;

const maxResponseLength = 200;

const advice = {
  authentication_failed:
    'Check the user name and the password. Many services want an app password or OAuth2 instead of the usual password.',
  token_server_failed:
    'The token server did not give an access token. Check `tokenUrl`, `clientId` and `scope`; if they are right, try again later.',
  certificate_invalid:
    'Use the host name that the certificate of the server is issued for, or have the server get a valid certificate.',
  tls_unavailable:
    'The server offers no TLS on this port. Use a port with TLS from the start (465 or 993, `secure` true) or one with STARTTLS.',
  tls_failed:
    'The TLS handshake failed. Check that `secure` fits the port: true for 465 and 993, false for 587, 25 and 143.',
  host_not_found: 'Check the spelling of the host: DNS has no address for it.',
  target_refused: 'Posthorn may not call this host or port.',
  timeout: 'The server did not answer in time. Check the host and the port, and that `secure` fits the port.',
  connection_refused:
    'Nothing listens on this port. Check the port: 465 or 587 for SMTP, 993 or 143 for IMAP.',
  connection_failed: 'The server cannot be reached. Check the host and the port, or try again later.',
  login_unsupported:
    'The server offers no way to log in that Posthorn knows. Check that the port is for submission (465 or 587), and whether the server wants OAuth2.',
  server_refused: 'The server refused the connection. Its reply says why.',
} as const;

/** `detail`: more about the cause, in our words. `response`: the server's words, of any length. */
export function describeServerError(
  code: ServerErrorCode,
  { detail, response }: { detail?: string | null; response?: string | null } = {},
): ServerError {
  const message = detail ? `${advice[code]} (${detail.replace(/\.$/, '')})` : advice[code];
  return { code, message, response: response ? cutResponse(response) : null };
}

/** One line without control characters. */
function cutResponse(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the expression finds control characters.
  const line = text.replace(/[\u0000-\u0020\u007f]+/g, ' ').trim();
  return line.slice(0, maxResponseLength).toWellFormed();
}

const mailPorts: readonly number[] = [25, 465, 587, 2525, 143, 993];
const implicitTlsPorts: readonly number[] = [465, 993];

export function usesTlsByDefault(port: number): boolean {
  return implicitTlsPorts.includes(port);
}

/** By the egress rules; on another port only an address that the operator allowed. */
export function resolveMailServer(
  egress: Egress,
  host: string,
  port: number,
  deadlineMs?: number,
): Promise<Resolution> {
  const reason = `Port ${port} is not a port of mail servers. Use ${mailPorts.join(', ')}; the operator can allow others with POSTHORN_ALLOW_TARGETS.`;
  return resolveOnPort(egress, host, mailPorts.includes(port) ? null : reason, deadlineMs);
}

/** `refusal`: why only an address that the operator allowed may be called; null: any address may. */
async function resolveOnPort(
  egress: Egress,
  host: string,
  refusal: string | null,
  deadlineMs?: number,
): Promise<Resolution> {
  const found = await egress.resolve(host, deadlineMs);
  const isRefused =
    found.ok && refusal !== null && !found.addresses.every(({ address }) => egress.isAllowedTarget(address));
  return isRefused ? { ok: false, code: 'target_refused', reason: refusal, isAbsent: false } : found;
}

/** Why the URL of a token server is invalid: the rest of a sentence that starts with the field's name. Null when valid. */
export function findTokenUrlFault(text: string, { allowHttp }: { allowHttp: boolean }): string | null {
  const url = URL.parse(text);
  if (!url || /\s/.test(text) || !(url.protocol === 'https:' || (allowHttp && url.protocol === 'http:')))
    return 'must be an https URL, such as https://oauth2.example.com/token.';
  if (url.username || url.password || text.includes('#'))
    return 'must not contain a user name, a password or a fragment.';
  return null;
}

/** The egress rules for a token server: https on 443; the operator can allow others, with POSTHORN_ALLOW_TARGETS. */
export function limitToTokenServer(egress: Egress, url: URL): Egress {
  const isUsual = url.protocol === 'https:' && url.port === '';
  const refusal = isUsual ? null : 'A token server must use https on port 443.';
  return { ...egress, resolve: (host, deadlineMs) => resolveOnPort(egress, host, refusal, deadlineMs) };
}

/** On this machine there is nobody in between who could read a password. */
export function isLoopbackHost(host: string): boolean {
  const name = host.toLowerCase();
  return (
    name === 'localhost' ||
    name.endsWith('.localhost') ||
    name === '::1' ||
    (isIP(name) === 4 && name.startsWith('127.'))
  );
}
