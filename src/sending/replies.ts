/**
 * Reads SMTP replies (RFC 5321 §4.2) from bytes. Guarantees: linear time; keeps at most 1 MiB; a longer reply is cut there, and its
 * code counts, so that a server which accepts a message with an endless text does not get the message twice.
 */
import { maxGivenLength } from '../net/hide-secrets.ts';
import type { SmtpResponse } from './try-reply.ts';

export interface Reply extends SmtpResponse {
  /** The reply was too long. What follows it cannot be read. */
  isCut: boolean;
}

const maxReplyBytes = 1024 * 1024;
/** In characters. A little less is stored with the attempt, without the secrets of the login. */
const maxTextLength = maxGivenLength;
/** A character has at most four bytes. */
const maxTextBytes = 4 * maxTextLength + 4;
const lineFeed = 10;

export class ReplyReader {
  /** The lines of the current reply, as far as they are kept. */
  #lines: string[] = [];
  #kept = 0;
  #size = 0;
  #code = 0;
  #line: Buffer = Buffer.alloc(0);

  /** No part of a reply has come. */
  get isEmpty(): boolean {
    return this.#size === 0;
  }

  /** Null in the list: a line that is not a reply. Stop reading after it, and after a reply that is cut. */
  push(chunk: Buffer): (Reply | null)[] {
    const found: (Reply | null)[] = [];
    let from = 0;
    for (let end = chunk.indexOf(lineFeed); end !== -1; end = chunk.indexOf(lineFeed, from)) {
      const reply = this.#addLine(this.#takeLine(chunk.subarray(from, end)));
      if (reply !== undefined) found.push(reply);
      if (reply === null) return found;
      from = end + 1;
    }
    this.#keepPart(chunk.subarray(from));
    if (this.#size <= maxReplyBytes) return found;
    // The code of the first line counts, also of a first line that has no end.
    const code = this.#code || readCode(this.#line.toString('latin1', 0, 3));
    if (this.#code === 0) this.#lines.push(readText(this.#line));
    return [...found, code === null ? null : toReply(code, this.#lines, true)];
  }

  #takeLine(end: Buffer): Buffer {
    const line = this.#line.length === 0 ? end : Buffer.concat([this.#line, end]);
    this.#line = Buffer.alloc(0);
    this.#size += end.length + 1;
    return line;
  }

  /** Only the beginning of a long line is kept. */
  #keepPart(part: Buffer): void {
    this.#size += part.length;
    if (part.length > 0 && this.#line.length < maxTextBytes)
      this.#line = Buffer.concat([this.#line, part.subarray(0, maxTextBytes)]);
  }

  /** Undefined: the reply goes on. */
  #addLine(line: Buffer): Reply | null | undefined {
    const code = readCode(line.toString('latin1', 0, 3));
    const separator = String.fromCharCode(line[3] ?? 0x20);
    // RFC 5321 §4.2.1: all lines have the same code.
    if (code === null || ![' ', '-', '\r'].includes(separator) || (this.#code && code !== this.#code))
      return null;
    this.#code = code;
    if (this.#kept < maxTextLength) {
      this.#lines.push(readText(line));
      this.#kept += line.length;
    }
    if (separator === '-') return undefined;
    const reply = toReply(code, this.#lines, false);
    this.#lines = [];
    this.#kept = 0;
    this.#size = 0;
    this.#code = 0;
    return reply;
  }
}

function readCode(text: string): number | null {
  return /^[2-5]\d\d$/.test(text) ? Number(text) : null;
}

/** Without the code, and without what PostgreSQL or a terminal would not take. */
function readText(line: Buffer): string {
  return (
    line
      .subarray(4, maxTextBytes)
      .toString()
      .slice(0, maxTextLength)
      // biome-ignore lint/suspicious/noControlCharactersInRegex: the expression finds control characters.
      .replace(/[\u0000-\u001f\u007f]+/g, ' ')
      .trim()
  );
}

/** RFC 2034 §4: each line begins with the enhanced code, whose class is that of the code. */
function toReply(code: number, lines: readonly string[], isCut: boolean): Reply {
  const [, found = null] = /^([245]\.\d{1,3}\.\d{1,3})(?=\s|$)/.exec(lines[0] ?? '') ?? [];
  const enhanced = found?.[0] === String(code)[0] ? found : null;
  const texts = lines.map((line) =>
    enhanced && line.startsWith(enhanced) ? line.slice(enhanced.length).trim() : line,
  );
  return { code, enhanced, text: texts.join('\n').slice(0, maxTextLength), isCut };
}
