import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import type { DnsRecord } from '../src/contract/identity.ts';
import {
  type Decision,
  decideLoss,
  decideOwnership,
  decideStatus,
  firstCheckSeconds,
  type Holder,
  noteDecision,
  restartSchedule,
} from '../src/identities/decide.ts';
import type { RecordStatus } from '../src/identities/dns-record.ts';
import type { TokenComparison } from '../src/identities/ownership.ts';
import type { VerificationState } from '../src/store/verification.ts';

const now = new Date('2026-11-15T12:00:00Z');
const minute = 60;
const hour = 60 * minute;
const day = 24 * hour;

function ago(seconds: number): Date {
  return new Date(now.getTime() - seconds * 1000);
}

const steady = { graceSince: null, reason: null, takeoverOf: null, takeoverSince: null };

function stateOf(
  status: VerificationState['status'],
  age = 0,
  grace: number | null = null,
): VerificationState {
  const graceSince = grace === null ? null : ago(grace);
  return { ...steady, status, since: ago(age), graceSince, reason: 'why' };
}

/** A check that started so long ago saw that the holder's token is gone. */
function takingOver(given: VerificationState, seconds: number, of = 'owner'): VerificationState {
  return { ...given, takeoverOf: of, takeoverSince: ago(seconds) };
}

function ownerWith(tokens: TokenComparison): Holder {
  return { id: 'owner', tokens, comparedAt: now };
}

