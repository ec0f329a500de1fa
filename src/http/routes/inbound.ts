/** `POST /inbound`: accepts mail over HTTP, for owners who receive it by other means than our SMTP server. */
import type { Readable } from 'node:stream';
import { errorCodes, type FastifyRequest } from 'fastify';
import { type Static, Type } from 'typebox';
import { Uuid } from '../../contract/schemas.ts';
import { cutGiven } from '../../lib/cut-given.ts';
import type { PaceLimits } from '../../lib/pace.ts';
import { Problem } from '../../problems.ts';
import { type AcceptParts, acceptMail } from '../../receiving/accept.ts';
import { cacheRoutes, type RoutedRecipient } from '../../receiving/route.ts';
import { BodyMemory } from '../body-memory.ts';
import { abortOnClose } from '../client-gone.ts';
import { toProblem } from '../errors.ts';
import type { App } from '../fastify.ts';
import { actAndRespondOnce, type PostParts } from '../idempotency.ts';
import { readMessageBody } from '../message-body.ts';

const maxRecipients = 100;
/** Memory for large bodies: in total, and for each owner. */
const memoryLimits = { inAll: 128 * 1024 * 1024, perOwner: 64 * 1024 * 1024, slowMs: 10_000 };
/** A small message never waits for large ones: other routes read this much, too. */
const smallBytes = 64 * 1024;
/** A body in memory must not be slow. The time for the whole request is a limit of the HTTP server, too (`requestTimeout`). */
const bodyPace: PaceLimits = {
  dataTimeoutMs: 30_000,
  dataPortionBytes: 64 * 1024,
  messageTimeoutMs: 120_000,
};

const Query = Type.Object(
  {
    recipient: Type.Optional(
      Type.Unsafe<string | string[]>({
        type: ['string', 'array'],
        items: { type: 'string' },
        examples: ['sales@example.com'],
        description:
          'An address of one of your identities. Repeat the parameter for more, or use the header `X-Recipient`.',
      }),
    ),
  },
  { additionalProperties: false },
);

const Accepted = Type.Object({ messageIds: Type.Array(Uuid) });

interface InboundParts extends PostParts {
  mail: AcceptParts;
  maxMessageBytes: number;
}

declare module 'fastify' {
  interface FastifyRequest {
    /** The body of `POST /inbound`; null if the request has none. */
    unreadBody: Readable | null;
  }
}

/** Needs a fastify scope of its own: its content type parsers accept messages only. */
export async function inboundRoutes(app: App, parts: InboundParts): Promise<void> {
  const { mail, maxMessageBytes } = parts;
  const memory = new BodyMemory(memoryLimits);
  // Only for callers with an API key: their number of requests is limited.
  app.addHook('onError', async (request, _reply, error) => {
    const { ownerId, id: requestId } = request;
    if (ownerId === '') return;
    const { code, status, errors } = toProblem(error, maxMessageBytes);
    mail.mailLog.refusedByApi({ reason: errors?.[0]?.code ?? code, status, ownerId, requestId });
  });
  app.decorateRequest('unreadBody', null);
  app.removeAllContentTypeParsers();
  // The handler reads the body, because it must take memory (`memory`) before it reads, and keep it until the message is recorded.
  app.addContentTypeParser('message/rfc822', (request, payload, done) => {
    request.unreadBody = payload;
    done(null);
  });
  app.addContentTypeParser('*', (_request, _payload, done) =>
    done(
      new Problem('unsupported_media_type', {
        detail: 'Send the unchanged message with `Content-Type: message/rfc822`.',
      }),
    ),
  );

  const findRoute = cacheRoutes(mail);
  app.post(
    '/inbound',
    {
      config: { access: 'key', consumes: 'message/rfc822' },
      bodyLimit: maxMessageBytes,
      schema: {
        tags: ['Messages'],
        summary: 'Deliver a message to your identities',
        description:
          'Send the unchanged message with `Content-Type: message/rfc822`. A body that needs more than 30 s for 64 KiB is refused with 408. While memory is short, so is a large body that needs more than 10 s.',
        querystring: Query,
        response: { 202: Accepted },
      },
    },
    async (request, reply) => {
      const { ownerId, span } = request;
      const bytes = readLength(request, maxMessageBytes);
      const isLarge = bytes > smallBytes;
      using _share = isLarge ? await memory.take(ownerId, bytes, abortOnClose(reply)) : undefined;
      const read = (cut?: AbortSignal) =>
        readMessageBody(request.unreadBody ?? request.raw, bytes, bodyPace, cut);
      const raw = isLarge ? await memory.read(ownerId, bytes, read) : await read();
      request.body = raw;
      if (raw.length === 0) {
        throw new Problem('bad_request', {
          detail: 'The body is empty. Send the unchanged message (RFC 5322) as the body.',
        });
      }
      const addresses = readRecipients(request);
      const envelope = { mailFrom: null, remoteIp: null, helo: null, tls: null };
      const recipients = () => route(findRoute, ownerId, addresses);
      await acceptMail(
        mail,
        { source: 'api', raw, envelope, recipients, ownerId, request: span, requestId: request.id },
        (examine, record) =>
          // Sends the 202 after the commit.
          actAndRespondOnce(parts, request, reply, examine, async (sql, examined) => {
            const messageIds = await record(sql, examined);
            if (messageIds.length === 0) throw unknownRecipients(addresses);
            return { status: 202, body: { messageIds } };
          }),
      );
    },
  );
}

/** As announced, or the largest that is allowed. */
function readLength({ headers }: FastifyRequest, maxBytes: number): number {
  const bytes = Number(headers['content-length'] ?? maxBytes);
  if (bytes > maxBytes) throw new errorCodes.FST_ERR_CTP_BODY_TOO_LARGE();
  return bytes;
}

function readRecipients(request: FastifyRequest<{ Querystring: Static<typeof Query> }>): string[] {
  const inQuery = [request.query.recipient ?? []].flat();
  const inHeader = [request.headers['x-recipient'] ?? []].flat().flatMap((list) => list.split(','));
  const trimmed = [...inQuery, ...inHeader].map((address) => address.trim());
  const recipients = [...new Set(trimmed)].filter((address) => address !== '');
  if (recipients.length === 0) {
    const message =
      'Add a recipient to the query, such as `?recipient=sales@example.com`, or send the header `X-Recipient`.';
    throw new Problem('invalid_query', {
      errors: [{ pointer: '/recipient', code: 'required', message }],
    });
  }
  if (recipients.length > maxRecipients) {
    const message = `A request can have up to ${maxRecipients} recipients, and this one has ${recipients.length}. Send several requests.`;
    throw new Problem('invalid_query', {
      errors: [{ pointer: '/recipient', code: 'too_long', message }],
    });
  }
  return recipients;
}

async function route(
  findRoute: ReturnType<typeof cacheRoutes>,
  ownerId: string,
  recipients: string[],
): Promise<RoutedRecipient[]> {
  const routes = await Promise.all(recipients.map((address) => findRoute(address, ownerId)));
  const routed = routes.filter((found): found is RoutedRecipient => typeof found !== 'string');
  if (routed.length < recipients.length) {
    throw unknownRecipients(recipients.filter((_, n) => typeof routes[n] === 'string'));
  }
  return routed;
}

function unknownRecipients(addresses: string[]): Problem {
  return new Problem('invalid_query', {
    errors: addresses.map((address) => ({
      pointer: '/recipient',
      code: 'unknown_recipient',
      message: `None of your verified identities receives mail for "${cutGiven(address)}". Create the identity with POST /identities, or verify it.`,
    })),
  });
}
