/**
 * The dialogue's decisions: what each command is answered, and which message they add up to. It knows no sockets.
 * Guarantee: a recipient is accepted only if `route` accepts it, so this is no relay; nothing here throws.
 */
import type { Log } from '../lib/log.ts';
import { type Command, isAddress, isAscii, readCommand, readParameters, readPath } from './command.ts';
import type { SmtpLimits } from './limits.ts';
import type { SmtpMetrics } from './metrics.ts';
import { type Reply, reply } from './reply.ts';

/** A no of `route` or `accept`. The text is for the sending side's postmaster. */
export interface Refusal {
  status: 450 | 451 | 452 | 550 | 551 | 552 | 553 | 554;
  enhanced: string;
  text: string;
}

/** What a recipient's address comes to. */
export type RecipientDecision<Route = unknown> =
  | { accept: true; route: Route }
  | ({ accept: false } & Refusal);

export interface Recipient<Route = unknown> {
  /** As the client spelled it; `postmaster` alone is completed with our host (RFC 5321 §4.1.1.3). */
  address: string;
  /** What `route` said of it. */
  route: Route;
}

export interface MailTransaction<Route> {
  /** Null for `<>`. */
  mailFrom: string | null;
  recipients: Recipient<Route>[];
  smtpUtf8: boolean;
}

export interface SessionParts<Route> {
  mailHost: string;
  limits: SmtpLimits;
  route(address: string): Promise<RecipientDecision<Route>>;
  remoteIp: string;
  log: Log;
  metrics?: SmtpMetrics | undefined;
}

export const tryLater = reply(451, '4.3.0', 'Something failed here for the moment; please try again later');

const ok = reply(250, '2.0.0', 'OK');
const senderOk = reply(250, '2.1.0', 'Sender OK');
const recipientOk = reply(250, '2.1.5', 'Recipient OK');
const greetFirst = reply(503, '5.5.1', 'Say EHLO with the name of your host first');
const notText = reply(500, '5.5.2', 'A command is a line of ASCII or UTF-8 text without control characters');
const unknownCommand = reply(500, '5.5.2', 'There is no such command; HELP lists those there are');
const notOffered = reply(502, '5.5.1', 'This command is not offered here');
const badParameters = reply(501, '5.5.4', 'A parameter is malformed or given twice');

/** Commands that carry no mail are free up to here for each message; then they count as errors. */
const maxIdleCommands = 100;
/** Times as many recipients as a message may have can be asked for without one: each costs a look. */
const maxAskedFor = 10;

export class Session<Route> {
  readonly #parts: SessionParts<Route>;
  #helo: string | null = null;
  #isSecure = false;
  #envelope: MailTransaction<Route> | null = null;
  /** What recipients are compared by. */
  #known = new Set<string>();
  #errors = 0;
  #idleCommands = 0;
  /** Asked for since the last accepted message, whatever they were answered. */
  #recipientsAsked = 0;

  constructor(parts: SessionParts<Route>) {
    this.#parts = parts;
  }

  /** As the client called itself. */
  get helo(): string | null {
    return this.#helo;
  }

  answer(line: Buffer): Reply | Promise<Reply> {
    const command = readCommand(line);
    const answer = command ? this.#decide(command) : notText;
    return answer instanceof Promise ? answer.then((later) => this.count(later)) : this.count(answer);
  }

  /** The mail transaction is over: gives its envelope and is ready for the next. After a reply that leads to data. */
  takeEnvelope(): MailTransaction<Route> {
    const envelope = this.#envelope ?? { mailFrom: null, recipients: [], smtpUtf8: false };
    this.#reset();
    return envelope;
  }

  /** RFC 3207 §4.2: what was said before TLS might have been said by anyone, and is forgotten. */
  becomeSecure(): void {
    this.#isSecure = true;
    this.#helo = null;
    this.#reset();
  }

  /** Turns the refusal that is one too many into a farewell. Mail that is accepted makes up for refusals. */
  count(answer: Reply): Reply {
    if (answer.status < 500) return answer;
    this.#errors += 1;
    if (this.#errors < this.#parts.limits.maxErrors || answer.next === 'close') return answer;
    return this.#farewell('Too many errors');
  }

  /** Not for good: where we could not store, an honest client has been told to try again later, and goes on. */
  #farewell(reason: string): Reply {
    return reply(421, '4.7.0', `${this.#parts.mailHost} ${reason}; closing the connection`, 'close');
  }

