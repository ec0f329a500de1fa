/** Fairness between groups and between lanes, with the time as an argument. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { Lanes } from '../src/queue/lanes.ts';

const limits = {
  perLane: 4,
  // No more than at the start, unless a test says otherwise.
  maxPerLane: 4,
  perProcess: 10,
  maxWindow: 32,
  maxAhead: 64,
  breakerFailures: 3,
  breakerPauseMs: 100,
  maxBreakerPauseMs: 1000,
};

interface Job {
  lane: string;
}

const good = { isHealthy: true };
const bad = { isHealthy: false };

/** The group of a lane stands before the slash; a lane without a slash is a group of its own. */
const groupOf = ({ lane }: Job) => lane.split('/')[0] ?? '';

function makeLanes(changed: Partial<typeof limits> = {}): Lanes<Job> {
  return new Lanes<Job>({ ...limits, ...changed }, { laneOf: ({ lane }) => lane, groupOf });
}

/** What a claim gave that asked for so many, or for more. */
function add(lanes: Lanes<Job>, lane: string, count: number, nowMs = 0, asked = count): void {
  const claimed = Array.from({ length: count }, () => ({ lane }));
  lanes.fill(claimed, new Map([[lane, asked]]), nowMs, nowMs);
}

/** The lanes of all jobs that may be tried now. */
function takeAll(lanes: Lanes<Job>): string[] {
  const taken: string[] = [];
  for (let next = lanes.take(); next; next = lanes.take()) taken.push(next.lane);
  return taken;
}

/** At each of these moments a claim that takes all it may, and all of it tried at once. */
function claimAndEmpty(lanes: Lanes<Job>, lane: string, moments: number[]): void {
  for (const nowMs of moments) {
    add(lanes, lane, lanes.allowances(nowMs).get(lane) ?? limits.perLane, nowMs);
    while (lanes.take()) lanes.finish(lane, good, nowMs);
  }
}

function finish(lanes: Lanes<Job>, lane: string, ok: boolean, count: number, nowMs = 0) {
  return Array.from({ length: count }, () =>
    lanes.finish(lane, { isHealthy: ok, answerMs: 100 }, nowMs),
  ).flat();
}

describe('caps', () => {
  test('a lane has at most so many tries under way, and goes on as they end', () => {
    const lanes = makeLanes();
    add(lanes, 'a', 6);
    assert.equal(takeAll(lanes).length, 4);
    assert.equal(lanes.running, 4);
    lanes.finish('a', good, 0);
    assert.equal(takeAll(lanes).length, 1);
    lanes.finish('a', bad, 0);
    assert.equal(takeAll(lanes).length, 1);
    assert.equal(lanes.running, 4);
  });

  test('a process has at most so many in all', () => {
    const lanes = makeLanes();
    for (const name of ['a', 'b', 'c', 'd']) add(lanes, name, 4);
    assert.equal(takeAll(lanes).length, 10);
    lanes.finish('a', good, 0);
    assert.equal(takeAll(lanes).length, 1);
  });

  test('what is skipped makes room and is neither success nor failure', () => {
    const lanes = makeLanes({ breakerFailures: 2 });
    add(lanes, 'a', 6);
    takeAll(lanes);
    assert.deepEqual(lanes.finish('a', bad, 0), []);
    lanes.finishUntried('a');
    assert.equal(lanes.running, 2);
    assert.equal(takeAll(lanes).length, 2);
    lanes.finish('a', bad, 0);
    assert.equal(lanes.pausedCount, 1);
  });

  test('neither cap is ever passed, whatever happens', () => {
    const steps = fc.array(
      fc.tuple(fc.constantFrom('add', 'take', 'reserve', 'ok', 'fail', 'wait'), fc.nat(5), fc.nat(400)),
      { maxLength: 200 },
    );
    fc.assert(
      fc.property(steps, (given) => {
        const lanes = makeLanes({ maxPerLane: 8 });
        const running = new Map<string, number>();
        let nowMs = 0;
        for (const [step, lane, number] of given) {
          const name = `w${lane}`;
          if (step === 'wait') nowMs += number;
          if (step === 'add') {
            const allowed = lanes.allowances(nowMs).get(name) ?? limits.perLane;
            assert.ok(allowed >= 0 && allowed <= limits.maxWindow);
            add(lanes, name, allowed, nowMs);
          }
          if (step === 'take') {
            const taken = lanes.take()?.lane;
            if (taken) running.set(taken, (running.get(taken) ?? 0) + 1);
          }
          if (step === 'reserve' && lanes.reserve(name, nowMs))
            running.set(name, (running.get(name) ?? 0) + 1);
          const under = running.get(name) ?? 0;
          if ((step === 'ok' || step === 'fail') && under > 0) {
            lanes.finish(name, { isHealthy: step === 'ok', answerMs: 1 }, nowMs);
            running.set(name, under - 1);
          }
          const total = [...running.values()].reduce((sum, count) => sum + count, 0);
          assert.equal(lanes.running, total);
          assert.ok(total <= limits.perProcess);
          for (const count of running.values()) assert.ok(count <= 8);
        }
      }),
    );
  });
});

