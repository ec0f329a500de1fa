/**
 * Calculates the result of a session from the bytes that were sent and the replies that came: a small implementation of RFC 5321
 * that shares no code with the server. A line is a command and has one reply; after 354 everything up to CRLF "." CRLF, and no
 * similar sequence, is a message.
 */

export interface Reply {
  status: number;
  text: string;
}

export interface Taken {
  raw: Buffer;
  /** As they were written at RCPT. */
  recipients: string[];
}

export interface Sent {
  /** Before and after TLS, as latin1. */
  plain: string;
  secured: string | null;
}

export interface Rules {
  maxMessageBytes: number;
  maxLineBytes: number;
  isKnown(address: string): boolean;
}

export interface Verdict {
  /** `owed`: a reply is to come. `tls`: the handshake is the client's to begin. `over`: nothing more will be said. */
  state: 'owed' | 'idle' | 'data' | 'tls' | 'over';
  /** The server may as well just go: after a STARTTLS with more behind it in the clear, or a message that is far too big. */
  mayBeCut: boolean;
  /** Messages that were acknowledged. */
  taken: Taken[];
  /** What the server should not have said. */
  faults: string[];
}

const cutAtLines = 32;
const cutAtMessages = 2;
const webVerbs = /^(?:GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|CONNECT|TRACE)$/;
/** What each command may be answered beside a refusal. */
const successes: Record<string, number> = {
  ...{ EHLO: 250, HELO: 250, MAIL: 250, RCPT: 250, RSET: 250, NOOP: 250 },
  ...{ VRFY: 252, HELP: 214, DATA: 354, QUIT: 221, STARTTLS: 220 },
};

export function follow(sent: Sent, replies: readonly Reply[], rules: Rules): Verdict {
  const verdict: Verdict = { state: 'idle', mayBeCut: false, taken: [], faults: [] };
  const reader = new Reader(sent.plain, replies, rules, verdict);
  const greeting = replies[0];
  if (!greeting) return { ...verdict, state: 'owed' };
  if (greeting.status !== 220) verdict.faults.push(`${greeting.status} as a greeting`);
  verdict.state = reader.read();
  if (verdict.state === 'tls' && sent.secured !== null) {
    verdict.state = reader.secure(sent.secured).read();
  }
  for (const reply of reader.unread()) {
    const isLate = reply.status === 421 && verdict.state !== 'over';
    if (!isLate) verdict.faults.push(`${reply.status} ${reply.text} after all was answered`);
    verdict.state = 'over';
  }
  return verdict;
}

class Reader {
  #bytes: string;
  #at = 0;
  readonly #replies: readonly Reply[];
  #next = 1;
  readonly #rules: Rules;
  readonly #verdict: Verdict;
  #isGreeted = false;
  #isSecure = false;
  #recipients: string[] | null = null;

  constructor(bytes: string, replies: readonly Reply[], rules: Rules, verdict: Verdict) {
    this.#bytes = bytes;
    this.#replies = replies;
    this.#rules = rules;
    this.#verdict = verdict;
  }

  /** RFC 3207 §4.2: nothing of what was said before counts. */
  secure(bytes: string): this {
    this.#bytes = bytes;
    this.#at = 0;
    this.#isGreeted = false;
    this.#isSecure = true;
    this.#recipients = null;
    return this;
  }

  unread(): readonly Reply[] {
    return this.#replies.slice(this.#next);
  }

  read(): Verdict['state'] {
    for (;;) {
      const end = this.#bytes.indexOf('\n', this.#at);
      if (end === -1) return this.#endWithin(this.#bytes.length - this.#at);
      const line = this.#bytes.slice(this.#at, end).replace(/\r$/, '');
      const isLong = end + 1 - this.#at > this.#rules.maxLineBytes;
      this.#at = end + 1;
      const reply = this.#replies[this.#next++];
      if (!reply) {
        this.#verdict.mayBeCut = /^\s*STARTTLS\s*$/i.test(line) && this.#at < this.#bytes.length;
        return 'owed';
      }
      const state = isLong ? this.#refused(reply) : this.#take(line, reply);
      if (state) return state;
    }
  }

  /** A line without an end. Where it is far too long, the server says so and goes. */
  #endWithin(length: number): Verdict['state'] {
    const reply = this.#replies[this.#next];
    if (reply?.status !== 500 || length <= cutAtLines * this.#rules.maxLineBytes) return 'idle';
    this.#next++;
    return 'over';
  }

