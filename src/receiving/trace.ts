/**
 * The beginning of an event's trace: that its message was taken, examined and recorded. A message for several identities
 * begins several, each whole in itself, because each is another event, and may be another owner's.
 */
import type { Span } from '@opentelemetry/api';
import type { Message } from '../contract/message.ts';
import { errorCode } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import type { Tracer } from '../lib/tracing.ts';
import type { NewMessage } from '../store/messages.ts';

export interface AcceptTrace {
  examined(messages: readonly NewMessage[]): void;
  recorded(as: readonly { message: NewMessage; outcome: string }[]): void;
  /** Nothing was recorded. */
  failed(error: unknown): void;
}

/** To be called when the message has come; `request` is the span of whoever handed it in. */
export function startAcceptTrace(tracer: Tracer, source: Message['source'], request?: Span): AcceptTrace {
  // One clock for all spans of the message: finer than milliseconds, and not set back meanwhile.
  const epochMs = Date.now() - performance.now();
  const now = () => epochMs + performance.now();
  const startTime = now();
  let examinedTime = startTime;
  let messages: readonly NewMessage[] = [];

  function trace(message: Partial<NewMessage>, outcome: string, error: string | null): void {
    const endTime = now();
    const kind = source === 'smtp' ? 'server' : 'internal';
    const links = request ? [{ context: request.spanContext() }] : [];
    const root = tracer.startRoot(message.eventId ?? newId(), 'accept message', { kind, startTime, links });
    // Both ways, so that either trace leads to the other.
    if (request?.isRecording()) request.addLink({ context: root.spanContext() });
    if (!root.isRecording()) return;
    const child = (name: string, from: number, to: number, fault: string | null) =>
      tracer.end(tracer.startChild(root.spanContext(), name, { startTime: from }), {}, fault, to);
    if (messages.length > 0) {
      child('examine', startTime, examinedTime, null);
      child('record', examinedTime, endTime, error);
    }
    const attributes = {
      'posthorn.source': source,
      'posthorn.event_id': message.eventId,
      'posthorn.message_id': outcome === 'recorded' ? message.id : undefined,
      'posthorn.identity_id': message.identityId,
      'posthorn.message_size': message.raw?.length,
      'posthorn.outcome': outcome,
    };
    tracer.end(root, attributes, error, endTime);
  }

  return {
    examined(found) {
      examinedTime = now();
      messages = found;
    },
    recorded(as) {
      for (const { message, outcome } of as) trace(message, outcome, null);
    },
    failed(error) {
      const name = errorCode(error) ?? (error as Error).name;
      // It was not even examined, so there is no event: then the trace is nobody's.
      for (const message of messages.length > 0 ? messages : [{}]) trace(message, 'failed', name);
    },
  };
}
