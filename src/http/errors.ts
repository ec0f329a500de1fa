/**
 * Turns every error into a problem document (RFC 9457). The caller reads everything about mistakes in the request; the
 * cause of a server error is logged with the request id and never sent.
 */
import { type ServerResponse, STATUS_CODES } from 'node:http';
import type { Socket } from 'node:net';
import type { FastifyError, FastifyReply, FastifyRequest } from 'fastify';
import { errorCode, isUnavailable } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import { Problem, toDocument } from '../problems.ts';
import { defaultBodyLimits, endSlowly } from './costly-bodies.ts';

const contentType = 'application/problem+json; charset=utf-8';

type SendProblem = (error: unknown, request: FastifyRequest, reply: FastifyReply) => void;

export function makeProblemSender(log: Log): SendProblem {
  return (error, request, reply) => {
    const problem = toProblem(error, request.routeOptions.bodyLimit);
    const { status } = problem;
    if (status >= 500) {
      const level = problem.code === 'internal_error' ? 'error' : 'warn';
      log[level](
        { err: problem.cause, requestId: request.id, route: request.routeOptions.url },
        problem.message,
      );
    }
    const document = JSON.stringify(toDocument(problem, request.id));
    // The onRequest hook sets this header too, but some requests fail before the hook runs.
    reply.header('x-request-id', request.id);
    reply.code(status).headers(problem.headers).type(contentType).send(document);
  };
}

export function toProblem(error: unknown, bodyLimit: number | undefined): Problem {
  if (error instanceof Problem) return error;
  // Node's error for a client that closed its connection has the code of a lost database.
  if (error instanceof Error && error.message === 'aborted')
    return new Problem('bad_request', { cause: error });
  if (isUnavailable(error)) {
    return new Problem('database_unavailable', { headers: { 'retry-after': '2' }, cause: error });
  }
  if (errorCode(error) === '23503') return deletedReference(error);
  const { code, statusCode } = error as Partial<FastifyError>;
  switch (code) {
    case 'FST_ERR_CTP_BODY_TOO_LARGE':
      return new Problem('body_too_large', {
        detail: `The body of this route can have up to ${formatSize(bodyLimit)}. Send a smaller body.`,
      });
    case 'FST_ERR_CTP_INVALID_MEDIA_TYPE':
      return new Problem('unsupported_media_type');
    // No id contains such characters or is that long.
    case 'FST_ERR_BAD_URL':
    case 'FST_ERR_MAX_PARAM_LENGTH':
      return new Problem('not_found');
    case 'FST_ERR_REOPENED_CLOSE_SERVER':
      return new Problem('shutting_down', { headers: { 'retry-after': '2' } });
  }
  if (statusCode !== undefined && statusCode >= 400 && statusCode < 500)
    return new Problem('bad_request', { cause: error });
  return new Problem('internal_error', { cause: error });
}

function formatSize(bytes = 0): string {
  if (bytes % 1024 !== 0) return `${bytes} bytes`;
  return bytes % (1024 * 1024) === 0 ? `${bytes / 1024 / 1024} MiB` : `${bytes / 1024} KiB`;
}

/** The row, or 404. Another owner's row is 404 too, so that nobody can find out which ids exist. */
export async function orNotFound<Row>(row: Promise<Row | undefined | null | false>): Promise<Row> {
  const found = await row;
  if (!found) throw new Problem('not_found');
  return found;
}

/** For bytes that Node cannot parse as a request, and for a request that takes too long. The socket is closed afterwards. */
export function sendClientError(error: Error & { code?: string }, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !socket.writable) return;
  // In the middle of another response the client would read this one as a part of it. Node's own handler checks the same field.
  const { _httpMessage: current } = socket as Socket & { _httpMessage?: ServerResponse | null };
  if (current?.headersSent && !current.writableEnded) {
    socket.destroy();
    return;
  }
  const problem = explainClientError(error.code);
  const requestId = newId();
  const body = JSON.stringify(toDocument(problem, requestId));
  socket.write(
    `HTTP/1.1 ${problem.status} ${STATUS_CODES[problem.status]}\r\ncontent-type: ${contentType}\r\nx-request-id: ${requestId}\r\n` +
      `content-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
  );
  endSlowly(socket, defaultBodyLimits.lingerMs);
}

function explainClientError(code: string | undefined): Problem {
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT') return new Problem('request_timeout');
  const tooLong = 'The request line and headers are larger than 16 KiB. Send fewer or shorter headers.';
  return new Problem('bad_request', code === 'HPE_HEADER_OVERFLOW' ? { detail: tooLong } : {});
}

/** foreign_key_violation: the referenced row existed during validation and was deleted before the insert. */
function deletedReference(cause: unknown): Problem {
  const message = 'A resource that the body refers to was just deleted. Send the id of an existing resource.';
  return new Problem('invalid_body', {
    errors: [{ pointer: '', code: 'unknown_reference', message }],
    cause,
  });
}