describe('turns', () => {
  test('lanes take turns, however much each has', () => {
    const lanes = makeLanes();
    add(lanes, 'a', 9);
    add(lanes, 'b', 3);
    add(lanes, 'c', 1);
    assert.deepEqual(takeAll(lanes), ['a', 'b', 'c', 'a', 'b', 'a', 'b', 'a']);
  });

  test('within a lane, what was added first is tried first', () => {
    const lanes = makeLanes();
    const [first, second] = [{ lane: 'a' }, { lane: 'a' }];
    lanes.fill([first, second], new Map(), 0, 0);
    assert.equal(lanes.take(), first);
    assert.equal(lanes.take(), second);
  });
});

describe('groups', () => {
  /** Adds so many lanes with so many jobs to a group. */
  function addLanes(lanes: Lanes<Job>, group: string, count: number, jobs: number): void {
    for (let n = 0; n < count; n++) add(lanes, `${group}/${n}`, jobs);
  }
  const count = (taken: string[], group: string) =>
    taken.filter((lane) => groupOf({ lane }) === group).length;

  test('take turns, however many lanes each has', () => {
    const lanes = makeLanes({ perProcess: 100 });
    addLanes(lanes, 'a', 3, 1);
    addLanes(lanes, 'b', 1, 2);
    assert.deepEqual(takeAll(lanes), ['a/0', 'b/0', 'a/1', 'b/0', 'a/2']);
  });

  test('one alone gets three quarters of the places; the next group starts at once', () => {
    const lanes = makeLanes({ perProcess: 100 });
    addLanes(lanes, 'a', 100, 4);
    assert.equal(takeAll(lanes).length, 75);
    addLanes(lanes, 'b', 2, 4);
    assert.equal(count(takeAll(lanes), 'b'), 8);
    assert.equal(lanes.take(), undefined, 'the first gets no more');
  });

  test('get equal parts when all of them want more', () => {
    const lanes = makeLanes({ perProcess: 100 });
    addLanes(lanes, 'a', 100, 4);
    addLanes(lanes, 'b', 20, 4);
    addLanes(lanes, 'c', 10, 4);
    const taken = takeAll(lanes);
    for (const group of ['a', 'b', 'c']) assert.equal(count(taken, group), 30, group);
  });

  test('one that had all to itself gives way as its tries end', () => {
    const lanes = makeLanes({ perProcess: 100 });
    addLanes(lanes, 'a', 100, 4);
    const running = takeAll(lanes);
    addLanes(lanes, 'b', 100, 4);
    takeAll(lanes);
    for (const lane of running) {
      lanes.finish(lane, good, 0);
      takeAll(lanes);
    }
    let left = 0;
    while (lanes.take()) left += 1;
    assert.equal(left, 0);
    assert.ok(lanes.running >= 85 && lanes.running < 100, 'both work, and a third would find a place');
  });

  test('a new one finds a place, whatever the others do', () => {
    const steps = fc.array(fc.tuple(fc.constantFrom('add', 'take', 'end'), fc.nat(4), fc.nat(7)), {
      maxLength: 300,
    });
    fc.assert(
      fc.property(steps, (given) => {
        const lanes = makeLanes({ perProcess: 200 });
        const running: string[] = [];
        for (const [step, group, lane] of given) {
          if (step === 'add') add(lanes, `${group}/${lane}`, 40);
          if (step === 'take') running.push(...takeAll(lanes));
          const ended = step === 'end' ? running.splice(lane, 1)[0] : undefined;
          if (ended) lanes.finish(ended, good, 0);
        }
        takeAll(lanes);
        add(lanes, 'new/0', 1);
        assert.equal(lanes.take()?.lane, 'new/0');
      }),
    );
  });
});

