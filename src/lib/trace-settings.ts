/**
 * The settings of traces: OpenTelemetry's variables, with the meaning and defaults of its documentation. The SDK reads some
 * of them itself; they are declared here too, so that a wrong value is reported and docs/config.md is complete.
 */
import { list, oneOf, pair, ratio, setting, text, webUrl, wholeNumber } from './setting-readers.ts';

const protocols = ['http/protobuf', 'http/json'] as const;
type Protocol = (typeof protocols)[number];
const samplers = ['always_on', 'always_off', 'traceidratio'];
const samplerNames = [...samplers, ...samplers.map((name) => `parentbased_${name}`)];
const collectorUrl = webUrl('http://localhost:4318');
const positive = wholeNumber(1, 2 ** 31 - 1);

export const traceSettings = {
  OTEL_EXPORTER_OTLP_ENDPOINT: setting<string | null>(
    collectorUrl,
    null,
    'OpenTelemetry collector that receives the traces, by OTLP over HTTP. `/v1/traces` is added to this URL. See [traces](traces.md).',
    { shown: 'none: tracing is off' },
  ),
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: setting<string | null>(
    collectorUrl,
    null,
    'The complete URL of the collector, path included. Overrides `OTEL_EXPORTER_OTLP_ENDPOINT`.',
  ),
  OTEL_SDK_DISABLED: setting<string>(oneOf(['true', 'false']), 'false', '`true`: tracing is off.'),
  OTEL_TRACES_EXPORTER: setting<string>(oneOf(['otlp', 'none']), 'otlp', '`none`: tracing is off.'),
  OTEL_EXPORTER_OTLP_PROTOCOL: setting<Protocol>(
    oneOf(protocols),
    'http/protobuf',
    '`http/protobuf` or `http/json`. `grpc` is not supported.',
  ),
  OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: setting<Protocol | null>(
    oneOf(protocols),
    null,
    'Overrides `OTEL_EXPORTER_OTLP_PROTOCOL`.',
  ),
  OTEL_EXPORTER_OTLP_HEADERS: setting<readonly string[]>(
    list(pair),
    [],
    'Headers of the requests to the collector: `name=value`, separated by commas, values percent-encoded.',
    { secret: true },
  ),
  OTEL_SERVICE_NAME: setting<string>(text, 'posthorn', 'Name of this service in traces.'),
  OTEL_RESOURCE_ATTRIBUTES: setting<readonly string[]>(
    list(pair),
    [],
    'More attributes of this service, such as `deployment.environment.name=staging`, separated by commas, values percent-encoded.',
  ),
  OTEL_TRACES_SAMPLER: setting<string>(
    oneOf(samplerNames),
    'parentbased_always_on',
    `Which traces are kept: one of ${samplerNames.map((name) => `\`${name}\``).join(', ')}.`,
  ),
  OTEL_TRACES_SAMPLER_ARG: setting(ratio, 1, 'The share of traces that `traceidratio` keeps, from 0 to 1.'),
  OTEL_BSP_SCHEDULE_DELAY: setting(positive, 5000, 'Milliseconds between two batches of spans.'),
  OTEL_BSP_EXPORT_TIMEOUT: setting(
    positive,
    30_000,
    'Most milliseconds for sending a batch, retries included.',
  ),
  OTEL_BSP_MAX_QUEUE_SIZE: setting(
    positive,
    2048,
    'Most spans that wait to be sent. Further spans are dropped.',
  ),
  OTEL_BSP_MAX_EXPORT_BATCH_SIZE: setting(positive, 512, 'Most spans in a batch.'),
};

export type TraceConfig = NonNullable<ReturnType<typeof readTraceConfig>>;
type Environment = Record<string, string | undefined>;
type Values = { [Name in keyof typeof traceSettings]: (typeof traceSettings)[Name]['fallback'] };

/** Platforms set these variables for all their programs, so Posthorn validates them only when tracing is on. */
export function wantsTraces(environment: Environment): boolean {
  const { OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT } = environment;
  const off =
    environment.OTEL_SDK_DISABLED?.toLowerCase() === 'true' || environment.OTEL_TRACES_EXPORTER === 'none';
  return Boolean(OTEL_EXPORTER_OTLP_ENDPOINT || OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) && !off;
}

/** Null when tracing is off: then `readConfig` has read none of these settings. */
export function readTraceConfig(values: Values) {
  const base = values.OTEL_EXPORTER_OTLP_ENDPOINT;
  const url = values.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT ?? (base && `${base.replace(/\/+$/, '')}/v1/traces`);
  if (!url) return null;
  const sampler = values.OTEL_TRACES_SAMPLER;
  const fixedRatio = sampler.endsWith('always_on') ? 1 : 0;
  return {
    url,
    protocol: values.OTEL_EXPORTER_OTLP_TRACES_PROTOCOL ?? values.OTEL_EXPORTER_OTLP_PROTOCOL,
    sampling: {
      /** Whether the sampling decision of the caller applies. */
      parentBased: sampler.startsWith('parentbased_'),
      /** The share of all other traces that is kept. */
      ratio: sampler.endsWith('traceidratio') ? values.OTEL_TRACES_SAMPLER_ARG : fixedRatio,
    },
    batch: {
      scheduledDelayMillis: values.OTEL_BSP_SCHEDULE_DELAY,
      exportTimeoutMillis: values.OTEL_BSP_EXPORT_TIMEOUT,
      maxQueueSize: values.OTEL_BSP_MAX_QUEUE_SIZE,
      maxExportBatchSize: values.OTEL_BSP_MAX_EXPORT_BATCH_SIZE,
    },
  };
}
