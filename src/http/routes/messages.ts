/** Messages: mail that arrived, as JSON, as its raw bytes, and its attachments one by one. */

import { Readable } from 'node:stream';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { type TSchema, Type } from 'typebox';
import type { Links } from '../../contract/links.ts';
import { Message, MessageSummary } from '../../contract/message.ts';
import { completeMessage } from '../../contract/payload.ts';
import {
  defaultShortPage,
  IdParams,
  listQuery,
  maxShortPage,
  Timestamp,
  Uuid,
} from '../../contract/schemas.ts';
import type { Pool } from '../../db/client.ts';
import { Slots } from '../../lib/slots.ts';
import { Problem } from '../../problems.ts';
import type { Examiner } from '../../receiving/examine.ts';
import { findMessage, findRaw, listMessages, readRaw, type StoredRaw } from '../../store/messages.ts';
import { matchesTag, readRange } from '../byte-range.ts';
import type { App } from '../fastify.ts';
import { type PageParts, readPage, sendPage } from '../pagination.ts';

const Filters = listQuery(
  { identity_id: Type.Optional(Uuid), since: Type.Optional(Timestamp) },
  { max: maxShortPage, usual: defaultShortPage },
);

const LinkQuery = Type.Object(
  {
    expires: Type.Optional(Type.String({ pattern: '^\\d{1,12}$' })),
    signature: Type.Optional(
      Type.String({ maxLength: 100, description: 'Of a signed link, instead of a key.' }),
    ),
  },
  { additionalProperties: false },
);

const AttachmentParams = Type.Object({ id: Uuid, n: Type.String() });
const tags = ['Messages'];
/** Memory for messages that are read for their attachments: of all, and of one message. Who comes beyond it waits. */
const readBytes = { inAll: 64 * 1024 * 1024, perKey: 32 * 1024 * 1024 };
const Bytes = Type.Unsafe<unknown>({ type: 'string', format: 'binary' });
const bytes = (type: string) => ({ content: { [type]: { schema: Bytes } } });
/** Sent as text that is known to be so: a serialiser would only cost. */
const json = (schema: TSchema) => ({
  content: { 'application/json': { schema: Type.Unsafe<unknown>(schema) } },
});

type MessageParts = PageParts & { sql: Pool; links: Links; examiner: Examiner };

export function messageRoutes(app: App, parts: MessageParts): void {
  const { sql, links, examiner } = parts;
  const reading = new Slots(readBytes);

  /** A message has to be read whole for one of its attachments. */
  async function extract({ rawId, size }: StoredRaw, n: number) {
    await reading.take(rawId, size);
    try {
      return await examiner.extract(await readWhole(sql, rawId, size), n);
    } finally {
      reading.release(rawId, size);
    }
  }

  app.get(
    '/messages',
    {
      config: { access: 'key' },
      schema: {
        tags,
        summary: 'Your messages, without text, html and headers',
        querystring: Filters,
        response: { 200: json(Type.Array(MessageSummary)) },
      },
    },
    async (request, reply) => {
      const { identity_id: identityId, since } = request.query;
      const page = readPage(request.query, defaultShortPage);
      const found = await listMessages(sql, request.ownerId, { identityId, since }, page);
      const now = Date.now();
      const rows = found.rows.map(({ summary }) => completeMessage(summary as MessageSummary, links, now));
      sendPage(parts, request, reply, { ...found, rows });
      return sendJson(reply, rows);
    },
  );

  app.get(
    '/messages/:id',
    {
      config: { access: 'key' },
      schema: {
        tags,
        summary: 'One message, as `message.received` tells it',
        params: IdParams,
        response: { 200: json(Message) },
      },
    },
    async (request, reply) => {
      const { id } = request.params;
      const message = await findMessage(sql, request.ownerId, id);
      if (!message) throw new Problem('not_found');
      return sendJson(reply, completeMessage(message as Message, links, Date.now()));
    },
  );

  app.get(
    '/messages/:id/raw',
    {
      config: { access: 'key or link' },
      schema: {
        tags,
        summary: 'The message byte for byte; takes `Range` and `If-None-Match`',
        params: IdParams,
        querystring: LinkQuery,
        response: { 200: bytes('message/rfc822'), 206: bytes('message/rfc822'), 304: Type.Null() },
      },
    },
    async (request, reply) => {
      const raw = await requireRaw(sql, request, request.params.id);
      guard(request, reply, raw.sha256.toString('hex'));
      reply
        .header('accept-ranges', 'bytes')
        .header('content-disposition', 'attachment; filename="message.eml"');
      if (isKnown(request, raw.sha256.toString('hex'))) return reply.code(304).send(null);
      return sendRange(sql, request, reply.type('message/rfc822'), raw);
    },
  );

  app.get(
    '/messages/:id/attachments/:n',
    {
      config: { access: 'key or link' },
      schema: {
        tags,
        summary: 'One attachment, decoded',
        params: AttachmentParams,
        querystring: LinkQuery,
        response: { 200: bytes('application/octet-stream'), 304: Type.Null() },
      },
    },
    async (request, reply) => {
      const { id, n } = request.params;
      if (!/^(0|[1-9]\d{0,3})$/.test(n)) throw new Problem('not_found');
      const stored = await requireRaw(sql, request, id);
      const found = await extract(stored, Number(n));
      if (!found) throw new Problem('not_found');
      const { meta, content } = found;
      guard(request, reply, meta.sha256);
      if (isKnown(request, meta.sha256)) return reply.code(304).send(null);
      reply.header('content-disposition', disposition(meta.filename)).type(harmless(meta.contentType));
      return reply.send(Buffer.from(content));
    },
  );
}