describe('a lane that has grown', () => {
  /** Every try of the lane is answered after 100 ms, until it may have as many at once as any lane. */
  function grow(lanes: Lanes<Job>, lane: string): void {
    for (let nowMs = 0; nowMs < 2000; nowMs += 100) {
      finish(lanes, lane, true, lanes.running, nowMs);
      add(lanes, lane, lanes.allowances(nowMs).get(lane) ?? limits.perLane, nowMs);
      takeAll(lanes);
    }
    finish(lanes, lane, true, lanes.running, 2000);
    lanes.removeAllWaiting();
  }
  const sizes = { perProcess: 96, maxPerLane: 32, maxWindow: 64 };

  test('has more tries at once, and claims as many jobs', () => {
    const lanes = makeLanes(sizes);
    grow(lanes, 'a/0');
    assert.equal(lanes.allowances(2000).get('a/0'), 64);
    add(lanes, 'a/0', 64, 2000);
    assert.equal(takeAll(lanes).length, 32);
  });

  test('and is slow keeps at least two jobs for each try', () => {
    const lanes = makeLanes({ ...sizes, maxWindow: 256, maxAhead: 256 });
    grow(lanes, 'a/0');
    for (const nowMs of [3000, 4000, 5000]) {
      add(lanes, 'a/0', lanes.allowances(nowMs).get('a/0') ?? 0, nowMs);
      finish(lanes, 'a/0', true, takeAll(lanes).length, nowMs);
      lanes.removeAllWaiting();
    }
    assert.equal(lanes.allowances(6000).get('a/0'), 64);
  });

  test('and then hangs, leaves more than half of what the group may have to its other lanes', () => {
    const lanes = makeLanes(sizes);
    for (const lane of ['a/0', 'a/1', 'a/2']) grow(lanes, lane);
    for (const lane of ['a/0', 'a/1', 'a/2']) add(lanes, lane, 64, 2000);
    const hanging = takeAll(lanes).length;
    assert.ok(hanging > 3 * limits.perLane && hanging <= 96 / 3, `${hanging} hang`);
    for (let n = 3; n < 20; n += 1) add(lanes, `a/${n}`, limits.perLane, 2000);
    // One group alone gets three quarters of the 96 places.
    assert.equal(takeAll(lanes).length, 72 - hanging);
    add(lanes, 'b/0', limits.perLane, 2000);
    assert.equal(takeAll(lanes).length, limits.perLane, 'and another group starts at once');
  });

  test('gives way to the other lanes of its group', () => {
    const lanes = makeLanes(sizes);
    grow(lanes, 'a/0');
    add(lanes, 'a/0', 64, 2000);
    add(lanes, 'a/1', 3, 2000);
    assert.deepEqual(takeAll(lanes).slice(0, 8), ['a/0', 'a/1', 'a/0', 'a/1', 'a/0', 'a/1', 'a/0', 'a/0']);
  });

  test('has fewer tries at once after a failure, as those that run now end', () => {
    const lanes = makeLanes(sizes);
    grow(lanes, 'a/0');
    add(lanes, 'a/0', 64, 2000);
    takeAll(lanes);
    lanes.finish('a/0', bad, 2000);
    assert.deepEqual(takeAll(lanes), []);
    finish(lanes, 'a/0', true, 27, 2000);
    assert.deepEqual(takeAll(lanes), []);
    lanes.finish('a/0', good, 2000);
    assert.equal(takeAll(lanes).length, 1, 'four at once, as at the start');
  });
});