  messageAccepted(): void {
    this.#errors = 0;
    this.#idleCommands = 0;
    this.#recipientsAsked = 0;
  }

  #decide({ verb, argument }: Command): Reply | Promise<Reply> {
    switch (verb) {
      case 'MAIL':
        return this.#mail(argument);
      case 'RCPT':
        return this.#rcpt(argument);
      case 'DATA':
        return this.#data(argument);
      case 'QUIT':
        return reply(221, '2.0.0', `${this.#parts.mailHost} Goodbye`, 'close');
      case 'STARTTLS':
        return this.#startTls(argument);
      case 'EHLO':
      case 'HELO':
      case 'RSET':
      case 'NOOP':
      case 'VRFY':
      case 'HELP':
        this.#idleCommands += 1;
        if (this.#idleCommands > maxIdleCommands) return this.#farewell('Too many commands without mail');
        return this.#idle(verb, argument);
      case 'AUTH':
        return reply(502, '5.5.1', 'There is no login here: this server only receives mail');
      case 'EXPN':
      case 'BDAT':
      case 'ETRN':
      case 'TURN':
      case 'SEND':
      case 'SOML':
      case 'SAML':
        return notOffered;
      // A web page can make a browser send these, with SMTP commands in the body of the request.
      case 'GET':
      case 'HEAD':
      case 'POST':
      case 'PUT':
      case 'PATCH':
      case 'DELETE':
      case 'OPTIONS':
      case 'CONNECT':
      case 'TRACE':
        return reply(554, '5.5.1', 'This is a mail server and speaks SMTP, not HTTP', 'close');
      default:
        return unknownCommand;
    }
  }

