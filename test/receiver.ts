/**
 * A real HTTP(S) webhook receiver on a loopback port. It records all requests, and can misbehave: for all requests with
 * `behave`, for the requests to one path with `behaveAt`.
 */
import { readFileSync } from 'node:fs';
import http, { type IncomingHttpHeaders, type ServerResponse } from 'node:http';
import https from 'node:https';
import type { AddressInfo, Socket } from 'node:net';
import path from 'node:path';

export interface ReceivedRequest {
  method: string;
  /** Path and query. */
  url: string;
  headers: IncomingHttpHeaders;
  body: Buffer;
  /** Milliseconds since 1970 with fractions, comparable between processes of one machine. */
  arrivedAtMs: number;
  /** When the response was sent or the connection was lost; null before that. */
  endedAtMs: number | null;
  /** The number of the connection, counted from 1. */
  connection: number;
}

/** Called after the whole request was read. The socket is for bytes that `response` would not write. */
export type Behaviour = (request: ReceivedRequest, response: ServerResponse, socket: Socket) => void;

export interface Receiver {
  port: number;
  /** `http://127.0.0.1:port/path`, or https. */
  url(path?: string): string;
  /** In the order of arrival. */
  requests: ReceivedRequest[];
  behave(behaviour: Behaviour): void;
  behaveAt(path: string, behaviour: Behaviour): void;
  /** Waits for so many (matching) requests, and returns them. */
  received(count: number, matching?: (request: ReceivedRequest) => boolean): Promise<ReceivedRequest[]>;
  /** The number of open connections. */
  openConnections(): number;
  /** Closes all connections, as a restart would, and keeps listening. */
  dropConnections(): void;
  close(): Promise<void>;
}