describe('claiming ahead', () => {
  test('a key without a lane is not named: it may claim what any may', () => {
    assert.equal(makeLanes().allowances(0).size, 0);
  });

  test('a lane of which nothing is known claims few jobs, and all it may have once it has more', () => {
    const lanes = makeLanes({ perLane: 16 });
    assert.equal(lanes.firstAllowance, 4);
    add(lanes, 'a', 4, 0);
    takeAll(lanes);
    assert.equal(lanes.allowances(600).get('a'), 28);
    finish(lanes, 'a', true, 4, 600);
    add(lanes, 'a', 1, 600, 28);
    takeAll(lanes);
    lanes.finish('a', good, 600);
    assert.equal(lanes.allowances(600).get('a'), 4, 'idle again');
  });

  test('the window doubles while it is emptied quickly, up to its bound', () => {
    const lanes = makeLanes();
    const windows: number[] = [];
    for (let nowMs = 0; nowMs < 700; nowMs += 100) {
      const allowed = lanes.allowances(nowMs).get('a') ?? limits.perLane;
      windows.push(allowed);
      add(lanes, 'a', allowed, nowMs);
      while (lanes.take()) lanes.finish('a', good, nowMs);
    }
    assert.deepEqual(windows, [4, 16, 32, 32, 32, 32, 32]);
  });

  test('a window that has grown is filled by one claim, and the next waits until half of it is free', () => {
    const lanes = makeLanes();
    claimAndEmpty(lanes, 'a', [0, 100, 200]);
    assert.equal(lanes.allowances(300).get('a'), 32);
    add(lanes, 'a', 32, 300);
    takeAll(lanes);
    assert.equal(lanes.allowances(300).get('a'), 0);
    for (let n = 0; n < 15; n++) lanes.finish('a', good, 300);
    assert.equal(lanes.allowances(300).get('a'), 0);
    lanes.finish('a', good, 300);
    assert.equal(lanes.allowances(300).get('a'), 16);
  });

  test('being asked changes nothing: only what is given does', () => {
    const lanes = makeLanes();
    claimAndEmpty(lanes, 'a', [0, 100]);
    for (let n = 0; n < 5; n++) assert.equal(lanes.allowances(200).get('a'), 32);
    for (let n = 0; n < 5; n++) assert.equal(lanes.allowances(600).get('a'), 8);
  });

  test('how quick it was is judged when it asks, however long the answer takes', () => {
    const lanes = makeLanes();
    claimAndEmpty(lanes, 'a', [0]);
    const asked = lanes.allowances(490);
    assert.equal(asked.get('a'), 16);
    lanes.fill(
      Array.from({ length: 16 }, () => ({ lane: 'a' })),
      asked,
      490,
      600,
    );
    takeAll(lanes);
    finish(lanes, 'a', true, 4, 600);
    takeAll(lanes);
    finish(lanes, 'a', true, 4, 600);
    assert.equal(lanes.allowances(610).get('a'), 24, 'half of sixteen is free, and the next window is 32');
  });

  test('the window halves when it took long to empty, down to two jobs for each try', () => {
    const lanes = makeLanes();
    claimAndEmpty(lanes, 'a', [0, 100, 200]);
    const windows = [700, 1200, 1700, 2200].map((nowMs) => {
      const allowed = lanes.allowances(nowMs).get('a') ?? 0;
      add(lanes, 'a', allowed, nowMs);
      while (lanes.take()) lanes.finish('a', good, nowMs);
      return allowed;
    });
    assert.deepEqual(windows, [16, 8, 8, 8]);
  });

  test('a failure sets the window back', () => {
    const lanes = makeLanes();
    claimAndEmpty(lanes, 'a', [0, 100, 200]);
    add(lanes, 'a', 1, 300, 2);
    takeAll(lanes);
    lanes.finish('a', bad, 300);
    assert.equal(lanes.allowances(300).get('a'), 4);
  });

  test('nothing is claimed for a lane until half its window is free', () => {
    const lanes = makeLanes();
    add(lanes, 'a', 6, 0, 7);
    takeAll(lanes);
    lanes.finish('a', good, 0);
    assert.equal(lanes.allowances(0).get('a'), 0);
    lanes.finish('a', good, 0);
    assert.equal(lanes.allowances(0).get('a'), 4);
  });

  test('the more lanes there are, the less far each claims ahead', () => {
    const lanes = makeLanes();
    const names = Array.from({ length: 8 }, (_, n) => `w${n}`);
    for (const nowMs of [0, 100, 200]) {
      const allowances = lanes.allowances(nowMs);
      const claimed = names.flatMap((name) =>
        Array.from({ length: allowances.get(name) ?? limits.perLane }, () => ({ lane: name })),
      );
      lanes.fill(claimed, allowances, nowMs, nowMs);
      for (let next = lanes.take(); next; next = lanes.take()) lanes.finish(next.lane, good, nowMs);
    }
    assert.deepEqual(new Set(lanes.allowances(300).values()), new Set([limits.maxAhead / 8]));
  });

  test('lanes that are paused do not shorten the window of one that keeps up', () => {
    const lanes = makeLanes({ perProcess: 1000 });
    for (let n = 0; n < 50; n++) {
      add(lanes, `dead${n}`, 3);
      takeAll(lanes);
      finish(lanes, `dead${n}`, false, 3);
    }
    claimAndEmpty(lanes, 'a', [0, 10, 20]);
    assert.equal(lanes.allowances(30).get('a'), limits.maxWindow);
  });

  test('a group is full when its lanes can fill the process, and claims again when half of that is gone', () => {
    const lanes = makeLanes();
    for (let n = 0; n < 9; n++) add(lanes, `a/${n}`, 1);
    assert.deepEqual(lanes.fullGroups(), []);
    add(lanes, 'a/9', 1);
    assert.deepEqual(lanes.fullGroups(), ['a']);
    assert.equal(lanes.isAtMostHalfFull('a'), false);
    for (let n = 0; n < 5; n++) lanes.take();
    assert.deepEqual(lanes.fullGroups(), []);
    assert.equal(lanes.isAtMostHalfFull('a'), true);
  });

  test('a group that is full does not keep another from claiming, and has a smaller part when the other waits too', () => {
    const lanes = makeLanes();
    for (let n = 0; n < 20; n++) add(lanes, `a/${n}`, 1);
    add(lanes, 'b/0', 1);
    assert.deepEqual(lanes.fullGroups(), ['a']);
    for (let n = 1; n < 5; n++) add(lanes, `b/${n}`, 1);
    assert.deepEqual(lanes.fullGroups(), ['a', 'b'], 'five of ten for each');
  });

  test('many lanes of one group do not shorten the window of another', () => {
    const lanes = makeLanes({ perProcess: 1000 });
    for (let n = 0; n < 50; n++) add(lanes, `a/${n}`, 1);
    takeAll(lanes);
    claimAndEmpty(lanes, 'b/0', [0, 10, 20]);
    assert.equal(lanes.allowances(30).get('b/0'), limits.maxWindow);
  });

  test('what waits behind the cap of slow lanes takes no room from others of the group', () => {
    const lanes = makeLanes({ perProcess: 20 });
    for (const lane of ['a/slow', 'a/slower', 'a/slowest']) add(lanes, lane, 30);
    takeAll(lanes);
    assert.deepEqual(lanes.fullGroups(), [], 'twelve are running and 78 wait for them');
    add(lanes, 'a/quick', 2);
    assert.deepEqual(takeAll(lanes), ['a/quick', 'a/quick']);
  });

  test('another claim is wanted once the last one took all it might and half the window is free', () => {
    const lanes = makeLanes();
    assert.ok(!lanes.wantsMore('a', 0));
    add(lanes, 'a', 6);
    takeAll(lanes);
    lanes.finish('a', good, 0);
    assert.ok(!lanes.wantsMore('a', 0));
    lanes.finish('a', good, 0);
    assert.ok(lanes.wantsMore('a', 0));
  });

  test('no other claim is wanted when the last one found less than it asked for', () => {
    const lanes = makeLanes();
    add(lanes, 'a', 3, 0, 4);
    takeAll(lanes);
    finish(lanes, 'a', true, 3);
    assert.ok(!lanes.wantsMore('a', 0));
  });

  test('nor while the lane is paused', () => {
    const lanes = makeLanes();
    add(lanes, 'a', 4);
    takeAll(lanes);
    finish(lanes, 'a', false, 4);
    assert.ok(!lanes.wantsMore('a', 99));
  });
});

