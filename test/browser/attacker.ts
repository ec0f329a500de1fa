/** A web server of an attacker: it notes what reaches it, and serves the pages that a test gives it. */
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { after } from 'node:test';

const pixel = Buffer.from('R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7', 'base64');

export interface Attacker {
  url: string;
  /** The paths of all requests so far, except of its own pages and their icon. */
  reached: string[];
  /** The address of a page with this HTML. */
  page(html: string): string;
}

export async function startAttacker(): Promise<Attacker> {
  const reached: string[] = [];
  const pages = new Map<string, string>();
  const server = http.createServer((request, response) => {
    const html = pages.get(request.url ?? '');
    if (html !== undefined) {
      response.setHeader('content-type', 'text/html').end(html);
      return;
    }
    if (request.url !== '/favicon.ico') reached.push(request.url ?? '');
    response.setHeader('content-type', 'image/gif').end(pixel);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  after(() => server.close());
  // The same host as the service: to the browser the attacker is of the same site.
  const url = `http://localhost:${(server.address() as AddressInfo).port}`;
  return {
    ...{ url, reached },
    page(html) {
      const path = `/page-${pages.size}`;
      pages.set(path, html);
      return `${url}${path}`;
    },
  };
}