function record(purpose: DnsRecord['purpose'], status: RecordStatus): DnsRecord {
  const required = purpose === 'ownership' || purpose === 'mx';
  return {
    ...{ type: 'TXT', name: 'n', value: 'v', ttl: 1, found: [], checkedAt: null, usedFor: [] },
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
  given: VerificationState,
  seen: DnsRecord[],
  tokens: TokenComparison | null = null,
  random = 0,
): Decision {
  return decideStatus(given, seen, tokens && ownerWith(tokens), { now, random: () => random });
}

describe('the status after a check', () => {
  const good: RecordStatus = 'valid';
  const cases: [string, VerificationState, DnsRecord[], VerificationState['status'], RegExp][] = [
    [
      'nothing stands',
      stateOf('unverified'),
      records('missing'),
      'unverified',
      /None of the records is valid/,
    ],
    [
      'ownership stands',
      stateOf('unverified'),
      records(good),
      'verified',
      /All required records are valid\.$/,
    ],
    [
      'ownership alone, MX wanted',
      stateOf('unverified'),
      records(good, 'missing'),
      'pending',
      /Valid so far: ownership\./,
    ],
    [
      'MX alone proves nothing',
      stateOf('unverified'),
      records('missing', good),
      'pending',
      /Valid so far: MX\./,
    ],
    [
      'both stand',
      stateOf('unverified'),
      records(good, good),
      'verified',
      /All required records are valid\.$/,
    ],
    [
      'advice alone',
      stateOf('unverified'),
      records('missing', null, good),
      'pending',
      /Valid so far: DKIM\./,
    ],
    ['only a DMARC record', stateOf('unverified'), records('mismatch'), 'unverified', /None/],
    [
      'an outage',
      stateOf('unverified'),
      records('unknown', 'unknown', 'unknown'),
      'unverified',
      /^The ownership, MX, and DKIM records could not be looked up\.$/,
    ],
    [
      'an outage of some',
      stateOf('unverified'),
      records('unknown', 'missing'),
      'unverified',
      /^The ownership record could not be looked up, and no other record is valid yet\.$/,
    ],
    [
      'pending, an outage',
      stateOf('pending'),
      records('unknown', 'unknown', 'unknown'),
      'pending',
      /could not be looked up\.$/,
    ],
    ['pending, all gone again', stateOf('pending'), records('missing'), 'unverified', /None/],
    [
      'pending, all stand',
      stateOf('pending', 9 * day),
      records(good, good),
      'verified',
      /All required records are valid\.$/,
    ],
    ['just short of 72 h', stateOf('unverified', 72 * hour - 1), records('missing'), 'unverified', /None/],
    [
      '72 h without',
      stateOf('unverified', 72 * hour),
      records('missing'),
      'failed',
      /not found within 72 hours/,
    ],
    [
      '72 h with a wrong one',
      stateOf('pending', 72 * hour),
      records('mismatch', good),
      'failed',
      /not found/,
    ],
    [
      '72 h, MX still missing',
      stateOf('pending', 80 * hour),
      records(good, 'missing'),
      'pending',
      /Not all required records are valid yet/,
    ],
    [
      '72 h, an outage',
      stateOf('pending', 80 * hour),
      records('unknown', good),
      'pending',
      /Valid so far: MX\./,
    ],
    ['ten days, an outage', stateOf('pending', 10 * day), records('unknown'), 'failed', /for ten days/],
    ['failed, still not there', stateOf('failed', day), records('missing'), 'failed', /^why$/],
    ['failed, half there', stateOf('failed', day), records(good, 'missing'), 'failed', /^why$/],
    [
      'failed, there',
      stateOf('failed', day),
      records(good, good),
      'verified',
      /All required records are valid\.$/,
    ],
    [
      'verified, advice gone',
      stateOf('verified', 90 * day),
      records(good, good, 'missing'),
      'verified',
      /All required records are valid\.$/,
    ],
    [
      'verified, an outage',
      stateOf('verified', 90 * day),
      records('unknown', 'unknown'),
      'verified',
      /ownership and MX records could not be checked/,
    ],
  ];
  for (const [title, given, seen, status, reason] of cases) {
    test(`${given.status}: ${title}: ${status}`, () => {
      const decision = decideOn(given, seen);
      assert.equal(decision.status, status);
      assert.match(decision.reason, reason);
      assert.equal(decision.graceUntil, null);
      assert.equal(decision.graceSince, null);
      assert.equal(decision.takesOver, false);
      const began = status === 'failed' && given.status !== 'failed';
      assert.deepEqual(decision.since, began ? now : given.since);
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
      const decision = decideOn(stateOf('verified', 90 * day), records(ownership, mx));
      assert.equal(decision.status, 'verified');
      assert.deepEqual(decision.graceSince, now);
      assert.deepEqual(decision.graceUntil, new Date('2026-11-18T12:00:00Z'));
      assert.match(decision.reason, /must be valid by 2026-11-18T12:00:00\.000Z/);
    });
  }

  test('counts from its start, not from each check', () => {
    const decision = decideOn(stateOf('verified', 90 * day, 10 * hour), records('missing'));
    assert.deepEqual(decision.graceSince, ago(10 * hour));
    assert.deepEqual(decision.graceUntil, ago(-62 * hour));
  });

  test('ends when the records are back', () => {
    const decision = decideOn(stateOf('verified', 90 * day, 80 * hour), records('valid'));
    assert.equal(decision.status, 'verified');
    assert.equal(decision.graceSince, null);
    assert.equal(decision.graceUntil, null);
    assert.equal(decision.reason, 'All required records are valid again.');
  });

  test('is not ended by an outage', () => {
    const decision = decideOn(stateOf('verified', 90 * day, 10 * hour), records('unknown'));
    assert.deepEqual(decision.graceSince, ago(10 * hour));
  });

  test('over, with the records gone: failed, from now', () => {
    const decision = decideOn(stateOf('verified', 90 * day, 72 * hour), records('missing', 'mismatch'));
    assert.equal(decision.status, 'failed');
    assert.deepEqual(decision.since, now);
    assert.equal(decision.graceSince, null);
    assert.equal(decision.reason, 'The ownership and MX records did not become valid again within 72 hours.');
    assert.equal(decision.waitSeconds, day);
  });

  test('over, but it cannot be seen: verified until it can', () => {
    const decision = decideOn(
      stateOf('verified', 90 * day, 100 * hour),
      records('unknown', 'valid'),
      null,
      0.5,
    );
    assert.equal(decision.status, 'verified');
    assert.deepEqual(decision.graceSince, ago(100 * hour));
    assert.equal(decision.waitSeconds, hour);
  });
});

describe('the next check', () => {
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
      assert.equal(decideOn(stateOf('pending', age), records('valid', 'missing')).waitSeconds, wait);
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
      assert.equal(decideOn(stateOf('failed', age), records('missing')).waitSeconds, wait);
    });
  }

  test('the first is the one a new identity gets', () => {
    assert.equal(decideOn(stateOf('unverified'), records('missing')).waitSeconds, firstCheckSeconds);
  });

  test('verified: 6 h, a tenth sooner or later', () => {
    for (const [random, factor] of [
      [0, 0.9],
      [0.5, 1],
      [1, 1.1],
    ] as const) {
      for (const seen of [records('valid'), records('unknown')]) {
        assert.equal(decideOn(stateOf('verified'), seen, null, random).waitSeconds, 6 * hour * factor);
      }
    }
  });

  test('in grace: hourly, and at its end', () => {
    assert.equal(decideOn(stateOf('verified'), records('missing'), null, 0.5).waitSeconds, hour);
    const late = decideOn(stateOf('verified', 0, 72 * hour - 60), records('missing'), null, 0.5);
    assert.equal(late.waitSeconds, 60);
  });

  test('not proven: up to a tenth later, never sooner', () => {
    assert.equal(
      decideOn(stateOf('pending', 66 * hour), records('missing'), null, 0.5).waitSeconds,
      6.3 * hour,
    );
  });

  test('an identity without records is checked about 30 times, and then no more', () => {
    fc.assert(
      fc.property(
        fc.array(fc.double({ min: 0, max: 1, noNaN: true }), { minLength: 1, maxLength: 40 }),
        (randoms) => {
          let given: VerificationState = { ...steady, status: 'unverified', since: now };
          let time = now.getTime();
          let checks = 0;
          for (let wait: number | null = firstCheckSeconds; wait !== null; checks += 1) {
            assert.ok(wait >= 5 && wait <= 1.1 * day, String(wait));
            time += wait * 1000;
            const random = randoms[checks % randoms.length] ?? 0;
            const decision = decideStatus(given, records('missing'), null, {
              now: new Date(time),
              random: () => random,
            });
            given = decision;
            wait = decision.waitSeconds;
          }
          assert.equal(given.status, 'failed');
          assert.ok(checks >= 24 && checks <= 30, String(checks));
        },
      ),
    );
  });
});

