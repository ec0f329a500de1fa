/** Fairness between webhooks, with the time as an argument. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { defaultLimits, Lanes } from '../src/webhooks/lanes.ts';

const limits = {
  perWebhook: 4,
  perProcess: 10,
  maxWindow: 32,
  maxAhead: 64,
  breakerFailures: 3,
  breakerPauseMs: 100,
  maxBreakerPauseMs: 1000,
};

let ids = 0;
function delivery(webhookId: string) {
  return { id: String(++ids), token: 't', eventId: 'e', webhookId, tries: 0, isNew: true, waitedSeconds: 0 };
}

/** What a claim gave that asked for so many, or for more. */
function add(lanes: Lanes, webhookId: string, count: number, nowMs = 0, asked = count): void {
  const claimed = Array.from({ length: count }, () => delivery(webhookId));
  lanes.fill(claimed, new Map([[webhookId, asked]]), nowMs, nowMs);
}

/** Everything that may be tried now, by webhook. */
function takeAll(lanes: Lanes): string[] {
  const taken: string[] = [];
  for (let next = lanes.take(); next; next = lanes.take()) taken.push(next.webhookId);
  return taken;
}

/** At each of these moments a claim that takes all it may, and all of it tried at once. */
function claimAndEmpty(lanes: Lanes, webhookId: string, moments: number[]): void {
  for (const nowMs of moments) {
    add(lanes, webhookId, lanes.allowances(nowMs).get(webhookId) ?? limits.perWebhook, nowMs);
    while (lanes.take()) lanes.settle(webhookId, true, nowMs);
  }
}

function settle(lanes: Lanes, webhookId: string, ok: boolean, count: number, nowMs = 0) {
  return Array.from({ length: count }, () => lanes.settle(webhookId, ok, nowMs)).flat();
}

describe('caps', () => {
  test('a webhook has at most so many tries under way, and goes on as they end', () => {
    const lanes = new Lanes(limits);
    add(lanes, 'a', 6);
    assert.equal(takeAll(lanes).length, 4);
    assert.equal(lanes.running, 4);
    lanes.settle('a', true, 0);
    assert.equal(takeAll(lanes).length, 1);
    lanes.settle('a', false, 0);
    assert.equal(takeAll(lanes).length, 1);
    assert.equal(lanes.running, 4);
  });

  test('a process has at most so many in all', () => {
    const lanes = new Lanes(limits);
    for (const webhook of ['a', 'b', 'c', 'd']) add(lanes, webhook, 4);
    assert.equal(takeAll(lanes).length, 10);
    lanes.settle('a', true, 0);
    assert.equal(takeAll(lanes).length, 1);
  });

  test('by default 16 for each webhook', () => {
    assert.equal(defaultLimits.perWebhook, 16);
  });

  test('what is skipped makes room and is neither success nor failure', () => {
    const lanes = new Lanes({ ...limits, breakerFailures: 2 });
    add(lanes, 'a', 6);
    takeAll(lanes);
    assert.deepEqual(lanes.settle('a', false, 0), []);
    lanes.skip('a');
    assert.equal(lanes.running, 2);
    assert.equal(takeAll(lanes).length, 2);
    lanes.settle('a', false, 0);
    assert.equal(lanes.parked, 1);
  });

  test('neither cap is ever passed, whatever happens', () => {
    const steps = fc.array(
      fc.tuple(fc.constantFrom('add', 'take', 'ok', 'fail', 'wait'), fc.nat(5), fc.nat(400)),
      { maxLength: 200 },
    );
    fc.assert(
      fc.property(steps, (given) => {
        const lanes = new Lanes(limits);
        const running = new Map<string, number>();
        let nowMs = 0;
        for (const [step, webhook, number] of given) {
          const name = `w${webhook}`;
          if (step === 'wait') nowMs += number;
          if (step === 'add') {
            const allowed = lanes.allowances(nowMs).get(name) ?? limits.perWebhook;
            assert.ok(allowed >= 0 && allowed <= limits.maxWindow);
            add(lanes, name, allowed, nowMs);
          }
          if (step === 'take') {
            const taken = lanes.take()?.webhookId;
            if (taken) running.set(taken, (running.get(taken) ?? 0) + 1);
          }
          const under = running.get(name) ?? 0;
          if ((step === 'ok' || step === 'fail') && under > 0) {
            lanes.settle(name, step === 'ok', nowMs);
            running.set(name, under - 1);
          }
          const total = [...running.values()].reduce((sum, count) => sum + count, 0);
          assert.equal(lanes.running, total);
          assert.ok(total <= limits.perProcess);
          for (const count of running.values()) assert.ok(count <= limits.perWebhook);
        }
      }),
    );
  });
});

