/** What happens to a delivery after a try: every outcome, with fixed time and randomness. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { decide, type TryError } from '../src/webhooks/decide.ts';
import type { PostErrorCode, PostOutcome } from '../src/webhooks/post.ts';

const now = new Date('2026-01-31T12:00:00Z');
const schedule = [5, 300, 1800];
const day = 86_400;

function responded(status: number, retryAfter: string | null = null, headers = {}): PostOutcome {
  const sent = retryAfter === null ? headers : { ...headers, 'retry-after': retryAfter };
  return { kind: 'response', status, headers: sent, body: '', durationMs: 1, answerMs: 1 };
}

function failed(error: PostErrorCode, received: object = {}): PostOutcome {
  return { kind: 'failure', error, detail: 'why', durationMs: 1, ...received };
}

function decideOn(outcome: PostOutcome, tries = 0, random = 0.5) {
  return decide(outcome, { tries }, schedule, now, () => random);
}

function again(error: TryError, waitSeconds = 5) {
  return { status: 'pending', waitSeconds, error, gone: false };
}

describe('a response', () => {
  for (const status of [200, 201, 202, 204, 206, 226, 299]) {
    test(`${status} is delivered`, () => {
      const delivered = { status: 'delivered', waitSeconds: null, error: null, gone: false };
      assert.deepEqual(decideOn(responded(status)), delivered);
      assert.deepEqual(decideOn(responded(status, '60'), schedule.length), delivered);
    });
  }

  for (const status of [300, 301, 302, 303, 304, 307, 308, 399]) {
    test(`${status} is a failed try: no redirect is followed`, () => {
      assert.deepEqual(decideOn(responded(status)), again('redirect'));
    });
  }

  test('410 ends the delivery, with tries left or not, and disables the webhook', () => {
    const gone = { status: 'failed', waitSeconds: null, error: 'gone', gone: true };
    for (const tries of [0, 1, schedule.length]) assert.deepEqual(decideOn(responded(410), tries), gone);
    assert.deepEqual(decideOn(responded(410, '60')), gone);
  });

  test('429 has an error code of its own', () => {
    assert.deepEqual(decideOn(responded(429)), again('rate_limited'));
  });

  for (const status of [
    400, 401, 403, 404, 409, 411, 422, 428, 499, 500, 501, 502, 503, 504, 599, 600, 999,
  ]) {
    test(`${status} is tried again`, () => {
      assert.deepEqual(decideOn(responded(status)), again('http_error'));
    });
  }
});

describe('Retry-After', () => {
  test('a date counts from the Date of the response, because either clock may be wrong', () => {
    const waits = (date: string) => {
      const outcome = responded(503, 'Sat, 31 Jan 2026 13:01:00 GMT', { date });
      return decideOn(outcome).waitSeconds;
    };
    assert.equal(waits('Sat, 31 Jan 2026 13:00:00 GMT'), 60);
    assert.equal(waits('Sat, 31 Jan 2026 11:01:00 GMT'), 7200);
    assert.equal(waits('nonsense'), 3660, 'our own clock where it does not say');
  });

  const inSeconds = (seconds: number) => new Date(now.getTime() + seconds * 1000).toUTCString();
  const cases: [string, string | null, number][] = [
    ['seconds', '120', 120],
    ['seconds between spaces', ' 120 ', 120],
    ['fewer seconds than the schedule says: the schedule stands', '1', 5],
    ['zero', '0', 5],
    ['a date', inSeconds(600), 600],
    ['a date in the past', inSeconds(-600), 5],
    ['nothing', null, 5],
    ['an empty value', '', 5],
    ['a word', 'soon', 5],
    ['a negative number', '-120', 5],
    ['a fraction', '12.5', 5],
    ['exactly a day', String(day), day],
    ['more than a day in seconds', String(day + 1), day],
    ['more than a day as a date', inSeconds(40 * day), day],
    ['the most digits', '9999999999', day],
    ['more digits than a number has', '9'.repeat(400), day],
    ['what a lenient parser takes for a date', '2030-1', 5],
  ];
  for (const status of [429, 503]) {
    for (const [name, value, wait] of cases) {
      test(`${status} with ${name}`, () => {
        const { waitSeconds } = decideOn(responded(status, value));
        assert.equal(waitSeconds, wait);
      });
    }
  }

  test('counts for 429 and 503 alone', () => {
    for (const status of [301, 400, 404, 408, 500, 502, 504]) {
      assert.equal(decideOn(responded(status, '120')).waitSeconds, 5, String(status));
    }
  });

  test('gives no try more than the schedule has', () => {
    assert.deepEqual(decideOn(responded(503, '120'), schedule.length), {
      status: 'failed',
      waitSeconds: null,
      error: 'http_error',
      gone: false,
    });
  });
});

describe('no answer', () => {
  // The type makes this list complete.
  const codes: Record<PostErrorCode, true> = {
    target_refused: true,
    dns_failed: true,
    connect_failed: true,
    connect_timeout: true,
    tls_failed: true,
    tls_timeout: true,
    response_timeout: true,
    body_timeout: true,
    connection_lost: true,
    invalid_response: true,
  };
  for (const code of Object.keys(codes) as PostErrorCode[]) {
    test(`${code} is tried again under its own name`, () => {
      assert.deepEqual(decideOn(failed(code)), again(code));
      assert.equal(decideOn(failed(code), schedule.length).status, 'failed');
      assert.equal(decideOn(failed(code), schedule.length).error, code);
    });
  }

  test('a good status before the failure does not make it a success, nor 410 the end', () => {
    assert.deepEqual(decideOn(failed('body_timeout', { status: 200 })), again('body_timeout'));
    assert.deepEqual(decideOn(failed('body_timeout', { status: 410 })), again('body_timeout'));
  });
});

describe('the schedule', () => {
  test('each try has its wait, and after the last the delivery has failed', () => {
    const waits = [0, 1, 2, 3, 4].map((tries) => decideOn(responded(500), tries).waitSeconds);
    assert.deepEqual(waits, [5, 300, 1800, null, null]);
    assert.equal(decideOn(responded(500), 2).status, 'pending');
    assert.equal(decideOn(responded(500), 3).status, 'failed');
  });

  test('an empty one means a single try', () => {
    assert.equal(decide(responded(500), { tries: 0 }, [], now, () => 0.5).status, 'failed');
  });

  test('a wait of none is still a wait', () => {
    const decision = decide(responded(500), { tries: 0 }, [0], now, () => 0.5);
    assert.deepEqual(decision, again('http_error', 0));
  });

  test('jitter is 10 % either way', () => {
    const wait = (random: number) => decideOn(responded(500), 1, random).waitSeconds ?? Number.NaN;
    assert.ok(Math.abs(wait(0) - 270) < 1e-9);
    assert.equal(wait(0.5), 300);
    assert.ok(Math.abs(wait(1) - 330) < 1e-9);
  });

  test('whatever comes back, the wait is within bounds and there is one exactly while it is pending', () => {
    const outcome = fc.oneof(
      fc.record({
        status: fc.integer({ min: 200, max: 999 }),
        retryAfter: fc.oneof(
          fc.constant(null),
          fc.string(),
          fc.integer().map(String),
          fc.date().map((date) => date.toUTCString()),
        ),
      }),
      fc.constantFrom<PostErrorCode>('dns_failed', 'response_timeout', 'target_refused'),
    );
    fc.assert(
      fc.property(
        outcome,
        fc.nat(12),
        fc.array(fc.nat(31_536_000), { maxLength: 10 }),
        fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
        (given, tries, waits, random) => {
          const tried = typeof given === 'string' ? failed(given) : responded(given.status, given.retryAfter);
          const decision = decide(tried, { tries }, waits, now, () => random);
          const scheduled = waits[tries];
          assert.equal(decision.waitSeconds !== null, decision.status === 'pending');
          assert.equal(decision.error === null, decision.status === 'delivered');
          if (decision.waitSeconds === null) return;
          assert.ok(scheduled !== undefined);
          assert.ok(decision.waitSeconds >= scheduled * 0.9 - 1e-6);
          assert.ok(decision.waitSeconds <= Math.max(scheduled * 1.1 + 1e-6, day));
        },
      ),
      { numRuns: 500 },
    );
  });
});
