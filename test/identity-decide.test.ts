import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import type { DnsRecord } from '../src/contract/identity.ts';
import {
  beginAgain,
  type Decision,
  decideLoss,
  decideOwnership,
  decideStatus,
  firstCheckSeconds,
  type Holder,
  markRecords,
} from '../src/identities/decide.ts';
import type { RecordStatus } from '../src/identities/dns-record.ts';
import type { HolderToken } from '../src/identities/ownership.ts';
import type { Standing } from '../src/store/verification.ts';

const now = new Date('2026-11-15T12:00:00Z');
const minute = 60;
const hour = 60 * minute;
const day = 24 * hour;

function ago(seconds: number): Date {
  return new Date(now.getTime() - seconds * 1000);
}

const steady = { graceSince: null, reason: null, takeoverOf: null, takeoverSince: null };

function standing(status: Standing['status'], age = 0, grace: number | null = null): Standing {
  const graceSince = grace === null ? null : ago(grace);
  return { ...steady, status, since: ago(age), graceSince, reason: 'why' };
}

/** A look that began that long ago saw that the holder's token is gone. */
function takingOver(given: Standing, seconds: number, of = 'holder'): Standing {
  return { ...given, takeoverOf: of, takeoverSince: ago(seconds) };
}

function held(token: HolderToken): Holder {
  return { id: 'holder', token, seenAt: now };
}

function record(purpose: DnsRecord['purpose'], status: RecordStatus): DnsRecord {
  const required = purpose === 'ownership' || purpose === 'mx';
  return {
    ...{ type: 'TXT', name: 'n', value: 'v', ttl: 1, found: [], checkedAt: null },
    purpose,
    required,
    status,
  };
}

/** Ownership, MX unless left out, and DKIM. */
function records(
  ownership: RecordStatus,
  mx: RecordStatus | null = null,
  dkim: RecordStatus = 'missing',
): DnsRecord[] {
  return [
    record('ownership', ownership),
    ...(mx ? [record('mx', mx)] : []),
    record('dkim', dkim),
    record('dmarc', 'valid'),
  ];
}

function decideOn(
  given: Standing,
  seen: DnsRecord[],
  holder: HolderToken | null = null,
  random = 0,
): Decision {
  return decideStatus(given, seen, holder && held(holder), now, () => random);
}

describe('what a look makes of it', () => {
  const good: RecordStatus = 'valid';
  const cases: [string, Standing, DnsRecord[], Standing['status'], RegExp][] = [
    ['nothing stands', standing('unverified'), records('missing'), 'unverified', /None of the records/],
    ['ownership stands', standing('unverified'), records(good), 'verified', /stand\.$/],
    [
      'ownership alone, MX wanted',
      standing('unverified'),
      records(good, 'missing'),
      'pending',
      /ownership record found/,
    ],
    [
      'MX alone proves nothing',
      standing('unverified'),
      records('missing', good),
      'pending',
      /MX record found/,
    ],
    ['both stand', standing('unverified'), records(good, good), 'verified', /stand\.$/],
    ['advice alone', standing('unverified'), records('missing', null, good), 'pending', /DKIM record found/],
    ['only a DMARC record', standing('unverified'), records('mismatch'), 'unverified', /None/],
    [
      'an outage',
      standing('unverified'),
      records('unknown', 'unknown', 'unknown'),
      'unverified',
      /^The ownership, MX, and DKIM records could not be looked up\.$/,
    ],
    [
      'an outage of some',
      standing('unverified'),
      records('unknown', 'missing'),
      'unverified',
      /^The ownership record could not be looked up, and no other was found\.$/,
    ],
    [
      'pending, an outage',
      standing('pending'),
      records('unknown', 'unknown', 'unknown'),
      'pending',
      /could not be looked up\.$/,
    ],
    ['pending, all gone again', standing('pending'), records('missing'), 'unverified', /None/],
    ['pending, all stand', standing('pending', 9 * day), records(good, good), 'verified', /stand\.$/],
    ['just short of 72 h', standing('unverified', 72 * hour - 1), records('missing'), 'unverified', /None/],
    [
      '72 h without',
      standing('unverified', 72 * hour),
      records('missing'),
      'failed',
      /not found within 72 hours/,
    ],
    [
      '72 h with a wrong one',
      standing('pending', 72 * hour),
      records('mismatch', good),
      'failed',
      /not found/,
    ],
    [
      '72 h, MX still missing',
      standing('pending', 80 * hour),
      records(good, 'missing'),
      'pending',
      /not yet all/,
    ],
    [
      '72 h, an outage',
      standing('pending', 80 * hour),
      records('unknown', good),
      'pending',
      /MX record found/,
    ],
    ['ten days, an outage', standing('pending', 10 * day), records('unknown'), 'failed', /for ten days/],
    ['failed, still not there', standing('failed', day), records('missing'), 'failed', /^why$/],
    ['failed, half there', standing('failed', day), records(good, 'missing'), 'failed', /^why$/],
    ['failed, there', standing('failed', day), records(good, good), 'verified', /stand\.$/],
    [
      'verified, advice gone',
      standing('verified', 90 * day),
      records(good, good, 'missing'),
      'verified',
      /stand\.$/,
    ],
    [
      'verified, an outage',
      standing('verified', 90 * day),
      records('unknown', 'unknown'),
      'verified',
      /ownership and MX records could/,
    ],
  ];
  for (const [title, given, seen, status, reason] of cases) {
    test(`${given.status}: ${title}: ${status}`, () => {
      const verdict = decideOn(given, seen);
      assert.equal(verdict.status, status);
      assert.match(verdict.reason, reason);
      assert.equal(verdict.graceUntil, null);
      assert.equal(verdict.graceSince, null);
      assert.equal(verdict.takesOver, false);
      const began = status === 'failed' && given.status !== 'failed';
      assert.deepEqual(verdict.since, began ? now : given.since);
    });
  }
});