describe('a domain with another holder', () => {
  test('the table', () => {
    const fresh = stateOf('pending');
    assert.equal(decideOwnership(fresh, null), 'verify');
    assert.equal(decideOwnership(stateOf('verified'), ownerWith('holder_found')), 'verify');
    assert.equal(decideOwnership(fresh, ownerWith('only_claimant_found')), 'await_second_check');
    assert.equal(
      decideOwnership(takingOver(fresh, 59), ownerWith('only_claimant_found')),
      'await_second_check',
    );
    assert.equal(decideOwnership(takingOver(fresh, 60), ownerWith('only_claimant_found')), 'take_over');
    assert.equal(
      decideOwnership(takingOver(fresh, 60, 'an owner before'), ownerWith('only_claimant_found')),
      'await_second_check',
    );
    for (const token of ['holder_found', 'unknown', 'claimant_incomplete'] as const)
      for (const given of [fresh, takingOver(fresh, 60)])
        assert.equal(decideOwnership(given, ownerWith(token)), 'wait');
  });

  for (const status of ['unverified', 'pending', 'failed'] as const) {
    const waiting = status === 'failed' ? 'failed' : 'pending';

    test(`${status}, the holder's token is gone: the second check takes over, a minute later`, () => {
      const seen = records('valid', 'valid');
      const first = decideOn(stateOf(status), seen, 'only_claimant_found');
      assert.deepEqual([first.status, first.takesOver], [waiting, false]);
      assert.deepEqual([first.takeoverOf, first.takeoverSince], ['owner', now]);
      assert.match(first.reason, /becomes yours if a check after 2026-11-15T12:01:00\.000Z finds the same/);
      assert.equal(first.waitSeconds, 61);
      assert.equal(noteDecision(seen, first)[0]?.note, first.reason);

      const early = decideOn(takingOver(stateOf(status), 59), seen, 'only_claimant_found');
      assert.deepEqual([early.status, early.takesOver], [waiting, false]);
      assert.deepEqual(early.takeoverSince, ago(59), 'counts from the first');
      assert.equal(early.waitSeconds, 2);

      const second = decideOn(takingOver(stateOf(status), 60), seen, 'only_claimant_found');
      assert.deepEqual([second.status, second.takesOver], ['verified', true]);
      assert.deepEqual([second.takeoverOf, second.takeoverSince], [null, null]);
    });

    test(`${status}, a check in between sees something else: the takeover is cancelled`, () => {
      const given = takingOver(stateOf(status), 90);
      for (const token of ['holder_found', 'unknown', 'claimant_incomplete'] as const)
        assert.equal(decideOn(given, records('valid'), token).takeoverSince, null);
      for (const own of ['missing', 'mismatch', 'unknown'] as const)
        assert.equal(decideOn(given, records(own), 'only_claimant_found').takeoverSince, null);
    });

    for (const [tokens, reason] of [
      ['holder_found', /remove the ownership record of that user/],
      ['unknown', /could not be checked whether/],
      ['claimant_incomplete', /some name servers do not have your ownership record yet/],
    ] as const) {
      test(`${status}, tokens are ${tokens}: ${waiting}, with the reason`, () => {
        const decision = decideOn(stateOf(status, 80 * hour), records('valid'), tokens);
        assert.equal(decision.status, waiting);
        assert.equal(decision.takesOver, false);
        assert.match(decision.reason, reason);
        assert.ok(decision.waitSeconds);
      });
    }

    for (const own of ['missing', 'mismatch', 'unknown'] as const) {
      test(`${status}, the holder's token is gone, the claimant's is ${own}: no takeover`, () => {
        const decision = decideOn(stateOf(status), records(own, 'valid'), 'only_claimant_found');
        assert.notEqual(decision.status, 'verified');
        assert.equal(decision.takesOver, false);
      });
    }
  }

  test('the former holder fails, from now, with the reason', () => {
    const decision = decideLoss(stateOf('verified', 90 * day, hour), { now, random: () => 0 });
    assert.equal(decision.status, 'failed');
    assert.deepEqual(decision.since, now);
    assert.equal(decision.graceSince, null);
    assert.match(decision.reason, /^Another user took over/);
    assert.equal(decision.waitSeconds, 270, 'soon, in case that check saw an old copy of the zone');
    const [told] = noteDecision(records('valid'), decision);
    assert.equal(told?.note, decision.reason);
  });
});

