/**
 * Traces (OpenTelemetry): what a span is, which are kept, how a trace goes on elsewhere. Loaded only when traces are wanted.
 * The trace of an event has the event's id for its own, so that it needs no storage: whoever has the event, in whatever
 * process, knows its trace, the root of it, and whether it is kept (docs/decisions/0010-traces.md).
 */
import { randomUUID } from 'node:crypto';
import type { Log } from './log.ts';
import { type Attribute, type OtlpSpan, startExporter } from './otlp.ts';
import type { TraceConfig } from './trace-settings.ts';

/** Which span of which trace, in hex, and whether it is kept. */
export interface SpanContext {
  traceId: string;
  spanId: string;
  sampled: boolean;
}

export interface Span extends SpanContext {
  parentSpanId: string | null;
  /** By `performance.now()`. */
  startedAt: number;
  /** What it has to do with in other traces. */
  links: SpanContext[];
}

/** Of OTLP. */
const kinds = { internal: 1, server: 2, client: 3 };
const statusError = 2;

export interface Told {
  name: string;
  kind: keyof typeof kinds;
  /** Those that are undefined or null are left out. No secrets, no addresses of people, no whole URLs. */
  attributes: Record<string, string | number | null | undefined>;
  /** Null: it went well. */
  error: string | null;
  /** Now, unless told. */
  endedAt?: number;
}

export type Tracer = ReturnType<typeof startTracer>;

export function startTracer(options: {
  config: TraceConfig;
  version: string;
  log: Log;
  count(outcome: 'sent' | 'dropped', spans: number): void;
  pauseMs?: number;
}) {
  const { config, version } = options;
  const { parentBased, ratio } = config.sampling;
  const resource = { 'service.version': version, 'service.instance.id': randomUUID(), ...config.resource };
  const exporter = startExporter({
    ...options,
    ...{ url: config.url, headers: config.headers },
    resource: toAttributes(resource),
    scope: { name: 'posthorn', version },
  });
  const toNanos = makeNanos();

  /** The same answer in every process. */
  function isKept(traceId: string): boolean {
    // The last 40 bits: those before them count up in ids of one millisecond, and would keep or drop them together.
    return Number.parseInt(traceId.slice(-10), 16) < ratio * 2 ** 40;
  }

  /** The root of an event's trace, which is known without being told. */
  function rootOf(eventId: string): SpanContext {
    const traceId = eventId.replaceAll('-', '');
    // Never all zeros, which would be no id: a UUID has its variant here.
    return { traceId, spanId: traceId.slice(16), sampled: isKept(traceId) };
  }

  function beginChild(parent: SpanContext, startedAt = performance.now()): Span {
    const { traceId, spanId: parentSpanId, sampled } = parent;
    return { traceId, spanId: newSpanId(), sampled, parentSpanId, startedAt, links: [] };
  }

  return {
    rootOf,
    beginChild,

    beginRoot(eventId: string, startedAt = performance.now()): Span {
      return { ...rootOf(eventId), parentSpanId: null, startedAt, links: [] };
    },

    /** Goes on with the caller's trace (W3C Trace Context), or begins one. */
    beginRequest(traceparent: string | string[] | undefined): Span {
      const parent = readTraceparent(traceparent);
      const traceId = parent?.traceId ?? randomUUID().replaceAll('-', '');
      const sampled = parent && parentBased ? parent.sampled : isKept(traceId);
      const parentSpanId = parent?.spanId ?? null;
      return {
        ...{ traceId, spanId: newSpanId(), sampled, parentSpanId },
        ...{ startedAt: performance.now(), links: [] },
      };
    },

    end(span: Span, told: Told): void {
      if (!span.sampled) return;
      const { traceId, spanId, parentSpanId, links } = span;
      const endedAt = told.endedAt ?? performance.now();
      const { name, error } = told;
      const ended: OtlpSpan = {
        ...{ traceId, spanId, ...(parentSpanId ? { parentSpanId } : {}), flags: 1 },
        ...{ name, kind: kinds[told.kind] },
        startTimeUnixNano: toNanos(span.startedAt),
        endTimeUnixNano: toNanos(endedAt),
        attributes: toAttributes(told.attributes),
        links: links.map((link) => ({
          ...{ traceId: link.traceId, spanId: link.spanId, flags: Number(link.sampled) },
        })),
        status: error === null ? {} : { code: statusError, message: error },
      };
      exporter.add(ended);
    },

    /** How the trace is told to whom we call (W3C Trace Context). */
    toTraceparent({ traceId, spanId, sampled }: SpanContext): string {
      return `00-${traceId}-${spanId}-${sampled ? '01' : '00'}`;
    },

    /** Sends what there is, within seconds. */
    stop: () => exporter.stop(),
  };
}

const form = /^(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;

/** Null when it says nothing of use; then a trace begins here. */
function readTraceparent(text: string | string[] | undefined): SpanContext | null {
  const [, version, traceId, spanId, flags, more] = (typeof text === 'string' && form.exec(text)) || [];
  if (!traceId || !spanId || !flags || (version === '00' && more !== undefined)) return null;
  return { traceId, spanId, sampled: (Number.parseInt(flags, 16) & 1) === 1 };
}

/** Of a random UUID the half that has its version in it: never all zeros. */
function newSpanId(): string {
  return randomUUID().replaceAll('-', '').slice(0, 16);
}

function toAttributes(given: Told['attributes']): Attribute[] {
  const attributes: Attribute[] = [];
  for (const [key, value] of Object.entries(given)) {
    if (value === undefined || value === null) continue;
    attributes.push({
      key,
      value: typeof value === 'string' ? { stringValue: value } : { intValue: String(value) },
    });
  }
  return attributes;
}

/** From `performance.now()` to nanoseconds since 1970: finer than the clock, and yet with it when it is set anew. */
function makeNanos(): (moment: number) => string {
  let offset = performance.timeOrigin;
  return (moment) => {
    const measured = Date.now() - performance.now();
    if (Math.abs(measured - offset) > 5) offset = measured;
    return `${Math.round((offset + moment) * 1000)}000`;
  };
}
