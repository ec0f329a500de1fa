/**
 * The link of a confirmation mail. Whoever has the token may confirm, so no key is needed. Guarantee: only POST changes anything;
 * programs that open the links of a mail confirm nothing.
 */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { isConfirmationToken } from '../../contract/confirmation-links.ts';
import type { Pool } from '../../db/client.ts';
import { describeAddressChange } from '../../identities/save-check.ts';
import type { Log } from '../../lib/log.ts';
import { clientNetwork } from '../../net/client-network.ts';
import { confirmAddress, findConfirmation } from '../../store/confirmations.ts';
import {
  confirmationHeaders,
  writeConfirmed,
  writeQuestion,
  writeRefused,
  writeUnknown,
} from '../confirmation-page.ts';
import type { App } from '../fastify.ts';
import { makeRateLimiter } from '../rate-limit.ts';

/** For each client: a person needs two. */
const requestsPerMinute = 120;
/** A form without fields. */
const maxBodyBytes = 1024;

/** Pages, not operations: the OpenAPI document does not have them. */
const options = { config: { access: 'public' }, schema: { hide: true } } as const;

/** Needs a scope of its own: it reads forms. */
export function confirmationRoutes(app: App, { sql, log }: { sql: Pool; log: Log }): void {
  const limit = makeRateLimiter(requestsPerMinute);
  app.addContentTypeParser(
    'application/x-www-form-urlencoded',
    { parseAs: 'string', bodyLimit: maxBodyBytes },
    (_request, _body, done) => done(null, undefined),
  );
  app.addHook('onRequest', async ({ ip }, reply) => {
    limit(clientNetwork(ip), reply);
  });

  app.get('/confirm/:token', options, async (request, reply) => {
    const token = readToken(request);
    const found = token === null ? undefined : await findConfirmation(sql, token);
    if (!found) return sendPage(reply, 404, writeUnknown());
    return sendPage(reply, 200, writeQuestion(found.address));
  });

  app.post('/confirm/:token', options, async (request, reply) => {
    const token = readToken(request);
    const outcome = token === null ? undefined : await confirmAddress(sql, token);
    if (!outcome) return sendPage(reply, 404, writeUnknown());
    if (outcome === 'other_domain') return sendPage(reply, 409, writeRefused());
    const reason =
      outcome.to === 'verified' ? 'It was confirmed by mail.' : 'It was confirmed, and another user has it.';
    const { message, ...fields } = describeAddressChange(outcome, reason);
    log.info(fields, message);
    return sendPage(reply, 200, writeConfirmed());
  });
}

function readToken({ params }: FastifyRequest): string | null {
  const { token = '' } = params as { token?: string };
  return isConfirmationToken(token) ? token : null;
}

function sendPage(reply: FastifyReply, status: number, page: string): FastifyReply {
  return reply.code(status).headers(confirmationHeaders).type('text/html; charset=utf-8').send(page);
}