describe('new jobs in the database', () => {
  /** Five jobs of a window of eight, after a claim at time 10 that found fewer than it asked for. */
  function makeBusy(): Lanes<Job> {
    const lanes = makeLanes();
    add(lanes, 'a', 5, 10, 8);
    takeAll(lanes);
    assert.equal(lanes.allowances(10).get('a'), 0);
    return lanes;
  }

  /** A claim that finds nothing, because it asks for no job of lane a. */
  function claimNothing(lanes: Lanes<Job>, nowMs: number): void {
    lanes.fill([], lanes.allowances(nowMs), nowMs, nowMs);
  }

  test('a lane whose tries are all at work claims more before one of them ends', () => {
    const lanes = makeLanes();
    add(lanes, 'a', 4);
    assert.equal(takeAll(lanes).length, 4);
    assert.ok(lanes.wantsMore('a', 0));
    assert.equal(lanes.allowances(600).get('a'), 4);
  });

  test('also right after its limit has grown', () => {
    const lanes = makeLanes({ maxPerLane: 8, perProcess: 100 });
    add(lanes, 'a', 11);
    takeAll(lanes);
    finish(lanes, 'a', true, 4, 200);
    assert.equal(takeAll(lanes).length, 7, 'all that wait');
    assert.ok(lanes.wantsMore('a', 200));
  });

  test('of a lane without room are not claimed now, but when it has room', () => {
    const lanes = makeBusy();
    assert.equal(lanes.noteNew(['a'], 20), false);
    assert.ok(!lanes.wantsMore('a', 20));
    lanes.finish('a', good, 20);
    assert.ok(lanes.wantsMore('a', 20));
  });

  test('of a lane that nobody named are claimed when it has room', () => {
    const lanes = makeBusy();
    assert.equal(lanes.noteNew(undefined, 20), true);
    claimNothing(lanes, 20);
    lanes.finish('a', good, 20);
    assert.ok(lanes.wantsMore('a', 20));
  });

  test('that came during a claim are claimed when their lane has room', () => {
    const lanes = makeLanes();
    const asked = new Map([['a', 8]]);
    assert.equal(lanes.noteNew(['a'], 20), true, 'nothing is known of the lane');
    add(lanes, 'a', 1, 20, 8);
    assert.equal(lanes.noteNew(['a'], 40), true, 'the lane has room');
    const claimed = Array.from({ length: 4 }, () => ({ lane: 'a' }));
    lanes.fill(claimed, asked, 30, 50);
    takeAll(lanes);
    claimNothing(lanes, 50);
    lanes.finish('a', good, 50);
    assert.ok(lanes.wantsMore('a', 50));
  });

  test('are not expected in a lane that a claim left out for want of room, when nothing was created', () => {
    const lanes = makeBusy();
    claimNothing(lanes, 20);
    lanes.finish('a', good, 20);
    assert.ok(!lanes.wantsMore('a', 20));
  });

  test('of a lane that has room let it reserve places as before', () => {
    const lanes = makeLanes();
    add(lanes, 'a', 1, 0, 4);
    takeAll(lanes);
    assert.equal(lanes.noteNew(['a'], 1), true);
    assert.ok(lanes.reserve('a', 1));
  });
});

