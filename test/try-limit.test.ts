/** How many tries a lane has at once, against simulated receivers: time is an argument, so hours pass in a moment. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { Lanes } from '../src/queue/lanes.ts';
import { type TryEnd, TryLimit } from '../src/queue/try-limit.ts';
import { deliveryLimits } from '../src/webhooks/deliver.ts';

const { perLane, maxPerLane } = deliveryLimits;

/** When the receiver answers a try that starts now, and how. */
type Receiver = (nowMs: number, running: number) => { afterMs: number } & Partial<TryEnd>;

/** Claims take no time. Returns the number of tries at once at each start of a try, and when the last try ended. */
function simulate(receiver: Receiver, jobs: number, given: { lanes?: Lanes<string>; fromMs?: number } = {}) {
  const { lanes = makeLanes(), fromMs: startMs = 0 } = given;
  const running: { endsAt: number; end: TryEnd }[] = [];
  const started: { atMs: number; running: number }[] = [];
  let [nowMs, left] = [startMs, jobs];
  do {
    const allowances = lanes.allowances(nowMs);
    const claimed = Math.min(left, allowances.get('hook') ?? perLane);
    left -= claimed;
    lanes.fill(
      Array.from({ length: claimed }, () => 'hook'),
      allowances,
      nowMs,
      nowMs,
    );
    while (lanes.take()) {
      const { afterMs, isHealthy = true, ...more } = receiver(nowMs, running.length + 1);
      running.push({ endsAt: nowMs + afterMs, end: { isHealthy, answerMs: afterMs, ...more } });
      started.push({ atMs: nowMs, running: running.length });
    }
    running.sort((one, other) => one.endsAt - other.endsAt);
    const next = running.shift();
    assert.ok(next, 'a claim is never refused while nothing runs');
    nowMs = next.endsAt;
    left += lanes.finish('hook', next.end, nowMs).length;
  } while (running.length > 0 || left > 0);
  return { started, endedAt: nowMs, lanes };
}

function makeLanes(): Lanes<string> {
  return new Lanes<string>(deliveryLimits, { laneOf: (lane) => lane, groupOf: () => 'owner' });
}

function mostAtOnce(started: { running: number }[]): number {
  return Math.max(...started.map(({ running }) => running));
}

const constant =
  (ms: number): Receiver =>
  () => ({ afterMs: ms });

/** Works on one request at a time. */
function serial(workMs: number): Receiver {
  let freeAt = 0;
  return (nowMs) => {
    freeAt = Math.max(freeAt, nowMs) + workMs;
    return { afterMs: freeAt - nowMs };
  };
}

describe('grows', () => {
  test('with a receiver that takes 200 ms however many tries it has: 2,000 jobs in less than 4 s', () => {
    const { started, endedAt } = simulate(constant(200), 2000);
    assert.equal(mostAtOnce(started), maxPerLane);
    assert.ok(endedAt < 4000, `${endedAt} ms`);
  });

  test('whatever the receiver takes, to the largest number that the lane may have and not beyond', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 14_000 }), (ms) => {
        const { started } = simulate(constant(ms), 4000);
        assert.equal(mostAtOnce(started), maxPerLane);
      }),
      { numRuns: 20 },
    );
  });

  test('with answers that vary by half and do not depend on the number of tries', () => {
    let turn = 0;
    const { started } = simulate(() => ({ afterMs: 100 + ((turn++ * 37) % 100) }), 4000);
    assert.equal(mostAtOnce(started), maxPerLane);
  });

  test('as far as the receiver works in parallel: one with 64 workers gets about as many', () => {
    const workers = Array.from({ length: 64 }, () => 0);
    const receiver: Receiver = (nowMs) => {
      workers.sort((one, other) => one - other);
      const freeAt = Math.max(workers[0] ?? 0, nowMs) + 100;
      workers[0] = freeAt;
      return { afterMs: freeAt - nowMs };
    };
    const { started, endedAt } = simulate(receiver, 20_000);
    assert.ok(mostAtOnce(started) <= 128, `${mostAtOnce(started)} at once`);
    const ideal = (20_000 / 64) * 100;
    assert.ok(endedAt < ideal * 1.2, `${endedAt} of ${ideal} ms`);
  });

  test('only when it is used: a lane with few jobs keeps the limit of its start', () => {
    const lanes = makeLanes();
    for (let second = 0; second < 100; second += 1)
      simulate(constant(200), 5, { lanes, fromMs: second * 1000 });
    const { started } = simulate(constant(200), 1000, { lanes, fromMs: 100_000 });
    assert.equal(started.filter(({ atMs }) => atMs === 100_000).length, perLane);
  });
});