describe('turns', () => {
  test('webhooks take turns, however much each has', () => {
    const lanes = new Lanes(limits);
    add(lanes, 'a', 9);
    add(lanes, 'b', 3);
    add(lanes, 'c', 1);
    assert.deepEqual(takeAll(lanes), ['a', 'b', 'c', 'a', 'b', 'a', 'b', 'a']);
  });

  test('within a webhook, what was added first is tried first', () => {
    const lanes = new Lanes(limits);
    const [first, second] = [delivery('a'), delivery('a')];
    lanes.fill([first, second], new Map(), 0, 0);
    assert.equal(lanes.take(), first);
    assert.equal(lanes.take(), second);
  });
});

describe('claiming ahead', () => {
  test('a webhook without a lane is not named: it may have what any may', () => {
    assert.equal(new Lanes(limits).allowances(0).size, 0);
  });

  test('the window doubles while it is emptied quickly, up to its bound', () => {
    const lanes = new Lanes(limits);
    const windows: number[] = [];
    for (let nowMs = 0; nowMs < 700; nowMs += 100) {
      const allowed = lanes.allowances(nowMs).get('a') ?? limits.perWebhook;
      windows.push(allowed);
      add(lanes, 'a', allowed, nowMs);
      while (lanes.take()) lanes.settle('a', true, nowMs);
    }
    assert.deepEqual(windows, [4, 8, 16, 32, 32, 32, 32]);
  });

  test('a window that has grown is filled by one claim, and the next waits until half of it is free', () => {
    const lanes = new Lanes(limits);
    claimAndEmpty(lanes, 'a', [0, 100, 200]);
    assert.equal(lanes.allowances(300).get('a'), 32);
    add(lanes, 'a', 32, 300);
    takeAll(lanes);
    assert.equal(lanes.allowances(300).get('a'), 0);
    for (let n = 0; n < 15; n++) lanes.settle('a', true, 300);
    assert.equal(lanes.allowances(300).get('a'), 0);
    lanes.settle('a', true, 300);
    assert.equal(lanes.allowances(300).get('a'), 16);
  });

  test('being asked changes nothing: only what is given does', () => {
    const lanes = new Lanes(limits);
    claimAndEmpty(lanes, 'a', [0, 100]);
    for (let n = 0; n < 5; n++) assert.equal(lanes.allowances(200).get('a'), 16);
    for (let n = 0; n < 5; n++) assert.equal(lanes.allowances(600).get('a'), 4);
  });

  test('how quick it was is judged when it asks, however long the answer takes', () => {
    const lanes = new Lanes(limits);
    claimAndEmpty(lanes, 'a', [0, 100]);
    const asked = lanes.allowances(590);
    assert.equal(asked.get('a'), 16);
    lanes.fill(
      Array.from({ length: 16 }, () => delivery('a')),
      asked,
      590,
      700,
    );
    takeAll(lanes);
    settle(lanes, 'a', true, 4, 700);
    takeAll(lanes);
    settle(lanes, 'a', true, 4, 700);
    assert.equal(lanes.allowances(710).get('a'), 24, 'half of sixteen is free, and the next window is 32');
  });

  test('the window halves when it took long to empty, down to what may be tried at once', () => {
    const lanes = new Lanes(limits);
    claimAndEmpty(lanes, 'a', [0, 100, 200]);
    const windows = [700, 1200, 1700, 2200].map((nowMs) => {
      const allowed = lanes.allowances(nowMs).get('a') ?? 0;
      add(lanes, 'a', allowed, nowMs);
      while (lanes.take()) lanes.settle('a', true, nowMs);
      return allowed;
    });
    assert.deepEqual(windows, [8, 4, 4, 4]);
  });

  test('a failure sets the window back', () => {
    const lanes = new Lanes(limits);
    claimAndEmpty(lanes, 'a', [0, 100, 200]);
    add(lanes, 'a', 1, 300, 2);
    takeAll(lanes);
    lanes.settle('a', false, 300);
    assert.equal(lanes.allowances(300).get('a'), 4);
  });

  test('nothing is claimed for a webhook until half its window is free', () => {
    const lanes = new Lanes(limits);
    add(lanes, 'a', 4, 0, 5);
    takeAll(lanes);
    lanes.settle('a', true, 0);
    assert.equal(lanes.allowances(0).get('a'), 0);
    lanes.settle('a', true, 0);
    assert.equal(lanes.allowances(0).get('a'), 2);
  });

  test('the more webhooks there are, the less far each claims ahead', () => {
    const lanes = new Lanes(limits);
    const names = Array.from({ length: 8 }, (_, n) => `w${n}`);
    for (const nowMs of [0, 100, 200]) {
      const allowances = lanes.allowances(nowMs);
      const claimed = names.flatMap((name) =>
        Array.from({ length: allowances.get(name) ?? limits.perWebhook }, () => delivery(name)),
      );
      lanes.fill(claimed, allowances, nowMs, nowMs);
      for (let next = lanes.take(); next; next = lanes.take()) lanes.settle(next.webhookId, true, nowMs);
    }
    assert.deepEqual(new Set(lanes.allowances(300).values()), new Set([limits.maxAhead / 8]));
  });

  test('webhooks that are parked do not shorten the window of one that keeps up', () => {
    const lanes = new Lanes({ ...limits, perProcess: 1000 });
    for (let n = 0; n < 50; n++) {
      add(lanes, `dead${n}`, 3);
      takeAll(lanes);
      settle(lanes, `dead${n}`, false, 3);
    }
    claimAndEmpty(lanes, 'a', [0, 10, 20]);
    assert.equal(lanes.allowances(30).get('a'), limits.maxWindow);
  });

  test('there is room until as many webhooks wait for a place as there are places', () => {
    const lanes = new Lanes(limits);
    for (let webhook = 0; webhook < 9; webhook++) add(lanes, `w${webhook}`, 1);
    assert.ok(lanes.hasRoom());
    add(lanes, 'w9', 1);
    assert.ok(!lanes.hasRoom());
    lanes.take();
    assert.ok(lanes.hasRoom());
  });

  test('what waits behind the cap of slow webhooks takes no room from others', () => {
    const lanes = new Lanes({ ...limits, perProcess: 16 });
    for (const webhook of ['slow', 'slower', 'slowest']) add(lanes, webhook, 30);
    takeAll(lanes);
    assert.ok(lanes.hasRoom(), 'twelve are under way and 78 wait for them');
    add(lanes, 'quick', 2);
    assert.deepEqual(takeAll(lanes), ['quick', 'quick']);
  });

  test('another claim is wanted once the last one took all it might and half the window is free', () => {
    const lanes = new Lanes(limits);
    assert.ok(!lanes.wantsMore('a', 0));
    add(lanes, 'a', 4);
    takeAll(lanes);
    lanes.settle('a', true, 0);
    assert.ok(!lanes.wantsMore('a', 0));
    lanes.settle('a', true, 0);
    assert.ok(lanes.wantsMore('a', 0));
  });

  test('no other claim is wanted when the last one found less than it asked for', () => {
    const lanes = new Lanes(limits);
    add(lanes, 'a', 3, 0, 4);
    takeAll(lanes);
    settle(lanes, 'a', true, 3);
    assert.ok(!lanes.wantsMore('a', 0));
  });

  test('nor while the webhook is parked', () => {
    const lanes = new Lanes(limits);
    add(lanes, 'a', 4);
    takeAll(lanes);
    settle(lanes, 'a', false, 4);
    assert.ok(!lanes.wantsMore('a', 99));
  });
});