describe('the breaker', () => {
  /** Paused at time 0 by three failures, with nothing left under way. */
  function paused(): Lanes<Job> {
    const lanes = makeLanes();
    add(lanes, 'a', 3);
    takeAll(lanes);
    finish(lanes, 'a', false, 3);
    return lanes;
  }

  /** One more try of the lane, which ends as told. */
  function probe(lanes: Lanes<Job>, nowMs: number, ok: boolean): void {
    assert.equal(lanes.allowances(nowMs).get('a'), 1, `a probe at ${nowMs}`);
    add(lanes, 'a', 1, nowMs);
    assert.deepEqual(takeAll(lanes), ['a']);
    assert.equal(lanes.allowances(nowMs).get('a'), 0, 'one at a time');
    lanes.finish('a', { isHealthy: ok }, nowMs);
  }

  test('opens after so many failures in a row and releases what was claimed ahead', () => {
    const lanes = makeLanes();
    add(lanes, 'a', 10);
    add(lanes, 'b', 1);
    takeAll(lanes);
    assert.deepEqual(finish(lanes, 'a', false, 2), []);
    assert.equal(lanes.pausedCount, 0);
    assert.equal(takeAll(lanes).length, 2);
    const released = finish(lanes, 'a', false, 1);
    assert.deepEqual(
      released.map(({ lane }) => lane),
      Array.from({ length: 4 }, () => 'a'),
    );
    assert.equal(lanes.pausedCount, 1);
    assert.deepEqual(takeAll(lanes), [], 'what was released is not tried');
    assert.equal(lanes.allowances(0).get('a'), 0);
    assert.notEqual(lanes.allowances(0).get('b'), 0);
  });

  test('opens also when the failures come one by one, with nothing to do between them', () => {
    const lanes = makeLanes();
    for (const nowMs of [5000, 5900, 6800]) {
      lanes.allowances(nowMs);
      add(lanes, 'a', 1, nowMs, 4);
      takeAll(lanes);
      assert.equal(lanes.pausedCount, 0);
      lanes.finish('a', bad, nowMs);
    }
    assert.equal(lanes.pausedCount, 1);
  });

  test('does not open while there is a success among the failures', () => {
    const lanes = makeLanes();
    for (let round = 0; round < 10; round++) {
      add(lanes, 'a', 3);
      takeAll(lanes);
      finish(lanes, 'a', false, 2);
      finish(lanes, 'a', true, 1);
    }
    assert.equal(lanes.pausedCount, 0);
  });

  test('after its pause one job probes, and each failed probe doubles the pause up to its bound', () => {
    const lanes = paused();
    let nowMs = 0;
    for (const pauseMs of [100, 200, 400, 800, 1000, 1000]) {
      assert.equal(lanes.allowances(nowMs + pauseMs - 1).get('a'), 0, `paused for ${pauseMs} ms`);
      nowMs += pauseMs;
      probe(lanes, nowMs, false);
      assert.equal(lanes.pausedCount, 1);
    }
  });

  test('closes when the probe succeeds, and begins anew with the shortest pause', () => {
    const lanes = paused();
    probe(lanes, 100, false);
    probe(lanes, 300, true);
    assert.equal(lanes.pausedCount, 0);
    assert.equal(lanes.allowances(300).get('a'), 8, 'no longer one at a time, and quick');
    add(lanes, 'a', 3, 300);
    takeAll(lanes);
    finish(lanes, 'a', false, 3, 300);
    assert.equal(lanes.allowances(399).get('a'), 0);
    assert.equal(lanes.allowances(400).get('a'), 1);
  });

  test('what was under way when it opened does not lengthen the pause', () => {
    const lanes = makeLanes();
    add(lanes, 'a', 4);
    takeAll(lanes);
    finish(lanes, 'a', false, 3, 0);
    lanes.finish('a', bad, 50);
    assert.equal(lanes.allowances(99).get('a'), 0);
    assert.equal(lanes.allowances(100).get('a'), 1);
  });

  test('no probe while something is still under way', () => {
    const lanes = makeLanes();
    add(lanes, 'a', 4);
    takeAll(lanes);
    finish(lanes, 'a', false, 3, 0);
    assert.equal(lanes.allowances(500).get('a'), 0);
  });
});

