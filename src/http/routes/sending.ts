/** Sending: `POST /messages`, cancelling, and the attempts of a message. */
import type { Readable } from 'node:stream';
import { errorCodes, type FastifyReply, type FastifyRequest } from 'fastify';
import { type Static, Type } from 'typebox';
import type { Links } from '../../contract/links.ts';
import { Message } from '../../contract/message.ts';
import { writeMessage } from '../../contract/payload.ts';
import { body, describe, IdParams, Timestamp, Uuid } from '../../contract/schemas.ts';
import { SendAttempt } from '../../contract/sending.ts';
import type { Sql } from '../../db/client.ts';
import { readJson } from '../../lib/json.ts';
import type { PaceLimits } from '../../lib/pace.ts';
import { findDraftErrors, maxJsonValues } from '../../mailwork/draft-body.ts';
import type { MailWork } from '../../mailwork/mailwork.ts';
import type { Address } from '../../mime/address-list.ts';
import { readDraft } from '../../mime/draft.ts';
import { readAddress } from '../../mime/given-addresses.ts';
import { type FieldError, Problem } from '../../problems.ts';
import { findSenderOrThrow } from '../../sending/authors.ts';
import {
  noteSubmission,
  recordSubmission,
  type Submission,
  type SubmitParts,
  submitDraft,
  submitRaw,
} from '../../sending/submit.ts';
import { findMessage } from '../../store/messages.ts';
import { cancelOutgoing, listSendAttempts } from '../../store/outgoing.ts';
import { BodyMemory } from '../body-memory.ts';
import { abortOnClose } from '../client-gone.ts';
import { orNotFound } from '../errors.ts';
import type { App } from '../fastify.ts';
import { actAndRespondOnce, type PostParts } from '../idempotency.ts';
import { explainJsonFault } from '../json-body.ts';
import { jsonText, sendJsonText } from '../json-text.ts';
import { readMessageBody } from '../message-body.ts';
import { ownKey, sendToo } from './messages.ts';

/** A longer body is parsed by a worker thread. */
const maxParsedHere = 128 * 1024;
/** Memory for large bodies: in total, and for each owner. */
const memoryLimits = { inAll: 128 * 1024 * 1024, perOwner: 64 * 1024 * 1024, slowMs: 10_000 };
const smallBytes = 64 * 1024;
const bodyPace: PaceLimits = {
  dataTimeoutMs: 30_000,
  dataPortionBytes: 64 * 1024,
  messageTimeoutMs: 120_000,
};

const givenAddress = {
  name: { type: ['string', 'null'], description: 'The display name.' },
  address: { type: 'string' },
};
const GivenAddress = Type.Unsafe<unknown>({
  type: ['string', 'object'],
  properties: givenAddress,
  required: ['address'],
  additionalProperties: false,
});
const GivenAddresses = Type.Unsafe<unknown>({
  type: ['string', 'array', 'object'],
  items: GivenAddress,
  properties: givenAddress,
  required: ['address'],
  additionalProperties: false,
});
const NewMessage = body(
  {
    identityId: describe(Uuid, 'The identity that sends: its `id` from `GET /identities`.'),
    from: Type.Optional(
      describe(
        GivenAddress,
        'Of an email identity: its address, perhaps with a name. Of a domain identity: an address at this domain.',
      ),
    ),
    to: Type.Optional(describe(GivenAddresses, 'An address list (RFC 5322), or an array of addresses.')),
    cc: Type.Optional(describe(GivenAddresses, 'Further recipients that all see.')),
    bcc: Type.Optional(describe(GivenAddresses, 'Recipients that the others do not see.')),
    replyTo: Type.Optional(describe(GivenAddresses, 'Where answers go. Left out: to `from`.')),
    subject: Type.Optional(Type.String()),
    text: Type.Optional(Type.String()),
    html: Type.Optional(describe(Type.String(), 'Without `text`, a text is derived from it.')),
    attachments: Type.Optional(
      Type.Array(
        Type.Object(
          {
            filename: Type.String(),
            content: Type.String({ description: 'In base64.' }),
            contentType: Type.Optional(Type.String()),
            contentId: Type.Optional(Type.String({ description: 'Makes it inline: `cid:` links name it.' })),
          },
          { additionalProperties: false },
        ),
      ),
    ),
    headers: Type.Optional(
      Type.Record(Type.String(), Type.String(), { description: 'Further header fields.' }),
    ),
    inReplyTo: Type.Optional(
      describe(
        Type.String({ minLength: 1, maxLength: 1000, format: 'text' }),
        'One of your messages, by its id or its Message-ID: the new message is a reply to it. Without recipients, the reply goes to the Reply-To of that message, or else to its From.',
      ),
    ),
    sendAt: Type.Optional(describe(Timestamp, 'Not before this time: up to 30 days ahead.')),
    metadata: Type.Optional(
      Type.Record(Type.String(), Type.String(), {
        description: 'Kept with the message and repeated in its events: 2 KiB in all.',
      }),
    ),
  },
  {
    example: {
      identityId: '01a1dcf7-c357-700e-a78a-57a267febce8',
      to: 'Ada Lovelace <ada@example.com>',
      subject: 'Hello',
      text: 'How are you?',
    },
  },
);
type NewMessage = Static<typeof NewMessage>;