describe('the breaker', () => {
  /** Parked at time 0 by three failures, with nothing left under way. */
  function parked(): Lanes {
    const lanes = new Lanes(limits);
    add(lanes, 'a', 3);
    takeAll(lanes);
    settle(lanes, 'a', false, 3);
    return lanes;
  }

  /** One more try of the webhook, which ends as told. */
  function probe(lanes: Lanes, nowMs: number, ok: boolean): void {
    assert.equal(lanes.allowances(nowMs).get('a'), 1, `a probe at ${nowMs}`);
    add(lanes, 'a', 1, nowMs);
    assert.deepEqual(takeAll(lanes), ['a']);
    assert.equal(lanes.allowances(nowMs).get('a'), 0, 'one at a time');
    lanes.settle('a', ok, nowMs);
  }

  test('opens after so many failures in a row and gives back what was claimed ahead', () => {
    const lanes = new Lanes(limits);
    add(lanes, 'a', 10);
    add(lanes, 'b', 1);
    takeAll(lanes);
    assert.deepEqual(settle(lanes, 'a', false, 2), []);
    assert.equal(lanes.parked, 0);
    assert.equal(takeAll(lanes).length, 2);
    const back = settle(lanes, 'a', false, 1);
    assert.deepEqual(
      back.map(({ webhookId }) => webhookId),
      Array.from({ length: 4 }, () => 'a'),
    );
    assert.equal(lanes.parked, 1);
    assert.deepEqual(takeAll(lanes), [], 'what was given back is not tried');
    assert.equal(lanes.allowances(0).get('a'), 0);
    assert.notEqual(lanes.allowances(0).get('b'), 0);
  });

  test('opens also when the failures come one by one, with nothing to do between them', () => {
    const lanes = new Lanes(limits);
    for (const nowMs of [5000, 5900, 6800]) {
      lanes.allowances(nowMs);
      add(lanes, 'a', 1, nowMs, 4);
      takeAll(lanes);
      assert.equal(lanes.parked, 0);
      lanes.settle('a', false, nowMs);
    }
    assert.equal(lanes.parked, 1);
  });

  test('does not open while there is a success among the failures', () => {
    const lanes = new Lanes(limits);
    for (let round = 0; round < 10; round++) {
      add(lanes, 'a', 3);
      takeAll(lanes);
      settle(lanes, 'a', false, 2);
      settle(lanes, 'a', true, 1);
    }
    assert.equal(lanes.parked, 0);
  });

  test('after its pause one delivery probes, and each failed probe doubles the pause up to its bound', () => {
    const lanes = parked();
    let nowMs = 0;
    for (const pauseMs of [100, 200, 400, 800, 1000, 1000]) {
      assert.equal(lanes.allowances(nowMs + pauseMs - 1).get('a'), 0, `parked for ${pauseMs} ms`);
      nowMs += pauseMs;
      probe(lanes, nowMs, false);
      assert.equal(lanes.parked, 1);
    }
  });

  test('closes when the probe succeeds, and begins anew with the shortest pause', () => {
    const lanes = parked();
    probe(lanes, 100, false);
    probe(lanes, 300, true);
    assert.equal(lanes.parked, 0);
    assert.equal(lanes.allowances(300).get('a'), 8, 'no longer one at a time, and quick');
    add(lanes, 'a', 3, 300);
    takeAll(lanes);
    settle(lanes, 'a', false, 3, 300);
    assert.equal(lanes.allowances(399).get('a'), 0);
    assert.equal(lanes.allowances(400).get('a'), 1);
  });

  test('what was under way when it opened does not lengthen the pause', () => {
    const lanes = new Lanes(limits);
    add(lanes, 'a', 4);
    takeAll(lanes);
    settle(lanes, 'a', false, 3, 0);
    lanes.settle('a', false, 50);
    assert.equal(lanes.allowances(99).get('a'), 0);
    assert.equal(lanes.allowances(100).get('a'), 1);
  });

  test('no probe while something is still under way', () => {
    const lanes = new Lanes(limits);
    add(lanes, 'a', 4);
    takeAll(lanes);
    settle(lanes, 'a', false, 3, 0);
    assert.equal(lanes.allowances(500).get('a'), 0);
  });
});

