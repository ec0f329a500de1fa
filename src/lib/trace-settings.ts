/** The settings of traces: OpenTelemetry's own variables, those of them that mean something here. */
import { collectorUrl, headers, oneOf, pairs, ratio, setting, text } from './setting-readers.ts';

const samplers = ['always_on', 'always_off', 'traceidratio'] as const;
type Sampler = (typeof samplers)[number];
type SamplerName = Sampler | `parentbased_${Sampler}`;
const samplerNames: readonly SamplerName[] = [
  ...samplers,
  ...samplers.map((name) => `parentbased_${name}` as const),
];

export const traceSettings = {
  OTEL_EXPORTER_OTLP_ENDPOINT: setting<string | null>(
    collectorUrl,
    null,
    'none: tracing is off',
    'Sends traces to this OpenTelemetry collector, by OTLP over HTTP in JSON at `/v1/traces` under it: [traces](traces.md).',
  ),
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: setting<string | null>(
    collectorUrl,
    null,
    'none',
    'The same as a whole URL, path included; wins over the one above.',
  ),
  OTEL_EXPORTER_OTLP_PROTOCOL: setting<string>(
    oneOf(['http/json', 'http/protobuf']),
    'http/json',
    'http/json',
    'It is JSON in either case; `grpc` is refused, because the endpoint would be another.',
  ),
  OTEL_EXPORTER_OTLP_HEADERS: setting<Readonly<Record<string, string>>>(
    headers,
    {},
    'none',
    'Headers for the collector, `name=value` with commas, values percent-encoded.',
    { secret: true },
  ),
  OTEL_SERVICE_NAME: setting<string | null>(text, null, 'posthorn', 'What this service is called in traces.'),
  OTEL_RESOURCE_ATTRIBUTES: setting<Readonly<Record<string, string>>>(
    pairs,
    {},
    'none',
    'What else is said of it, such as `deployment.environment.name=staging`, with commas.',
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
};

export interface TraceConfig {
  url: string;
  headers: Readonly<Record<string, string>>;
  resource: Readonly<Record<string, string>>;
  sampling: {
    /** Whether a caller's decision is followed. */
    parentBased: boolean;
    /** The part of all other traces that is kept. */
    ratio: number;
  };
}

type Values = { [Name in keyof typeof traceSettings]: (typeof traceSettings)[Name]['fallback'] };

export function readTraceConfig(values: Values): TraceConfig | null {
  const base = values.OTEL_EXPORTER_OTLP_ENDPOINT;
  const url = values.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT ?? (base && `${base.replace(/\/+$/, '')}/v1/traces`);
  if (!url) return null;
  const sampler = values.OTEL_TRACES_SAMPLER.replace('parentbased_', '') as Sampler;
  const ratios = { always_on: 1, always_off: 0, traceidratio: values.OTEL_TRACES_SAMPLER_ARG };
  const given = values.OTEL_RESOURCE_ATTRIBUTES;
  const name = values.OTEL_SERVICE_NAME ?? given['service.name'] ?? 'posthorn';
  return {
    url,
    headers: values.OTEL_EXPORTER_OTLP_HEADERS,
    resource: { ...given, 'service.name': name },
    sampling: {
      parentBased: values.OTEL_TRACES_SAMPLER.startsWith('parentbased_'),
      ratio: ratios[sampler],
    },
  };
}
