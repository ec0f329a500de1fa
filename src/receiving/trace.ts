/**
 * The beginning of an event's trace: that its message was taken, examined and recorded. A message for several identities
 * begins several, each whole in itself, because each is another event, and may be another owner's.
 */
import type { Message } from '../contract/message.ts';
import { errorCode } from '../db/client.ts';
import { newId } from '../lib/ids.ts';
import type { Span, Tracer } from '../lib/tracing.ts';
import type { NewMessage } from '../store/messages.ts';

export interface Taking {
  examined(messages: readonly NewMessage[]): void;
  recorded(as: readonly { message: NewMessage; outcome: string }[]): void;
  /** Nothing was recorded. */
  failed(error: unknown): void;
}

/** To be called when the message has come; `request` is the span of whoever handed it in. */
export function beginTaking(tracer: Tracer, source: Message['source'], request?: Span): Taking {
  const startedAt = performance.now();
  let examinedAt = startedAt;
  let messages: readonly NewMessage[] = [];

  function tell(message: Partial<NewMessage>, outcome: string, error: string | null): void {
    const root = tracer.beginRoot(message.eventId ?? newId(), startedAt);
    // Both ways, so that either trace leads to the other.
    if (request) {
      root.links.push(request);
      request.links.push(root);
    }
    const child = (name: string, from: number, endedAt: number, fault: string | null) => {
      const span = tracer.beginChild(root, from);
      tracer.end(span, { name, kind: 'internal', attributes: {}, error: fault, endedAt });
    };
    const endedAt = performance.now();
    if (messages.length > 0) {
      child('examine', startedAt, examinedAt, null);
      child('record', examinedAt, endedAt, error);
    }
    const attributes = {
      'posthorn.source': source,
      'posthorn.event_id': message.eventId,
      'posthorn.message_id': outcome === 'recorded' ? message.id : null,
      'posthorn.identity_id': message.identityId,
      'posthorn.message_size': message.raw?.length,
      'posthorn.outcome': outcome,
      'error.type': error,
    };
    const kind = source === 'smtp' ? 'server' : 'internal';
    tracer.end(root, { name: 'accept message', kind, attributes, error, endedAt });
  }

  return {
    examined(found) {
      examinedAt = performance.now();
      messages = found;
    },
    recorded(as) {
      for (const { message, outcome } of as) tell(message, outcome, null);
    },
    failed(error) {
      const name = errorCode(error) ?? (error as Error).name;
      // It was not even examined, so there is no event: then the trace is nobody's.
      for (const message of messages.length > 0 ? messages : [{}]) tell(message, 'failed', name);
    },
  };
}
