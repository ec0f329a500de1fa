/**
 * Finds where the parts of a message begin and end (RFC 2046 §5.1), and reads their headers. Decodes nothing.
 * Guarantee: linear time for any bytes. Parts above the limits are left out and a multipart that is nested too deep gets no
 * children; then `isComplete` is false.
 */
import { isUtf8 } from 'node:buffer';
import {
  findBoundary,
  maxAllPreambleBytes,
  plainText,
  readContentType,
  unknownType,
} from './content-type.ts';
import {
  cutAtLine,
  type Field,
  type HeaderEnd,
  type HeaderScan,
  readContentFields,
  readFields,
  scanHeader,
} from './headers.ts';
import { findBlankTail } from './lexical.ts';
import { type Parameterized, readParameterized } from './parameters.ts';

export interface Part {
  parent: Part | null;
  children: Part[];
  /** Of a part of a multipart only those that count (`readContentFields`). */
  fields: Field[];
  contentType: Parameterized;
  disposition: Parameterized | null;
  /** A multipart with at least one delimiter: its children are its content. */
  isContainer: boolean;
  /** False: the header goes on to the end of the part (RFC 5322 §3.5: the body is optional). */
  hasBody: boolean;
  bodyStart: number;
  bodyEnd: number;
}

export interface Structure {
  root: Part;
  /** All parts and their headers were read. */
  isComplete: boolean;
  /** All of the message's own header was read. */
  hasWholeHeader: boolean;
}

/** Real mail stays far below, because embedded messages are not parsed. */
const maxParts = 500;
const maxDepth = 20;
/** Only so much of a header is read. Postfix accepts 100 KiB. */
const maxHeaderBytes = 512 * 1024;
const maxPartHeaderBytes = 64 * 1024;
/** Of all headers of a message together: 480 parts with 12,000 fields each took 5 s. */
const maxAllHeaderBytes = 1024 * 1024;
const maxFields = 20_000;

interface OpenMultipart {
  part: Part;
  /** One character for each byte. */
  boundary: string;
}

/** The level of each open multipart by its boundary, by the length of the boundary: a line is looked up once, not once for each. */
type Levels = Map<number, Map<string, number>>;

interface Delimiter {
  /** The index of the multipart in the list of open ones. */
  level: number;
  isClose: boolean;
}

const lineFeed = 0x0a;
const carriageReturn = 0x0d;
const hyphen = 0x2d;

export function readStructure(raw: Buffer): Structure {
  const root = makePart(null, 0);
  const open: OpenMultipart[] = [];
  let levels: Levels = new Map();
  const multiparts: Part[] = [];
  const left: Budget = { bytes: maxAllHeaderBytes, fields: maxFields };
  const preambles = { bytes: maxAllPreambleBytes };
  let current: Part | null = root;
  /** Null: the line is not in a header. */
  let scan: HeaderScan | null = scanHeader(raw, 0, false);
  let count = 1;
  let isComplete = true;
  let hasWholeHeader = true;
  let header = raw;

  const openMultipart = (part: Part): void => {
    const isOuter = (boundary: string) => levels.get(boundary.length)?.has(boundary) === true;
    const boundary = findBoundary(raw, part.bodyStart, part.contentType, isOuter, preambles);
    if (!boundary) part.contentType = plainText;
    else if (open.length === maxDepth) isComplete = false;
    else {
      open.push({ part, boundary });
      levels = indexLevels(open);
      multiparts.push(part);
    }
  };

  /** Ends the multiparts from `level` on. */
  const closeFrom = (level: number, current: Part | null, end: number): void => {
    endParts(open.splice(level), current, end);
    levels = indexLevels(open);
  };

  /** Returns where the body begins. */
  const endHeader = (part: Part, found: HeaderEnd, hasBody: boolean): number => {
    const isWhole = readPartHeader(raw, part, found, hasBody, left) && !scan?.hasDamage();
    scan = null;
    if (part === root) {
      hasWholeHeader = isWhole;
      header = cutAtLine(raw.subarray(0, found.end), maxHeaderBytes);
    } else isComplete &&= isWhole;
    if (part.contentType.value.startsWith('multipart/')) openMultipart(part);
    return part.bodyStart;
  };

  for (let line = 0, next = 0; scan || (open.length > 0 && line < raw.length); line = next) {
    let feed = line;
    while (feed < raw.length && raw[feed] !== lineFeed) feed++;
    next = feed + 1;
    const lineEnd = feed > line && raw[feed - 1] === carriageReturn ? feed - 1 : feed;
    const delimiter = findDelimiter(raw, line, lineEnd, levels);
    if (scan && current) {
      const isEmpty = line === lineEnd;
      const isRead = line - current.bodyStart < maxHeader(current, left);
      const isOver: boolean = !delimiter && !isEmpty && isRead && scan.isOverAt(line, next);
      if (isEmpty) scan.takeEmptyLine();
      const missing: HeaderEnd | null = scan.missingEnd();
      // Beyond the limit a missing end stays where it is: to go on and come back would read the rest once for each multipart.
      if (!delimiter && !isEmpty && !isOver && (isRead || !missing)) continue;
      if (missing) {
        // The lines since then were body, perhaps with delimiters of this very part.
        next = endHeader(current, missing, true);
        continue;
      }
      const end = Math.min(line, raw.length);
      const hasBody = isEmpty && end < raw.length;
      endHeader(current, { end, bodyStart: hasBody ? next : end }, hasBody);
    }
    if (!delimiter) continue;

    const { level, isClose } = delimiter;
    closeFrom(level + 1, current, endBefore(raw, line));
    const { part: parent } = open[level] as OpenMultipart;
    parent.isContainer = true;
    current = null;
    if (isClose) {
      closeFrom(level, null, line);
    } else if (count < maxParts && left.bytes > 0 && left.fields > 0) {
      current = makePart(parent, next);
      parent.children.push(current);
      scan = scanHeader(raw, next, true);
      count++;
    } else {
      isComplete = false;
      break;
    }
  }

  endParts(open, current, raw.length);
  // A multipart without a delimiter has no parts: its body is shown as plain text.
  for (const part of multiparts) if (!part.isContainer) part.contentType = plainText;
  // A multipart has its charset in its parts.
  if (root.isContainer && !isUtf8(header)) root.fields = readFields(header, maxFields, findTextCharset(root));
  return { root, isComplete, hasWholeHeader };
}

