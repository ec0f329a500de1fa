/** Answers that are stored as JSON text: to parse and write megabytes again would keep the requests of all owners waiting. */
import type { FastifyReply } from 'fastify';
import { type TSchema, Type } from 'typebox';

/** Documented only: the text is sent as it is. */
export function jsonText(schema: TSchema) {
  return { content: { 'application/json': { schema: Type.Unsafe<unknown>(schema) } } };
}

export function sendJsonText(reply: FastifyReply, text: string): FastifyReply {
  return reply.type('application/json; charset=utf-8').send(text);
}