describe('grace', () => {
  for (const [ownership, mx] of [
    ['missing', 'valid'],
    ['mismatch', 'valid'],
    ['valid', 'missing'],
    ['unknown', 'mismatch'],
    ['missing', 'unknown'],
  ] as const) {
    test(`ownership ${ownership}, MX ${mx}: begins, for 72 h`, () => {
      const verdict = decideOn(standing('verified', 90 * day), records(ownership, mx));
      assert.equal(verdict.status, 'verified');
      assert.deepEqual(verdict.graceSince, now);
      assert.deepEqual(verdict.graceUntil, new Date('2026-11-18T12:00:00Z'));
      assert.match(verdict.reason, /fails at 2026-11-18T12:00:00\.000Z/);
    });
  }

  test('goes on from its beginning, not from each look', () => {
    const verdict = decideOn(standing('verified', 90 * day, 10 * hour), records('missing'));
    assert.deepEqual(verdict.graceSince, ago(10 * hour));
    assert.deepEqual(verdict.graceUntil, ago(-62 * hour));
  });

  test('ends when the records are back', () => {
    const verdict = decideOn(standing('verified', 90 * day, 80 * hour), records('valid'));
    assert.equal(verdict.status, 'verified');
    assert.equal(verdict.graceSince, null);
    assert.equal(verdict.graceUntil, null);
    assert.equal(verdict.reason, 'The required records are back.');
  });

  test('is not ended by an outage', () => {
    const verdict = decideOn(standing('verified', 90 * day, 10 * hour), records('unknown'));
    assert.deepEqual(verdict.graceSince, ago(10 * hour));
  });

  test('over, with the records gone: failed, from now', () => {
    const verdict = decideOn(standing('verified', 90 * day, 72 * hour), records('missing', 'mismatch'));
    assert.equal(verdict.status, 'failed');
    assert.deepEqual(verdict.since, now);
    assert.equal(verdict.graceSince, null);
    assert.equal(verdict.reason, 'The ownership and MX records did not come back within 72 hours.');
    assert.equal(verdict.waitSeconds, day);
  });

  test('over, but it cannot be seen: verified until it can', () => {
    const verdict = decideOn(
      standing('verified', 90 * day, 100 * hour),
      records('unknown', 'valid'),
      null,
      0.5,
    );
    assert.equal(verdict.status, 'verified');
    assert.deepEqual(verdict.graceSince, ago(100 * hour));
    assert.equal(verdict.waitSeconds, hour);
  });
});

