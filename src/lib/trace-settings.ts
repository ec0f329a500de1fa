/**
 * The settings of traces: variables of OpenTelemetry, with the meaning and the defaults that its documentation gives them.
 * The SDK reads some of them itself; they are declared here so that a mistake is a message and the documentation is whole.
 */
import { collectorUrl, list, oneOf, pair, ratio, setting, text, wholeNumber } from './setting-readers.ts';

const protocols = ['http/protobuf', 'http/json'] as const;
type Protocol = (typeof protocols)[number];
const samplers = ['always_on', 'always_off', 'traceidratio'] as const;
type Sampler = (typeof samplers)[number];
type SamplerName = Sampler | `parentbased_${Sampler}`;
const samplerNames: readonly SamplerName[] = [
  ...samplers,
  ...samplers.map((name) => `parentbased_${name}` as const),
];

function batchSetting(fallback: number, about: string) {
  return setting(wholeNumber(1, 2 ** 31 - 1), fallback, String(fallback), about);
}

export const traceSettings = {
  OTEL_EXPORTER_OTLP_ENDPOINT: setting<string | null>(
    collectorUrl,
    null,
    'none: tracing is off',
    'Sends traces to this OpenTelemetry collector, by OTLP over HTTP at `/v1/traces` under this URL: [traces](traces.md).',
  ),
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: setting<string | null>(
    collectorUrl,
    null,
    'none',
    'The same as a whole URL, path included; wins over the one above.',
  ),
  OTEL_SDK_DISABLED: setting<string>(oneOf(['true', 'false']), 'false', 'false', '`true`: tracing is off.'),
  OTEL_TRACES_EXPORTER: setting<string>(oneOf(['otlp', 'none']), 'otlp', 'otlp', '`none`: tracing is off.'),
  OTEL_EXPORTER_OTLP_PROTOCOL: setting<Protocol>(
    oneOf(protocols),
    'http/protobuf',
    'http/protobuf',
    '`http/protobuf` or `http/json`; `grpc` is refused.',
  ),
  OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: setting<Protocol | null>(
    oneOf(protocols),
    null,
    'none',
    'The same; wins over the one above.',
  ),
  OTEL_EXPORTER_OTLP_HEADERS: setting<readonly string[]>(
    list(pair),
    [],
    'none',
    'Headers for the collector, `name=value` with commas, values percent-encoded.',
    { secret: true },
  ),
  OTEL_SERVICE_NAME: setting<string>(text, 'posthorn', 'posthorn', 'The name of this service in traces.'),
  OTEL_RESOURCE_ATTRIBUTES: setting<readonly string[]>(
    list(pair),
    [],
    'none',
    'More about this service, such as `deployment.environment.name=staging`, with commas, values percent-encoded.',
  ),
  OTEL_TRACES_SAMPLER: setting<SamplerName>(
    oneOf(samplerNames),
    'parentbased_always_on',
    'parentbased_always_on',
    `Which traces are kept: one of ${samplerNames.map((name) => `\`${name}\``).join(', ')}.`,
  ),
  OTEL_TRACES_SAMPLER_ARG: setting(
    ratio,
    1,
    '1',
    'The part of them that a `traceidratio` keeps, from 0 to 1.',
  ),
  OTEL_BSP_SCHEDULE_DELAY: batchSetting(5000, 'Milliseconds between two batches of spans.'),
  OTEL_BSP_EXPORT_TIMEOUT: batchSetting(
    30_000,
    'Milliseconds that sending a batch may take, retries included.',
  ),
  OTEL_BSP_MAX_QUEUE_SIZE: batchSetting(
    2048,
    'Most spans that wait to be sent; what comes beyond is dropped.',
  ),
  OTEL_BSP_MAX_EXPORT_BATCH_SIZE: batchSetting(512, 'Most spans in a batch.'),
};

export type TraceConfig = NonNullable<ReturnType<typeof readTraceConfig>>;
type Environment = Record<string, string | undefined>;
type Values = { [Name in keyof typeof traceSettings]: (typeof traceSettings)[Name]['fallback'] };

/** Platforms set these variables for all their programs: they are read only where traces are wanted. */
export function wantsTraces(environment: Environment): boolean {
  const { OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT } = environment;
  const off =
    environment.OTEL_SDK_DISABLED?.toLowerCase() === 'true' || environment.OTEL_TRACES_EXPORTER === 'none';
  return Boolean(OTEL_EXPORTER_OTLP_ENDPOINT || OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) && !off;
}

/** Null without an endpoint, and where traces are not wanted: then no value was read. */
export function readTraceConfig(values: Values) {
  const base = values.OTEL_EXPORTER_OTLP_ENDPOINT;
  const url = values.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT ?? (base && `${base.replace(/\/+$/, '')}/v1/traces`);
  if (!url) return null;
  const sampler = values.OTEL_TRACES_SAMPLER.replace('parentbased_', '') as Sampler;
  const ratios = { always_on: 1, always_off: 0, traceidratio: values.OTEL_TRACES_SAMPLER_ARG };
  return {
    url,
    protocol: values.OTEL_EXPORTER_OTLP_TRACES_PROTOCOL ?? values.OTEL_EXPORTER_OTLP_PROTOCOL,
    sampling: {
      /** Whether a caller's decision is followed. */
      parentBased: values.OTEL_TRACES_SAMPLER.startsWith('parentbased_'),
      /** The part of all other traces that is kept. */
      ratio: ratios[sampler],
    },
    batch: {
      scheduledDelayMillis: values.OTEL_BSP_SCHEDULE_DELAY,
      exportTimeoutMillis: values.OTEL_BSP_EXPORT_TIMEOUT,
      maxQueueSize: values.OTEL_BSP_MAX_QUEUE_SIZE,
      maxExportBatchSize: values.OTEL_BSP_MAX_EXPORT_BATCH_SIZE,
    },
  };
}
