/** Messages: mail as JSON, as raw bytes, and attachment by attachment. */
import { Readable } from 'node:stream';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { Type } from 'typebox';
import type { Links } from '../../contract/links.ts';
import { cutSummary, Message, MessageSummary } from '../../contract/message.ts';
import { completeSummary, writeMessage } from '../../contract/payload.ts';
import {
  defaultShortPage,
  describe,
  IdParams,
  oneOf,
  Since,
  shortListQuery,
  Uuid,
} from '../../contract/schemas.ts';
import type { Pool } from '../../db/client.ts';
import { type Share, Slots } from '../../lib/slots.ts';
import type { MailWork } from '../../mailwork/mailwork.ts';
import { Problem } from '../../problems.ts';
import { directions, listMessages } from '../../store/message-lists.ts';
import { SearchNotReady, searchMessages } from '../../store/message-search.ts';
import { findMessage, findRaw, readRaw, readWhole, type StoredRaw } from '../../store/messages.ts';
import { sendingStatuses } from '../../store/outgoing.ts';
import { deleteMessage } from '../../store/purge.ts';
import { readWords } from '../../store/words.ts';
import { withAccess } from '../access.ts';
import { matchesTag, readRange } from '../byte-range.ts';
import { abortOnClose } from '../client-gone.ts';
import { orNotFound } from '../errors.ts';
import { keepContext } from '../fair-queries.ts';
import type { App } from '../fastify.ts';
import { jsonText, sendJsonText } from '../json-text.ts';
import { type PageParts, readPage, sendPage } from '../pagination.ts';

const Filters = shortListQuery({
  identity_id: Type.Optional(Uuid),
  thread_id: Type.Optional(
    describe(Uuid, 'Only the messages of this conversation: the `threadId` of a message.'),
  ),
  direction: Type.Optional(oneOf(directions)),
  status: Type.Optional(
    describe(
      oneOf(sendingStatuses),
      'Only messages that were sent from here, with this status of their sending.',
    ),
  ),
  since: Since,
  q: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 200,
      format: 'text',
      description:
        'Only messages with all these words in the subject, or in the names and addresses of author and recipients. Whole words, upper or lower case; `ada@example.com` is three words.',
      examples: ['invoice ada@example.com'],
    }),
  ),
});

const LinkQuery = Type.Object(
  {
    expires: Type.Optional(Type.String({ pattern: '^\\d{1,12}$', description: 'Part of a signed link.' })),
    signature: Type.Optional(
      Type.String({ maxLength: 100, description: 'Part of a signed link, which replaces the API key.' }),
    ),
  },
  { additionalProperties: false },
);

const AttachmentParams = Type.Object({
  id: Uuid,
  n: Type.String({ pattern: '^(0|[1-9][0-9]{0,3})$', description: 'The `id` of the attachment.' }),
});
const tags = ['Messages'];
/** Also a key that only sends: it sees what was made with it (`ownKey`). */
export const sendToo = ['full', 'read', 'send'] as const;
/** Memory for messages that are read for an attachment: in total, and for each owner. A request for which no memory is free waits. */
const readMemoryBytes = { inAll: 64 * 1024 * 1024, perOwner: 32 * 1024 * 1024 };
/** Memory of a message as JSON: 1.5 MiB of texts and headers, of which JSON writes a control character as six. */
const messageBytes = 10 * 1024 * 1024;
/** Memory of a message that is streamed: a few pieces of 1 MiB, as text and as bytes. */
const streamBytes = 4 * 1024 * 1024;
/**
 * Pieces of 1 MiB that are read at once. Each takes 5 ms of this process, also for a range of one byte: with five at once, the
 * requests of another owner took 200 to 360 ms, and with one at a time 21 ms.
 */
const piecesAtOnce = { inAll: 4, perOwner: 1 };
const Bytes = Type.Unsafe<unknown>({ type: 'string', format: 'binary' });
const bytes = (type: string) => ({ content: { [type]: { schema: Bytes } } });

type MessageParts = PageParts & { sql: Pool; links: Links; mailWork: MailWork };

