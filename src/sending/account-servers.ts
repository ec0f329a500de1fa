/**
 * The SMTP side of users' accounts and providers: mail that leaves through them, and the check of a login. Guarantees: hosts and ports by
 * the egress rules; a password goes out only over verified TLS, except to this machine in development; `send` of an account or a
 * provider shows how it went.
 */
import type { Sql } from '../db/client.ts';
import type { Log } from '../lib/log.ts';
import type { Sealer } from '../lib/secrets.ts';
import type { AccessTokens } from '../net/access-tokens.ts';
import { readAddressOrDomain } from '../net/address-or-domain.ts';
import type { Egress } from '../net/egress.ts';
import {
  describeServerError,
  isLoopbackHost,
  type MailServer,
  resolveMailServer,
  type ServerError,
  type ServerErrorCode,
} from '../net/mail-server.ts';
import { findProviderLogin, recordProviderState } from '../store/providers.ts';
import { findMailServer, readTokensFrom, recordSendState } from '../store/smtp-accounts.ts';
import { Connections } from './connections.ts';
import type { OutgoingMail } from './outgoing-mail.ts';
import { headerFieldsOf, smtpServerOf } from './provider-server.ts';
import {
  type ClientParts,
  makeTlsContexts,
  openConnection,
  type Server,
  standardTimeouts,
} from './transmit.ts';
import type { NotTried, Phase, SendErrorCode, TryReply } from './try-reply.ts';

export interface AccountParts {
  sql: Sql;
  sealer: Sealer;
  log: Log;
  egress: Egress;
  tokens: AccessTokens;
  /** Our name in EHLO. */
  heloName: string;
  production: boolean;
  timeouts?: typeof standardTimeouts;
  /** Certificate authorities (PEM) instead of the well-known ones. */
  ca?: string | undefined;
  /** Where a test has the SMTP service of a provider. */
  providerPort?: number | undefined;
}

export interface AccountRef {
  ownerId: string;
  accountId: string;
}

/** An account or a provider of a user: a way out of the identity's own. */
export type OwnRef = AccountRef | { ownerId: string; providerId: string };

/** Services close an account that opens many connections. */
const maxPerAccount = 3;
/** A state that is the same as before is recorded again only after this time. */
const sameStateMs = 60_000;
const maxKnownStates = 10_000;
/** Someone waits for the answer. */
const checkTimeouts = {
  ...standardTimeouts,
  connectMs: 10_000,
  tlsMs: 10_000,
  greetingMs: 15_000,
  commandMs: 15_000,
};

interface OpenedAccount {
  server: Server;
  version: number;
  /** The sender of the envelope; null: that of the mail. */
  mailFrom: string | null;
  /** Header fields to put in front of a message. */
  fieldsOf(messageId: string): string;
  tokenKey: string | null;
}

export class AccountServers {
  readonly #parts: AccountParts;
  readonly #client: ClientParts;
  readonly #connections: Connections;
  readonly #providerConnections: Connections;
  /** By account or provider: what was last recorded, and when. */
  readonly #recorded = new Map<string, { text: string; atMs: number }>();

