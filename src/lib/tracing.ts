/**
 * Traces through the SDK of OpenTelemetry. Loaded only when a collector is configured; other files import its types only.
 * The trace of an event has the id of the event, so the trace context needs no storage: every process that has the event
 * knows the trace, its root span and the sampling decision (docs/decisions/0010-traces.md).
 */
import { randomUUID } from 'node:crypto';
import type { Attributes, Context, Span, SpanContext } from '@opentelemetry/api';
import * as api from '@opentelemetry/api';
import { callWithTimeout, setGlobalErrorHandler, W3CTraceContextPropagator } from '@opentelemetry/core';
import { OTLPTraceExporter as JsonExporter } from '@opentelemetry/exporter-trace-otlp-http';
import { OTLPTraceExporter as ProtobufExporter } from '@opentelemetry/exporter-trace-otlp-proto';
import * as resources from '@opentelemetry/resources';
import * as sdk from '@opentelemetry/sdk-trace';
import type { Log } from './log.ts';
import type { TraceConfig } from './trace-settings.ts';

export type Tracer = ReturnType<typeof startTracer>;

/** Callers use names, because they do not load OpenTelemetry. */
const kinds = { internal: api.SpanKind.INTERNAL, server: api.SpanKind.SERVER, client: api.SpanKind.CLIENT };
type Start = Omit<api.SpanOptions, 'kind'> & { kind?: keyof typeof kinds };

interface Observer {
  log: Log;
  count(outcome: 'sent' | 'dropped', spans: number): void;
}

const stopTimeoutMs = 2000;

export function startTracer({
  config,
  version,
  ...observer
}: { config: TraceConfig; version: string } & Observer) {
  logWarnings(observer.log);
  const byRatio = new sdk.TraceIdRatioBasedSampler(config.sampling.ratio);
  const sampler = config.sampling.parentBased ? new sdk.ParentBasedSampler({ root: byRatio }) : byRatio;
  const propagator = new W3CTraceContextPropagator();
  const random = new sdk.RandomIdGenerator();
  /** Set only while `startRoot` starts the root span of an event. */
  let startedRoot: SpanContext | null = null;
  const idGenerator = {
    generateTraceId: () => startedRoot?.traceId ?? random.generateTraceId(),
    generateSpanId: () => startedRoot?.spanId ?? random.generateSpanId(),
  };
  const Exporter = config.protocol === 'http/json' ? JsonExporter : ProtobufExporter;
  // The exporter reads the other OTEL_EXPORTER_OTLP_* variables itself: headers, timeout, compression, certificates.
  const exporter = new Exporter({ url: config.url });
  const selfObsMeterProvider = observeExports(observer);
  const provider = new sdk.TracerProvider({
    ...{ resource: describeService(version), sampler, idGenerator },
    spanProcessors: [new sdk.BatchSpanProcessor({ exporter, ...config.batch, selfObsMeterProvider })],
  });
  const tracer = provider.getTracer('posthorn', version);

  function start(name: string, { kind = 'internal', ...more }: Start, context: Context): Span {
    return tracer.startSpan(name, { ...more, kind: kinds[kind] }, context);
  }

  /** The root span of an event's trace. It has the same ids and the same sampling decision in every process. */
  function rootOf(eventId: string): SpanContext {
    const traceId = eventId.replaceAll('-', '');
    const { decision } = sampler.shouldSample(api.ROOT_CONTEXT, traceId, '', api.SpanKind.INTERNAL, {}, []);
    const sampled = decision === api.SamplingDecision.RECORD_AND_SAMPLED;
    return {
      traceId,
      // All zeros would be invalid; a UUID has its variant bits in this half.
      spanId: traceId.slice(16),
      traceFlags: sampled ? api.TraceFlags.SAMPLED : api.TraceFlags.NONE,
      isRemote: true,
    };
  }

  return {
    rootOf,

    startRoot(eventId: string, name: string, options: Start): Span {
      startedRoot = rootOf(eventId);
      const span = start(name, options, api.ROOT_CONTEXT);
      startedRoot = null;
      return span;
    },

    startChild(parent: SpanContext, name: string, options: Start): Span {
      return start(name, options, api.trace.setSpanContext(api.ROOT_CONTEXT, parent));
    },

    /** Continues the caller's trace (W3C Trace Context), or starts one. */
    startRequest(headers: Record<string, string | string[] | undefined>, name: string, options: Start): Span {
      return start(name, options, propagator.extract(api.ROOT_CONTEXT, headers, api.defaultTextMapGetter));
    },

    /** The headers with which a receiver can continue the trace (W3C Trace Context). */
    toHeaders(span: Span): Record<string, string> {
      const headers: Record<string, string> = {};
      propagator.inject(api.trace.setSpan(api.ROOT_CONTEXT, span), headers, api.defaultTextMapSetter);
      return headers;
    },

    /** Attributes contain no secrets, no addresses of people and no complete URLs. `error` is null on success. */
    end(span: Span, attributes: Attributes, error: string | null, endTime?: number): void {
      span.setAttributes(attributes);
      if (error !== null) {
        span.setAttribute('error.type', error).setStatus({ code: api.SpanStatusCode.ERROR, message: error });
      }
      span.end(endTime);
    },

    /** Sends the waiting spans. An unreachable collector delays the stop by two seconds at most. */
    async stop(): Promise<void> {
      await callWithTimeout(provider.shutdown(), stopTimeoutMs).catch((error) =>
        observer.log.warn(`the last spans were not sent: ${describe(error)}`),
      );
    },
  };
}

/** OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME, which the SDK reads, override our own attributes. */
function describeService(version: string) {
  const own = { 'service.name': 'posthorn', 'service.version': version, 'service.instance.id': randomUUID() };
  const given = resources.detectResources({
    detectors: [resources.resourceAttributesEnvDetector, resources.serviceNameEnvDetector],
  });
  return resources.defaultResource().merge(resources.resourceFromAttributes(own)).merge(given);
}

/** Logs the SDK's warnings about wrong settings and refused spans. A repeated warning is logged once. */
function logWarnings(log: Log): void {
  let last = '';
  const warn = (...words: unknown[]) => {
    const text = words.filter((word) => typeof word === 'string').join(' ');
    if (text !== last) log.warn(`traces: ${text}`);
    last = text;
  };
  const ignore = () => {};
  api.diag.setLogger(
    { error: warn, warn, info: ignore, debug: ignore, verbose: ignore },
    { suppressOverrideMessage: true },
  );
}

/** The SDK reports through a meter whether a span was sent. Its other measurements are ignored. */
function observeExports({ log, count }: Observer): api.MeterProvider {
  let failing = false;
  setGlobalErrorHandler((error) => {
    // Once, not for every batch: the metric counts the spans.
    if (!failing) log.warn(`traces cannot be sent: ${describe(error)}`);
    failing = true;
  });
  const createCounter = (name: string): api.Counter => ({
    add(spans, attributes) {
      if (name !== 'otel.sdk.processor.span.processed') return;
      const sent = !attributes?.['error.type'];
      count(sent ? 'sent' : 'dropped', spans);
      if (sent && failing) log.info('traces are sent again');
      if (sent) failing = false;
    },
  });
  const meter: api.Meter = Object.create(api.createNoopMeter(), { createCounter: { value: createCounter } });
  return { getMeter: () => meter };
}

/** The error has a code and no message when all addresses of a host refuse the connection. */
function describe(error: api.Exception): string {
  return typeof error === 'string' ? error : error.message || String(error.code ?? error.name);
}
