/**
 * A span for each request that acts for somebody; documentation, health and metrics are left out. It is named by the route's
 * template, never by the URL: that may hold a signature.
 */
import type { Span } from '@opentelemetry/api';
import type { Tracer } from '../lib/tracing.ts';
import type { App } from './fastify.ts';

declare module 'fastify' {
  interface FastifyRequest {
    /** Where requests are traced. */
    span?: Span;
  }
}

const untraced = ['public', 'metrics', undefined];

export function traceRequests(app: App, tracer: Tracer): void {
  app.decorateRequest('span');
  app.addHook('onRequest', (request, _reply, done) => {
    const { method, id, headers, routeOptions } = request;
    const { config, url: route = '' } = routeOptions;
    const attributes = { 'http.request.method': method, 'http.route': route, 'posthorn.request_id': id };
    if (!untraced.includes(config.access))
      request.span = tracer.startRequest(headers, `${method} ${route}`, { kind: 'server', attributes });
    done();
  });
  app.addHook('onResponse', ({ span }, { statusCode }, done) => {
    const error = statusCode >= 500 ? String(statusCode) : null;
    if (span) tracer.end(span, { 'http.response.status_code': statusCode }, error);
    done();
  });
}