describe('memory', () => {
  test('a lane that is idle is forgotten after a moment', () => {
    const lanes = new Lanes(limits);
    for (let webhook = 0; webhook < 1000; webhook++) {
      add(lanes, `w${webhook}`, 1);
      lanes.take();
      lanes.settle(`w${webhook}`, true, 0);
    }
    assert.equal(lanes.allowances(500).size, 1000);
    assert.equal(lanes.allowances(501).size, 0);
  });

  test('one with work is kept', () => {
    const lanes = new Lanes(limits);
    add(lanes, 'queued', 1);
    add(lanes, 'running', 1);
    lanes.take();
    assert.deepEqual([...lanes.allowances(1e9).keys()].sort(), ['queued', 'running']);
  });

  test('one that failed is remembered for as long as a pause can last, and no longer', () => {
    const lanes = new Lanes(limits);
    add(lanes, 'a', 3);
    takeAll(lanes);
    settle(lanes, 'a', false, 3);
    assert.equal(lanes.allowances(1100).size, 1);
    assert.equal(lanes.allowances(1101).size, 0);
    assert.equal(lanes.parked, 0);
  });

  test('at the end all that was not tried is handed back', () => {
    const lanes = new Lanes(limits);
    add(lanes, 'a', 6);
    add(lanes, 'b', 2);
    takeAll(lanes);
    assert.equal(lanes.emptyAll().length, 2);
    lanes.settle('a', true, 0);
    assert.deepEqual(takeAll(lanes), []);
  });
});
