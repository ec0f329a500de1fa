/**
 * One GET over https, by the egress rules. Guarantees: never rejects; no redirect is followed; the answer has a limit in bytes and in
 * time; the certificate is valid for the name.
 */
import http from 'node:http';
import type { Socket } from 'node:net';
import type tls from 'node:tls';
import { connect } from './connect.ts';
import type { Egress } from './egress.ts';

export interface HttpsGetParts {
  egress: Egress;
  secure: tls.SecureContext;
  port: number;
  maxBytes: number;
  withinMs: number;
}

/** The body of a response with the status 200; null: no such response came in time. */
export function httpsGet(url: URL, parts: HttpsGetParts): Promise<string | null> {
  const { promise, resolve } = Promise.withResolvers<string | null>();
  const { egress, secure, port, maxBytes, withinMs } = parts;
  let socket: Socket | null = null;
  const end = (body: string | null) => {
    clearTimeout(timer);
    socket?.destroy();
    resolve(body);
  };
  const connecting = connect({ hostname: url.hostname, port, secure }, egress, (error, connected) => {
    if (error || !connected) return end(null);
    socket = connected;
    request(connected, url, maxBytes, end);
  });
  const timer = setTimeout(() => {
    connecting.expire();
    end(null);
  }, withinMs);
  return promise;
}

/** Calls `done` at least once. */
function request(socket: Socket, url: URL, maxBytes: number, done: (body: string | null) => void): void {
  const fail = () => done(null);
  const sent = http.get({
    createConnection: () => socket,
    path: `${url.pathname}${url.search}`,
    headers: { host: url.host, connection: 'close' },
  });
  sent.on('error', fail).on('response', (response) => {
    if (response.statusCode !== 200) return fail();
    const chunks: Buffer[] = [];
    let size = 0;
    response.on('data', (chunk: Buffer) => {
      chunks.push(chunk);
      size += chunk.length;
      if (size > maxBytes) fail();
    });
    response.on('error', fail).on('close', fail);
    response.on('end', () => {
      if (response.complete && size <= maxBytes) done(Buffer.concat(chunks).toString());
    });
  });
}
