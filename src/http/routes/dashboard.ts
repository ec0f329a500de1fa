/** The dashboard: a page that uses the API as everyone can. Its files need no key. */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { Problem } from '../../problems.ts';
import { type DashboardFile, pageHeaders, writeShortPage } from '../dashboard-files.ts';
import type { App } from '../fastify.ts';

interface DashboardParts {
  basePath: string;
  /** Null: the dashboard is not built. */
  files: ReadonlyMap<string, DashboardFile> | null;
  /** POSTHORN_DASHBOARD */
  isOn: boolean;
}

export function dashboardRoutes(app: App, { basePath, files, isOn }: DashboardParts): void {
  // Pages, not operations: the OpenAPI document does not have them.
  const options = { config: { access: 'public' }, schema: { hide: true } } as const;
  const folder = `${basePath}/app/`;

  function sendIndex(request: FastifyRequest, reply: FastifyReply): FastifyReply {
    const index = isOn ? files?.get('index.html') : undefined;
    if (index) return sendFile(index, request, reply);
    const page = Buffer.from(writeShortPage(basePath));
    return reply
      .headers({ ...pageHeaders, 'cache-control': 'no-store' })
      .type(html)
      .send(page);
  }

  app.get('/', options, async (request, reply) => sendIndex(request, reply));
  if (!isOn) return;
  app.get('/app', options, async (request, reply) => sendIndex(request, reply));
  app.get('/app/*', options, async (request, reply) => {
    // Not `request.params`, which are in lower case.
    const [path = ''] = request.url.split('?', 1);
    const file = files?.get(path.slice(folder.length));
    if (file) return sendFile(file, request, reply);
    // The page reads the path itself. A missing script must not be answered with the page.
    if (isFileName(path)) throw new Problem('route_not_found');
    return sendIndex(request, reply);
  });
}

const html = 'text/html; charset=utf-8';

function sendFile(file: DashboardFile, request: FastifyRequest, reply: FastifyReply): FastifyReply {
  const { bytes, gzipped, type, cacheControl, etag } = file;
  reply.headers({ ...pageHeaders, 'cache-control': cacheControl, etag, vary: 'accept-encoding' });
  if (request.headers['if-none-match'] === etag) return reply.code(304).send();
  reply.type(type);
  if (!/\bgzip\b/.test(request.headers['accept-encoding'] ?? '')) return reply.send(bytes);
  return reply.header('content-encoding', 'gzip').send(gzipped);
}

function isFileName(path: string): boolean {
  return /\.(js|css|map|json|svg|png|ico|woff2)$/.test(path);
}
