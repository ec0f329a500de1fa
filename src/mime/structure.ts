/**
 * Finds where the parts of a message begin and end (RFC 2046 §5.1), and reads their headers. Decodes nothing.
 * Guarantee: one pass over any bytes. Parts above the limit are left out and a multipart that is nested too deep gets no children;
 * then `isComplete` is false.
 */
import { cutAtLine, type Field, readFields } from './headers.ts';
import { findBlankTail } from './lexical.ts';
import { type Parameterized, readParameterized } from './parameters.ts';

export interface Part {
  parent: Part | null;
  children: Part[];
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
  isComplete: boolean;
  hasWholeHeader: boolean;
}

/** Real mail stays far below, because embedded messages are not parsed. */
const maxParts = 500;
const maxDepth = 20;
/** Only so much of a header is read. Postfix accepts 100 KiB. */
const maxHeaderBytes = 512 * 1024;
const maxPartHeaderBytes = 64 * 1024;
const maxFields = 20_000;
/** RFC 6838 §4.2: 127 characters on each side of the slash. */
const maxContentType = 255;

interface OpenMultipart {
  part: Part;
  boundary: Buffer;
}

interface Delimiter {
  part: Part;
  /** Its index in the list of open multiparts. */
  level: number;
  isClose: boolean;
}

const plainText: Parameterized = { value: 'text/plain', parameters: new Map() };
const lineFeed = 0x0a;
const carriageReturn = 0x0d;
const hyphen = 0x2d;

export function readStructure(raw: Buffer): Structure {
  const root = makePart(null, 0);
  const open: OpenMultipart[] = [];
  const multiparts: Part[] = [];
  let current: Part | null = root;
  let isInHeader = true;
  let count = 1;
  let isComplete = true;

  const endHeader = (part: Part, headerEnd: number, bodyStart: number, hasBody: boolean): void => {
    isInHeader = false;
    readPartHeader(raw, part, headerEnd, bodyStart, hasBody);
    const boundary = readBoundary(part);
    if (!boundary) return;
    if (open.length === maxDepth) isComplete = false;
    else {
      open.push({ part, boundary });
      multiparts.push(part);
    }
  };

  for (let line = 0, feed = 0; line < raw.length && (isInHeader || open.length > 0); line = feed + 1) {
    feed = line;
    while (feed < raw.length && raw[feed] !== lineFeed) feed++;
    const lineEnd = feed > line && raw[feed - 1] === carriageReturn ? feed - 1 : feed;
    const delimiter = findDelimiter(raw, line, lineEnd, open);
    if (!delimiter) {
      if (isInHeader && current && line === lineEnd) endHeader(current, line, feed + 1, true);
      continue;
    }

    if (isInHeader && current) endHeader(current, line, line, false);
    const { level, isClose } = delimiter;
    endParts(open.splice(level + 1), current, endBefore(raw, line));
    const parent: Part = delimiter.part;
    parent.isContainer = true;
    current = null;
    if (isClose) {
      endParts(open.splice(level), null, line);
    } else if (count < maxParts) {
      current = makePart(parent, feed + 1);
      parent.children.push(current);
      isInHeader = true;
      count++;
    } else {
      isComplete = false;
      break;
    }
  }

  if (isInHeader && current) endHeader(current, raw.length, raw.length, false);
  endParts(open, current, raw.length);
  // A multipart without a delimiter has no parts: its body is shown as plain text.
  for (const part of multiparts) if (!part.isContainer) part.contentType = plainText;
  return {
    root,
    isComplete,
    hasWholeHeader: root.bodyStart <= maxHeaderBytes && root.fields.length < maxFields,
  };
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

/** If no line is a field, the sender forgot the empty line: the whole block is body. */
function readPartHeader(
  raw: Buffer,
  part: Part,
  headerEnd: number,
  bodyStart: number,
  hasBody: boolean,
): void {
  const start = part.bodyStart;
  const maxBytes = part.parent ? maxPartHeaderBytes : maxHeaderBytes;
  part.fields = readFields(cutAtLine(raw.subarray(start, headerEnd), maxBytes), maxFields);
  const isAllBody = part.fields.length === 0 && headerEnd > start;
  part.hasBody = hasBody || isAllBody;
  part.bodyStart = isAllBody ? start : bodyStart;
  part.bodyEnd = Math.max(part.bodyStart, part.bodyEnd);
  part.contentType = readContentType(part);
  const disposition = findValue(part, 'content-disposition');
  part.disposition = disposition === undefined ? null : readParameterized(disposition);
}

/** The value of the first field of that name. */
export function findValue(part: Part, name: string): string | undefined {
  return part.fields.find((field) => field.name.toLowerCase() === name)?.value;
}

/** RFC 2045 §5.2: a missing or unreadable type is plain text. */
function readContentType(part: Part): Parameterized {
  const field = findValue(part, 'content-type');
  if (field === undefined) {
    // RFC 2046 §5.1.5: the default type inside a digest.
    const isInDigest = part.parent?.contentType.value === 'multipart/digest';
    return isInDigest ? { value: 'message/rfc822', parameters: new Map() } : plainText;
  }
  const contentType = readParameterized(field);
  const { value, parameters } = contentType;
  if (value.length > maxContentType) return { value: 'application/octet-stream', parameters };
  if (!/^[\w!#$&^.+-]+\/[\w!#$&^.+-]+$/.test(value)) return { value: plainText.value, parameters };
  return value.startsWith('multipart/') && !parameters.get('boundary') ? plainText : contentType;
}

function readBoundary(part: Part): Buffer | undefined {
  const { value, parameters } = part.contentType;
  const boundary = parameters.get('boundary')?.trimEnd();
  return value.startsWith('multipart/') && boundary ? Buffer.from(boundary) : undefined;
}

/** The innermost open multipart whose delimiter this line is. An outer delimiter ends all multiparts inside it. */
function findDelimiter(
  raw: Buffer,
  line: number,
  lineEnd: number,
  open: readonly OpenMultipart[],
): Delimiter | null {
  if (raw[line] !== hyphen || raw[line + 1] !== hyphen) return null;
  // RFC 2046 §5.1.1: blanks after a delimiter are ignored.
  const end = findBlankTail(raw, line, lineEnd);
  const length = end - line - 2;
  for (let level = open.length - 1; level >= 0; level--) {
    const { part, boundary } = open[level] as OpenMultipart;
    const isClose = length === boundary.length + 2 && raw[end - 1] === hyphen && raw[end - 2] === hyphen;
    if (!isClose && length !== boundary.length) continue;
    if (raw[line + 2] !== boundary[0]) continue;
    if (boundary.compare(raw, line + 2, line + 2 + boundary.length) === 0) return { part, level, isClose };
  }
  return null;
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
