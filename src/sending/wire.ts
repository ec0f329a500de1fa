/**
 * The wire form of a message (RFC 5321 §4.5.2): dots at the start of lines doubled, and the final dot. Guarantees: a server that
 * removes the dots gets exactly the given bytes; the last piece, and no other, has the end of data; throws at a bare CR or LF, which
 * a careless server could read as the end of data (SMTP smuggling).
 */
import { SendFault } from './try-reply.ts';

/** A buffer in a list, or pieces as they are read from the database. */
export type Content = Iterable<Uint8Array> | AsyncIterable<Uint8Array>;

export interface WirePiece {
  bytes: Buffer;
  isLast: boolean;
}

const [lineFeed, carriageReturn, dot] = [10, 13, 46];
const oneDot = Buffer.from('.');
/** Smaller pieces are joined: a small message leaves in one write. */
const pieceBytes = 64 * 1024;

export async function* toWire(head: string, content: Content): AsyncGenerator<WirePiece> {
  const stuffer = new Stuffer();
  let pieces: Buffer[] = [];
  let size = 0;
  for await (const bytes of withHead(head, content)) {
    const chunk = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    for (let from = 0; from < chunk.length; from += pieceBytes) {
      const part = chunk.subarray(from, from + pieceBytes);
      pieces.push(...stuffer.push(part));
      size += part.length;
      if (size < pieceBytes) continue;
      yield { bytes: Buffer.concat(pieces), isLast: false };
      pieces = [];
      size = 0;
    }
  }
  pieces.push(stuffer.end());
  yield { bytes: Buffer.concat(pieces), isLast: true };
}

async function* withHead(head: string, content: Content): AsyncGenerator<Uint8Array> {
  if (head !== '') yield Buffer.from(head, 'latin1');
  yield* content;
}

class Stuffer {
  /** Before the first byte as after a line end. */
  #last = lineFeed;

  /** The same bytes, in pieces between which dots were added. */
  push(chunk: Buffer): Buffer[] {
    const pieces: Buffer[] = [];
    let from = 0;
    for (let start = 0; start < chunk.length; ) {
      const before = start === 0 ? this.#last : lineFeed;
      if (before === carriageReturn && chunk[start] !== lineFeed) throw bare('CR');
      if (before === lineFeed && chunk[start] === dot) {
        pieces.push(chunk.subarray(from, start), oneDot);
        from = start;
      }
      const end = chunk.indexOf(lineFeed, start);
      const lineEnd = end === -1 ? chunk.length : end;
      if (end !== -1 && (end === 0 ? this.#last : chunk[end - 1]) !== carriageReturn) throw bare('LF');
      const found = chunk.indexOf(carriageReturn, start);
      if (found !== -1 && found < lineEnd - 1) throw bare('CR');
      start = lineEnd + 1;
    }
    pieces.push(chunk.subarray(from));
    this.#last = chunk.at(-1) ?? this.#last;
    return pieces;
  }

  end(): Buffer {
    if (this.#last === carriageReturn) throw bare('CR');
    return Buffer.from(this.#last === lineFeed ? '.\r\n' : '\r\n.\r\n');
  }
}

function bare(what: 'CR' | 'LF'): SendFault {
  return new SendFault('message_malformed', `The message has a bare ${what} where CRLF belongs.`);
}