describe('a reserved place', () => {
  /** A lane that was asked for more than it had, and has nothing left to do. */
  function makeIdle(changed: Partial<typeof limits> = {}): Lanes<Job> {
    const lanes = makeLanes(changed);
    add(lanes, 'a', 1, 0, 4);
    takeAll(lanes);
    lanes.finish('a', good, 0);
    return lanes;
  }

  test('counts as a try, and is given back as one', () => {
    const lanes = makeIdle();
    for (let n = 0; n < limits.perLane; n += 1) assert.ok(lanes.reserve('a', 0));
    assert.ok(!lanes.reserve('a', 0));
    assert.equal(lanes.running, limits.perLane);
    lanes.finishUntried('a');
    assert.ok(lanes.reserve('a', 0));
    lanes.finish('a', good, 0);
    assert.ok(lanes.reserve('a', 0));
  });

  test('is not for a lane that nobody has claimed from', () => {
    assert.ok(!makeLanes().reserve('a', 0));
  });

  test('is not for a lane with a job that waits here, or perhaps in the database', () => {
    const here = makeIdle({ perLane: 1 });
    add(here, 'a', 2, 0, 4);
    takeAll(here);
    here.finishUntried('a');
    assert.ok(!here.reserve('a', 0));
    const elsewhere = makeIdle();
    add(elsewhere, 'a', 2, 0, 2);
    takeAll(elsewhere);
    assert.ok(!elsewhere.reserve('a', 0));
  });

  test('is not for a lane that is paused', () => {
    const lanes = makeIdle();
    add(lanes, 'a', 3, 0, 4);
    takeAll(lanes);
    finish(lanes, 'a', false, 3);
    assert.ok(!lanes.reserve('a', 0));
    assert.ok(!lanes.reserve('a', 100), 'not for a probe either');
  });

  test('is not beyond the share of its group', () => {
    const lanes = makeLanes({ perLane: 100 });
    add(lanes, 'a', 1, 0, 4);
    let reserved = 0;
    while (lanes.reserve('a', 0)) reserved += 1;
    assert.equal(reserved, 0, 'a job waits');
    takeAll(lanes);
    while (lanes.reserve('a', 0)) reserved += 1;
    assert.equal(lanes.running, 8);
  });

  test('keeps its lane from being forgotten', () => {
    const lanes = makeIdle();
    assert.ok(lanes.reserve('a', 50_000));
    lanes.finishUntried('a');
    assert.equal(lanes.allowances(110_000).size, 1);
    assert.equal(lanes.allowances(110_001).size, 0);
  });
});