describe('does not grow', () => {
  test('with a receiver that works on one request at a time: now and then it tries twice as many, no more', () => {
    const { started, endedAt } = simulate(serial(5), 20_000);
    assert.ok(mostAtOnce(started) <= 2 * perLane, `${mostAtOnce(started)} at once`);
    const above = started.filter(({ running }) => running > perLane).length;
    assert.ok(above < started.length / 10, `${above} of ${started.length}`);
    assert.equal(endedAt, 20_000 * 5, 'and the receiver never waits');
  });

  test('while every hundredth try fails', () => {
    let turn = 0;
    const { started } = simulate(() => ({ afterMs: 200, isHealthy: turn++ % 100 !== 50 }), 5000);
    assert.ok(mostAtOnce(started) <= 4 * perLane, `${mostAtOnce(started)} at once`);
  });
});

/** A limit that has grown at time 0, step by step. */
function grown(): TryLimit {
  const limit = new TryLimit(deliveryLimits);
  for (let nowMs = -2000; nowMs < 0; nowMs += 100)
    for (let n = limit.value; n > 0; n -= 1) answer(limit, nowMs);
  assert.equal(limit.value, maxPerLane);
  return limit;
}

function answer(limit: TryLimit, nowMs: number, end: Partial<TryEnd> = {}): void {
  limit.end({ isHealthy: true, answerMs: 100, ...end }, limit.value, nowMs);
}

/** So many answers to tries that came one after another. */
function answerMany(limit: TryLimit, count: number, fromMs: number, end: Partial<TryEnd> = {}): void {
  for (let n = 0; n < count; n += 1) answer(limit, fromMs + n, end);
}

describe('falls', () => {
  test('to its start at the first failure', () => {
    const limit = grown();
    answer(limit, 0, { isHealthy: false });
    assert.equal(limit.value, perLane);
    answer(limit, 1, { isHealthy: false });
    assert.equal(limit.value, perLane, 'and no lower');
  });

  test('by half when the receiver asks for less, once for all tries that ran then, and at last to one', () => {
    const limit = grown();
    const asked = { isHealthy: false, asksForLess: true };
    answer(limit, 0, asked);
    assert.equal(limit.value, maxPerLane / 2);
    answerMany(limit, 99, 1, asked);
    assert.equal(limit.value, maxPerLane / 2, 'these tries started before the limit fell');
    const values = Array.from({ length: 9 }, (_, n) => {
      answer(limit, (n + 1) * 200, asked);
      return limit.value;
    });
    assert.deepEqual(values, [64, 32, 16, 8, 4, 2, 1, 1, 1]);
  });

  test('by half when the answers come later, and again until they do not, or to its start', () => {
    const limit = grown();
    const values = [1, 2, 3, 4, 5].map((second) => {
      answerMany(limit, limit.value, second * 1000, { answerMs: 300 });
      return limit.value;
    });
    assert.deepEqual(values, [128, 64, 32, 16, 16]);
  });

  test('and grows again after a while, also with a receiver that has become slower for good', () => {
    const limit = grown();
    for (let second = 1; second <= 5; second += 1)
      answerMany(limit, limit.value, second * 1000, { answerMs: 300 });
    assert.equal(limit.value, perLane);
    answerMany(limit, 400, 6000, { answerMs: 300 });
    assert.equal(limit.value, perLane, 'too early');
    answerMany(limit, 1000, 10_000, { answerMs: 300 });
    assert.equal(limit.value, maxPerLane);
  });

  test('grows again from one, when the receiver no longer asks for less', () => {
    const limit = new TryLimit(deliveryLimits);
    for (let n = 0; n < 5; n += 1) answer(limit, n * 1000, { isHealthy: false, asksForLess: true });
    assert.equal(limit.value, 1);
    answerMany(limit, 4000, 9000);
    assert.equal(limit.value, maxPerLane);
  });
});

describe('an idle lane', () => {
  test('keeps a limit that has grown while its connections are probably open, and then starts again', () => {
    const { lanes, endedAt } = simulate(constant(200), 2000);
    const soon = simulate(constant(200), 1000, { lanes, fromMs: endedAt + 20_000 });
    assert.ok(mostAtOnce(soon.started.slice(0, 600)) > 100, 'at once');
    const late = simulate(constant(200), 1000, { lanes, fromMs: soon.endedAt + 31_000 });
    assert.equal(late.started.filter(({ atMs }) => atMs === soon.endedAt + 31_000).length, perLane);
  });
});
