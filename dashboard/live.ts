/**
 * The events of `GET /events/stream`. The browser resumes a cut stream by itself (`Last-Event-ID`), without a gap. Where it gives
 * up, a new stream begins, and listeners hear `gap`: they load what they show again.
 */
import { type ReadonlySignal, signal } from '@preact/signals';
import type { MessageSummary } from './contract.ts';

type LiveEvent =
  | { name: 'gap' }
  | { name: `message.${string}`; id: string; data: { message: MessageSummary } };
export type LiveListener = (event: LiveEvent) => void;

export interface Live {
  isOpen: ReadonlySignal<boolean>;
  subscribe(listener: LiveListener): () => void;
  close(): void;
}

const names = [
  'message.received',
  'message.sent',
  'message.delivered',
  'message.bounced',
  'message.complained',
] as const;
const reopenMs = 1000;

/** `check` asks whether the session is still good: the browser does not say why a stream was refused. */
export function openLive(url: URL, check: () => Promise<unknown>): Live {
  const isOpen = signal(false);
  const listeners = new Set<LiveListener>();
  const tell = (event: LiveEvent) => {
    for (const listener of listeners) listener(event);
  };
  let source: EventSource;
  let timer = 0;
  let isClosed = false;

  function open(isFirst: boolean): void {
    source = new EventSource(url);
    source.onopen = () => {
      isOpen.value = true;
      if (!isFirst) tell({ name: 'gap' });
    };
    source.onerror = () => {
      isOpen.value = false;
      if (source.readyState === EventSource.CLOSED) retry();
    };
    for (const name of names) {
      source.addEventListener(name, ({ data, lastEventId }) =>
        tell({ name, id: lastEventId, data: JSON.parse(data).data }),
      );
    }
  }
  function retry(): void {
    const again = () => {
      if (!isClosed) timer = window.setTimeout(() => open(false), reopenMs);
    };
    check().then(again, again);
  }
  open(true);

  return {
    isOpen,
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    close() {
      isClosed = true;
      clearTimeout(timer);
      source.close();
    },
  };
}