export function messageRoutes(app: App, parts: MessageParts): void {
  const { sql, links, mailWork, answers } = parts;
  const memory = new Slots(readMemoryBytes);
  const reading = new Slots(piecesAtOnce);

  /** Reads the whole message: an attachment has no place of its own in the store. */
  async function extract(stored: StoredRaw, n: number, signal: AbortSignal) {
    const { ownerId, size } = stored;
    using _share = await memory.take(ownerId, size, { signal });
    return await mailWork.extract(await readWhole(sql, stored), n, ownerId, signal);
  }

  app.get(
    '/messages',
    {
      config: { access: 'key', scopes: sendToo },
      schema: {
        tags,
        summary: 'List your messages, received and sent',
        description:
          'Without `text`, `html` and `headers`. Texts are cut to 1 KiB, lists to 50 items; `GET /messages/{id}` has all.',
        querystring: Filters,
        response: { 200: jsonText(Type.Array(MessageSummary)) },
      },
    },
    async (request, reply) => {
      const { identity_id: identityId, thread_id: threadId, ...others } = request.query;
      const { direction, status, since, q } = others;
      const page = await readPage(parts, request, reply, defaultShortPage);
      const filter = { identityId, threadId, direction, status, since, keyId: ownKey(request) };
      const found =
        q === undefined
          ? await listMessages(sql, request.ownerId, filter, page)
          : await searchMessages(sql, request.ownerId, readQuery(q), filter, page).catch((error) => {
              if (!(error instanceof SearchNotReady)) throw error;
              throw new Problem('search_not_ready', { headers: { 'retry-after': '60' } });
            });
      const now = Date.now();
      const rows = found.rows.map(({ summary, sending }) =>
        completeSummary(cutSummary(JSON.parse(summary)), sending, links, now),
      );
      return sendJsonText(reply, JSON.stringify(sendPage(parts, request, reply, { ...found, rows })));
    },
  );

  app.get(
    '/messages/:id',
    {
      config: { access: 'key', scopes: sendToo },
      schema: {
        tags,
        summary: 'Get a message',
        description: 'The same object as `message` in a `message.received` event.',
        params: IdParams,
        response: { 200: jsonText(Message) },
      },
    },
    async (request, reply) => {
      await answers.reserve(request, reply, messageBytes);
      const { id } = request.params;
      const found = await orNotFound(findMessage(sql, request.ownerId, id, ownKey(request)));
      return sendJsonText(reply, writeMessage(found, id, links, Date.now()));
    },
  );

  app.delete(
    '/messages/:id',
    withAccess('key', tags, {
      summary: 'Delete a message',
      description:
        'Its content, its events and its waiting deliveries go; what was not sent yet is not sent. The log of ended deliveries stays, without content.',
      params: IdParams,
      response: { 204: Type.Null() },
    }),
    async (request, reply) => {
      await orNotFound(deleteMessage(sql, request.ownerId, request.params.id));
      reply.code(204).send(null);
    },
  );

  app.get(
    '/messages/:id/raw',
    {
      config: { access: 'key or link', scopes: sendToo },
      schema: {
        tags,
        summary: 'Download the raw message',
        description: 'Byte for byte. Supports `Range` and `If-None-Match`.',
        params: IdParams,
        querystring: LinkQuery,
        response: { 200: bytes('message/rfc822'), 206: bytes('message/rfc822'), 304: Type.Null() },
      },
    },
    async (request, reply) => {
      const raw = await orNotFound(findRaw(sql, request.ownerId, request.params.id, ownKey(request)));
      const sha256 = raw.sha256.toString('hex');
      setSafeHeaders(request, reply, sha256);
      reply
        .header('accept-ranges', 'bytes')
        .header('content-disposition', 'attachment; filename="message.eml"');
      if (isCached(request, sha256)) return reply.code(304).send(null);
      await answers.reserve(request, reply, streamBytes);
      return sendRange({ sql, reading }, request, reply.type('message/rfc822'), raw);
    },
  );

  app.get(
    '/messages/:id/attachments/:n',
    withAccess('key or link', tags, {
      summary: 'Download an attachment, decoded',
      params: AttachmentParams,
      querystring: LinkQuery,
      response: { 200: bytes('application/octet-stream'), 304: Type.Null() },
    }),
    async (request, reply) => {
      const { id, n } = request.params;
      const raw = await orNotFound(findRaw(sql, request.ownerId, id));
      // The content is in memory until the client has read it, and is not longer than the message.
      await answers.reserve(request, reply, raw.size);
      const { meta, content } = await orNotFound(extract(raw, Number(n), abortOnClose(reply)));
      setSafeHeaders(request, reply, meta.sha256);
      if (isCached(request, meta.sha256)) return reply.code(304).send(null);
      reply.header('content-disposition', formatDisposition(meta.filename)).type(safeType(meta.contentType));
      return reply.send(Buffer.from(content.buffer, content.byteOffset, content.byteLength));
    },
  );
}