describe('the next look', () => {
  const unproven: [number, number | null][] = [
    [0, 10],
    [10, 20],
    [11, 19],
    [27, 33],
    [30, 30],
    [minute, minute],
    [2 * minute, 3 * minute],
    [5 * minute, 5 * minute],
    [10 * minute, 20 * minute],
    [30 * minute, 30 * minute],
    [hour, hour],
    [2 * hour, 4 * hour],
    [6 * hour, 6 * hour],
    [66 * hour, 6 * hour],
    [72 * hour, day],
    [72 * hour + 6 * day, day],
    [72 * hour + 7 * day, null],
    [400 * day, null],
  ];
  for (const [age, wait] of unproven) {
    test(`pending for ${age} s: ${wait === null ? 'none' : `in ${wait} s`}`, () => {
      assert.equal(decideOn(standing('pending', age), records('valid', 'missing')).waitSeconds, wait);
    });
  }

  const failed: [number, number | null][] = [
    [0, day],
    [day, day],
    [day + 2 * hour, 22 * hour],
    [6 * day, day],
    [7 * day, null],
    [70 * day, null],
  ];
  for (const [age, wait] of failed) {
    test(`failed for ${age} s: ${wait === null ? 'none' : `in ${wait} s`}`, () => {
      assert.equal(decideOn(standing('failed', age), records('missing')).waitSeconds, wait);
    });
  }

  test('the first is the one a new identity gets', () => {
    assert.equal(decideOn(standing('unverified'), records('missing')).waitSeconds, firstCheckSeconds);
  });

  test('verified: 6 h, a tenth sooner or later', () => {
    for (const [random, factor] of [
      [0, 0.9],
      [0.5, 1],
      [1, 1.1],
    ] as const) {
      for (const seen of [records('valid'), records('unknown')]) {
        assert.equal(decideOn(standing('verified'), seen, null, random).waitSeconds, 6 * hour * factor);
      }
    }
  });

  test('in grace: hourly, and at its end', () => {
    assert.equal(decideOn(standing('verified'), records('missing'), null, 0.5).waitSeconds, hour);
    const late = decideOn(standing('verified', 0, 72 * hour - 60), records('missing'), null, 0.5);
    assert.equal(late.waitSeconds, 60);
  });

  test('not proven: up to a tenth later, never sooner', () => {
    assert.equal(
      decideOn(standing('pending', 66 * hour), records('missing'), null, 0.5).waitSeconds,
      6.3 * hour,
    );
  });

  test('one that nobody publishes for is looked at some 30 times, and then no more', () => {
    fc.assert(
      fc.property(
        fc.array(fc.double({ min: 0, max: 1, noNaN: true }), { minLength: 1, maxLength: 40 }),
        (randoms) => {
          let given: Standing = { ...steady, status: 'unverified', since: now };
          let time = now.getTime();
          let looks = 0;
          for (let wait: number | null = firstCheckSeconds; wait !== null; looks += 1) {
            assert.ok(wait >= 5 && wait <= 1.1 * day, String(wait));
            time += wait * 1000;
            const random = randoms[looks % randoms.length] ?? 0;
            const verdict = decideStatus(given, records('missing'), null, new Date(time), () => random);
            given = verdict;
            wait = verdict.waitSeconds;
          }
          assert.equal(given.status, 'failed');
          assert.ok(looks >= 24 && looks <= 30, String(looks));
        },
      ),
    );
  });
});

