/**
 * An SMTP client: opens a connection to a mail server and sends messages over it, one MAIL transaction for each recipient.
 * Guarantees: never rejects, because a failure is a value that says where the conversation ended; the socket is connected to an
 * address that `resolve` allowed; a message that the server could misread is not sent. Why our own:
 * docs/decisions/0013-own-smtp-client.md.
 */
import { isIP } from 'node:net';
import tls from 'node:tls';
import { Pace } from '../lib/pace.ts';
import { openSocket } from '../net/connect.ts';
import type { Resolution } from '../net/egress.ts';
import { type HideSecrets, hideSecrets } from '../net/hide-secrets.ts';
import type { DeadDestinations } from './dead-destinations.ts';
import { Dialogue } from './dialogue.ts';
import {
  type Extensions,
  findMisfit,
  type OutgoingMail,
  readExtensions,
  toAsciiDomain,
  writeParameters,
} from './outgoing-mail.ts';
import type { Reply } from './replies.ts';
import { type Phase, type SendErrorCode, SendFault, type SmtpResponse, type TryReply } from './try-reply.ts';
import { toWire } from './wire.ts';

export interface Server {
  /** A name, or an IP address without brackets. */
  host: string;
  port: number;
  /** TLS before the greeting (`smtps`). */
  isImplicitTls: boolean;
  /** `verified`: TLS with a valid certificate, or nothing is sent. `opportunistic`: TLS if possible, with any certificate. */
  security: 'verified' | 'opportunistic';
  login: Login | null;
  /** Connections are shared only within one account: another owner may know its host and user, and not its password. */
  account?: string;
}

type Login = { user: string } & ({ password: string } | { accessToken: string });

/** RFC 5321 §4.5.3.2, except for connecting and TLS, for which 5 minutes would only hold up the next host. */
export const standardTimeouts = {
  connectMs: 30_000,
  tlsMs: 30_000,
  greetingMs: 300_000,
  commandMs: 300_000,
  dataMs: 120_000,
  /** For each `blockBytes` of the message. Not for each write: a server that reads a little every 3 minutes could take a day. */
  blockMs: 180_000,
  blockBytes: 4 * 1024 * 1024,
  endOfDataMs: 600_000,
};

export interface ClientParts {
  resolve(host: string, port: number): Promise<Resolution>;
  /** Our name in EHLO. */
  heloName: string;
  contexts: TlsContexts;
  timeouts: typeof standardTimeouts;
  /** Hosts by their addresses. Only for connections that are all to the same port. */
  dead?: DeadDestinations;
}

export interface TlsContexts {
  verified: tls.SecureContext;
  opportunistic: tls.SecureContext;
}

/** `ca`: certificate authorities (PEM) instead of the well-known ones. */
export function makeTlsContexts(ca?: string): TlsContexts {
  return {
    verified: tls.createSecureContext({ minVersion: 'TLSv1.2', ...(ca === undefined ? {} : { ca }) }),
    // RFC 7435 §3: old TLS is better than none, which is what follows if the handshake fails.
    opportunistic: tls.createSecureContext({ minVersion: 'TLSv1', ciphers: 'DEFAULT@SECLEVEL=0' }),
  };
}

export type Opened = { connection: SmtpConnection } | { failure: TryReply };

export async function openConnection(
  server: Server,
  parts: ClientParts,
  signal: AbortSignal,
): Promise<Opened> {
  const opened = await open(server, parts, signal, true);
  const canBePlain = server.security === 'opportunistic' && !server.isImplicitTls && !server.login;
  if ('connection' in opened || opened.failure.phase !== 'tls' || !canBePlain) return opened;
  if (signal.aborted) return opened;
  // RFC 7435 §3: without TLS rather than not at all. It protects nobody to insist: whoever can break the handshake can also remove
  // STARTTLS from the reply to EHLO. A domain that wants TLS says so with MTA-STS.
  return open(server, parts, signal, false);
}

