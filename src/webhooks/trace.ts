/** The span of one try in the trace of its event, and the headers that let the receiver continue the trace. */
import type { Span } from '@opentelemetry/api';
import type { Tracer } from '../lib/tracing.ts';
import type { Decision } from './decide.ts';
import type { PostOutcome } from './post.ts';
import type { SigningTarget } from './try.ts';

/** When an API request waits for the try, the try belongs to the trace of that request (`requestSpan`). */
export function traceTry(tracer: Tracer, eventId: string, requestSpan?: Span) {
  const parent = requestSpan?.spanContext() ?? tracer.rootOf(eventId);
  const span = tracer.startChild(parent, 'deliver', { kind: 'client' });

  return {
    headers: tracer.toHeaders(span),

    end(
      tried: { id?: string; eventId: string; tries: number },
      target: SigningTarget,
      outcome: PostOutcome,
      { error }: Decision,
    ): void {
      if (!span.isRecording()) return;
      const attributes = {
        'http.request.method': 'POST',
        // Not the URL, which often contains a secret.
        'server.address': URL.parse(target.url)?.hostname,
        'http.response.status_code': outcome.status,
        'posthorn.webhook_id': target.id,
        'posthorn.event_id': tried.eventId,
        'posthorn.delivery_id': tried.id,
        // Counted since the schedule last began.
        'posthorn.attempt': tried.tries + 1,
        'posthorn.outcome': error ?? 'delivered',
      };
      tracer.end(span, attributes, error);
    },
  };
}
