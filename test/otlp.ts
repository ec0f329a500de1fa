/** What a collector reads: the spans of OTLP requests in JSON. */
import assert from 'node:assert/strict';
import type { ReceivedRequest } from './receiver.ts';

type Attributes = Record<string, string | number>;

export interface ReadSpan {
  traceId: string;
  spanId: string;
  parentSpanId: string | undefined;
  name: string;
  kind: 'internal' | 'server' | 'client';
  startNanos: bigint;
  endNanos: bigint;
  attributes: Attributes;
  links: { traceId: string; spanId: string }[];
  error: string | undefined;
  resource: Attributes;
}

interface WireAttribute {
  key: string;
  value: { stringValue?: string; intValue?: number };
}

interface WireSpan extends Pick<ReadSpan, 'traceId' | 'spanId' | 'parentSpanId' | 'name' | 'links'> {
  kind: number;
  startTimeUnixNano: string;
  endTimeUnixNano: string;
  attributes: WireAttribute[];
  status: { code: number; message?: string };
}

interface ExportRequest {
  resourceSpans: { resource: { attributes: WireAttribute[] }; scopeSpans: { spans: WireSpan[] }[] }[];
}

const kinds = { 1: 'internal', 2: 'server', 3: 'client' } as const;
const statusError = 2;

export function readSpans(requests: readonly ReceivedRequest[]): ReadSpan[] {
  return requests.flatMap(({ method, headers, body }) => {
    assert.equal(method, 'POST');
    assert.equal(headers['content-type'], 'application/json');
    const { resourceSpans } = JSON.parse(body.toString()) as ExportRequest;
    return resourceSpans.flatMap(({ resource, scopeSpans }) =>
      scopeSpans.flatMap(({ spans }) =>
        spans.map((span) => readSpan(span, readAttributes(resource.attributes))),
      ),
    );
  });
}

function readSpan(span: WireSpan, resource: Attributes): ReadSpan {
  const { traceId, spanId, parentSpanId, name, kind, links, status } = span;
  return {
    ...{ traceId, spanId, parentSpanId, name, resource },
    kind: kinds[kind as keyof typeof kinds],
    startNanos: BigInt(span.startTimeUnixNano),
    endNanos: BigInt(span.endTimeUnixNano),
    attributes: readAttributes(span.attributes),
    links: links.map((link) => ({ traceId: link.traceId, spanId: link.spanId })),
    error: status.code === statusError ? status.message : undefined,
  };
}

function readAttributes(given: WireAttribute[]): Attributes {
  return Object.fromEntries(given.map(({ key, value }) => [key, value.stringValue ?? value.intValue ?? '']));
}