  constructor(parts: AccountParts) {
    this.#parts = parts;
    this.#client = {
      resolve: (host, port) => resolveMailServer(parts.egress, host, port),
      heloName: parts.heloName,
      contexts: makeTlsContexts(parts.ca),
      timeouts: parts.timeouts ?? standardTimeouts,
    };
    this.#connections = new Connections(this.#client, { maxPerOwner: maxPerAccount });
    this.#providerConnections = new Connections(this.#client);
  }

  async send(ref: OwnRef, mail: OutgoingMail, signal: AbortSignal): Promise<TryReply | NotTried> {
    const opened = await this.#open(ref);
    if (!opened) throw new Error(`The account or provider ${idOf(ref)} has no server`);
    if ('error' in opened) {
      await this.#record(ref, opened.version, opened.error);
      return { kind: 'temporary', code: 'account_failed', reason: opened.error.message };
    }
    const mailFrom = opened.mailFrom ?? mail.mailFrom;
    const signature = `${opened.fieldsOf(mail.messageId)}${mail.signature}`;
    const connections = 'providerId' in ref ? this.#providerConnections : this.#connections;
    const reply = await connections.send([opened.server], { ...mail, mailFrom, signature }, signal);
    // The server may have the message: what became of it counts, also if the state of the account cannot be recorded.
    if (reply.error !== 'stopped')
      await this.#note(ref, opened, reply).catch((err: unknown) =>
        this.#parts.log.warn({ ...ref, err }, 'the state of an account or a provider was not recorded'),
      );
    return reply;
  }

  /**
   * Logs in and records the result. Records nothing if the client has gone, or if the account or provider was deleted meanwhile; a
   * check that took too long is a `timeout` (`isLate`).
   */
  async check(ref: OwnRef, signal: AbortSignal): Promise<void> {
    const opened = await this.#open(ref);
    this.#recorded.delete(idOf(ref));
    if (!opened) return;
    if ('error' in opened) return this.#record(ref, opened.version, opened.error);
    const client = { ...this.#client, timeouts: this.#parts.timeouts ?? checkTimeouts };
    const tried = await openConnection(opened.server, client, signal);
    if ('connection' in tried) tried.connection.quit();
    const failure = 'failure' in tried ? tried.failure : null;
    if (failure?.error !== 'stopped') await this.#note(ref, opened, failure);
    else if (isLate(signal)) await this.#record(ref, opened.version, describeServerError('timeout'));
  }

  close(): void {
    this.#connections.close();
    this.#providerConnections.close();
  }

  /** Undefined: it was deleted. */
  #open(ref: OwnRef): Promise<OpenedAccount | { version: number; error: ServerError } | undefined> {
    return 'providerId' in ref ? this.#openProvider(ref.ownerId, ref.providerId) : this.#openAccount(ref);
  }

  async #openProvider(ownerId: string, providerId: string): Promise<OpenedAccount | undefined> {
    const { sql, sealer, providerPort } = this.#parts;
    const found = await findProviderLogin(sql, sealer, ownerId, providerId);
    if (!found) return undefined;
    const { credentials, version } = found;
    return {
      server: { ...smtpServerOf(credentials, providerPort), account: `${providerId} ${version}` },
      fieldsOf: (messageId) => headerFieldsOf(credentials.kind, messageId),
      ...{ version, mailFrom: null, tokenKey: null },
    };
  }

  async #openAccount(
    ref: AccountRef,
  ): Promise<OpenedAccount | { version: number; error: ServerError } | undefined> {
    const { sql, sealer, tokens, production } = this.#parts;
    const found = await findMailServer(sql, sealer, { ...ref, side: 'smtp' });
    if (!found) return undefined;
    const { server, version } = found;
    const source = readTokensFrom(sql, sealer, { ...ref, side: 'smtp' }, version);
    const answer = 'password' in server.login ? server.login : await tokens.take(source);
    if ('error' in answer) return { version, error: answer.error };
    const login =
      'password' in answer
        ? { user: server.username, password: answer.password }
        : { user: server.username, accessToken: answer.token };
    return {
      server: { ...toServer(server, production), login, account: `${ref.accountId} ${version}` },
      // The address of the account, if its user name is one.
      ...{ version, mailFrom: readAddress(server.username), fieldsOf: () => '' },
      tokenKey: 'accessToken' in login ? source.key : null,
    };
  }

  /** `reply` null: the login was accepted. */
  async #note(ref: OwnRef, opened: OpenedAccount, reply: TryReply | null): Promise<void> {
    const error = reply && describeFailure(reply);
    // The token may have been revoked before its end.
    if (error?.code === 'authentication_failed' && opened.tokenKey)
      this.#parts.tokens.forget(opened.tokenKey);
    await this.#record(ref, opened.version, error);
  }

  async #record(ref: OwnRef, version: number, error: ServerError | null): Promise<void> {
    const text = JSON.stringify([version, error]);
    const id = idOf(ref);
    const last = this.#recorded.get(id);
    if (last?.text === text && performance.now() - last.atMs < sameStateMs) return;
    if (this.#recorded.size >= maxKnownStates) this.#recorded.clear();
    this.#recorded.set(id, { text, atMs: performance.now() });
    const { sql } = this.#parts;
    if ('providerId' in ref) await recordProviderState(sql, ref.ownerId, id, error, version);
    else await recordSendState(sql, ref.ownerId, id, error ? 'failing' : 'ok', error, version);
  }
}

/** Whether a check was ended because its time is over (`AbortSignal.timeout`), and not because its client has gone. */
export function isLate({ aborted, reason }: AbortSignal): boolean {
  return aborted && reason instanceof DOMException && reason.name === 'TimeoutError';
}

function idOf(ref: OwnRef): string {
  return 'providerId' in ref ? ref.providerId : ref.accountId;
}

function toServer({ host, port, secure }: MailServer, production: boolean): Omit<Server, 'login'> {
  const security = !production && isLoopbackHost(host) ? 'opportunistic' : 'verified';
  return { host, port, isImplicitTls: secure, security };
}

function readAddress(username: string): string | null {
  const read = readAddressOrDomain(username);
  return 'fault' in read || read.kind !== 'email' ? null : read.value;
}

/** A failure in these phases is about the account; later ones are about a message. */
const accountPhases: readonly Phase[] = ['connect', 'greeting', 'ehlo', 'tls', 'auth'];

const errorCodes: Partial<Record<SendErrorCode, ServerErrorCode>> = {
  no_such_host: 'host_not_found',
  dns_failed: 'host_not_found',
  target_refused: 'target_refused',
  connect_timeout: 'timeout',
  tls_timeout: 'timeout',
  reply_timeout: 'timeout',
  tls_required: 'tls_unavailable',
  auth_unsupported: 'login_unsupported',
};

/** Null: the account works, whatever became of the message. */
function describeFailure(reply: TryReply): ServerError | null {
  const { kind, phase, error, detail, response } = reply;
  if (kind === 'accepted' || !accountPhases.includes(phase)) return null;
  const words =
    response && `${response.code} ${response.enhanced ? `${response.enhanced} ` : ''}${response.text}`;
  if (response) {
    // RFC 4954 §6: 4xx is a failure of the server, not of the login.
    const isLogin = phase === 'auth' && response.code >= 500;
    return describeServerError(isLogin ? 'authentication_failed' : 'server_refused', { response: words });
  }
  return describeServerError(codeOf(error, detail ?? ''), { detail });
}

function codeOf(error: SendErrorCode | null, detail: string): ServerErrorCode {
  if (error === 'tls_failed') return /certificate/i.test(detail) ? 'certificate_invalid' : 'tls_failed';
  if (error === 'connect_failed' && /ECONNREFUSED/.test(detail)) return 'connection_refused';
  return (error && errorCodes[error]) ?? 'connection_failed';
}
