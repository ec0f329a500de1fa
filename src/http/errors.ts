/**
 * Whatever goes wrong becomes one problem document (RFC 9457). What the caller did is told in full; what went wrong
 * inside is logged under the request id and never sent.
 */
import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { FastifyError, FastifyReply, FastifyRequest } from 'fastify';
import { errorCode, isUnavailable } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import { Problem, problems, toDocument } from '../problems.ts';

const contentType = 'application/problem+json; charset=utf-8';

type SendProblem = (error: unknown, request: FastifyRequest, reply: FastifyReply) => void;

export function makeProblemSender(log: Log): SendProblem {
  return (error, request, reply) => {
    const problem = toProblem(error, request.routeOptions.bodyLimit);
    const { status } = problems[problem.code];
    if (status >= 500) {
      const level = problem.code === 'internal_error' ? 'error' : 'warn';
      log[level](
        { err: problem.cause, requestId: request.id, route: request.routeOptions.url },
        problem.message,
      );
    }
    const document = JSON.stringify(toDocument(problem, request.id));
    // Set before, except where a request did not get as far as the hooks.
    reply.header('x-request-id', request.id);
    reply.code(status).headers(problem.headers).type(contentType).send(document);
  };
}

function toProblem(error: unknown, bodyLimit: number | undefined): Problem {
  if (error instanceof Problem) return error;
  if (isUnavailable(error)) {
    return new Problem('database_unavailable', { headers: { 'retry-after': '2' }, cause: error });
  }
  if (errorCode(error) === '23503') return referenceVanished(error);
  const { code, statusCode } = error as Partial<FastifyError>;
  switch (code) {
    case 'FST_ERR_CTP_BODY_TOO_LARGE':
      return new Problem('body_too_large', {
        detail: `The body may have up to ${tellSize(bodyLimit)} here.`,
      });
    case 'FST_ERR_CTP_INVALID_MEDIA_TYPE':
      return new Problem('unsupported_media_type');
    // The path holds what no id could be.
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

function tellSize(bytes = 0): string {
  if (bytes % 1024 !== 0) return `${bytes} bytes`;
  return bytes % (1024 * 1024) === 0 ? `${bytes / 1024 / 1024} MiB` : `${bytes / 1024} KiB`;
}

/** A request so broken that there is no request: it never reached a route, and the socket is closed after it. */
export function sendClientError(error: Error & { code?: string }, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !socket.writable) return;
  // Amid another answer, a download say, it would be taken for a part of that. Node's own handler looks at the same place.
  const { _httpMessage: underWay } = socket as Socket & { _httpMessage?: ServerResponse | null };
  if (underWay?.headersSent && !underWay.writableEnded) {
    socket.destroy();
    return;
  }
  const detail =
    error.code === 'HPE_HEADER_OVERFLOW'
      ? 'The head of the request is larger than 16 KiB.'
      : problems.bad_request.remedy;
  const requestId = newId();
  const body = JSON.stringify(toDocument(new Problem('bad_request', { detail }), requestId));
  socket.end(
    `HTTP/1.1 400 Bad Request\r\ncontent-type: ${contentType}\r\nx-request-id: ${requestId}\r\n` +
      `content-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
  );
}

/** foreign_key_violation: what the body names was there when it was checked, and was deleted before it was used. */
function referenceVanished(cause: unknown): Problem {
  const message = 'Something that the body names was deleted meanwhile.';
  return new Problem('invalid_body', {
    faults: [{ pointer: '', code: 'unknown_reference', message }],
    cause,
  });
}
