/** The tracer by itself: which traces are sampled, what is counted and logged, and what waits for a collector. */
import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import { after, describe, test } from 'node:test';
import { readConfig } from '../src/config.ts';
import { newId } from '../src/lib/ids.ts';
import { startTracer } from '../src/lib/tracing.ts';
import { startAcceptTrace } from '../src/receiving/trace.ts';
import { makeTestLog, waitFor } from './harness.ts';
import { readSpans } from './otlp.ts';
import { answer, startReceiver } from './receiver.ts';

const collector = await startReceiver();
after(() => collector.close());
collector.behave(answer(200, { 'content-type': 'application/json' }, '{}'));

function makeTracer(path: string, settings: Record<string, string> = {}) {
  const { traces: config } = readConfig({
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: collector.url(path),
    OTEL_EXPORTER_OTLP_PROTOCOL: 'http/json',
    OTEL_BSP_SCHEDULE_DELAY: '10',
    ...settings,
  });
  assert.ok(config);
  const counted = { sent: 0, dropped: 0 };
  const count = (outcome: 'sent' | 'dropped', spans: number) => {
    counted[outcome] += spans;
  };
  const { log, logged } = makeTestLog();
  const tracer = startTracer({ config, version: '1.2.3', log, count });
  after(() => tracer.stop());
  const makeSpans = (number: number) => {
    for (let n = 0; n < number; n += 1) tracer.end(tracer.startRequest({}, 'x', {}), {}, null);
  };
  const requests = () => collector.requests.filter(({ url }) => url === path);
  const lines = () => logged.map(({ msg }) => String(msg));
  return { tracer, makeSpans, counted, requests, lines };
}

const ratio = (part: string) => ({ OTEL_TRACES_SAMPLER: 'traceidratio', OTEL_TRACES_SAMPLER_ARG: part });

describe('sampling', () => {
  test('a ratio keeps that part of the events, also of events made in one millisecond', () => {
    const { tracer } = makeTracer('/ratio', ratio('0.25'));
    const ids = Array.from({ length: 20_000 }, newId);
    const kept = ids.map((id) => tracer.rootOf(id).traceFlags === 1);
    const part = kept.filter(Boolean).length / ids.length;
    // Ten standard deviations; and the decision changes from one event to the next.
    assert.ok(Math.abs(part - 0.25) < 0.031, `${part}`);
    const changes = kept.filter((one, n) => n > 0 && one !== kept[n - 1]).length;
    assert.ok(changes > 5000, `${changes}`);
  });

  test('the process that accepts and the process that delivers decide alike', () => {
    const { tracer } = makeTracer('/alike', ratio('0.5'));
    for (const id of Array.from({ length: 100 }, newId)) {
      const { traceFlags, ...ids } = tracer.rootOf(id);
      const root = tracer.startRoot(id, 'accept message', {});
      const child = tracer.startChild(tracer.rootOf(id), 'deliver', {});
      assert.deepEqual(
        { ...root.spanContext(), isRemote: true },
        { ...ids, traceFlags, traceState: undefined },
      );
      assert.equal(child.spanContext().traceFlags, traceFlags);
    }
  });

  test('what is not kept is not sent, and a receiver sees that it is not kept', async () => {
    const { tracer, makeSpans, counted, requests } = makeTracer('/none', {
      OTEL_TRACES_SAMPLER: 'always_off',
    });
    makeSpans(10);
    const span = tracer.startChild(tracer.rootOf(newId()), 'deliver', {});
    assert.match(tracer.toHeaders(span).traceparent ?? '', /^00-[0-9a-f]{32}-[0-9a-f]{16}-00$/);
    await tracer.stop();
    assert.equal(requests().length, 0);
    assert.deepEqual(counted, { sent: 0, dropped: 0 });
  });

  test('a sampler that is not parent-based does not follow the caller', () => {
    const traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
    const follows = makeTracer('/follows', { OTEL_TRACES_SAMPLER: 'parentbased_always_off' });
    assert.equal(follows.tracer.startRequest({ traceparent }, 'x', {}).isRecording(), true);
    const decides = makeTracer('/decides', { OTEL_TRACES_SAMPLER: 'always_off' });
    assert.equal(decides.tracer.startRequest({ traceparent }, 'x', {}).isRecording(), false);
  });
});

test('a message that could not be examined has a trace of its own, of one span', async () => {
  const { tracer, requests } = makeTracer('/unexamined');
  startAcceptTrace(tracer, 'smtp').failed(new RangeError('too deep'));
  await tracer.stop();
  const spans = readSpans(requests()).map(({ name, error, parentSpanId }) => ({ name, error, parentSpanId }));
  assert.deepEqual(spans, [{ name: 'accept message', error: 'RangeError', parentSpanId: undefined }]);
});

describe('a collector', () => {
  test('gets everything at the end, in protobuf unless told otherwise', async () => {
    const settings = { OTEL_EXPORTER_OTLP_PROTOCOL: '', OTEL_BSP_SCHEDULE_DELAY: '600000' };
    const { tracer, makeSpans, counted, requests } = makeTracer('/protobuf', settings);
    makeSpans(3);
    await tracer.stop();
    assert.deepEqual(
      requests().map(({ headers }) => headers['content-type']),
      ['application/x-protobuf'],
    );
    assert.deepEqual(counted, { sent: 3, dropped: 0 });
  });

  test('that refuses spans: the loss is counted and logged once, and the recovery is logged', async () => {
    const { makeSpans, counted, lines } = makeTracer('/refuses');
    collector.behaveAt('/refuses', answer(400));
    makeSpans(2);
    await waitFor('the first loss', () => counted.dropped === 2);
    makeSpans(3);
    await waitFor('the second loss', () => counted.dropped === 5);
    collector.behaveAt('/refuses', answer(200, {}, '{}'));
    makeSpans(4);
    await waitFor('four spans', () => counted.sent === 4);
    assert.deepEqual(lines(), ['traces cannot be sent: Bad Request', 'traces are sent again']);
  });

  test('that takes a part of the spans: its reason is logged', async () => {
    const { tracer, makeSpans, lines } = makeTracer('/part');
    collector.behaveAt(
      '/part',
      answer(200, {}, '{"partialSuccess":{"rejectedSpans":"2","errorMessage":"old"}}'),
    );
    makeSpans(5);
    await tracer.stop();
    assert.match(lines().join('\n'), /rejectedSpans.*old/);
  });

  test('that does not answer: what is beyond the bound is dropped and counted', async () => {
    const waiting: ServerResponse[] = [];
    collector.behaveAt('/slow', (_request, response) => waiting.push(response));
    const { makeSpans, counted, requests } = makeTracer('/slow', {
      OTEL_BSP_MAX_QUEUE_SIZE: '10',
      OTEL_BSP_MAX_EXPORT_BATCH_SIZE: '10',
    });
    makeSpans(10);
    await waitFor('a batch', () => requests().length === 1);
    makeSpans(13);
    assert.deepEqual(counted, { sent: 0, dropped: 3 });
    collector.behaveAt('/slow', answer(200, {}, '{}'));
    for (const response of waiting) response.end('{}');
    await waitFor('the others', () => counted.sent === 20);
  });
});