  #idle(verb: 'EHLO' | 'HELO' | 'RSET' | 'NOOP' | 'VRFY' | 'HELP', argument: string): Reply {
    switch (verb) {
      case 'EHLO':
      case 'HELO':
        return this.#hello(verb, argument);
      case 'RSET':
        if (argument !== '') return badParameters;
        this.#reset();
        return ok;
      case 'NOOP':
        return ok;
      case 'VRFY':
        if (argument === '') return reply(501, '5.5.4', 'VRFY wants an address');
        return reply(252, '2.0.0', 'Addresses are not told here; send the mail and you will know');
      case 'HELP':
        return reply(214, '2.0.0', 'EHLO HELO MAIL RCPT DATA RSET NOOP VRFY STARTTLS QUIT (see RFC 5321)');
    }
  }

  #hello(verb: 'EHLO' | 'HELO', argument: string): Reply {
    const { mailHost, limits } = this.#parts;
    const [name] = argument.split(' ');
    if (!name || name.length > 255) return reply(501, null, `${verb} wants the name of your host`);
    this.#helo = name;
    this.#reset();
    if (verb === 'HELO') return reply(250, null, mailHost);
    const features = ['PIPELINING', `SIZE ${limits.maxMessageBytes}`, '8BITMIME', 'SMTPUTF8'];
    if (!this.#isSecure) features.push('STARTTLS');
    return { status: 250, enhanced: null, text: [mailHost, ...features, 'ENHANCEDSTATUSCODES'] };
  }

  #startTls(argument: string): Reply {
    if (this.#isSecure) return reply(503, '5.5.1', 'This connection is encrypted already');
    if (argument !== '') return reply(501, '5.5.4', 'STARTTLS takes no parameters');
    return reply(220, '2.0.0', 'Go ahead with TLS', 'tls');
  }

  #mail(argument: string): Reply {
    if (this.#helo === null) return greetFirst;
    if (this.#envelope) return reply(503, '5.5.1', 'A sender is given already; RSET starts anew');
    if (!/^FROM:/i.test(argument)) return reply(501, '5.5.4', 'Write MAIL FROM:<address>');
    const path = readPath(argument.slice(5));
    if (!path) return reply(501, '5.1.7', 'Write the sender in angle brackets: MAIL FROM:<address>');
    const { address } = path;
    if (address !== '' && !isAddress(address)) return reply(501, '5.1.7', 'The sender is no mail address');
    const parameters = readParameters(path.parameters);
    if (!parameters) return badParameters;
    const fault = this.#findParameterFault(parameters);
    if (fault) return fault;
    const smtpUtf8 = parameters.has('SMTPUTF8');
    if (!smtpUtf8 && !isAscii(address)) return needsUtf8('sender');
    this.#envelope = { mailFrom: address === '' ? null : address, recipients: [], smtpUtf8 };
    return senderOk;
  }

  #findParameterFault(parameters: Map<string, string | null>): Reply | null {
    const { maxMessageBytes } = this.#parts.limits;
    for (const [keyword, value] of parameters) {
      if (keyword === 'SIZE') {
        if (!/^\d{1,20}$/.test(value ?? '')) return reply(501, '5.5.4', 'SIZE is a number of bytes');
        if (Number(value) > maxMessageBytes) return tooBig(maxMessageBytes);
      } else if (keyword === 'BODY') {
        if (!/^(?:7BIT|8BITMIME)$/i.test(value ?? '')) return reply(501, '5.5.4', 'BODY is 7BIT or 8BITMIME');
      } else if (keyword !== 'SMTPUTF8') {
        return unknownParameter(keyword);
      } else if (value !== null) {
        return reply(501, '5.5.4', 'SMTPUTF8 has no value');
      }
    }
    return null;
  }

  #rcpt(argument: string): Reply | Promise<Reply> {
    if (this.#helo === null) return greetFirst;
    this.#recipientsAsked += 1;
    if (this.#recipientsAsked > maxAskedFor * this.#parts.limits.maxRecipients) return this.#tooMany();
    const envelope = this.#envelope;
    if (!envelope) return reply(503, '5.5.1', 'Give the sender first, with MAIL');
    if (!/^TO:/i.test(argument)) return reply(501, '5.5.4', 'Write RCPT TO:<address>');
    const path = readPath(argument.slice(3));
    if (!path) return reply(501, '5.1.3', 'Write the recipient in angle brackets: RCPT TO:<address>');
    const isPostmaster = /^postmaster$/i.test(path.address);
    const address = isPostmaster ? `${path.address}@${this.#parts.mailHost}` : path.address;
    if (!isAddress(address)) return reply(501, '5.1.3', 'The recipient is no mail address');
    const parameters = readParameters(path.parameters);
    if (!parameters) return badParameters;
    for (const keyword of parameters.keys()) return unknownParameter(keyword);
    if (!envelope.smtpUtf8 && !isAscii(address)) return needsUtf8('recipient');
    if (this.#known.has(address.toLowerCase())) return recipientOk;
    if (envelope.recipients.length >= this.#parts.limits.maxRecipients) {
      return reply(452, '4.5.3', 'Too many recipients; send the rest in another message');
    }
    return this.#route(address, envelope);
  }

  #tooMany(): Reply {
    return reply(421, '4.7.0', `${this.#parts.mailHost} Too many recipients without mail`, 'close');
  }

  async #route(address: string, envelope: MailTransaction<Route>): Promise<Reply> {
    const answer = await this.#askRoute(address, envelope);
    this.#parts.metrics?.recipientAnswered(answer.status);
    return answer;
  }

  async #askRoute(address: string, envelope: MailTransaction<Route>): Promise<Reply> {
    const { route, log, remoteIp } = this.#parts;
    try {
      const verdict = await route(address);
      if (!verdict.accept) return reply(verdict.status, verdict.enhanced, verdict.text);
      envelope.recipients.push({ address, route: verdict.route });
      this.#known.add(address.toLowerCase());
      return recipientOk;
    } catch (err) {
      log.error({ err, remoteIp }, 'A recipient could not be looked up; told to try again later');
      return tryLater;
    }
  }

  #data(argument: string): Reply {
    if (argument !== '') return reply(501, '5.5.4', 'DATA takes no parameters');
    if (!this.#envelope) return reply(503, '5.5.1', 'Give sender and recipients first, with MAIL and RCPT');
    if (this.#envelope.recipients.length === 0) return reply(554, '5.5.1', 'No recipient was accepted');
    return reply(354, null, 'Go ahead; end with a line of one dot', 'data');
  }

  #reset(): void {
    this.#envelope = null;
    if (this.#known.size > 0) this.#known = new Set();
  }
}

export function tooBig(maxMessageBytes: number): Reply {
  return reply(552, '5.3.4', `The message is too big; at most ${maxMessageBytes} bytes are accepted here`);
}

function unknownParameter(keyword: string): Reply {
  return reply(555, '5.5.4', `The parameter ${keyword} is not known here`);
}

/** RFC 6531 §3.5 gives status and code. */
function needsUtf8(whose: 'sender' | 'recipient'): Reply {
  return reply(553, '5.6.7', `The ${whose} is not ASCII, and the SMTPUTF8 parameter was not given with MAIL`);
}