const RawQuery = Type.Object(
  {
    identity_id: Type.Optional(
      describe(Uuid, 'Only with `Content-Type: message/rfc822`: the identity that sends.'),
    ),
    recipient: Type.Optional(
      Type.Unsafe<string | string[]>({
        type: ['string', 'array'],
        items: { type: 'string' },
        description:
          'Only with `Content-Type: message/rfc822`: a recipient, instead of those in the message. Repeat the parameter for more.',
      }),
    ),
  },
  { additionalProperties: false },
);

const tags = ['Messages'];

export interface SendingParts extends PostParts {
  submit: SubmitParts;
  mailWork: Pick<MailWork, 'readDraft'>;
  links: Links;
  maxMessageBytes: number;
}

/** Needs a fastify scope of its own: its content type parsers take bodies that are larger than elsewhere. */
export async function sendingRoutes(app: App, parts: SendingParts): Promise<void> {
  const { sql, submit, mailWork, links, maxMessageBytes } = parts;
  const memory = new BodyMemory(memoryLimits);
  const maxJsonBytes = Math.ceil(1.4 * maxMessageBytes) + 1024 * 1024;

  /**
   * Takes memory before it reads, and keeps it until the answer is sent. `payload`, not `request.raw`, which is paused when nobody
   * reads `payload` (`refuseTinyChunks`).
   */
  async function readBody(request: FastifyRequest, payload: Readable, maxBytes: number): Promise<Buffer> {
    const bytes = Number(request.headers['content-length'] ?? maxBytes);
    if (bytes > maxBytes) throw new errorCodes.FST_ERR_CTP_BODY_TOO_LARGE();
    const { reply } = request.sending ?? {};
    const read = (cut?: AbortSignal) => readMessageBody(payload, bytes, bodyPace, cut);
    if (bytes <= smallBytes || !reply) return read();
    const closed = abortOnClose(reply);
    const share = await memory.take(request.ownerId, bytes, closed);
    closed.addEventListener('abort', () => share.release());
    if (closed.aborted) share.release();
    return memory.read(request.ownerId, bytes, read);
  }

  /** Returns the body without its texts. */
  async function readLargeBody(request: FastifyRequest, bytes: Buffer): Promise<unknown> {
    const { sending, ownerId } = request;
    if (!sending) throw new Error('The hook of this route did not run');
    const read = await mailWork.readDraft(bytes, ownerId, abortOnClose(sending.reply));
    if ('fault' in read) throw explainJsonFault(read.fault);
    sending.largeBody = { bytes, errors: read.errors };
    request.bodyHash = read.hash;
    return read.fields;
  }

  app.decorateRequest('sending', null);
  app.addHook('onRequest', async (request, reply) => {
    request.sending = { reply, largeBody: null };
  });
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('application/json', async (request: FastifyRequest, payload: Readable) => {
    const bytes = await readBody(request, payload, maxJsonBytes);
    if (bytes.length === 0) return undefined;
    if (bytes.length > maxParsedHere) return readLargeBody(request, bytes);
    const read = readJson(bytes, maxJsonValues);
    if ('fault' in read) throw explainJsonFault(read.fault);
    return read.value;
  });
  app.addContentTypeParser('message/rfc822', async (request: FastifyRequest, payload: Readable) =>
    readBody(request, payload, maxMessageBytes),
  );

  app.post(
    '/messages',
    {
      config: {
        access: 'key',
        scopes: ['full', 'send'],
        references: { identityId: 'identities' },
        findFieldErrors: (given, { sending }) => sending?.largeBody?.errors ?? findDraftErrors(given),
      },
      bodyLimit: maxJsonBytes,
      schema: {
        tags,
        summary: 'Send a message',
        description:
          'As JSON, or a finished message with `Content-Type: message/rfc822` and `?identity_id=`, whose lines have at most 998 octets. The message is stored before the answer, and then sent to each recipient. A body that needs more than 30 s for 64 KiB is refused with 408. While memory is short, so is a large body that needs more than 10 s.',
        querystring: RawQuery,
        body: { content: { 'application/json': { schema: NewMessage } } },
        response: { 202: jsonText(Message) },
      },
    },
    async (request, reply) => {
      let submission: Submission | undefined;
      let recorded: Awaited<ReturnType<typeof recordSubmission>>;
      const prepare = async () => {
        submission = await readSubmission(submit, request);
        return submission;
      };
      await actAndRespondOnce(parts, request, reply, prepare, async (sql, prepared) => {
        recorded = await recordSubmission(sql, prepared);
        const { id } = prepared.message;
        const found = recorded && (await findMessage(sql, request.ownerId, id));
        if (!found) throw new Problem('not_found', { detail: 'The identity was deleted meanwhile.' });
        return {
          ...{ status: 202, location: `/messages/${id}` },
          text: writeMessage(found, id, links, Date.now()),
        };
      });
      if (submission && recorded) noteSubmission(submit, submission, recorded);
    },
  );

  app.post(
    '/messages/:id/cancel',
    {
      config: { access: 'key', scopes: ['full', 'send'] },
      schema: {
        tags,
        summary: 'Cancel what was not sent yet',
        description:
          'Recipients that are queued become `cancelled`. One that is being tried becomes `cancelled` if the try fails for now. 409 when nothing is or was cancelled.',
        params: IdParams,
        response: { 200: jsonText(Message) },
      },
    },
    (request, reply) => cancel(sql, links, request, reply),
  );

  app.get(
    '/messages/:id/attempts',
    {
      config: { access: 'key', scopes: sendToo },
      schema: {
        tags,
        summary: 'List the attempts to send a message',
        description: 'Newest first. Empty for a message that was received.',
        params: IdParams,
        response: { 200: Type.Array(SendAttempt) },
      },
    },
    (request) => orNotFound(listSendAttempts(sql, request.ownerId, request.params.id, ownKey(request))),
  );
}

