/** Lists: a bare array, and the URL of the next page in a `Link` header (RFC 8288). Cursors are opaque to callers. */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { isUuid } from '../lib/ids.ts';
import type { Page, PageRequest, Position } from '../store/page.ts';

export interface PageParts {
  /** Prefix of links: the public URL, or empty. The Host header is never trusted. */
  origin: string;
}

export function readPage(query: { limit?: number; cursor?: string }, defaultLimit: number): PageRequest {
  const { limit = defaultLimit, cursor } = query;
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
  return Buffer.from(`${at} ${id}`).toString('base64url');
}

export function readCursor(cursor: string): Position | null {
  const [at = '', id = ''] = Buffer.from(cursor, 'base64url').toString().split(' ');
  return /^\d{1,16}$/.test(at) && isUuid(id) ? { at, id } : null;
}
