/** Reads JSON bodies strictly: UTF-8 or nothing, and no text that could not be stored as it came. */
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
    // Many clients send the content type with nothing behind it; a route that wants a body says so itself.
    if (bytes.length === 0) return done(null, undefined);
    try {
      done(null, readJson(bytes));
    } catch (error) {
      done(error as Problem);
    }
  });
}

function readJson(bytes: Buffer): unknown {
  const text = decode(bytes);
  try {
    return parseJson(text);
  } catch (error) {
    throw new Problem('invalid_json', {
      detail: `${(error as Error).message}. Send a JSON document in UTF-8.`,
    });
  }
}

function decode(bytes: Buffer): string {
  try {
    return utf8.decode(bytes);
  } catch {
    throw new Problem('invalid_json', {
      detail: 'The body is not valid UTF-8. Send a JSON document in UTF-8.',
    });
  }
}
