/**
 * The first spans of an event's trace: accept, examine, record. A message for several identities starts one trace for each,
 * because each is an event of its own and may belong to another owner.
 */
import type { Span } from '@opentelemetry/api';
import type { Message } from '../contract/message.ts';
import { errorCode } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import type { Tracer } from '../lib/tracing.ts';
import type { NewMessage } from '../store/messages.ts';

type TracedMessage = Pick<NewMessage, 'id' | 'eventId' | 'identityId' | 'raw'>;

export interface AcceptTrace {
  examined(messages: readonly TracedMessage[]): void;
  recorded(outcomes: readonly { message: TracedMessage; outcome: string }[]): void;
  /** Nothing was recorded. */
  failed(error: unknown): void;
}

/** Call it when the message has arrived. `request`: the span of the HTTP request, if any. */
export function startAcceptTrace(tracer: Tracer, source: Message['source'], request?: Span): AcceptTrace {
  // All spans of the message use one monotonic clock, finer than milliseconds.
  const epochMs = Date.now() - performance.now();
  const now = () => epochMs + performance.now();
  const startTime = now();
  let examinedTime = startTime;
  let messages: readonly TracedMessage[] = [];

  function trace(message: Partial<TracedMessage>, outcome: string, error: string | null): void {
    const endTime = now();
    const kind = source === 'smtp' ? 'server' : 'internal';
    const links = request ? [{ context: request.spanContext() }] : [];
    const root = tracer.startRoot(message.eventId ?? newId(), 'accept message', { kind, startTime, links });
    // Links in both directions: each trace leads to the other.
    if (request?.isRecording()) request.addLink({ context: root.spanContext() });
    if (!root.isRecording()) return;
    const child = (name: string, startTime: number, endTime: number, error: string | null) =>
      tracer.end(tracer.startChild(root.spanContext(), name, { startTime }), {}, error, endTime);
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
    examined(prepared) {
      examinedTime = now();
      messages = prepared;
    },
    recorded(outcomes) {
      for (const { message, outcome } of outcomes) trace(message, outcome, null);
    },
    failed(error) {
      const name = errorCode(error) ?? (error as Error).name;
      // Not examined yet: there is no event, so the trace gets an id of its own.
      for (const message of messages.length > 0 ? messages : [{}]) trace(message, 'failed', name);
    },
  };
}