declare module 'fastify' {
  interface FastifyRequest {
    /** For a parser of the body, which gets the request alone, and from it. */
    sending: {
      reply: FastifyReply;
      /** Of a body that a worker thread parsed: `request.body` is without its texts. */
      largeBody: { bytes: Buffer; errors: FieldError[] } | null;
    } | null;
  }
}

async function cancel(
  sql: Sql,
  links: Links,
  request: FastifyRequest<{ Params: { id: string } }>,
  reply: FastifyReply,
): Promise<FastifyReply> {
  const { id } = request.params;
  const keyId = ownKey(request);
  await orNotFound(findMessage(sql, request.ownerId, id, keyId));
  const outcome = await cancelOutgoing(sql, request.ownerId, id);
  if (outcome !== 'cancelled') throw new Problem('nothing_to_cancel');
  const found = await orNotFound(findMessage(sql, request.ownerId, id, keyId));
  return sendJsonText(reply, writeMessage(found, id, links, Date.now()));
}

function readSubmission(
  submit: SubmitParts,
  request: FastifyRequest<{ Querystring: Static<typeof RawQuery>; Body: unknown }>,
): Promise<Submission> {
  const { ownerId, keyId, body, query } = request;
  const isSendOnly = request.keyScope === 'send';
  const submitter = { ownerId, keyId, isSendOnly, source: 'api' } as const;
  if (Buffer.isBuffer(body)) return readRawSubmission(submit, submitter, body, query);
  const [name] = Object.keys(query);
  if (name !== undefined) {
    const message = `"${name}" is only for a body with Content-Type: message/rfc822.`;
    throw new Problem('invalid_query', { errors: [{ pointer: `/${name}`, code: 'not_allowed', message }] });
  }
  const given = body as NewMessage;
  const { identityId, inReplyTo = null, sendAt, metadata = null } = given;
  return submitDraft(submit, submitter, {
    ...{ identityId, inReplyTo, metadata, draft: readDraft(given).draft },
    body: request.sending?.largeBody?.bytes ?? null,
    sendAt: sendAt === undefined ? null : new Date(sendAt),
  });
}

async function readRawSubmission(
  submit: SubmitParts,
  submitter: { ownerId: string; keyId: string; source: 'api' },
  raw: Buffer,
  query: Static<typeof RawQuery>,
): Promise<Submission> {
  const { identity_id: identityId } = query;
  if (identityId === undefined) {
    const message = 'Add the identity that sends: `?identity_id=`. Take the `id` from GET /identities.';
    throw new Problem('invalid_query', { errors: [{ pointer: '/identity_id', code: 'required', message }] });
  }
  const sender = await findSenderOrThrow(submit, submitter.ownerId, identityId);
  const recipients = readRecipients([query.recipient ?? []].flat());
  return submitRaw(submit, submitter, sender, { raw, recipients: recipients.length > 0 ? recipients : null });
}

function readRecipients(given: readonly string[]): Address[] {
  const read = given.map((text) => readAddress(text.trim()));
  const errors = read.flatMap((one): FieldError[] =>
    typeof one === 'string'
      ? []
      : [{ pointer: '/recipient', code: 'invalid_value', message: `"recipient" ${one.fault}` }],
  );
  if (errors.length > 0) throw new Problem('invalid_query', { errors });
  return read.map((address) => ({ name: null, address: String(address) }));
}
