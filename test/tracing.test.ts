/** The tracer by itself: what is kept, whose trace goes on, and a collector that refuses, hangs or is away. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { newId } from '../src/lib/ids.ts';
import { makeLog } from '../src/lib/log.ts';
import { maxWaiting } from '../src/lib/otlp.ts';
import { startTracer } from '../src/lib/tracing.ts';
import { beginTaking } from '../src/receiving/trace.ts';
import { waitFor } from './harness.ts';
import { readSpans } from './otlp.ts';
import { answer, hang, startReceiver } from './receiver.ts';

const collector = await startReceiver();
after(() => collector.close());

function makeTracer(given: { path?: string; url?: string; parentBased?: boolean; ratio?: number } = {}) {
  const { path = '/v1/traces', parentBased = true, ratio = 1 } = given;
  const counted = { sent: 0, dropped: 0 };
  const tracer = startTracer({
    config: {
      url: given.url ?? collector.url(path),
      headers: { 'x-team': 'mail' },
      resource: { 'service.name': 'posthorn' },
      sampling: { parentBased, ratio },
    },
    version: '1.2.3',
    log: makeLog({ level: 'silent', json: true }),
    count: (outcome, spans) => {
      counted[outcome] += spans;
    },
    pauseMs: 50,
  });
  after(() => tracer.stop());
  const tell = (spans: number) => {
    for (let n = 0; n < spans; n += 1)
      tracer.end(tracer.beginRequest(undefined), {
        name: 'x',
        kind: 'internal',
        attributes: {},
        error: null,
      });
  };
  const at = () => collector.requests.filter(({ url }) => url === path);
  return { tracer, tell, counted, at };
}

describe('sampling', () => {
  test('a ratio keeps that part of the events, also of those made in one millisecond', () => {
    const { tracer } = makeTracer({ ratio: 0.25 });
    const ids = Array.from({ length: 20_000 }, newId);
    const kept = ids.map((id) => tracer.rootOf(id).sampled);
    const part = kept.filter(Boolean).length / ids.length;
    // Ten standard deviations; and neighbours do not share their fate.
    assert.ok(Math.abs(part - 0.25) < 0.031, `${part}`);
    const changes = kept.filter((one, n) => n > 0 && one !== kept[n - 1]).length;
    assert.ok(changes > 5000, `${changes}`);
  });

  test('two processes keep the same', () => {
    const [one, other] = [makeTracer({ ratio: 0.5 }).tracer, makeTracer({ ratio: 0.5 }).tracer];
    for (const id of Array.from({ length: 100 }, newId)) assert.deepEqual(one.rootOf(id), other.rootOf(id));
  });

  test('none and all are exact', () => {
    const last = '01a1dcf7-c511-73c2-b0d0-ffffffffffff';
    const first = '01a1dcf7-c511-73c2-b0d0-000000000000';
    assert.equal(makeTracer({ ratio: 1 }).tracer.rootOf(last).sampled, true);
    assert.equal(makeTracer({ ratio: 0 }).tracer.rootOf(first).sampled, false);
  });

  test('what is not kept is not sent, and is told on as such', async () => {
    const { tracer, tell, counted, at } = makeTracer({ path: '/none', ratio: 0 });
    tell(10);
    await tracer.stop();
    assert.equal(at().length, 0);
    assert.deepEqual(counted, { sent: 0, dropped: 0 });
    assert.match(tracer.toTraceparent(tracer.rootOf(newId())), /^00-[0-9a-f]{32}-[0-9a-f]{16}-00$/);
  });
});

describe('traceparent', () => {
  const trace = '4bf92f3577b34da6a3ce929d0e0e4736';
  const span = '00f067aa0ba902b7';
  const { tracer } = makeTracer();

  for (const [header, sampled] of [
    [`00-${trace}-${span}-01`, true],
    [`00-${trace}-${span}-00`, false],
    [`00-${trace}-${span}-03`, true],
    [`cc-${trace}-${span}-01-what-will-be`, true],
  ] as const) {
    test(`goes on: ${header}`, () => {
      const begun = tracer.beginRequest(header);
      assert.equal(begun.traceId, trace);
      assert.equal(begun.parentSpanId, span);
      assert.equal(begun.sampled, sampled);
    });
  }

  for (const header of [
    undefined,
    '',
    `ff-${trace}-${span}-01`,
    `00-${trace}-${span}-01-more`,
    `00-${trace.toUpperCase()}-${span}-01`,
    `00-${'0'.repeat(32)}-${span}-01`,
    `00-${trace}-${'0'.repeat(16)}-01`,
    `00-${trace}-${span}-1`,
    `00-${trace}-${span}-01, 00-${trace}-${span}-01`,
    [`00-${trace}-${span}-01`],
  ]) {
    test(`begins anew: ${JSON.stringify(header)}`, () => {
      const begun = tracer.beginRequest(header);
      assert.notEqual(begun.traceId, trace);
      assert.match(begun.traceId, /^[0-9a-f]{32}$/);
      assert.equal(begun.parentSpanId, null);
    });
  }

  test('a sampler that is not parent-based decides by itself', () => {
    const { tracer } = makeTracer({ parentBased: false, ratio: 0 });
    assert.equal(tracer.beginRequest(`00-${trace}-${span}-01`).sampled, false);
  });
});

test('a message that could not be examined has a trace of its own, of one span', async () => {
  const { tracer, at } = makeTracer({ path: '/unexamined' });
  const taking = beginTaking(tracer, 'smtp');
  taking.failed(new RangeError('too deep'));
  await tracer.stop();
  const told = readSpans(at()).map(({ name, error, parentSpanId }) => ({ name, error, parentSpanId }));
  assert.deepEqual(told, [{ name: 'accept message', error: 'RangeError', parentSpanId: undefined }]);
});

describe('a collector', () => {
  test('gets what is sent, with the headers of the settings, at the latest at the end', async () => {
    const { tracer, tell, counted, at } = makeTracer({ path: '/well' });
    tell(1200);
    await tracer.stop();
    assert.equal(readSpans(at()).length, 1200);
    assert.ok(at().length >= 3, 'in batches');
    assert.equal(at()[0]?.headers['x-team'], 'mail');
    assert.deepEqual(counted, { sent: 1200, dropped: 0 });
  });

  test('that is overloaded gets it again, once it can', async () => {
    const { tell, counted, at } = makeTracer({ path: '/busy' });
    collector.behaveAt('/busy', answer(503));
    tell(5);
    await collector.received(2, ({ url }) => url === '/busy');
    assert.deepEqual(counted, { sent: 0, dropped: 0 });
    collector.behaveAt('/busy', answer(200, {}, '{}'));
    await waitFor('five spans', () => counted.sent === 5);
    assert.equal(counted.dropped, 0);
    assert.equal(readSpans(at().slice(-1)).length, 5);
  });

  for (const status of [400, 302]) {
    test(`that answers ${status} gets it once, and the loss is counted`, async () => {
      const path = `/refuses-${status}`;
      const { tracer, tell, counted, at } = makeTracer({ path });
      collector.behaveAt(path, answer(status, { location: collector.url('/elsewhere') }));
      tell(3);
      await waitFor('the loss', () => counted.dropped === 3);
      await tracer.stop();
      assert.equal(at().length, 1);
      assert.equal(collector.requests.filter(({ url }) => url === '/elsewhere').length, 0);
    });
  }

  test('that takes a part is believed', async () => {
    const { tracer, tell, counted } = makeTracer({ path: '/part' });
    collector.behaveAt(
      '/part',
      answer(200, {}, '{"partialSuccess":{"rejectedSpans":"2","errorMessage":"old"}}'),
    );
    tell(5);
    await tracer.stop();
    assert.deepEqual(counted, { sent: 3, dropped: 2 });
  });

  test('that hangs holds up nobody: what is beyond the bound is dropped and counted, and the end comes', async () => {
    const { tracer, tell, counted } = makeTracer({ path: '/hangs' });
    collector.behaveAt('/hangs', hang());
    tell(1);
    await collector.received(1, ({ url }) => url === '/hangs');
    tell(maxWaiting + 99);
    assert.equal(counted.dropped, 100);
    const startedAt = performance.now();
    await tracer.stop();
    assert.ok(performance.now() - startedAt < 8000, 'not as long as a POST may take');
    assert.deepEqual(counted, { sent: 0, dropped: maxWaiting + 100 });
  });

  test('that is not there costs nothing but the spans', async () => {
    const gone = await startReceiver();
    await gone.close();
    const { tracer, tell, counted } = makeTracer({ url: gone.url() });
    tell(7);
    await tracer.stop();
    assert.deepEqual(counted, { sent: 0, dropped: 7 });
  });
});
