/** A server that acts as Amazon SNS: https under the name of its host, with a certificate of its own. */
import { once } from 'node:events';
import https from 'node:https';
import type { AddressInfo } from 'node:net';
import { after } from 'node:test';
import { makeSelfSigned } from '../src/net/self-signed.ts';

export interface SnsServer {
  port: number;
  /** Who issued the certificate of the server. */
  ca: string;
  /** Host and path of each request. */
  asked: string[];
  /** What it answers to a request for a signing certificate. */
  answer: { status: number; body: string };
}

export async function startSns(host: string, signingCertificate: string): Promise<SnsServer> {
  const own = makeSelfSigned(host, new Date());
  const sns: SnsServer = {
    port: 0,
    ca: own.cert,
    asked: [],
    answer: { status: 200, body: signingCertificate },
  };
  const server = https.createServer(own, ({ headers, url = '' }, response) => {
    sns.asked.push(`${headers.host}${url}`);
    const { status, body } = url.endsWith('.pem') ? sns.answer : { status: 200, body: '<ok/>' };
    response.writeHead(status).end(body);
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  sns.port = (server.address() as AddressInfo).port;
  after(() => {
    server.close();
    server.closeAllConnections();
  });
  return sns;
}
