/**
 * A span for every authenticated request; documentation, health and metrics are not traced. The span has the name of the
 * route's pattern, never of the URL: a URL can contain the signature of a link.
 */
import type { Span } from '@opentelemetry/api';
import type { Tracer } from '../lib/tracing.ts';
import type { App } from './fastify.ts';

declare module 'fastify' {
  interface FastifyRequest {
    /** Undefined when the request is not traced. */
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
