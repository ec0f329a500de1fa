/**
 * AUTH (RFC 4954) with PLAIN (RFC 4616) and LOGIN: asks the client for its password, which is an API key, and counts failures.
 * The username is not looked at. Guarantees: no AUTH in clear text from another machine; the password is neither kept nor logged.
 */
import { isWithin, parseRange } from '../net/ip-addresses.ts';
import { type Refusal, type Reply, reply } from './reply.ts';

/** For whom a client that has authenticated submits mail. */
export interface Submitter {
  ownerId: string;
  keyId: string;
  /** To check again that the key is still valid. */
  keyHash: Buffer;
}

/** What a submission listener decides. A listener without it (the MX) does not support AUTH. */
export interface SubmissionRules {
  /** Resolves with the reply if the password is refused. */
  authenticate(password: string, remoteIp: string): Promise<Submitter | Reply>;
  /** Null: the submitter may send from this address. `mailFrom` is null for `<>`. */
  checkSender(mailFrom: string | null, submitter: Submitter): Promise<Refusal | null>;
}

/** What the next line of the client is. */
type AuthStep = 'plain' | 'login name' | 'login password';
type AuthTurn = { ask: AuthStep } | { password: string } | { refused: Reply };

/** LOGIN has no RFC. All servers ask with these two words, in base64. */
const questions: Record<AuthStep, string> = {
  plain: '',
  'login name': Buffer.from('Username:').toString('base64'),
  'login password': Buffer.from('Password:').toString('base64'),
};

const badAuth = reply(501, '5.5.4', 'Use AUTH PLAIN or AUTH LOGIN');
const unknownMechanism = reply(504, '5.5.4', 'Unknown mechanism; use AUTH PLAIN or AUTH LOGIN');
const notBase64 = reply(501, '5.5.2', 'The answer is not valid base64');
const notPlain = reply(501, '5.5.2', 'PLAIN needs two NUL characters: before the username and the password');
const cancelled = reply(501, '5.7.0', 'AUTH was cancelled');

/** Reads the text after `AUTH`. */
function startAuth(argument: string): AuthTurn {
  const [mechanism, initial, more] = argument.split(/ +/);
  if (!mechanism || more !== undefined) return { refused: badAuth };
  const isPlain = mechanism.toUpperCase() === 'PLAIN';
  if (!isPlain && mechanism.toUpperCase() !== 'LOGIN') return { refused: unknownMechanism };
  const first: AuthStep = isPlain ? 'plain' : 'login name';
  // RFC 4954 §4: "=" is an empty initial response.
  return initial === undefined ? { ask: first } : continueAuth(first, initial === '=' ? '' : initial);
}

/** Reads the client's answer to a question. */
function continueAuth(step: AuthStep, line: string): AuthTurn {
  if (line === '*') return { refused: cancelled };
  if (line.length % 4 !== 0 || !/^[A-Za-z0-9+/]*={0,2}$/.test(line)) return { refused: notBase64 };
  if (step === 'login name') return { ask: 'login password' };
  const text = Buffer.from(line, 'base64').toString();
  if (step === 'login password') return { password: text };
  const [, , password, more] = text.split('\0');
  return password === undefined || more !== undefined ? { refused: notPlain } : { password };
}

const maxFailures = 5;
const loopback = ['127.0.0.0/8', '::1'].map(parseRange);

const succeeded = reply(235, '2.7.0', 'Authentication succeeded');
const needsTls = reply(538, '5.7.11', 'AUTH needs TLS; send STARTTLS first');
const repeated = reply(503, '5.5.1', 'This connection is already authenticated');

/** The AUTH commands of one connection. */
export class Authentication {
  readonly #rules: SubmissionRules;
  readonly #remoteIp: string;
  readonly #isLocal: boolean;
  #isSecure = false;
  #step: AuthStep | null = null;
  #submitter: Submitter | null = null;
  #failureCount = 0;

  constructor(rules: SubmissionRules, remoteIp: string) {
    this.#rules = rules;
    this.#remoteIp = remoteIp;
    this.#isLocal = isWithin(remoteIp, loopback);
  }

  get submitter(): Submitter | null {
    return this.#submitter;
  }

  get isPossible(): boolean {
    return this.#submitter === null && this.#isAllowed;
  }

  /** The next line is not a command: it belongs to `answer`. */
  get isAsking(): boolean {
    return this.#step !== null;
  }

  get #isAllowed(): boolean {
    return this.#isSecure || this.#isLocal;
  }

  /** RFC 3207 §4.2: what came before TLS is forgotten. */
  becomeSecure(): void {
    this.#isSecure = true;
    this.#step = null;
    this.#submitter = null;
  }

  /** For a line that could not be read. */
  cancel(): void {
    this.#step = null;
  }

  start(argument: string): Reply | Promise<Reply> {
    if (this.#submitter) return repeated;
    if (!this.#isAllowed) return needsTls;
    return this.#take(startAuth(argument));
  }

  answer(line: Buffer): Reply | Promise<Reply> {
    const step = this.#step ?? 'plain';
    this.#step = null;
    return this.#take(continueAuth(step, line.toString('latin1')));
  }

  #take(turn: AuthTurn): Reply | Promise<Reply> {
    if ('refused' in turn) return this.#countFailure(turn.refused);
    if ('password' in turn) return this.#check(turn.password);
    this.#step = turn.ask;
    return reply(334, null, questions[turn.ask]);
  }

  async #check(password: string): Promise<Reply> {
    const answer = await this.#rules.authenticate(password, this.#remoteIp);
    if ('status' in answer) return answer.status < 500 ? answer : this.#countFailure(answer);
    this.#submitter = answer;
    return succeeded;
  }

  #countFailure(refused: Reply): Reply {
    this.#failureCount += 1;
    if (this.#failureCount < maxFailures) return refused;
    return {
      ...refused,
      ...reply(421, '4.7.0', 'Too many failed AUTH commands; closing the connection', 'close'),
    };
  }
}
