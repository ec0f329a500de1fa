/** Lists: a bare array, and the URL of the next page in a `Link` header (RFC 8288). Cursors are opaque to callers. */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { isUuid } from '../lib/ids.ts';
import { maxPageBytes, type Page, type PageRequest, type Position } from '../store/page.ts';
import type { AnswerMemory } from './answer-memory.ts';

/** Escaping makes the JSON longer than the values that the store counts. */
const reservedBytes = 1.5 * maxPageBytes;

export interface PageParts {
  answers: AnswerMemory;
  /** Prefix of links: the public URL, or empty. The Host header is never trusted. */
  origin: string;
}

/** Also reserves the memory of the page. */
export async function readPage(
  { answers }: PageParts,
  request: FastifyRequest,
  reply: FastifyReply,
  defaultLimit: number,
): Promise<PageRequest> {
  await answers.reserve(request, reply, reservedBytes);
  const { limit = defaultLimit, cursor } = request.query as { limit?: number; cursor?: string };
  return { limit, after: cursor === undefined ? null : readCursor(cursor) };
}

export function sendPage<Row>(
  { origin }: PageParts,
  request: FastifyRequest,
  reply: FastifyReply,
  page: Page<Row>,
): Row[] {
  if (page.next) {
    // The request's path includes the base path. A request line in absolute form also has a host, which is dropped.
    const { pathname, searchParams } = new URL(request.url, 'http://localhost');
    searchParams.set('cursor', writeCursor(page.next));
    reply.header('link', `<${origin}${pathname}?${searchParams}>; rel="next"`);
  }
  return page.rows;
}

function writeCursor({ at, id }: Position): string {
  return `${at}_${id}`;
}

/** Versions before 0.3 wrote base64url, and a caller may have begun to page before the upgrade. No such cursor has a `_`. */
export function readCursor(cursor: string): Position | null {
  const parts = cursor.includes('_')
    ? cursor.split('_')
    : Buffer.from(cursor, 'base64url').toString().split(' ');
  const [at = '', id = ''] = parts;
  return parts.length === 2 && /^\d{1,16}$/.test(at) && isUuid(id) ? { at, id } : null;
}
