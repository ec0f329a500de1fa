/** Mail that reaches its owner by other means than our own door, handed in over HTTP. */
import { Type } from 'typebox';
import { Uuid } from '../../contract/schemas.ts';
import { Slots } from '../../lib/slots.ts';
import { Problem } from '../../problems.ts';
import { type AcceptParts, acceptMail } from '../../receiving/accept.ts';
import { type RoutedRecipient, type RouteParts, routeRecipient } from '../../receiving/route.ts';
import type { App } from '../fastify.ts';
import { type AnswerParts, actAndAnswerOnce } from '../idempotency.ts';

const maxRecipients = 100;
/** Memory for messages that are being handed in: of all, and of one owner. Who comes beyond it waits. */
const bodyBytes = { inAll: 128 * 1024 * 1024, perKey: 64 * 1024 * 1024 };

const Query = Type.Object(
  {
    recipient: Type.Optional(
      Type.Unsafe<string | string[]>({
        type: ['string', 'array'],
        items: { type: 'string' },
        description:
          'An address of one of your identities; several times for several. The header `X-Recipient` adds to it.',
      }),
    ),
  },
  { additionalProperties: false },
);

const Taken = Type.Object({ messageIds: Type.Array(Uuid) });

interface InboundParts extends AnswerParts {
  mail: AcceptParts;
  maxMessageBytes: number;
}

/** In a scope of its own: here a body is a message, and nothing else. */
export async function inboundRoutes(app: App, parts: InboundParts): Promise<void> {
  const { mail, maxMessageBytes } = parts;
  const room = new Slots(bodyBytes);
  app.addHook('preParsing', async (request, reply) => {
    const told = Number(request.headers['content-length'] ?? maxMessageBytes);
    const bytes = Math.min(told, maxMessageBytes);
    await room.take(request.ownerId, bytes);
    reply.raw.once('close', () => room.release(request.ownerId, bytes));
  });
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('message/rfc822', { parseAs: 'buffer' }, (_request, bytes, done) =>
    done(null, bytes),
  );
  app.addContentTypeParser('*', (_request, _payload, done) =>
    done(
      new Problem('unsupported_media_type', {
        detail: 'Send the message as it is, with `Content-Type: message/rfc822`.',
      }),
    ),
  );

  app.post(
    '/inbound',
    {
      config: { access: 'key', takes: 'message/rfc822' },
      bodyLimit: maxMessageBytes,
      schema: {
        tags: ['Messages'],
        summary: 'Hand in a message (`message/rfc822`) for your own identities',
        querystring: Query,
        response: { 202: Taken },
      },
    },
    async (request, reply) => {
      const raw = Buffer.isBuffer(request.body) ? request.body : Buffer.alloc(0);
      if (raw.length === 0) {
        throw new Problem('bad_request', {
          detail: 'The body is empty. Send the message (RFC 5322) as it is.',
        });
      }
      const { ownerId, span } = request;
      const addresses = readRecipients(request);
      const envelope = { mailFrom: null, remoteIp: null, helo: null, tls: null };
      const recipients = () => route(mail, ownerId, addresses);
      await acceptMail(
        mail,
        { source: 'api', raw, envelope, recipients, ownerId, request: span },
        (examine, record) =>
          actAndAnswerOnce(parts, request, reply, examine, async (sql, examined) => {
            const messageIds = await record(sql, examined);
            if (messageIds.length === 0) throw unknownRecipients(addresses);
            return { status: 202, body: { messageIds } };
          }),
      );
    },
  );
}

function readRecipients(request: {
  query: { recipient?: string | string[] };
  headers: Record<string, string | string[] | undefined>;
}): string[] {
  const named = [request.query.recipient ?? []].flat();
  const inHeader = [request.headers['x-recipient'] ?? []].flat().flatMap((one) => one.split(','));
  const recipients = [...new Set([...named, ...inHeader].map((one) => one.trim()))].filter(
    (one) => one !== '',
  );
  if (recipients.length === 0) {
    const message = 'Name the recipient: `?recipient=sales@example.com`, or the header `X-Recipient`.';
    throw new Problem('invalid_query', { faults: [{ pointer: 'recipient', code: 'required', message }] });
  }
  if (recipients.length > maxRecipients) {
    const message = `A message may have ${maxRecipients} recipients; these are ${recipients.length}.`;
    throw new Problem('invalid_query', { faults: [{ pointer: 'recipient', code: 'too_long', message }] });
  }
  return recipients;
}

async function route(mail: RouteParts, ownerId: string, recipients: string[]): Promise<RoutedRecipient[]> {
  const routes = await Promise.all(recipients.map((address) => routeRecipient(mail, address, ownerId)));
  const routed = routes.filter((one): one is RoutedRecipient => typeof one !== 'string');
  if (routed.length < recipients.length) {
    throw unknownRecipients(recipients.filter((_, n) => typeof routes[n] === 'string'));
  }
  return routed;
}

function unknownRecipients(addresses: string[]): Problem {
  return new Problem('invalid_query', {
    faults: addresses.map((address) => ({
      pointer: 'recipient',
      code: 'unknown_recipient',
      message: `None of your identities takes mail for "${address}". Add one with POST /identities, or verify it.`,
    })),
  });
}
