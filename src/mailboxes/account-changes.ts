/**
 * What a request makes of the servers of an SMTP account. Pure. Guarantee: a stored secret is kept only for the server that it was
 * given for, so that nobody can have it sent elsewhere.
 */
import { domainToASCII } from 'node:url';
import { type MailServer, type OAuth2, usesTlsByDefault } from '../net/mail-server.ts';

interface GivenServer {
  host: string;
  port: number;
  secure?: boolean;
  username: string;
  password?: string;
  oauth2?: GivenOAuth2;
}

interface GivenOAuth2 {
  clientId: string;
  clientSecret?: string | null;
  refreshToken: string;
  tokenUrl: string;
  scope?: string | null;
}

/** Fields that are left out stay as they are. */
export type ServerChanges = Partial<Omit<GivenServer, 'oauth2'>> & { oauth2?: Partial<GivenOAuth2> };

/** Pointers below the side: to fields that are missing, and to secrets that must be given again. */
export type ChangedServer = { server: MailServer } | { missing: string[] } | { secretsNeeded: string[] };

export function changeServer(stored: MailServer | null, given: ServerChanges): ChangedServer {
  const { host, port, username } = { ...stored, ...given };
  const missing = [
    ...(host === undefined ? ['/host'] : []),
    ...(port === undefined ? ['/port'] : []),
    ...(username === undefined ? ['/username'] : []),
    ...(!stored && given.password === undefined && !given.oauth2 ? ['/password'] : []),
  ];
  const oldTokens = stored && 'oauth2' in stored.login ? stored.login.oauth2 : null;
  if (given.oauth2 && !oldTokens) {
    const needed = ['clientId', 'refreshToken', 'tokenUrl'] as const;
    missing.push(...needed.filter((name) => !given.oauth2?.[name]).map((name) => `/oauth2/${name}`));
  }
  if (missing.length > 0 || host === undefined || port === undefined || username === undefined)
    return { missing };
  const server = { host: readHost(host), port, username, secure: readSecure(stored, given, port) };
  const isElsewhere = stored !== null && isOtherServer(stored, server);
  if (given.password !== undefined) return { server: { ...server, login: { password: given.password } } };
  if (!given.oauth2 && stored) {
    if (isElsewhere) return { secretsNeeded: listSecrets(stored.login) };
    return { server: { ...server, login: stored.login } };
  }
  const oauth2 = {
    ...{ clientSecret: null, scope: null },
    ...oldTokens,
    ...given.oauth2,
  } as OAuth2;
  if (oldTokens && (isElsewhere || oauth2.tokenUrl !== oldTokens.tokenUrl)) {
    const secretsNeeded = listSecrets({ oauth2: oldTokens }).filter(
      (pointer) => given.oauth2?.[pointer.slice('/oauth2/'.length) as keyof GivenOAuth2] === undefined,
    );
    if (secretsNeeded.length > 0) return { secretsNeeded };
  }
  return { server: { ...server, login: { oauth2 } } };
}

/** A port that changes brings its own way of TLS. */
function readSecure(stored: MailServer | null, given: ServerChanges, port: number): boolean {
  if (given.secure !== undefined) return given.secure;
  return stored?.port === port ? stored.secure : usesTlsByDefault(port);
}

function isOtherServer(stored: MailServer, { host, port, username, secure }: Omit<MailServer, 'login'>) {
  return (
    host !== stored.host || port !== stored.port || username !== stored.username || (stored.secure && !secure)
  );
}

function listSecrets(login: MailServer['login']): string[] {
  if ('password' in login) return ['/password'];
  return ['/oauth2/refreshToken', ...(login.oauth2.clientSecret === null ? [] : ['/oauth2/clientSecret'])];
}

/** As it is called: A-labels in lower case, and an IPv6 address without brackets. What is no host stays as it is. */
export function readHost(text: string): string {
  const host = text.replace(/^\[|\]$|\.+$/g, '').toLowerCase();
  // domainToASCII decodes "%" and cuts at "/", "?" and "#", as in a URL.
  const isName = !/(?![a-z0-9._-])[!-~]/.test(host);
  return isName ? domainToASCII(host) : host;
}
