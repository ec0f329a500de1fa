/** A connection that sends exactly the given bytes and reads HTTP/1.1 responses strictly (RFC 9112). */
import net, { type Socket } from 'node:net';
import { setImmediate as nextTurn } from 'node:timers/promises';

export interface WireAnswer {
  status: number;
  /** Names in lower case. */
  headers: Map<string, string>;
  body: Buffer;
}

export class WireConnection {
  readonly #socket: Socket;
  #received: Buffer = Buffer.alloc(0);
  #isOver = false;
  #changed = () => {};

  constructor(port: number) {
    this.#socket = net.connect({ host: '127.0.0.1', port, noDelay: true });
    const over = () => {
      this.#isOver = true;
      this.#changed();
    };
    this.#socket.on('data', (chunk: Buffer) => {
      this.#received = Buffer.concat([this.#received, chunk]);
      this.#changed();
    });
    this.#socket.on('end', over).on('close', over).on('error', over);
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  async send(pieces: readonly Buffer[]): Promise<void> {
    for (const piece of pieces) {
      if (this.#isOver) return;
      this.#socket.write(piece);
      if (pieces.length > 1) await nextTurn();
    }
  }

  halfClose(): void {
    this.#socket.end();
  }

  close(): void {
    this.#socket.destroy();
  }

  /** As many answers as there are methods, or fewer where the server closes; null when neither comes about in time. */
  async answers(methods: readonly string[], ms: number): Promise<WireAnswer[] | null> {
    const { promise, resolve } = Promise.withResolvers<WireAnswer[] | null>();
    const timer = setTimeout(() => resolve(null), ms);
    let rest: Buffer = Buffer.alloc(0);
    this.#changed = () => {
      const read = readAnswers(this.#received, methods, this.#isOver);
      rest = read.rest;
      if (read.answers.length >= methods.length || this.#isOver) resolve(read.answers);
    };
    this.#changed();
    const answers = await promise;
    clearTimeout(timer);
    this.#changed = () => {};
    this.#received = rest;
    return answers;
  }

  /** What has come and is no whole answer. */
  get unread(): string {
    return this.#received.toString('latin1');
  }
}

/** Throws where what has come is no HTTP. */
function readAnswers(received: Buffer, methods: readonly string[], isOver: boolean) {
  const answers: WireAnswer[] = [];
  let rest = received;
  while (answers.length < methods.length) {
    const read = readAnswer(rest, methods[answers.length] ?? '', isOver);
    if (!read) break;
    rest = rest.subarray(read.length);
    // RFC 9110 §15.2: an interim answer is no answer yet.
    if (read.answer.status >= 200) answers.push(read.answer);
  }
  return { answers, rest };
}

function readAnswer(
  bytes: Buffer,
  method: string,
  isOver: boolean,
): { answer: WireAnswer; length: number } | null {
  const end = bytes.indexOf('\r\n\r\n');
  if (end === -1) return null;
  const [first = '', ...lines] = bytes.toString('latin1', 0, end).split('\r\n');
  const status = Number(/^HTTP\/1\.[01] (\d{3}) [\t\x20-\x7e]*$/.exec(first)?.[1]);
  if (!status) throw new Error(`No answer: ${JSON.stringify(first.slice(0, 200))}`);
  const headers = new Map(lines.map(readHeader));
  const start = end + 4;
  const isEmpty = method === 'HEAD' || status === 204 || status === 304 || status < 200;
  const body = isEmpty
    ? { content: Buffer.alloc(0), length: 0 }
    : readBody(bytes.subarray(start), headers, isOver);
  return body && { answer: { status, headers, body: body.content }, length: start + body.length };
}

function readHeader(line: string): [string, string] {
  const match = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+): *([\t\x20-\x7e\x80-\xff]*)$/.exec(line);
  if (!match?.[1]) throw new Error(`No header: ${JSON.stringify(line.slice(0, 200))}`);
  return [match[1].toLowerCase(), match[2] ?? ''];
}

function readBody(bytes: Buffer, headers: Map<string, string>, isOver: boolean) {
  if (headers.get('transfer-encoding') === 'chunked') return readChunks(bytes);
  const told = headers.get('content-length');
  if (told === undefined) return isOver ? { content: bytes, length: bytes.length } : null;
  if (!/^\d+$/.test(told)) throw new Error(`content-length: ${told}`);
  const length = Number(told);
  return bytes.length < length ? null : { content: bytes.subarray(0, length), length };
}

function readChunks(bytes: Buffer) {
  const chunks: Buffer[] = [];
  for (let at = 0; ; ) {
    const end = bytes.indexOf('\r\n', at);
    if (end === -1) return null;
    const size = Number.parseInt(bytes.toString('latin1', at, end), 16);
    if (Number.isNaN(size)) throw new Error('A chunk without its size');
    const next = end + 2 + size + 2;
    if (bytes.length < next) return null;
    chunks.push(bytes.subarray(end + 2, end + 2 + size));
    if (size === 0) return { content: Buffer.concat(chunks), length: next };
    at = next;
  }
}