describe('memory', () => {
  test('a lane that is idle is forgotten after a minute', () => {
    const lanes = makeLanes();
    for (let lane = 0; lane < 1000; lane++) {
      add(lanes, `w${lane}`, 1);
      lanes.take();
      lanes.finish(`w${lane}`, good, 0);
    }
    assert.equal(lanes.allowances(60_000).size, 1000);
    assert.equal(lanes.allowances(60_001).size, 0);
  });

  test('one with work is kept', () => {
    const lanes = makeLanes();
    add(lanes, 'queued', 1);
    add(lanes, 'running', 1);
    lanes.take();
    assert.deepEqual([...lanes.allowances(1e9).keys()].sort(), ['queued', 'running']);
  });

  test('one that failed is remembered for as long as a pause can last, and no longer', () => {
    const lanes = makeLanes({ maxBreakerPauseMs: 100_000 });
    add(lanes, 'a', 3);
    takeAll(lanes);
    finish(lanes, 'a', false, 3);
    assert.equal(lanes.allowances(100_100).size, 1);
    assert.equal(lanes.allowances(100_101).size, 0);
    assert.equal(lanes.pausedCount, 0);
  });

  test('at the end all that was not tried is removed', () => {
    const lanes = makeLanes();
    add(lanes, 'a', 6);
    add(lanes, 'b', 2);
    takeAll(lanes);
    assert.equal(lanes.removeAllWaiting().length, 2);
    lanes.finish('a', good, 0);
    assert.deepEqual(takeAll(lanes), []);
  });
});
