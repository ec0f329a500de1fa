/**
 * Sends spans to a collector: OTLP over HTTP, in JSON. Guarantees: whoever ends a span waits for nothing; a collector that is
 * slow or away costs no more memory than `maxWaiting` spans, and what is lost is counted.
 */
import type { Log } from './log.ts';
import { startLoop } from './loop.ts';

export interface Attribute {
  key: string;
  value: { stringValue: string } | { intValue: string };
}

interface Link {
  traceId: string;
  spanId: string;
  flags: number;
}

/** As opentelemetry-proto has it, with ids in hex and 64-bit numbers as text. */
export interface OtlpSpan extends Link {
  parentSpanId?: string;
  name: string;
  kind: number;
  startTimeUnixNano: string;
  endTimeUnixNano: string;
  attributes: Attribute[];
  links: Link[];
  status: { code?: number; message?: string };
}

interface ExporterOptions {
  url: string;
  headers: Readonly<Record<string, string>>;
  resource: Attribute[];
  scope: { name: string; version: string };
  log: Log;
  count(outcome: 'sent' | 'dropped', spans: number): void;
  /** After a failure nothing is sent for so long, or for as long as the collector asks. */
  pauseMs?: number;
}

export const maxWaiting = 8192;
const batchSize = 512;
const pollMs = 1000;
const timeoutMs = 10_000;
const maxPauseMs = 60_000;
/** At the end, for everything that waits. */
const lastMs = 2000;
/** Of OTLP: these pass, all others would come again. */
const passing = [429, 502, 503, 504];

export function startExporter(options: ExporterOptions) {
  const { url, resource, scope, log, count, pauseMs = 5000 } = options;
  const headers = new Headers(options.headers);
  headers.set('content-type', 'application/json');
  const waiting: OtlpSpan[] = [];
  const ending = new AbortController();
  let failing = false;
  let pausedUntil = 0;

  function add(span: OtlpSpan): void {
    if (waiting.length < maxWaiting) waiting.push(span);
    else count('dropped', 1);
    if (waiting.length === batchSize && !failing) loop.wake();
  }

  /** The next batch. It leaves the queue when it is over with it: sent, or refused for good. */
  async function send(): Promise<boolean> {
    const batch = waiting.slice(0, batchSize);
    if (batch.length === 0 || performance.now() < pausedUntil) return false;
    const answer = await post(batch);
    if (answer.kind === 'passing') {
      pausedUntil = performance.now() + Math.min(Math.max(answer.waitMs, pauseMs), maxPauseMs);
      fail(`traces cannot be sent: ${answer.why}; trying again`);
      return false;
    }
    waiting.splice(0, batch.length);
    count('sent', batch.length - answer.rejected);
    count('dropped', answer.rejected);
    if (answer.rejected > 0) fail(`${answer.rejected} spans were refused by the collector: ${answer.why}`);
    else recover();
    return waiting.length > 0;
  }

  async function post(batch: OtlpSpan[]): Promise<Answer> {
    const body = JSON.stringify({
      resourceSpans: [{ resource: { attributes: resource }, scopeSpans: [{ scope, spans: batch }] }],
    });
    const signal = AbortSignal.any([AbortSignal.timeout(timeoutMs), ending.signal]);
    try {
      const response = await fetch(url, { method: 'POST', redirect: 'manual', headers, body, signal });
      return readAnswer(
        response.status,
        response.headers.get('retry-after'),
        await response.text(),
        batch.length,
      );
    } catch (error) {
      const { cause, message } = error as Error;
      return { kind: 'passing', why: cause instanceof Error ? cause.message : message, waitMs: 0 };
    }
  }

  /** Told once, not for every batch: the rest is in the metric. */
  function fail(why: string): void {
    if (!failing) log.warn(why);
    failing = true;
  }

  function recover(): void {
    if (failing) log.info('traces are sent again');
    failing = false;
  }

  const loop = startLoop({ name: 'sending traces', pollMs, log, work: send });

  async function stop(): Promise<void> {
    const timer = setTimeout(() => ending.abort(), lastMs);
    await loop.stop();
    pausedUntil = 0;
    while (await send());
    clearTimeout(timer);
    if (waiting.length === 0) return;
    log.warn(`${waiting.length} spans were not sent before the end`);
    count('dropped', waiting.splice(0).length);
  }

  return { add, stop };
}

type Answer =
  | { kind: 'over'; rejected: number; why: string }
  | { kind: 'passing'; why: string; waitMs: number };

function readAnswer(status: number, retryAfter: string | null, text: string, spans: number): Answer {
  if (passing.includes(status))
    return { kind: 'passing', why: `status ${status}`, waitMs: Number(retryAfter ?? 0) * 1000 || 0 };
  if (status < 200 || status >= 300) return { kind: 'over', rejected: spans, why: `status ${status}` };
  const { rejectedSpans = 0, errorMessage = '' } = readPartialSuccess(text);
  return { kind: 'over', rejected: Math.min(Number(rejectedSpans) || 0, spans), why: errorMessage };
}

/** Collectors answer `{}`, `{"partialSuccess":{…}}`, or what they like. */
function readPartialSuccess(text: string): { rejectedSpans?: string | number; errorMessage?: string } {
  try {
    return JSON.parse(text)?.partialSuccess ?? {};
  } catch {
    return {};
  }
}
