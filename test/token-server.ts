/** An OAuth2 token server of the test's own, which answers as the test says and notes what it was asked. */
import { once } from 'node:events';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { after } from 'node:test';

interface TokenResponse {
  status?: number;
  /** An object is sent as JSON. */
  body: object | string;
}

export interface TokenServer {
  url: string;
  /** The forms that came. */
  requests: Record<string, string>[];
  /** In turn; the last one stays. */
  answer(...responses: TokenResponse[]): void;
  /** Never answers from now on. */
  hang(): void;
}

export async function startTokenServer(): Promise<TokenServer> {
  const requests: Record<string, string>[] = [];
  let responses: TokenResponse[] = [];
  const server = http.createServer(async (request, response) => {
    let text = '';
    for await (const chunk of request) text += chunk;
    requests.push(Object.fromEntries(new URLSearchParams(text)));
    const [first] = responses.length > 1 ? responses.splice(0, 1) : responses;
    if (!first) return;
    const { status = 200, body } = first;
    response.writeHead(status, { 'content-type': 'application/json' });
    response.end(typeof body === 'string' ? body : JSON.stringify(body));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  after(() => {
    server.closeAllConnections();
    server.close();
  });
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/token`,
    requests,
    answer(...given) {
      responses = given;
    },
    hang() {
      responses = [];
    },
  };
}
