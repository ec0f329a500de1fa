/** Parses JSON bodies strictly: UTF-8 only, and nothing that would be stored differently from what was sent. */
import type { FastifyRequest } from 'fastify';
import { parseJson } from '../lib/json.ts';
import { Problem } from '../problems.ts';
import type { App } from './fastify.ts';

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

export function readJsonBodies(app: App): void {
  app.removeAllContentTypeParsers();
  const types = ['application/json', 'application/merge-patch+json'];
  app.addContentTypeParser(types, { parseAs: 'buffer' }, (request: FastifyRequest, bytes: Buffer, done) => {
    if (request.method !== 'PATCH' && request.headers['content-type']?.includes('merge-patch')) {
      return done(new Problem('unsupported_media_type'));
    }
    // Many clients send the content type without a body. A route that needs a body refuses the request by its schema.
    if (bytes.length === 0) return done(null, undefined);
    try {
      done(null, readJson(bytes));
    } catch (error) {
      done(error as Problem);
    }
  });
}

/** `maxValues`: for a route whose bodies may be large. Each value may be a fault, and each fault is checked and told. */
export function readJson(bytes: Buffer, maxValues?: number): unknown {
  try {
    return parseJson(utf8.decode(bytes), maxValues);
  } catch (error) {
    if (error instanceof RangeError) {
      const message = `${error.message}. Send fewer items.`;
      throw new Problem('invalid_body', { errors: [{ pointer: '', code: 'too_long', message }] });
    }
    const reason = error instanceof SyntaxError ? error.message : 'The body is not valid UTF-8';
    throw new Problem('invalid_json', { detail: `${reason}. Send a JSON document in UTF-8.` });
  }
}