export async function startReceiver(
  options: { tls?: { key: string; cert: string }; host?: string; deadlineMs?: number } = {},
): Promise<Receiver> {
  const { host = '127.0.0.1', deadlineMs = 120_000 } = options;
  const requests: ReceivedRequest[] = [];
  const sockets = new Set<Socket>();
  const numbers = new WeakMap<Socket, number>();
  const waiting = new Set<() => void>();
  const byPath = new Map<string, Behaviour>();
  let standard: Behaviour = answer(204);
  let connections = 0;

  const server = options.tls ? https.createServer(options.tls) : http.createServer();
  server.keepAliveTimeout = 60_000;
  server.on('connection', (socket: Socket) => {
    sockets.add(socket);
    socket.on('error', () => {}).on('close', () => sockets.delete(socket));
  });
  server.on('secureConnection', (socket: Socket) => socket.on('error', () => {}));
  server.on('request', (incoming, response) => {
    const { socket } = incoming;
    if (!numbers.has(socket)) numbers.set(socket, ++connections);
    const request: ReceivedRequest = {
      method: incoming.method ?? '',
      url: incoming.url ?? '',
      headers: incoming.headers,
      body: Buffer.alloc(0),
      arrivedAtMs: epochMs(),
      endedAtMs: null,
      connection: numbers.get(socket) ?? 0,
    };
    const chunks: Buffer[] = [];
    response.on('close', () => {
      request.endedAtMs = epochMs();
      for (const look of waiting) look();
    });
    incoming.on('error', () => {});
    incoming.on('data', (chunk: Buffer) => chunks.push(chunk));
    incoming.on('end', () => {
      request.body = Buffer.concat(chunks);
      requests.push(request);
      const behaviour = byPath.get(new URL(request.url, 'http://receiver').pathname) ?? standard;
      behaviour(request, response, socket);
      for (const look of waiting) look();
    });
  });
  await new Promise<void>((resolve) => server.listen(0, host, resolve));
  const { port } = server.address() as AddressInfo;

  return {
    port,
    url: (at = '/') => `${options.tls ? 'https' : 'http'}://${host}:${port}${at}`,
    requests,
    behave(behaviour) {
      standard = behaviour;
    },
    behaveAt(at, behaviour) {
      byPath.set(at, behaviour);
    },
    received(count, matching = () => true) {
      return new Promise((resolve, reject) => {
        const look = () => {
          const found = requests.filter(matching);
          if (found.length < count) return;
          waiting.delete(look);
          clearTimeout(timer);
          resolve(found);
        };
        const timer = setTimeout(() => {
          waiting.delete(look);
          const found = requests.filter(matching).length;
          reject(
            new Error(`Waited ${deadlineMs} ms for ${count} requests; ${found} of ${requests.length} match`),
          );
        }, deadlineMs);
        waiting.add(look);
        look();
      });
    },
    openConnections: () => sockets.size,
    dropConnections() {
      for (const socket of sockets) socket.destroy();
    },
    async close() {
      for (const socket of sockets) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

export type Certificate = 'good' | 'self-signed' | 'other-name' | 'expired';

/** The certificate `good` is valid for hooks.example, localhost and 127.0.0.1. */
export function readCertificate(name: Certificate): { key: string; cert: string } {
  return { key: readTls(`receiver-${name}-key.pem`), cert: readTls(`receiver-${name}.pem`) };
}

/** The authority that signed all certificates except the self-signed one. */
export function readAuthority(): string {
  return readTls('receiver-ca.pem');
}

function readTls(file: string): string {
  return readFileSync(path.join(import.meta.dirname, 'fixtures', 'tls', file), 'utf8');
}

export function answer(
  status: number,
  headers: http.OutgoingHttpHeaders = {},
  body: string | Buffer = '',
): Behaviour {
  return (_request, response) => response.writeHead(status, headers).end(body);
}

/** Reads the request and never responds. */
export function hang(): Behaviour {
  return () => {};
}

/** Sends the headers at once, then one byte of the body at a time, forever. */
export function drip(intervalMs = 1000): Behaviour {
  return (_request, response) => {
    response.writeHead(200).write('.');
    const timer = setInterval(() => response.write('.'), intervalMs);
    response.on('close', () => clearInterval(timer));
  };
}

/** Sends the headers one byte at a time, forever. */
export function dripHead(intervalMs = 1000): Behaviour {
  return (_request, _response, socket) => {
    socket.write('HTTP/1.1 200 OK\r\nx-slow: ');
    const timer = setInterval(() => socket.write('.'), intervalMs);
    socket.on('close', () => clearInterval(timer));
  };
}

/** Sends so many bytes of body, as fast as the client reads; `sent` gets the number of bytes that were sent. */
export function flood(bytes: number, sent: (bytes: number) => void = () => {}, status = 200): Behaviour {
  return (_request, response) => {
    const chunk = Buffer.alloc(64 * 1024, 'flood ');
    let left = bytes;
    const pour = () => {
      while (left > 0 && !response.destroyed) {
        const piece = chunk.subarray(0, Math.min(left, chunk.length));
        left -= piece.length;
        sent(piece.length);
        if (!response.write(piece)) return;
      }
      if (left <= 0) response.end();
    };
    response.on('drain', pour).writeHead(status, { 'content-length': bytes });
    pour();
  };
}

/** Sends headers forever. */
export function floodHead(): Behaviour {
  return (_request, _response, socket) => {
    const chunk = `x-flood: ${'x'.repeat(1000)}\r\n`.repeat(60);
    const pour = () => {
      while (!socket.destroyed && socket.write(chunk));
    };
    socket.on('drain', pour).write('HTTP/1.1 200 OK\r\n');
    pour();
  };
}

/**
 * Writes these bytes as the response, then closes the connection, resets it or leaves it open (and unused: the HTTP server still
 * waits for `response`).
 */
export function raw(bytes: string, then: 'stay' | 'close' | 'reset' = 'stay'): Behaviour {
  return (_request, _response, socket) => {
    socket.write(bytes, 'latin1', () => {
      if (then === 'close') socket.end();
      if (then === 'reset') socket.resetAndDestroy();
    });
  };
}

/** Resets the connection without a response. */
export function reset(): Behaviour {
  return (_request, _response, socket) => socket.resetAndDestroy();
}

/** Closes the connection without a response. */
export function hangUp(): Behaviour {
  return (_request, _response, socket) => socket.end();
}

function epochMs(): number {
  return performance.timeOrigin + performance.now();
}
