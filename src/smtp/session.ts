/**
 * The SMTP dialogue without the socket: decides the reply to each command and collects sender and recipients.
 * Guarantees: a recipient is accepted only if `route` accepts it, and on a submission listener a sender only after AUTH and if
 * `checkSender` accepts it, so the server is no open relay; no method throws.
 */
import type { Log } from '../lib/log.ts';
import type { ConnectionLog } from '../receiving/mail-log.ts';
import { Authentication, type SubmissionRules, type Submitter } from './auth.ts';
import { type Command, isAddress, isAscii, readCommand, readParameters, readPath } from './command.ts';
import type { SmtpLimits } from './limits.ts';
import type { SmtpMetrics } from './metrics.ts';
import { type Refusal, type Reply, refusal, reply } from './reply.ts';

export type RecipientDecision<Route = unknown> =
  | { accepted: true; route: Route }
  | { accepted: false; refusal: Refusal };

interface Recipient<Route> {
  /** As the client spelled it; `postmaster` alone gets our host name (RFC 5321 §4.1.1.3). */
  address: string;
  /** From the decision of `route`. */
  route: Route;
}

/** From MAIL to the end of DATA (RFC 5321 §3.3). */
export interface MailTransaction<Route> {
  /** Null for `<>`. */
  mailFrom: string | null;
  /** In the order of acceptance, without repeats. */
  recipients: Recipient<Route>[];
  smtpUtf8: boolean;
}

/** What the mail log needs of a transaction. */
type Envelope = Pick<MailTransaction<unknown>, 'mailFrom' | 'recipients'>;

export interface SessionParts<Route> {
  /** The host name that the server announces. */
  mailHost: string;
  limits: SmtpLimits;
  /** `submitter` is null on the MX. */
  route(address: string, submitter: Submitter | null): Promise<RecipientDecision<Route>>;
  /** Only for submission. */
  submission?: SubmissionRules | undefined;
  log: Log;
  metrics?: SmtpMetrics | undefined;
  openMailLog?: ((remoteIp: string) => ConnectionLog) | undefined;
}

export const tryLater = refusal(
  451,
  '4.3.0',
  'Temporary server error; please try again later',
  'internal_error',
);

const ok = reply(250, '2.0.0', 'OK');
const senderOk = reply(250, '2.1.0', 'Sender OK');
const recipientOk = reply(250, '2.1.5', 'Recipient OK');
const greetFirst = reply(503, '5.5.1', 'Send EHLO or HELO first');
const authFirst = reply(530, '5.7.0', 'Send AUTH first; the password is an API key');
const notText = reply(500, '5.5.2', 'A command must be ASCII or UTF-8 text without control characters');
export const lineTooLong = reply(500, '5.5.2', 'The command line is too long');
const tooManyRecipients = refusal(
  452,
  '4.5.3',
  'Too many recipients; send the rest in another message',
  'too_many_recipients',
);
const badParameters = reply(501, '5.5.4', 'A parameter is malformed or given twice');

const idleCommands = new Set(['EHLO', 'HELO', 'RSET', 'NOOP', 'VRFY', 'HELP']);
const unsupportedCommands = new Set(['EXPN', 'BDAT', 'ETRN', 'TURN', 'SEND', 'SOML', 'SAML']);
/** A web page can make a browser send these, with SMTP commands in the body of the request. */
const httpMethods = new Set('GET HEAD POST PUT PATCH DELETE OPTIONS CONNECT TRACE'.split(' '));

/** For each accepted message. Idle commands are not errors, but a client must not send them forever. */
const maxIdleCommands = 100;
/** For each accepted message, as a multiple of `maxRecipients`: every recipient costs a database query. */
const maxRecipientRounds = 10;

export class Session<Route> {
  readonly #parts: SessionParts<Route>;
  readonly #remoteIp: string;
  readonly #mailLog: ConnectionLog | undefined;
  readonly #auth: Authentication | null;
  #helo: string | null = null;
  #isSecure = false;
  #transaction: MailTransaction<Route> | null = null;
  /** The accepted recipients in lower case. */
  #accepted = new Set<string>();
  #errorCount = 0;
  #idleCount = 0;
  #recipientCount = 0;

