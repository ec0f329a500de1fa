/**
 * What a collector reads: spans out of OTLP in JSON, held strictly against opentelemetry-proto (trace/v1, as its JSON mapping
 * has it: ids in hex, 64-bit numbers as text, enums as numbers). What the schema does not name is a fault.
 */
import assert from 'node:assert/strict';
import { Ajv } from 'ajv';
import type { ReceivedRequest } from './receiver.ts';

export interface ReadSpan {
  traceId: string;
  spanId: string;
  parentSpanId: string | undefined;
  name: string;
  kind: 'internal' | 'server' | 'client';
  startNanos: bigint;
  endNanos: bigint;
  attributes: Record<string, string | bigint>;
  links: { traceId: string; spanId: string }[];
  error: string | undefined;
  resource: Record<string, string | bigint>;
}

interface Attribute {
  key: string;
  value: { stringValue?: string; intValue?: string };
}

interface WireSpan {
  traceId: string;
  spanId: string;
  parentSpanId?: string;
  name: string;
  kind: number;
  startTimeUnixNano: string;
  endTimeUnixNano: string;
  attributes: Attribute[];
  links: { traceId: string; spanId: string }[];
  status: { code?: number; message?: string };
}

interface ExportRequest {
  resourceSpans: {
    resource: { attributes: Attribute[] };
    scopeSpans: { scope: { name: string; version: string }; spans: WireSpan[] }[];
  }[];
}

const object = (properties: object, optional: string[] = []) => ({
  type: 'object',
  properties,
  required: Object.keys(properties).filter((name) => !optional.includes(name)),
  additionalProperties: false,
});
const some = (items: object) => ({ type: 'array', minItems: 1, items });
const text = { type: 'string', minLength: 1 };
const traceId = { type: 'string', pattern: '^(?!0+$)[0-9a-f]{32}$' };
const spanId = { type: 'string', pattern: '^(?!0+$)[0-9a-f]{16}$' };
const nanos = { type: 'string', pattern: '^1[0-9]{18}$' };
const flags = { type: 'integer', minimum: 0, maximum: 1 };
const anyValue = {
  oneOf: [
    object({ stringValue: { type: 'string' } }),
    object({ intValue: { type: 'string', pattern: '^-?\\d+$' } }),
  ],
};
const attributes = { type: 'array', items: object({ key: text, value: anyValue }) };
const span = object(
  {
    ...{ traceId, spanId, parentSpanId: spanId, flags, name: text, kind: { enum: [1, 2, 3, 4, 5] } },
    ...{ startTimeUnixNano: nanos, endTimeUnixNano: nanos, attributes },
    links: { type: 'array', items: object({ traceId, spanId, flags }) },
    status: object({ code: { enum: [0, 1, 2] }, message: text }, ['code', 'message']),
  },
  ['parentSpanId'],
);
const exportRequest = object({
  resourceSpans: some(
    object({
      resource: object({ attributes }),
      scopeSpans: some(object({ scope: object({ name: text, version: text }), spans: some(span) })),
    }),
  ),
});

const isExport = new Ajv({ allErrors: true, strict: false }).compile<ExportRequest>(exportRequest);

/** Every span of these requests; fails on anything that a collector would not take, or take for something else. */
export function readSpans(requests: readonly ReceivedRequest[]): ReadSpan[] {
  return requests.flatMap(({ method, headers, body }) => {
    assert.equal(method, 'POST');
    assert.equal(headers['content-type'], 'application/json');
    const given: unknown = JSON.parse(body.toString());
    assert.ok(isExport(given), JSON.stringify(isExport.errors));
    return given.resourceSpans.flatMap(({ resource, scopeSpans }) =>
      scopeSpans.flatMap(({ spans }) =>
        spans.map((one) => readSpan(one, readAttributes(resource.attributes))),
      ),
    );
  });
}

function readSpan(given: WireSpan, resource: ReadSpan['resource']): ReadSpan {
  const startNanos = BigInt(given.startTimeUnixNano);
  const endNanos = BigInt(given.endTimeUnixNano);
  assert.ok(startNanos <= endNanos, `${given.name} ends before it begins`);
  return {
    ...{ traceId: given.traceId, spanId: given.spanId, parentSpanId: given.parentSpanId, name: given.name },
    kind: given.kind === 2 ? 'server' : given.kind === 3 ? 'client' : 'internal',
    ...{ startNanos, endNanos, resource, links: given.links },
    attributes: readAttributes(given.attributes),
    error: given.status.code === 2 ? given.status.message : undefined,
  };
}

function readAttributes(given: Attribute[]): Record<string, string | bigint> {
  const read = given.map(
    ({ key, value }) => [key, value.stringValue ?? BigInt(value.intValue ?? 0)] as const,
  );
  assert.equal(new Set(read.map(([key]) => key)).size, read.length, 'a key comes twice');
  return Object.fromEntries(read);
}
