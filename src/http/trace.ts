/**
 * A span for each request that acts for somebody; documentation, health and metrics are left out. It is told by the route's
 * template, never by the URL: that may hold a signature.
 */
import type { Span, Tracer } from '../lib/tracing.ts';
import type { App } from './services.ts';

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
    if (!untraced.includes(request.routeOptions.config.access)) {
      request.span = tracer.beginRequest(request.headers.traceparent);
    }
    done();
  });
  app.addHook('onResponse', (request, reply, done) => {
    const { span, method, id } = request;
    const { url: route = '' } = request.routeOptions;
    const status = reply.statusCode;
    const error = status >= 500 ? String(status) : null;
    const attributes = {
      'http.request.method': method,
      'http.route': route,
      'http.response.status_code': status,
      'error.type': error,
      'posthorn.request_id': id,
    };
    if (span) tracer.end(span, { name: `${method} ${route}`, kind: 'server', attributes, error });
    done();
  });
}
