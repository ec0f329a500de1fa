/**
 * Sorts the parts into text, HTML and attachments by the rules of JMAP (RFC 8621 §4.1.4), and describes attachments. `text` holds
 * text/plain parts only and `html` text/html parts only; neither is made from the other. An embedded message is one attachment.
 */
import { createHash } from 'node:crypto';
import { decodeLine } from './encoded-words.ts';
import { type OnCut, stripComments, watchCuts } from './lexical.ts';
import { readFirstId } from './message-ids.ts';
import { findValue, type Part } from './structure.ts';
import { type Decoded, decodeTransfer } from './transfer.ts';

/** Far above Node's pool of 64 KiB, which small buffers of others share. */
const freedBytes = 256 * 1024;

export interface ParsedAttachment {
  /** Its index: '0', '1', … */
  id: string;
  filename: string | null;
  contentType: string;
  size: number;
  disposition: 'attachment' | 'inline' | null;
  /** With its angle brackets. */
  contentId: string | null;
  /** Of the decoded content, in hexadecimal. */
  sha256: string;
}

/** With its file name: thousands of encoded words may be in it, and they are decoded once. */
interface Attachment {
  part: Part;
  filename: string | null;
  contentId: string | null;
  /** Its name, content id or type is too long. */
  isCut: boolean;
}

export interface Bodies {
  text: Part[];
  html: Part[];
  attachments: Attachment[];
}

export function sortParts(root: Part): Bodies {
  const bodies: Bodies = { text: [], html: [], attachments: [] };
  sortInto(bodies, root, true);
  return bodies;
}

/** Recursion ends at `maxDepth` of structure.ts. `isFirst`: the multipart's first part is shown even if it has a file name. */
function sortInto(bodies: Bodies, part: Part, isFirst: boolean): void {
  if (part.isContainer) {
    const first = findFirst(part);
    for (const child of part.children) sortInto(bodies, child, child === first);
    return;
  }
  const cuts = watchCuts();
  const filename = readFilename(part, cuts.onCut);
  if (!isShown(part, isFirst, filename)) {
    const contentId = readContentId(part, cuts.onCut);
    const isCut = cuts.isCut || part.contentType.isReplaced === true;
    bodies.attachments.push({ part, filename, contentId, isCut });
  } else if (part.contentType.value === 'text/html') bodies.html.push(part);
  else bodies.text.push(part);
}

function isShown(part: Part, isFirst: boolean, filename: string | null): boolean {
  if (part.contentType.value !== 'text/plain' && part.contentType.value !== 'text/html') return false;
  if (readDisposition(part) === 'attachment') return false;
  return isFirst || (!isRelated(part.parent) && filename === null);
}

function isRelated(part: Part | null): boolean {
  return part?.contentType.value === 'multipart/related';
}

/** RFC 2387 §3.2: in a multipart/related `start` may name another part than the first. */
function findFirst(multipart: Part): Part | undefined {
  const start = isRelated(multipart) ? multipart.contentType.parameters.get('start') : undefined;
  const id = readFirstId(start ?? '', { isAlone: true });
  const named = id && multipart.children.find((child) => readContentId(child) === id);
  return named || multipart.children[0];
}

export function describeAttachment(
  { part, filename, contentId }: Attachment,
  content: Buffer,
  n: number,
): ParsedAttachment {
  return {
    id: String(n),
    filename,
    contentType: part.contentType.value,
    size: content.length,
    disposition: readDisposition(part),
    contentId,
    sha256: createHash('sha256').update(content).digest('hex'),
  };
}

export function decodeBody(raw: Buffer, part: Part): Decoded {
  const encoding = stripComments(findValue(part, 'content-transfer-encoding') ?? '');
  const body = raw.subarray(part.bodyStart, part.bodyEnd);
  // RFC 2045 §6.4: a multipart is never encoded as a whole.
  const isMultipart = part.contentType.value.startsWith('multipart/');
  return decodeTransfer(body, isMultipart ? '' : (/[\w-]+/.exec(encoding.toLowerCase())?.[0] ?? ''));
}

/**
 * Decodes a body, calls `use`, and then frees the decoded bytes: `use` must not keep them. V8 does not count them as heap and collects
 * them late. The worker that examines mail kept 20 MB of attachments that it had only described.
 */
export function useBody<T>(raw: Buffer, part: Part, use: (decoded: Decoded) => T): T {
  const decoded = decodeBody(raw, part);
  const result = use(decoded);
  const { buffer } = decoded.content;
  if (buffer !== raw.buffer && buffer.byteLength >= freedBytes) (buffer as ArrayBuffer).transfer(0);
  return result;
}

/** RFC 2183 §2.8: an unknown disposition counts as attachment. */
function readDisposition(part: Part): 'attachment' | 'inline' | null {
  const disposition = part.disposition?.value;
  if (!disposition) return null;
  return disposition === 'inline' ? 'inline' : 'attachment';
}

const maxFilename = 255;

/**
 * Only the last path component, without control characters: someone may use the name as a path. Without controls of direction: with
 * them "invoice\\u202Efdp.exe" is shown as "invoiceexe.pdf". Encoded words are decoded although RFC 2047 §5 forbids them here, because
 * senders use them.
 */
function readFilename(part: Part, onCut: OnCut): string | null {
  const written =
    part.disposition?.parameters.get('filename') || part.contentType.parameters.get('name') || '';
  const name = decodeLine(written.slice(0, 16 * maxFilename))
    .replace(/^.*[/\\]/s, '')
    .replace(/\p{Bidi_Control}/gu, '_')
    .trim();
  if (written.length > 16 * maxFilename || name.length > maxFilename) onCut();
  if (/^\.{0,2}$/.test(name)) return null;
  return name.slice(0, maxFilename).toWellFormed();
}

function readContentId(part: Part, onCut?: OnCut): string | null {
  return readFirstId(findValue(part, 'content-id') ?? '', { isAlone: true, onCut }) ?? null;
}