/** A key that only sends sees only the messages that were made with it. */
export function ownKey({ keyScope, keyId }: FastifyRequest): string | null {
  return keyScope === 'send' ? keyId : null;
}

interface RawParts {
  sql: Pool;
  reading: Slots;
}

function sendRange(parts: RawParts, request: FastifyRequest, reply: FastifyReply, raw: StoredRaw) {
  const { size, sha256 } = raw;
  const ifRange = request.headers['if-range'];
  const isUnchanged = ifRange === undefined || ifRange === toEtag(sha256.toString('hex'));
  const range = isUnchanged ? readRange(request.headers.range, size) : null;
  if (range === 'unsatisfiable') {
    throw new Problem('range_not_satisfiable', { headers: { 'content-range': `bytes */${size}` } });
  }
  const { start, end } = range ?? { start: 0, end: size };
  if (range) reply.code(206).header('content-range', `bytes ${start}-${end - 1}/${size}`);
  reply.header('content-length', end - start);
  const signal = abortOnClose(reply);
  const takeTurn = () => parts.reading.take(raw.ownerId, 1, { signal });
  return reply.send(Readable.from(keepContext(inTurn(takeTurn, readRaw(parts.sql, raw, start, end)))));
}

/** Takes a turn for each piece, and gives it back before the client reads the piece. */
async function* inTurn<T>(takeTurn: () => Promise<Share>, pieces: AsyncGenerator<T, void, undefined>) {
  const next = async () => {
    using _turn = await takeTurn();
    return await pieces.next();
  };
  for (let piece = await next(); !piece.done; piece = await next()) yield piece.value;
}

const maxQueryWords = 20;

function readQuery(q: string): string[] {
  const words = [...new Set(readWords(q))];
  const fault =
    words.length === 0
      ? {
          code: 'invalid_value',
          message: 'The query parameter q has no letter or digit. Give at least one word.',
        }
      : {
          code: 'too_long',
          message: `The query parameter q has more than ${maxQueryWords} words. Give fewer.`,
        };
  if (words.length > 0 && words.length <= maxQueryWords) return words;
  throw new Problem('invalid_query', { errors: [{ pointer: '/q', ...fault }] });
}

/** A stranger wrote the content: a browser must never run it as a page of this service. */
function setSafeHeaders(request: FastifyRequest, reply: FastifyReply, sha256: string): void {
  const isLink = request.keyId === '';
  reply.header('etag', toEtag(sha256));
  reply.header('cache-control', isLink ? 'no-store' : 'private, no-cache');
  reply.header('x-content-type-options', 'nosniff');
  reply.header('content-security-policy', "sandbox; default-src 'none'");
  reply.header('referrer-policy', 'no-referrer');
}

function toEtag(sha256: string): string {
  return `"${sha256}"`;
}

function isCached(request: FastifyRequest, sha256: string): boolean {
  return matchesTag(request.headers['if-none-match'], toEtag(sha256));
}

/** The type that the message states, unless a browser could run the content as a page or a script. */
function safeType(contentType: string): string {
  const isPlain = /^(image|audio|video|font|text|application|message)\/[a-z0-9][a-z0-9.+-]{0,100}$/.test(
    contentType,
  );
  return isPlain && !/html|xml|xsl|svg|script|flash|mht/.test(contentType)
    ? contentType
    : 'application/octet-stream';
}

/** Always a download (RFC 6266): an ASCII name for old clients, and the real name in `filename*`. */
function formatDisposition(filename: string | null): string {
  const name = filename ?? 'attachment';
  const plain = name.replaceAll(/[^\w .()-]/g, '_');
  const encoded = encodeURIComponent(name).replaceAll(
    /['()*]/g,
    (character) => `%${character.charCodeAt(0).toString(16)}`,
  );
  return `attachment; filename="${plain}"; filename*=UTF-8''${encoded}`;
}