describe('one rightful owner', () => {
  test('the table', () => {
    const fresh = standing('pending');
    assert.equal(decideOwnership(fresh, null), 'verify');
    assert.equal(decideOwnership(standing('verified'), held('valid')), 'verify');
    assert.equal(decideOwnership(fresh, held('gone')), 'confirm');
    assert.equal(decideOwnership(takingOver(fresh, 59), held('gone')), 'confirm');
    assert.equal(decideOwnership(takingOver(fresh, 60), held('gone')), 'take_over');
    assert.equal(decideOwnership(takingOver(fresh, 60, 'a holder before'), held('gone')), 'confirm');
    for (const token of ['valid', 'unknown', 'not_everywhere'] as const)
      for (const given of [fresh, takingOver(fresh, 60)])
        assert.equal(decideOwnership(given, held(token)), 'wait');
  });

  for (const status of ['unverified', 'pending', 'failed'] as const) {
    const waiting = status === 'failed' ? 'failed' : 'pending';

    test(`${status}, and the holder's token is gone: taken over by the second look, a minute later`, () => {
      const seen = records('valid', 'valid');
      const first = decideOn(standing(status), seen, 'gone');
      assert.deepEqual([first.status, first.takesOver], [waiting, false]);
      assert.deepEqual([first.takeoverOf, first.takeoverSince], ['holder', now]);
      assert.match(first.reason, /is yours when a look after 2026-11-15T12:01:00\.000Z sees the same/);
      assert.equal(first.waitSeconds, 61);
      assert.equal(markRecords(seen, first)[0]?.note, first.reason);

      const early = decideOn(takingOver(standing(status), 59), seen, 'gone');
      assert.deepEqual([early.status, early.takesOver], [waiting, false]);
      assert.deepEqual(early.takeoverSince, ago(59), 'counts from the first');
      assert.equal(early.waitSeconds, 2);

      const second = decideOn(takingOver(standing(status), 60), seen, 'gone');
      assert.deepEqual([second.status, second.takesOver], ['verified', true]);
      assert.deepEqual([second.takeoverOf, second.takeoverSince], [null, null]);
    });

    test(`${status}, and a look between sees it otherwise: begins anew`, () => {
      const given = takingOver(standing(status), 90);
      for (const token of ['valid', 'unknown', 'not_everywhere'] as const)
        assert.equal(decideOn(given, records('valid'), token).takeoverSince, null);
      for (const own of ['missing', 'mismatch', 'unknown'] as const)
        assert.equal(decideOn(given, records(own), 'gone').takeoverSince, null);
    });

    for (const [holder, reason] of [
      ['valid', /remove the other record/],
      ['unknown', /could not be seen/],
      ['not_everywhere', /not all name servers have your record yet/],
    ] as const) {
      test(`${status}, and the holder's token is ${holder}: ${waiting}, and says why`, () => {
        const verdict = decideOn(standing(status, 80 * hour), records('valid'), holder);
        assert.equal(verdict.status, waiting);
        assert.equal(verdict.takesOver, false);
        assert.match(verdict.reason, reason);
        assert.ok(verdict.waitSeconds);
      });
    }

    for (const own of ['missing', 'mismatch', 'unknown'] as const) {
      test(`${status}, the holder's token gone, the own one ${own}: nothing is taken`, () => {
        const verdict = decideOn(standing(status), records(own, 'valid'), 'gone');
        assert.notEqual(verdict.status, 'verified');
        assert.equal(verdict.takesOver, false);
      });
    }
  }

  test('who is taken over fails, from now, and is told', () => {
    const verdict = decideLoss(standing('verified', 90 * day, hour), now, () => 0);
    assert.equal(verdict.status, 'failed');
    assert.deepEqual(verdict.since, now);
    assert.equal(verdict.graceSince, null);
    assert.match(verdict.reason, /^Another owner has proven/);
    assert.equal(verdict.waitSeconds, 270, 'soon, in case that look saw an old copy of the zone');
    const [told] = markRecords(records('valid'), verdict);
    assert.equal(told?.note, verdict.reason);
  });
});

describe('a person asks for a check', () => {
  for (const status of ['unverified', 'pending', 'failed'] as const) {
    test(`${status}: begins anew, from now`, () => {
      const begun = beginAgain(standing(status, 90 * day), now);
      assert.equal(begun.status, status === 'failed' ? 'unverified' : status);
      assert.deepEqual(begun.since, now);
      assert.equal(decideOn(begun, records('missing')).status, 'unverified');
      const outage = decideOn(begun, records('unknown', null, 'unknown'));
      assert.equal(outage.status, begun.status, 'an outage says nothing');
      const taking = takingOver(standing(status), 60);
      assert.equal(beginAgain(taking, now).takeoverSince, taking.takeoverSince, 'goes on');
    });
  }

  test('verified: nothing changes, a grace included', () => {
    const given = standing('verified', 90 * day, hour);
    assert.equal(beginAgain(given, now), given);
  });
});