function sendJson(reply: FastifyReply, value: unknown): FastifyReply {
  return reply.type('application/json; charset=utf-8').send(JSON.stringify(value));
}

async function requireRaw(sql: Pool, request: FastifyRequest, id: string): Promise<StoredRaw> {
  // Without a key it came by a link, which is for this very message.
  const raw = await findRaw(sql, request.keyId === '' ? null : request.ownerId, id);
  if (!raw) throw new Problem('not_found');
  return raw;
}

async function readWhole(sql: Pool, rawId: string, size: number): Promise<Buffer> {
  const raw = Buffer.from(new ArrayBuffer(size));
  let at = 0;
  for await (const chunk of readRaw(sql, rawId, 0, size)) at += chunk.copy(raw, at);
  return raw;
}

function sendRange(sql: Pool, request: FastifyRequest, reply: FastifyReply, raw: StoredRaw) {
  const { rawId, size, sha256 } = raw;
  const ifRange = request.headers['if-range'];
  const isSame = ifRange === undefined || ifRange === tagOf(sha256.toString('hex'));
  const range = isSame ? readRange(request.headers.range, size) : null;
  if (range === 'unsatisfiable') {
    throw new Problem('range_not_satisfiable', { headers: { 'content-range': `bytes */${size}` } });
  }
  const { start, end } = range ?? { start: 0, end: size };
  if (range) reply.code(206).header('content-range', `bytes ${start}-${end - 1}/${size}`);
  reply.header('content-length', end - start);
  return reply.send(Readable.from(readRaw(sql, rawId, start, end)));
}

/** What a stranger wrote must never run as a page of ours. */
function guard(request: FastifyRequest, reply: FastifyReply, sha256: string): void {
  const isLink = request.keyId === '';
  reply.header('etag', tagOf(sha256));
  reply.header('cache-control', isLink ? 'no-store' : 'private, no-cache');
  reply.header('x-content-type-options', 'nosniff');
  reply.header('content-security-policy', "sandbox; default-src 'none'");
  reply.header('referrer-policy', 'no-referrer');
}

function tagOf(sha256: string): string {
  return `"${sha256}"`;
}

function isKnown(request: FastifyRequest, sha256: string): boolean {
  return matchesTag(request.headers['if-none-match'], tagOf(sha256));
}

/** The type it says it has, unless a browser could take it for a page or a script. */
function harmless(contentType: string): string {
  const isPlain = /^(image|audio|video|font|text|application|message)\/[a-z0-9][a-z0-9.+-]{0,100}$/.test(
    contentType,
  );
  return isPlain && !/html|xml|xsl|svg|script|flash|mht/.test(contentType)
    ? contentType
    : 'application/octet-stream';
}

/** Always a download (RFC 6266), under a name of plain characters for old programs and the real one beside it. */
function disposition(filename: string | null): string {
  const name = filename ?? 'attachment';
  const plain = name.replaceAll(/[^\w .()-]/g, '_');
  const encoded = encodeURIComponent(name).replaceAll(
    /['()*]/g,
    (character) => `%${character.charCodeAt(0).toString(16)}`,
  );
  return `attachment; filename="${plain}"; filename*=UTF-8''${encoded}`;
}
