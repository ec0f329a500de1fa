/**
 * One HTTP request for a small document, by the egress rules. Guarantees: never rejects; ends by its deadline; redirects are not
 * followed; a longer body than `maxBytes` is a failure.
 */
import http from 'node:http';
import type { Socket } from 'node:net';
import type tls from 'node:tls';
import { type ConnectErrorCode, connect } from './connect.ts';
import type { Egress } from './egress.ts';

export interface SmallRequest {
  url: URL;
  headers: Record<string, string>;
  /** With a body it is a POST. */
  body?: string;
}

export interface SmallRequestLimits {
  egress: Egress;
  /** For https. */
  secure: tls.SecureContext;
  withinMs: number;
  maxBytes: number;
}

export type SmallResponse =
  | { kind: 'response'; status: number; contentType: string; body: string }
  | {
      kind: 'failed';
      code: ConnectErrorCode | 'response_timeout' | 'connection_lost' | 'too_large';
      detail: string;
    };

export function requestSmall(request: SmallRequest, limits: SmallRequestLimits): Promise<SmallResponse> {
  const { url } = request;
  const isSecure = url.protocol === 'https:';
  const target = {
    hostname: url.hostname.replace(/^\[|\]$|\.+$/g, ''),
    port: Number(url.port || (isSecure ? 443 : 80)),
    secure: isSecure ? limits.secure : null,
  };
  return new Promise((resolve) => {
    let socket: Socket | null = null;
    const end = (response: SmallResponse) => {
      clearTimeout(timer);
      socket?.destroy();
      resolve(response);
    };
    const connecting = connect(target, limits.egress, (error, connected) => {
      socket = connected;
      if (error) end({ kind: 'failed', code: error.code, detail: error.message });
      else exchange(connected as Socket, request, limits.maxBytes, end);
    });
    const timer = setTimeout(() => {
      connecting.expire();
      end({ kind: 'failed', code: 'response_timeout', detail: 'The response did not end in time' });
    }, limits.withinMs);
  });
}

/** Calls `end` at least once. */
function exchange(
  socket: Socket,
  { url, headers, body }: SmallRequest,
  maxBytes: number,
  end: (response: SmallResponse) => void,
): void {
  const lose = () =>
    end({ kind: 'failed', code: 'connection_lost', detail: 'The server closed the connection' });
  const request = http.request({
    createConnection: () => socket,
    method: body === undefined ? 'GET' : 'POST',
    path: url.pathname + url.search,
    headers: { host: url.host, connection: 'close', ...headers },
  });
  request.on('error', lose).on('response', (response) => {
    const chunks: Buffer[] = [];
    let size = 0;
    response.on('data', (chunk: Buffer) => {
      chunks.push(chunk);
      size += chunk.length;
      if (size > maxBytes)
        end({ kind: 'failed', code: 'too_large', detail: `The response has more than ${maxBytes} bytes` });
    });
    response.on('error', lose).on('close', lose);
    response.on('end', () => {
      if (!response.complete) return lose();
      const contentType = response.headers['content-type'] ?? '';
      const { statusCode: status = 0 } = response;
      end({ kind: 'response', status, contentType, body: Buffer.concat(chunks).toString() });
    });
  });
  request.end(body);
}
