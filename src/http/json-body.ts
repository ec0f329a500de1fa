/** Parses JSON bodies strictly: UTF-8 only, and nothing that would be stored differently from what was sent. */
import type { FastifyRequest } from 'fastify';
import { cutGiven } from '../lib/cut-given.ts';
import { type JsonFault, readJson } from '../lib/json.ts';
import { Problem } from '../problems.ts';
import type { App } from './fastify.ts';

export function readJsonBodies(app: App): void {
  app.removeAllContentTypeParsers();
  const types = ['application/json', 'application/merge-patch+json'];
  app.addContentTypeParser(types, { parseAs: 'buffer' }, (request: FastifyRequest, bytes: Buffer, done) => {
    if (request.method !== 'PATCH' && request.headers['content-type']?.includes('merge-patch')) {
      return done(new Problem('unsupported_media_type'));
    }
    // Many clients send the content type without a body. A route that needs a body refuses the request by its schema.
    if (bytes.length === 0) return done(null, undefined);
    const read = readJson(bytes);
    if ('fault' in read) done(explainJsonFault(read.fault));
    else done(null, read.value);
  });
}

export function explainJsonFault({ kind, message }: JsonFault): Problem {
  if (kind === 'invalid_json')
    return new Problem('invalid_json', { detail: `${cutGiven(message)}. Send a JSON document in UTF-8.` });
  const error = { pointer: '', code: 'too_long', message: `${message}. Send fewer items.` } as const;
  return new Problem('invalid_body', { errors: [error] });
}