  #refused(reply: Reply): Verdict['state'] | null {
    if (reply.status < 500 && reply.status !== 421) this.#fault(reply, 'a line that is too long');
    return this.#isLast(reply) ? 'over' : null;
  }

  #isLast(reply: Reply): boolean {
    if (reply.status === 421) return true;
    // Far too long, seen before its end came.
    return reply.status === 500 && this.#next === this.#replies.length && this.#mayBeCut;
  }

  get #mayBeCut(): boolean {
    const start = this.#bytes.lastIndexOf('\n', this.#at - 2) + 1;
    return this.#at - start > cutAtLines * this.#rules.maxLineBytes;
  }

  #take(line: string, reply: Reply): Verdict['state'] | null {
    const text = line.trim();
    const verb = (text.split(' ', 1)[0] ?? '').toUpperCase();
    const { status } = reply;
    if (status === 421) return 'over';
    if (status >= 400) return status === 554 && webVerbs.test(verb) ? 'over' : null;
    if (status !== successes[verb]) this.#fault(reply, line);
    switch (verb) {
      case 'EHLO':
      case 'HELO':
        this.#isGreeted = true;
        this.#recipients = null;
        return null;
      case 'RSET':
        this.#recipients = null;
        return null;
      case 'MAIL':
        if (!this.#isGreeted || this.#recipients) this.#fault(reply, line);
        this.#recipients = [];
        return null;
      case 'RCPT':
        this.#rcpt(text, reply);
        return null;
      case 'DATA':
        if (!this.#recipients?.length) this.#fault(reply, line);
        return this.#message();
      case 'QUIT':
        return 'over';
      case 'STARTTLS':
        if (this.#isSecure) this.#fault(reply, line);
        return 'tls';
    }
    return null;
  }

  #rcpt(text: string, reply: Reply): void {
    const written = /<(?:@[^:<>" ]*:)?(.*)>/.exec(text)?.[1] ?? '';
    const address = Buffer.from(written, 'latin1').toString();
    if (!this.#recipients || !this.#rules.isKnown(address)) this.#fault(reply, text);
    this.#recipients?.push(address);
  }

  #message(): Verdict['state'] | null {
    const rest = this.#bytes.slice(this.#at);
    const end = rest.startsWith('.\r\n') ? 0 : rest.indexOf('\r\n.\r\n') + 2;
    const isWhole = end !== 1;
    const content = (isWhole ? rest.slice(0, end) : rest).split('\r\n');
    // Every LF inside a line is bare: after it, two dots are one.
    const lines = content.map((line) => line.replace(/^\./, '').replace(/\n\.(?=\.)/g, '\n'));
    const raw = Buffer.from(lines.join('\r\n'), 'latin1');
    const recipients = this.#recipients ?? [];
    this.#recipients = null;
    const reply = this.#replies[this.#next];
    if (!isWhole) return this.#endWithinMessage(raw.length, reply);
    this.#at += end + 3;
    this.#next++;
    if (!reply) return 'owed';
    const isTooBig = raw.length > this.#rules.maxMessageBytes;
    if (reply.status === 421) return 'over';
    if (reply.status !== (isTooBig ? 552 : 250)) this.#fault(reply, `a message of ${raw.length} bytes`);
    if (reply.status === 250) this.#verdict.taken.push({ raw, recipients });
    const mayBeCut = raw.length > cutAtMessages * this.#rules.maxMessageBytes;
    if (!mayBeCut || this.#next < this.#replies.length) return null;
    // Whether it went with its 552 is told by its answer to what was said since, or by there being none.
    this.#verdict.mayBeCut = true;
    return this.#at < this.#bytes.length ? 'owed' : 'over';
  }

  #endWithinMessage(length: number, reply: Reply | undefined): Verdict['state'] {
    if (!reply) return 'data';
    // What hangs at the end may not be counted yet.
    const isFarTooBig = length > cutAtMessages * this.#rules.maxMessageBytes;
    if (reply.status === 421 || (reply.status === 552 && isFarTooBig)) {
      this.#next++;
      return 'over';
    }
    return 'data';
  }

  #fault({ status, text }: Reply, what: string): void {
    this.#verdict.faults.push(`${status} ${text} for ${JSON.stringify(what.slice(0, 200))}`);
  }
}