  constructor(parts: SessionParts<Route>, remoteIp: string) {
    this.#parts = parts;
    this.#remoteIp = remoteIp;
    this.#mailLog = parts.openMailLog?.(remoteIp);
    this.#auth = parts.submission ? new Authentication(parts.submission, remoteIp) : null;
  }

  /** Call it when the connection has ended. */
  end(): void {
    this.#mailLog?.end();
  }

  /** The name that the client gave with EHLO or HELO. */
  get helo(): string | null {
    return this.#helo;
  }

  answer(line: Buffer | 'too long'): Reply | Promise<Reply> {
    const answer = this.#readLine(line);
    if (!(answer instanceof Promise)) return this.countError(answer);
    return answer.then(
      (later) => this.countError(later),
      (err) => {
        const { log } = this.#parts;
        log.error({ err, remoteIp: this.#remoteIp }, 'The answer to a command failed; the client got 451');
        return this.countError(tryLater);
      },
    );
  }

  #readLine(line: Buffer | 'too long'): Reply | Promise<Reply> {
    if (line === 'too long') {
      this.#auth?.cancel();
      return lineTooLong;
    }
    if (this.#auth?.isAsking) return this.#auth.answer(line);
    const command = readCommand(line);
    return command ? this.#decide(command) : notText;
  }

  /** Ends the mail transaction. Call it after a reply whose `next` is `data`. */
  takeTransaction(): MailTransaction<Route> {
    const transaction = this.#transaction ?? { mailFrom: null, recipients: [], smtpUtf8: false };
    this.#reset();
    return transaction;
  }

  /** RFC 3207 §4.2: what came before TLS may come from an attacker, so the session forgets it. */
  becomeSecure(): void {
    this.#isSecure = true;
    this.#helo = null;
    this.#auth?.becomeSecure();
    this.#reset();
  }

  /** Counts and logs a refusal. Replaces the refusal that exceeds `maxErrors` by a 421 that closes the connection. */
  countError(answer: Reply, transaction: Envelope | null = this.#transaction): Reply {
    const sent = this.#limitErrors(answer);
    if (answer.reason !== undefined && this.#mailLog) {
      const { reason, recipient, mailFrom = transaction?.mailFrom } = answer;
      const all = transaction?.recipients.map(({ address }) => address);
      const recipients = recipient === undefined ? all : [recipient];
      this.#mailLog.refused({ reason, status: sent.status, mailFrom, recipients });
    }
    return sent;
  }

  #limitErrors(answer: Reply): Reply {
    if (answer.status < 500) return answer;
    this.#errorCount += 1;
    if (this.#errorCount < this.#parts.limits.maxErrors || answer.next === 'close') return answer;
    return this.#closingReply('Too many errors');
  }

  messageAccepted(): void {
    this.#errorCount = 0;
    this.#idleCount = 0;
    this.#recipientCount = 0;
  }

  /** 421 and not 5xx: an honest client must keep its mail and try again. */
  #closingReply(reason: string): Reply {
    return reply(421, '4.7.0', `${this.#parts.mailHost} ${reason}; closing the connection`, 'close');
  }

  #decide({ verb, argument }: Command): Reply | Promise<Reply> {
    if (idleCommands.has(verb)) {
      this.#idleCount += 1;
      if (this.#idleCount > maxIdleCommands) return this.#closingReply('Too many commands without mail');
    }
    if (unsupportedCommands.has(verb)) return reply(502, '5.5.1', 'This command is not supported');
    if (httpMethods.has(verb)) return reply(554, '5.5.1', 'This server speaks SMTP, not HTTP', 'close');
    switch (verb) {
      case 'EHLO':
      case 'HELO':
        return this.#hello(verb, argument);
      case 'STARTTLS':
        return this.#startTls(argument);
      case 'MAIL':
        return this.#mail(argument);
      case 'RCPT':
        return this.#rcpt(argument);
      case 'DATA':
        return this.#data(argument);
      case 'RSET':
        if (argument !== '') return reply(501, '5.5.4', 'RSET takes no parameters');
        this.#reset();
        return ok;
      case 'NOOP':
        return ok;
      case 'VRFY':
        if (argument === '') return reply(501, '5.5.4', 'VRFY needs an address');
        return reply(252, '2.0.0', 'VRFY does not check addresses; use RCPT');
      case 'HELP':
        return reply(214, '2.0.0', 'EHLO HELO MAIL RCPT DATA RSET NOOP VRFY STARTTLS QUIT (see RFC 5321)');
      case 'AUTH':
        return this.#authenticate(argument);
      case 'QUIT':
        return reply(221, '2.0.0', `${this.#parts.mailHost} Goodbye`, 'close');
      default:
        return reply(500, '5.5.2', 'Unknown command; HELP lists the commands');
    }
  }

  #hello(verb: 'EHLO' | 'HELO', argument: string): Reply {
    const { mailHost, limits } = this.#parts;
    const [name] = argument.split(' ');
    if (!name || name.length > 255) return reply(501, null, `${verb} needs the name of your host`);
    this.#helo = name;
    this.#reset();
    if (verb === 'HELO') return reply(250, null, mailHost);
    const features = ['PIPELINING', `SIZE ${limits.maxMessageBytes}`, '8BITMIME', 'SMTPUTF8'];
    if (!this.#isSecure) features.push('STARTTLS');
    if (this.#auth?.isPossible) features.push('AUTH PLAIN LOGIN');
    return { status: 250, enhanced: null, text: [mailHost, ...features, 'ENHANCEDSTATUSCODES'] };
  }

  #startTls(argument: string): Reply {
    if (this.#isSecure) return reply(503, '5.5.1', 'This connection already uses TLS');
    if (argument !== '') return reply(501, '5.5.4', 'STARTTLS takes no parameters');
    return reply(220, '2.0.0', 'Ready to start TLS', 'tls');
  }

  #authenticate(argument: string): Reply | Promise<Reply> {
    if (!this.#auth) return reply(502, '5.5.1', 'AUTH is not supported; this server only receives mail');
    if (this.#helo === null) return greetFirst;
    return this.#auth.start(argument);
  }

  #mail(argument: string): Reply | Promise<Reply> {
    if (this.#helo === null) return greetFirst;
    if (this.#auth && !this.#auth.submitter) return authFirst;
    if (this.#transaction) return reply(503, '5.5.1', 'A sender was already given; send RSET to start again');
    if (!/^FROM:/i.test(argument)) return reply(501, '5.5.4', 'Use MAIL FROM:<address>');
    const path = readPath(argument.slice(5));
    if (!path) return reply(501, '5.1.7', 'Put the sender in angle brackets: MAIL FROM:<address>');
    const { address } = path;
    if (address !== '' && !isAddress(address))
      return reply(501, '5.1.7', 'The sender is not a valid mail address');
    const parameters = readParameters(path.parameters);
    if (!parameters) return badParameters;
    const refused = this.#checkMailParameters(parameters);
    if (refused) return refused;
    const smtpUtf8 = parameters.has('SMTPUTF8');
    if (!smtpUtf8 && !isAscii(address)) return needsUtf8('sender');
    return this.#startTransaction({ mailFrom: address === '' ? null : address, recipients: [], smtpUtf8 });
  }

  #startTransaction(transaction: MailTransaction<Route>): Reply | Promise<Reply> {
    const { submission } = this.#parts;
    const submitter = this.#auth?.submitter;
    if (submission && submitter) return this.#checkSender(transaction, submission, submitter);
    this.#transaction = transaction;
    return senderOk;
  }

  async #checkSender(
    transaction: MailTransaction<Route>,
    { checkSender }: SubmissionRules,
    submitter: Submitter,
  ): Promise<Reply> {
    const { mailFrom } = transaction;
    const refusal = await checkSender(mailFrom, submitter);
    if (refusal) return { ...refusal, mailFrom };
    this.#transaction = transaction;
    return senderOk;
  }

  #checkMailParameters(parameters: Map<string, string | null>): Reply | null {
    const { maxMessageBytes } = this.#parts.limits;
    for (const [keyword, value] of parameters) {
      if (keyword === 'SIZE') {
        if (!/^\d{1,20}$/.test(value ?? '')) return reply(501, '5.5.4', 'SIZE must be a number of bytes');
        if (Number(value) > maxMessageBytes) return tooBig(maxMessageBytes);
      } else if (keyword === 'BODY') {
        if (!/^(?:7BIT|8BITMIME)$/i.test(value ?? ''))
          return reply(501, '5.5.4', 'BODY must be 7BIT or 8BITMIME');
      } else if (keyword === 'AUTH' && this.#auth) {
        // RFC 4954 §5: with AUTH, this parameter must be accepted. It is ignored: only the API key counts.
      } else if (keyword !== 'SMTPUTF8') {
        return unknownParameter(keyword);
      } else if (value !== null) {
        return reply(501, '5.5.4', 'SMTPUTF8 takes no value');
      }
    }
    return null;
  }

  #rcpt(argument: string): Reply | Promise<Reply> {
    const { limits, mailHost } = this.#parts;
    if (this.#helo === null) return greetFirst;
    this.#recipientCount += 1;
    if (this.#recipientCount > maxRecipientRounds * limits.maxRecipients) {
      return this.#closingReply('Too many recipients without mail');
    }
    const transaction = this.#transaction;
    if (!transaction) return reply(503, '5.5.1', 'Send MAIL first');
    if (!/^TO:/i.test(argument)) return reply(501, '5.5.4', 'Use RCPT TO:<address>');
    const path = readPath(argument.slice(3));
    if (!path) return reply(501, '5.1.3', 'Put the recipient in angle brackets: RCPT TO:<address>');
    const isPostmaster = /^postmaster$/i.test(path.address);
    const address = isPostmaster ? `${path.address}@${mailHost}` : path.address;
    if (!isAddress(address)) return reply(501, '5.1.3', 'The recipient is not a valid mail address');
    const parameters = readParameters(path.parameters);
    if (!parameters) return badParameters;
    for (const keyword of parameters.keys()) return unknownParameter(keyword);
    if (!transaction.smtpUtf8 && !isAscii(address)) return needsUtf8('recipient');
    if (this.#accepted.has(address.toLowerCase())) return recipientOk;
    if (transaction.recipients.length >= limits.maxRecipients) {
      return { ...tooManyRecipients, recipient: address };
    }
    return this.#route(address, transaction).then((answer) => {
      this.#parts.metrics?.recipientAnswered(answer.status);
      return answer;
    });
  }

  async #route(address: string, transaction: MailTransaction<Route>): Promise<Reply> {
    const { route, log } = this.#parts;
    try {
      const decision = await route(address, this.#auth?.submitter ?? null);
      if (!decision.accepted) return { ...decision.refusal, recipient: address };
      transaction.recipients.push({ address, route: decision.route });
      this.#accepted.add(address.toLowerCase());
      return recipientOk;
    } catch (err) {
      log.error({ err, remoteIp: this.#remoteIp }, 'The lookup of a recipient failed; the client got 451');
      return { ...tryLater, recipient: address };
    }
  }

  #data(argument: string): Reply {
    if (argument !== '') return reply(501, '5.5.4', 'DATA takes no parameters');
    if (!this.#transaction) return reply(503, '5.5.1', 'Send MAIL and RCPT first');
    if (this.#transaction.recipients.length === 0) return reply(554, '5.5.1', 'No recipient was accepted');
    return reply(354, null, 'Send the message; end it with a line that contains only a dot', 'data');
  }

  #reset(): void {
    this.#transaction = null;
    if (this.#accepted.size > 0) this.#accepted = new Set();
  }
}

export function tooBig(maxMessageBytes: number): Reply {
  return refusal(552, '5.3.4', `The message is too big; the limit is ${maxMessageBytes} bytes`, 'too_big');
}

function unknownParameter(keyword: string): Reply {
  return reply(555, '5.5.4', `Unknown parameter ${keyword}`);
}

/** RFC 6531 §3.5 sets 553 and 5.6.7. */
function needsUtf8(role: 'sender' | 'recipient'): Reply {
  const text = `The ${role} is not ASCII; send the SMTPUTF8 parameter with MAIL`;
  return refusal(553, '5.6.7', text, 'needs_smtputf8');
}