describe('a check is requested', () => {
  for (const status of ['unverified', 'pending', 'failed'] as const) {
    test(`${status}: the schedule restarts`, () => {
      const begun = restartSchedule(stateOf(status, 90 * day), now);
      assert.equal(begun.status, status === 'failed' ? 'unverified' : status);
      assert.deepEqual(begun.since, now);
      assert.equal(decideOn(begun, records('missing')).status, 'unverified');
      const outage = decideOn(begun, records('unknown', null, 'unknown'));
      assert.equal(outage.status, begun.status, 'an outage says nothing');
      const taking = takingOver(stateOf(status), 60);
      assert.equal(restartSchedule(taking, now).takeoverSince, taking.takeoverSince, 'goes on');
    });
  }

  test('verified: nothing changes, a grace included', () => {
    const given = stateOf('verified', 90 * day, hour);
    assert.equal(restartSchedule(given, now), given);
  });
});

describe('the notes of the records', () => {
  const notesOf = (seen: DnsRecord[], decision: Decision) =>
    noteDecision(seen, decision).map(({ note }) => note);
  const graces = (seen: DnsRecord[], decision: Decision) =>
    noteDecision(seen, decision).map(({ graceUntil }) => graceUntil);

  test('a grace period is noted at the required records that are gone, with its end and reason', () => {
    const seen = records('valid', 'missing', 'missing');
    const decision = decideOn(stateOf('verified'), seen);
    assert.deepEqual(graces(seen, decision), [undefined, '2026-11-18T12:00:00.000Z', undefined, undefined]);
    assert.deepEqual(notesOf(seen, decision), [undefined, decision.reason, undefined, undefined]);
  });

  test('also while they cannot be looked up', () => {
    const seen = records('unknown', 'valid');
    const decision = decideOn(stateOf('verified', 90 * day, hour), seen);
    assert.deepEqual(graces(seen, decision), ['2026-11-18T11:00:00.000Z', undefined, undefined, undefined]);
    assert.match(
      notesOf(seen, decision)[0] ?? '',
      /could not be checked with certainty\. The grace period continues\.$/,
    );
  });

  test('a failure is noted at the first record that is not valid, after the note of that record', () => {
    const [ownership, ...rest] = records('missing', 'missing');
    const seen = [{ ...(ownership as DnsRecord), note: 'No record.' }, ...rest];
    const decision = decideOn(stateOf('pending', 72 * hour), seen);
    assert.deepEqual(notesOf(seen, decision), [
      'No record. The ownership record was not found within 72 hours.',
      ...[undefined, undefined, undefined],
    ]);
  });

  test('the ownership record of a claimant says what the claimant waits for', () => {
    const seen = records('valid', 'valid');
    const decision = decideOn(stateOf('pending'), seen, 'holder_found');
    assert.match(notesOf(seen, decision)[0] ?? '', /^Another user is verified/);
  });

  test('otherwise the notes stay as they are', () => {
    for (const status of ['unverified', 'pending', 'verified'] as const) {
      for (const seen of [records('missing'), records('valid'), records('unknown')]) {
        const decision = decideOn(stateOf(status), seen);
        if (decision.graceUntil === null) assert.deepEqual(noteDecision(seen, decision), seen);
      }
    }
  });
});