describe('what the records say of it', () => {
  const notesOf = (seen: DnsRecord[], verdict: Decision) =>
    markRecords(seen, verdict).map(({ note }) => note);
  const graces = (seen: DnsRecord[], verdict: Decision) =>
    markRecords(seen, verdict).map(({ graceUntil }) => graceUntil);

  test('a grace stands at the required records that are gone, with its end and reason', () => {
    const seen = records('valid', 'missing', 'missing');
    const verdict = decideOn(standing('verified'), seen);
    assert.deepEqual(graces(seen, verdict), [undefined, '2026-11-18T12:00:00.000Z', undefined, undefined]);
    assert.deepEqual(notesOf(seen, verdict), [undefined, verdict.reason, undefined, undefined]);
  });

  test('also while they cannot be looked up', () => {
    const seen = records('unknown', 'valid');
    const verdict = decideOn(standing('verified', 90 * day, hour), seen);
    assert.deepEqual(graces(seen, verdict), ['2026-11-18T11:00:00.000Z', undefined, undefined, undefined]);
    assert.match(notesOf(seen, verdict)[0] ?? '', /could not be looked up for certain; the grace goes on\.$/);
  });

  test('a failure stands at the first that is not right, after its own note', () => {
    const [ownership, ...rest] = records('missing', 'missing');
    const seen = [{ ...(ownership as DnsRecord), note: 'No record.' }, ...rest];
    const verdict = decideOn(standing('pending', 72 * hour), seen);
    assert.deepEqual(notesOf(seen, verdict), [
      'No record. The ownership record was not found within 72 hours.',
      ...[undefined, undefined, undefined],
    ]);
  });

  test('who waits for another owner is told at the ownership record', () => {
    const seen = records('valid', 'valid');
    const verdict = decideOn(standing('pending'), seen, 'valid');
    assert.match(notesOf(seen, verdict)[0] ?? '', /^Another owner holds/);
  });

  test('otherwise the records speak for themselves', () => {
    for (const status of ['unverified', 'pending', 'verified'] as const) {
      for (const seen of [records('missing'), records('valid'), records('unknown')]) {
        const verdict = decideOn(standing(status), seen);
        if (verdict.graceUntil === null) assert.deepEqual(markRecords(seen, verdict), seen);
      }
    }
  });
});

test('whatever came before: nothing is lost in an outage, and nothing taken without proof', () => {
  const anyStatus = fc.constantFrom<RecordStatus>('missing', 'mismatch', 'valid', 'unknown');
  const anyStanding = fc.record({
    status: fc.constantFrom<Standing['status']>('unverified', 'pending', 'verified', 'failed'),
    since: fc.nat(500 * day).map(ago),
    graceSince: fc.option(fc.nat(100 * hour).map(ago)),
    reason: fc.constant(null),
    takeoverOf: fc.option(fc.constantFrom('holder', 'a holder before')),
    takeoverSince: fc.option(fc.nat(5 * minute).map(ago)),
  });
  const holders = fc.constantFrom<HolderToken | null>(null, 'valid', 'gone', 'unknown', 'not_everywhere');
  const chance = fc.double({ min: 0, max: 1, noNaN: true });
  fc.assert(
    fc.property(
      anyStanding,
      anyStatus,
      fc.option(anyStatus),
      holders,
      chance,
      (given, own, mx, holder, random) => {
        const verdict = decideOn(given, records(own, mx), holder, random);
        const gone = [own, mx].some((status) => status === 'missing' || status === 'mismatch');
        if (given.status === 'verified' && !gone) assert.equal(verdict.status, 'verified');
        if (verdict.status === 'verified' && given.status !== 'verified') {
          assert.ok(own === 'valid' && (mx ?? 'valid') === 'valid');
          assert.ok(holder === null || holder === 'gone');
          assert.equal(verdict.takesOver, holder === 'gone');
          if (verdict.takesOver) {
            assert.equal(given.takeoverOf, 'holder');
            assert.ok(given.takeoverSince && given.takeoverSince <= ago(minute));
          }
        } else assert.equal(verdict.takesOver, false);
        assert.equal(verdict.graceUntil === null, verdict.graceSince === null);
        if (verdict.graceSince) assert.equal(verdict.status, 'verified');
        if (verdict.status === 'verified') assert.ok(verdict.waitSeconds);
        if (verdict.waitSeconds !== null)
          assert.ok(verdict.waitSeconds > 0 && verdict.waitSeconds <= 1.1 * day);
        assert.match(verdict.reason, /^[A-Z].*\.$/);
      },
    ),
    { numRuns: 1000 },
  );
});