/** Of the first text that names one. */
function findTextCharset({ contentType, children }: Part): string | undefined {
  const isText = contentType.value.startsWith('text/');
  const own = isText ? contentType.parameters.get('charset') : undefined;
  return own ?? children.map(findTextCharset).find((charset) => charset !== undefined);
}

function makePart(parent: Part | null, start: number): Part {
  return {
    parent,
    children: [],
    fields: [],
    contentType: plainText,
    disposition: null,
    isContainer: false,
    hasBody: false,
    bodyStart: start,
    bodyEnd: start,
  };
}

/** What is left of the limits that hold for all headers of a message together. */
interface Budget {
  bytes: number;
  fields: number;
}

function maxHeader(part: Part, left: Budget): number {
  return Math.min(left.bytes, part.parent ? maxPartHeaderBytes : maxHeaderBytes);
}

function readAll(block: Buffer, max: number): { fields: Field[]; count: number } {
  const fields = readFields(block, max);
  return { fields, count: fields.length };
}

/** False: only a part of the header was read. */
function readPartHeader(raw: Buffer, part: Part, found: HeaderEnd, hasBody: boolean, left: Budget): boolean {
  const block = raw.subarray(part.bodyStart, found.end);
  const max = maxHeader(part, left);
  const kept = cutAtLine(block, max);
  const { fields, count } = part.parent ? readContentFields(kept, left.fields) : readAll(kept, left.fields);
  part.fields = fields;
  left.bytes -= Math.min(block.length, max);
  left.fields -= count;
  part.hasBody = hasBody;
  part.bodyStart = found.bodyStart;
  part.bodyEnd = Math.max(part.bodyStart, part.bodyEnd);
  const isWhole = kept.length === block.length && left.fields > 0;
  const disposition = findValue(part, 'content-disposition');
  part.disposition = disposition === undefined ? null : readParameterized(disposition);
  const type = findValue(part, 'content-type');
  const hasFilename = part.disposition?.parameters.has('filename') ?? false;
  part.contentType = type === undefined ? defaultType(part, isWhole) : readContentType(type, hasFilename);
  return isWhole;
}

/** The value of the first field of that name. */
export function findValue(part: Part, name: string): string | undefined {
  return part.fields.find((field) => field.name.toLowerCase() === name)?.value;
}

function defaultType({ parent }: Part, isWhole: boolean): Parameterized {
  if (!parent) return plainText;
  if (!isWhole) return unknownType;
  // RFC 2046 §5.1.5: the default type inside a digest.
  const isInDigest = parent.contentType.value === 'multipart/digest';
  return isInDigest ? { value: 'message/rfc822', parameters: new Map() } : plainText;
}

/** Of two multiparts with the same boundary the inner one counts. */
function indexLevels(open: readonly OpenMultipart[]): Levels {
  const levels: Levels = new Map();
  for (const [level, { boundary }] of open.entries()) {
    const sameLength = levels.get(boundary.length) ?? new Map<string, number>();
    levels.set(boundary.length, sameLength.set(boundary, level));
  }
  return levels;
}

/** The innermost open multipart whose delimiter this line is. An outer delimiter ends all multiparts inside it. */
function findDelimiter(raw: Buffer, line: number, lineEnd: number, levels: Levels): Delimiter | null {
  if (raw[line] !== hyphen || raw[line + 1] !== hyphen) return null;
  // RFC 2046 §5.1.1: blanks after a delimiter are ignored.
  const end = findBlankTail(raw, line, lineEnd);
  const level = findLevel(raw, line + 2, end, levels);
  const mayClose = raw[end - 1] === hyphen && raw[end - 2] === hyphen;
  const closed = mayClose ? findLevel(raw, line + 2, end - 2, levels) : -1;
  if (level === -1 && closed === -1) return null;
  return { level: Math.max(level, closed), isClose: closed > level };
}

/** -1: no open multipart has this boundary. */
function findLevel(raw: Buffer, start: number, end: number, levels: Levels): number {
  return levels.get(end - start)?.get(raw.toString('latin1', start, end)) ?? -1;
}

/** RFC 2046 §5.1.1: the line break before a delimiter belongs to the delimiter. */
function endBefore(raw: Buffer, line: number): number {
  const isCrLf = raw[line - 2] === carriageReturn;
  return line === 0 ? 0 : line - (isCrLf ? 2 : 1);
}

function endParts(open: readonly OpenMultipart[], current: Part | null, end: number): void {
  for (const { part } of open) part.bodyEnd = Math.max(part.bodyStart, end);
  if (current) current.bodyEnd = Math.max(current.bodyStart, end);
}