async function open(
  server: Server,
  parts: ClientParts,
  signal: AbortSignal,
  withTls: boolean,
): Promise<Opened> {
  const { host, port } = server;
  const resolution = await parts.resolve(host, port);
  if (signal.aborted || !resolution.ok) {
    const fault = resolution.ok ? stopped() : toResolutionFault(resolution);
    return { failure: failed(fault, { phase: 'connect', host, address: null, tls: null }) };
  }
  // All addresses together: a name with a dead address beside the address of a good server says nothing about that server.
  const addresses = resolution.addresses.map(({ address }) => address).sort();
  const known = parts.dead?.find(addresses.join(), performance.now());
  if (known) return { failure: { ...known, host } };
  const dialogue = new Dialogue(openSocket({ hostname: host, port, secure: null }, resolution.addresses));
  const connection = new SmtpConnection(server, parts, dialogue);
  const failure = await connection.greet(withTls, signal);
  // TLS depends on the name too: whether it succeeds, and who answers inside it. Anybody can point a name at the server of somebody else.
  const isReached = failure?.phase === 'tls' || failure?.tls;
  parts.dead?.note(addresses.join(), isReached ? null : failure, performance.now());
  return failure ? { failure } : { connection };
}

function toResolutionFault({ code, reason, isAbsent }: Extract<Resolution, { ok: false }>): SendFault {
  return new SendFault(isAbsent ? 'no_such_host' : code, reason);
}

type Place = Pick<TryReply, 'phase' | 'host' | 'address' | 'tls'>;

function failed({ code, message }: SendFault, place: Place, uncertain = false): TryReply {
  return { kind: 'failed', response: null, error: code, detail: message, uncertain, ...place };
}

function stopped(): SendFault {
  return new SendFault('stopped', 'Posthorn is shutting down');
}

/** A reply that ends the conversation. */
class Refusal extends Error {
  readonly reply: Reply;
  constructor(reply: Reply) {
    super(reply.text);
    this.reply = reply;
  }
}

export class SmtpConnection {
  readonly server: Server;
  /** Messages that were tried over this connection. */
  mails = 0;
  readonly #parts: ClientParts;
  readonly #dialogue: Dialogue;
  readonly #hide: HideSecrets;
  #phase: Phase = 'connect';
  #address: string | null = null;
  #tls: TryReply['tls'] = null;
  #extensions: Extensions = new Map();
  /** A transaction was begun and refused: the next one begins with RSET. */
  #mustReset = false;

  constructor(server: Server, parts: ClientParts, dialogue: Dialogue) {
    this.server = server;
    this.#parts = parts;
    this.#dialogue = dialogue;
    this.#hide = hideSecrets(secretsOf(server.login));
  }

  get isUsable(): boolean {
    return this.#dialogue.isQuiet;
  }

  get isSecure(): boolean {
    return this.#tls !== null;
  }

  /** The certificate was checked. */
  get isVerified(): boolean {
    return this.isSecure && this.server.security === 'verified';
  }

  get localAddress(): string | null {
    return this.#dialogue.localAddress;
  }

  quit(): void {
    this.#dialogue.quit();
  }