test('whatever came before: nothing is lost in an outage, and nothing taken without proof', () => {
  const anyStatus = fc.constantFrom<RecordStatus>('missing', 'mismatch', 'valid', 'unknown');
  const anyState = fc.record({
    status: fc.constantFrom<VerificationState['status']>('unverified', 'pending', 'verified', 'failed'),
    since: fc.nat(500 * day).map(ago),
    graceSince: fc.option(fc.nat(100 * hour).map(ago)),
    reason: fc.constant(null),
    takeoverOf: fc.option(fc.constantFrom('owner', 'an owner before')),
    takeoverSince: fc.option(fc.nat(5 * minute).map(ago)),
  });
  const comparisons = fc.constantFrom<TokenComparison | null>(
    null,
    'holder_found',
    'only_claimant_found',
    'unknown',
    'claimant_incomplete',
  );
  const chance = fc.double({ min: 0, max: 1, noNaN: true });
  fc.assert(
    fc.property(
      anyState,
      anyStatus,
      fc.option(anyStatus),
      comparisons,
      chance,
      (given, own, mx, tokens, random) => {
        const decision = decideOn(given, records(own, mx), tokens, random);
        const gone = [own, mx].some((status) => status === 'missing' || status === 'mismatch');
        if (given.status === 'verified' && !gone) assert.equal(decision.status, 'verified');
        if (decision.status === 'verified' && given.status !== 'verified') {
          assert.ok(own === 'valid' && (mx ?? 'valid') === 'valid');
          assert.ok(tokens === null || tokens === 'only_claimant_found');
          assert.equal(decision.takesOver, tokens === 'only_claimant_found');
          if (decision.takesOver) {
            assert.equal(given.takeoverOf, 'owner');
            assert.ok(given.takeoverSince && given.takeoverSince <= ago(minute));
          }
        } else assert.equal(decision.takesOver, false);
        assert.equal(decision.graceUntil === null, decision.graceSince === null);
        if (decision.graceSince) assert.equal(decision.status, 'verified');
        if (decision.status === 'verified') assert.ok(decision.waitSeconds);
        if (decision.waitSeconds !== null)
          assert.ok(decision.waitSeconds > 0 && decision.waitSeconds <= 1.1 * day);
        assert.match(decision.reason, /^[A-Z].*\.$/);
      },
    ),
    { numRuns: 1000 },
  );
});
