/**
 * The grammar of command lines: verb, path, parameters. Accepts what RFC 5321 and RFC 6531 allow, and the deviations that
 * real mail servers send. Checks syntax only, not whether an address exists.
 */
import { isIP } from 'node:net';

export interface Command {
  /** In upper case. */
  verb: string;
  argument: string;
}

const printable = /^[\x20-\x7e]*$/;
const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
/** Control and invisible characters: in an address they mislead. Joiners are allowed: some scripts need them. */
const unwanted = /(?![\p{Join_C} ])[\p{C}\p{Z}]/u;

/** Null: the line is not text. */
export function readCommand(line: Buffer): Command | null {
  let text = line.toString('latin1');
  if (!printable.test(text)) {
    try {
      text = decoder.decode(line);
    } catch {
      return null;
    }
    if (unwanted.test(text)) return null;
  }
  text = text.trim();
  const space = text.indexOf(' ');
  if (space === -1) return { verb: text.toUpperCase(), argument: '' };
  return { verb: text.slice(0, space).toUpperCase(), argument: text.slice(space + 1).trim() };
}

export interface Path {
  /** As the client spelled it, without a source route; empty for `<>`. */
  address: string;
  parameters: string;
}

/** `<`, a source route that is ignored (RFC 5321 appendix C), an address, `>`, and parameters. */
const pathAndParameters =
  /^ *<(?:@[^:<>" ]*:)?((?:"(?:[^"\\]|\\.)*"|[^"<>@ ]+)(?:@[^"<>@ ]+)?)?>(?: +(.*))?$/;

/** Reads the text after `FROM:` or `TO:`. Null: syntax error. */
export function readPath(text: string): Path | null {
  const match = pathAndParameters.exec(text);
  return match && { address: match[1] ?? '', parameters: match[2] ?? '' };
}

/** RFC 5321 §4.5.3.1: 64 octets, "@", 255. The RFC's 256 for a path would refuse bounce addresses that are in use. */
const maxAddressBytes = 320;
/** Dots may be anywhere: senders like `a..b@` exist. Such a recipient is answered as unknown. */
const localPart = /^(?:"(?:[^"\\]|\\.)*"|[^\s"(),:;<>@[\\\]]+)$/;
const domainName = /^[\p{L}\p{N}\p{M}\p{Join_C}_-]+(?:\.[\p{L}\p{N}\p{M}\p{Join_C}_-]+)*$/u;

export function isAddress(text: string): boolean {
  const at = text.lastIndexOf('@');
  if (at === -1 || Buffer.byteLength(text) > maxAddressBytes) return false;
  return localPart.test(text.slice(0, at)) && isDomain(text.slice(at + 1));
}

function isDomain(text: string): boolean {
  if (!text.startsWith('[')) return domainName.test(text);
  if (!text.endsWith(']')) return false;
  const literal = text.slice(1, -1);
  return /^ipv6:/i.test(literal) ? isIP(literal.slice(5)) === 6 : isIP(literal) === 4;
}

export function isAscii(text: string): boolean {
  return printable.test(text);
}

/** By keyword in upper case; null for a keyword without a value. Null: a parameter is malformed or given twice. */
export function readParameters(text: string): Map<string, string | null> | null {
  const parameters = new Map<string, string | null>();
  for (const part of text.split(' ')) {
    if (part === '') continue;
    const match = /^([a-z0-9][a-z0-9-]*)(?:=([^=]+))?$/i.exec(part);
    const keyword = match?.[1]?.toUpperCase();
    if (keyword === undefined || parameters.has(keyword)) return null;
    parameters.set(keyword, match?.[2] ?? null);
  }
  return parameters;
}