  /** From the TCP connection to the last reply before MAIL. Null: the connection is ready. */
  greet(withTls: boolean, signal: AbortSignal): Promise<TryReply | null> {
    return this.#converse(signal, async () => {
      const { timeouts } = this.#parts;
      await this.#dialogue.connected(timeouts.connectMs);
      this.#address = this.#dialogue.address;
      if (this.server.isImplicitTls) await this.#secure();
      this.#phase = 'greeting';
      this.#expect(await this.#dialogue.reply(timeouts.greetingMs));
      await this.#sayHello();
      if (withTls && !this.#tls) await this.#startTls();
      if (this.server.login) await this.#logIn(this.server.login);
      return null;
    });
  }

  async send(mail: OutgoingMail, signal: AbortSignal): Promise<TryReply> {
    const misfit = findMisfit(mail, this.server.host, this.#extensions);
    if (misfit) return failed(misfit, this.#place('mail'));
    this.mails += 1;
    return this.#converse(signal, () => this.#transact(mail));
  }

  /** Runs a part of the conversation. If it cannot be finished, the connection is closed. */
  async #converse<Result>(signal: AbortSignal, talk: () => Promise<Result>): Promise<Result | TryReply> {
    const stop = () => this.#dialogue.end(stopped());
    if (signal.aborted) stop();
    signal.addEventListener('abort', stop);
    try {
      return await talk();
    } catch (error) {
      const fault = error instanceof SendFault ? error : unreadable(error as Error);
      this.#dialogue.end(fault);
      if (error instanceof Refusal) return this.#refused(error.reply, this.#phase);
      return failed(fault, this.#place(this.#phase), this.#phase === 'end-of-data');
    } finally {
      signal.removeEventListener('abort', stop);
    }
  }

  async #command(phase: Phase, line: string): Promise<Reply> {
    this.#phase = phase;
    this.#dialogue.write(`${line}\r\n`);
    return this.#dialogue.reply(this.#parts.timeouts.commandMs);
  }

  #expect(reply: Reply): void {
    if (reply.code >= 400) throw new Refusal(reply);
  }

  async #sayHello(): Promise<void> {
    const { heloName } = this.#parts;
    const reply = await this.#command('ehlo', `EHLO ${heloName}`);
    // RFC 5321 §3.2: a server that does not know EHLO.
    if ([500, 502].includes(reply.code)) this.#expect(await this.#command('ehlo', `HELO ${heloName}`));
    else this.#expect(reply);
    this.#extensions = reply.code < 400 ? readExtensions(reply.text) : new Map();
  }

  async #startTls(): Promise<void> {
    if (!this.#extensions.has('STARTTLS')) {
      if (this.server.security === 'opportunistic') return;
      this.#phase = 'tls';
      throw new SendFault('tls_required', 'The server does not offer TLS, which is required');
    }
    this.#expect(await this.#command('tls', 'STARTTLS'));
    await this.#secure();
    // RFC 3207 §4.2: what the server said before TLS does not count.
    await this.#sayHello();
  }

  async #secure(): Promise<void> {
    this.#phase = 'tls';
    const { host, security } = this.server;
    const options = {
      host,
      secureContext: this.#parts.contexts[security],
      rejectUnauthorized: security === 'verified',
      // SNI is for names only (RFC 6066 §3).
      ...(isIP(host) === 0 ? { servername: host } : {}),
    };
    this.#tls = await this.#dialogue.secure(options, this.#parts.timeouts.tlsMs);
  }

  async #logIn(login: Login): Promise<void> {
    const mechanisms = (this.#extensions.get('AUTH') ?? '').toUpperCase().split(/\s+/);
    const base64 = (text: string) => Buffer.from(text).toString('base64');
    const { user } = login;
    if ('accessToken' in login) {
      const text = base64(`user=${user}\x01auth=Bearer ${login.accessToken}\x01\x01`);
      const reply = await this.#command('auth', `AUTH XOAUTH2 ${text}`);
      // A server that refuses the token says why as a challenge, and gives its reply after an empty line.
      this.#expect(reply.code === 334 ? await this.#command('auth', '') : reply);
      return;
    }
    const { password } = login;
    if (mechanisms.includes('PLAIN')) {
      this.#expect(await this.#command('auth', `AUTH PLAIN ${base64(`\0${user}\0${password}`)}`));
    } else if (mechanisms.includes('LOGIN')) {
      for (const line of ['AUTH LOGIN', base64(user), base64(password)])
        this.#expect(await this.#command('auth', line));
    } else {
      this.#phase = 'auth';
      throw new SendFault('auth_unsupported', 'The server offers neither AUTH PLAIN nor AUTH LOGIN');
    }
  }

  async #transact(mail: OutgoingMail): Promise<TryReply> {
    const refusal = await this.#sendEnvelope(mail);
    if (refusal) return refusal;
    const { blockMs, blockBytes, endOfDataMs } = this.#parts.timeouts;
    const limits = { dataTimeoutMs: blockMs, dataPortionBytes: blockBytes };
    // From the first piece: the server does not answer for the time that it takes us to read the message.
    let pace: Pace | undefined;
    let size = 0;
    this.#phase = 'data';
    for await (const { bytes, isLast } of toWire(mail.signature, mail.content)) {
      if (this.#dialogue.hasReply) return this.#takeEarlyReply();
      if (isLast && !mail.mayEnd())
        throw new SendFault('lease_lost', 'Another process may be sending this message');
      pace ??= new Pace({ ...limits, messageTimeoutMs: Number.POSITIVE_INFINITY }, performance.now());
      const hasRoom = this.#dialogue.write(bytes);
      if (isLast) this.#phase = 'end-of-data';
      else if (!hasRoom) await this.#dialogue.drained(pace.leftMs(performance.now()));
      size += bytes.length;
      pace.advance(size, performance.now());
    }
    const reply = await this.#dialogue.reply(endOfDataMs);
    this.#mustReset = false;
    return reply.code < 300 ? this.#accepted(reply) : this.#refused(reply, 'end-of-data');
  }

  /** RFC 2920: all commands at once where the server allows it. Null: the server waits for the message. */
  async #sendEnvelope(mail: OutgoingMail): Promise<TryReply | null> {
    const steps: { phase: Phase; line: string }[] = [
      ...(this.#mustReset ? [{ phase: 'mail' as const, line: 'RSET' }] : []),
      {
        phase: 'mail',
        line: `MAIL FROM:<${toAsciiDomain(mail.mailFrom)}>${writeParameters(mail, this.#extensions)}`,
      },
      { phase: 'rcpt', line: `RCPT TO:<${toAsciiDomain(mail.rcptTo)}>` },
      { phase: 'data', line: 'DATA' },
    ];
    const isPipelined = this.#extensions.has('PIPELINING');
    this.#mustReset = true;
    this.#phase = 'mail';
    if (isPipelined) this.#dialogue.write(steps.map(({ line }) => `${line}\r\n`).join(''));
    let refusal: TryReply | null = null;
    for (const { phase, line } of steps) {
      this.#phase = phase;
      if (!isPipelined) this.#dialogue.write(`${line}\r\n`);
      const { dataMs, commandMs } = this.#parts.timeouts;
      const reply = await this.#dialogue.reply(phase === 'data' ? dataMs : commandMs);
      const isGood = phase === 'data' ? reply.code === 354 : reply.code < 300;
      if (!isGood) refusal ??= this.#refused(reply, phase);
      if (reply.code === 421 || (refusal && !isPipelined)) break;
      // RFC 2920 §3.1: it waits for a message that has no recipient.
      if (refusal && reply.code === 354)
        this.#dialogue.end(new SendFault('connection_lost', 'The connection was closed'));
    }
    return refusal;
  }

  /** The server refused the message before its end. The rest cannot be sent. */
  async #takeEarlyReply(): Promise<TryReply> {
    const reply = await this.#dialogue.reply(0);
    this.#dialogue.end(new SendFault('connection_lost', 'The server replied before the end of the message'));
    return reply.code >= 400
      ? this.#refused(reply, 'data')
      : failed(new SendFault('invalid_reply', 'The server replied too early'), this.#place('data'));
  }

  #accepted(reply: Reply): TryReply {
    const result = { kind: 'accepted', error: null, detail: null, uncertain: false } as const;
    return { ...result, response: this.#toResponse(reply), ...this.#place('end-of-data') };
  }

  #refused(reply: Reply, phase: Phase): TryReply {
    // RFC 5321 §3.8: 421 announces that the server closes the connection.
    if (reply.code === 421)
      this.#dialogue.end(new SendFault('connection_lost', 'The server closed the connection'));
    const place = this.#place(phase);
    if (reply.code >= 400) {
      const result = { kind: 'refused', error: null, detail: null, uncertain: false } as const;
      return { ...result, response: this.#toResponse(reply), ...place };
    }
    const fault = new SendFault('invalid_reply', `The server replied ${reply.code}, which fits no command`);
    this.#dialogue.end(fault);
    return { ...failed(fault, place), response: this.#toResponse(reply) };
  }

  #toResponse({ code, enhanced, text }: Reply): SmtpResponse {
    return { code, enhanced, text: this.#hide(text) };
  }

  #place(phase: Phase): Place {
    return { phase, host: this.server.host, address: this.#address, tls: this.#tls };
  }
}

function secretsOf(login: Login | null): string[] {
  if (!login) return [];
  return ['password' in login ? login.password : login.accessToken];
}

function unreadable(error: Error): SendFault {
  const code: SendErrorCode = 'message_unreadable';
  return new SendFault(code, `The stored message could not be read: ${error.message}`);
}
