/** The span of one try, in the trace of its event, and the header that lets the receiver go on with it. */
import type { Span, Tracer } from '../lib/tracing.ts';
import type { Verdict } from './decide.ts';
import type { PostOutcome } from './post.ts';
import type { SigningTarget } from './try.ts';

/** `asking` is the request that waits for the try, if one does: then it is in that one's trace. */
export function traceTry(tracer: Tracer, eventId: string, asking?: Span) {
  const span = tracer.beginChild(asking ?? tracer.rootOf(eventId));

  return {
    traceparent: tracer.toTraceparent(span),

    end(
      tried: { id?: string; eventId: string; tries: number },
      target: SigningTarget,
      outcome: PostOutcome,
      { error }: Verdict,
    ): void {
      if (!span.sampled) return;
      const attributes = {
        'http.request.method': 'POST',
        // Not the URL, which is often a secret in itself.
        'server.address': URL.parse(target.url)?.hostname,
        'http.response.status_code': outcome.status,
        'posthorn.webhook_id': target.id,
        'posthorn.event_id': tried.eventId,
        'posthorn.delivery_id': tried.id,
        // Since the schedule last began.
        'posthorn.attempt': tried.tries + 1,
        'posthorn.outcome': error ?? 'delivered',
        'error.type': error,
      };
      tracer.end(span, { name: 'deliver', kind: 'client', attributes, error });
    },
  };
}
