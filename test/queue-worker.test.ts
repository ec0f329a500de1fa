/** The loop of a queue, on jobs that are nothing but an id and a lane, kept in memory. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { makeLog } from '../src/lib/log.ts';
import type { Lease } from '../src/queue/leases.ts';
import { type JobOutcome, type Preparation, type Queue, QueueWorker } from '../src/queue/worker.ts';
import { waitFor } from './harness.ts';

/** The group of a lane stands before the slash; a lane without a slash is a group of its own. */
interface Job extends Lease {
  lane: string;
}

const groupOf = (lane: string) => lane.split('/')[0] ?? '';

interface Outcome extends JobOutcome {
  token: string;
}

type TestQueue = Queue<Job, Preparation, Outcome>;

interface Row {
  id: string;
  lane: string;
  status: 'ready' | 'done' | 'held' | 'cancelled';
  lease: { token: string; until: number } | null;
}

const leaseMs = 20_000;
const limits = {
  perLane: 2,
  maxPerLane: 2,
  perProcess: 100,
  maxWindow: 8,
  maxAhead: 100,
  breakerFailures: 3,
  breakerPauseMs: 3_600_000,
  maxBreakerPauseMs: 3_600_000,
};

/** The rows, with a clock that stands still unless a test moves it. */
function makeTable(lanes: Record<string, number>) {
  const rows: Row[] = Object.entries(lanes).flatMap(([lane, count]) =>
    Array.from({ length: count }, (_, n) => ({
      id: `${lane}${n}`,
      lane,
      status: 'ready' as const,
      lease: null,
    })),
  );
  let now = 0;
  /** Changes the rows whose lease is still the given one, and returns their ids. */
  const update = (leases: readonly Lease[], change: (row: Row, lease: Lease) => void): string[] =>
    leases.flatMap((lease) => {
      const row = rows.find(({ id }) => id === lease.id);
      if (row?.lease?.token !== lease.token) return [];
      change(row, lease);
      return [row.id];
    });

  const claim: TestQueue['claim'] = async (request) => {
    const { token, afterGroup, afterLanes, skippedGroups, allowances, allowance, maxLanes } = request;
    // As a database does, it lets other work go first.
    await new Promise((resolve) => setImmediate(resolve));
    const isFree = (row: Row) => row.status === 'ready' && !(row.lease && row.lease.until > now);
    const free = new Map<string, Row[]>();
    for (const lane of Object.keys(lanes).sort()) {
      const group = groupOf(lane);
      if (group <= (afterGroup ?? '') || lane <= (afterLanes.get(group) ?? '')) continue;
      const found = rows.filter((row) => row.lane === lane && isFree(row));
      const most = skippedGroups.includes(group) ? 0 : (allowances.get(lane) ?? allowance);
      if (found.length > 0 && most > 0) free.set(lane, found.slice(0, most));
    }
    // One lane of each group, then a second one of each, and so on.
    const turns = [...free.keys()].map((lane, index, all) => {
      const before = all.slice(0, index).filter((other) => groupOf(other) === groupOf(lane)).length;
      return { lane, before };
    });
    const chosen = turns.toSorted((a, b) => a.before - b.before).slice(0, maxLanes);
    const taken = chosen.flatMap(({ lane }) => free.get(lane) ?? []);
    for (const row of taken) row.lease = { token, until: now + leaseMs };
    return taken.map(({ id, lane }) => ({ id, lane, token }));
  };

  return {
    rows,
    count: (status: Row['status']) => rows.filter((row) => row.status === status).length,
    leased: (lane: string) => rows.filter((row) => row.lane === lane && row.lease).map(({ id }) => id),
    expireLeases() {
      now += leaseMs;
    },
    claim,
    async renew(leases: readonly Lease[]) {
      const until = now + leaseMs;
      return new Set(update(leases, (row, { token }) => Object.assign(row, { lease: { token, until } })));
    },
    release: async (leases: readonly Lease[]) => update(leases, (row) => Object.assign(row, { lease: null })),
    hold: async (leases: readonly Lease[]) =>
      update(leases, (row) => Object.assign(row, { status: 'held', lease: null })),
    cancel: async (leases: readonly Lease[]) =>
      update(leases, (row) => Object.assign(row, { status: 'cancelled', lease: null })),
    record: async (outcomes: readonly Outcome[]) =>
      update(outcomes, (row) => Object.assign(row, { status: 'done', lease: null })),
  };
}

/** A worker on that table. Unless told otherwise every try succeeds at once. */
function startWorker(table: ReturnType<typeof makeTable>, changed: Partial<TestQueue> = {}) {
  const tried: string[] = [];
  const recorded: string[] = [];
  const lines: { msg: string }[] = [];
  const stream = {
    write: (line: string) => lines.push(JSON.parse(line)),
  } as unknown as NodeJS.WritableStream;
  const gauges = { running: 0, pausedLanes: 0 };
  const { tryOnce = async (job) => succeed(job), ...others } = changed;
  const worker = new QueueWorker<Job, Preparation, Outcome>({
    name: 'errands',
    limits,
    leaseMs,
    maxTryMs: 15_000,
    laneOf: ({ lane }) => lane,
    groupOf: ({ lane }) => groupOf(lane),
    skippedLanes: () => [],
    claim: table.claim,
    renew: table.renew,
    release: table.release,
    hold: table.hold,
    cancel: table.cancel,
    promote: async () => ({ promoted: 0, nextInMs: null }),
    prefetch: async () => {},
    prepare: () => ({}),
    tryOnce(job, ...others) {
      tried.push(job.id);
      return tryOnce(job, ...others);
    },
    abort: async () => {},
    record: table.record,
    afterRecord: async (outcomes) => {
      recorded.push(...outcomes.map(({ id }) => id));
    },
    isUnavailable: () => false,
    gauges: {
      running: { set: (value) => (gauges.running = value) },
      pausedLanes: { set: (value) => (gauges.pausedLanes = value) },
    },
    log: makeLog({ level: 'info', json: true, stream }),
    ...others,
  });
  let stopped: Promise<void> | undefined;
  const stop = () => {
    stopped ??= worker.stop();
    return stopped;
  };
  after(stop);
  const logged = (what: RegExp) => lines.some(({ msg }) => what.test(msg));
  const offer: typeof worker.offer = (laneKeys) => worker.offer(laneKeys);
  const wake: typeof worker.wake = (laneKeys) => worker.wake(laneKeys);
  return { wake, offer, stop, tried, recorded, gauges, logged };
}

function succeed({ id, token }: Job): Outcome {
  return { id, token, isHealthy: true };
}

function fail({ id, token }: Job): Outcome {
  return { id, token, isHealthy: false };
}

/** Tries that wait until the gate is opened. */
function makeGate() {
  let open = () => {};
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { open, opened };
}

test('every job is tried once and its outcome recorded, whatever lane it is in', async () => {
  const table = makeTable({ a: 30, b: 1, c: 7 });
  const worker = startWorker(table);
  await waitFor('the end', () => table.count('done') === 38);
  assert.deepEqual(worker.tried.toSorted(), table.rows.map(({ id }) => id).toSorted());
  await waitFor('what follows', () => worker.recorded.length === 38);
});

test('leases are not renewed while outcomes are recorded: the two statements could lock rows in a circle', async () => {
  const table = makeTable({ a: 1 });
  const renewing = makeGate();
  const recording = makeGate();
  let isRenewing = false;
  let overlapped = false;
  startWorker(table, {
    tryOnce: async (job) => {
      await renewing.opened;
      return succeed(job);
    },
    async renew(leases) {
      isRenewing = true;
      renewing.open();
      // Outcomes are recorded after 25 ms, if nothing keeps them.
      await Promise.race([recording.opened, pause(250)]);
      isRenewing = false;
      return table.renew(leases);
    },
    async record(outcomes) {
      overlapped ||= isRenewing;
      recording.open();
      return table.record(outcomes);
    },
  });
  await waitFor('the end', () => table.count('done') === 1);
  assert.equal(overlapped, false);
});

test('two workers share the jobs, and each job has one try', async () => {
  const table = makeTable({ a: 60, b: 60 });
  const workers = [startWorker(table), startWorker(table)];
  await waitFor('the end', () => table.count('done') === 120);
  const tried = workers.flatMap((worker) => worker.tried);
  assert.equal(new Set(tried).size, 120);
  assert.equal(tried.length, 120);
});

test('tries start a few at a time, so that other work of the process goes on between them', async () => {
  const lanes = Object.fromEntries(Array.from({ length: 64 }, (_, n) => [`lane${n}`, 2]));
  const table = makeTable(lanes);
  let [inOneGo, most, isOver] = [0, 0, false];
  const otherWork = () => {
    inOneGo = 0;
    if (!isOver) setImmediate(otherWork);
  };
  otherWork();
  const worker = startWorker(table, {
    limits: { ...limits, perProcess: 1000 },
    tryOnce: async (job) => {
      inOneGo += 1;
      most = Math.max(most, inOneGo);
      return succeed(job);
    },
  });
  await waitFor('the end', () => table.count('done') === 128);
  isOver = true;
  assert.equal(worker.tried.length, 128);
  assert.ok(most <= 32, `${most} in one go`);
});

describe('a wake', () => {
  /** Tries of lane a that wait for the gate, at most four at once, and no poll. */
  function startBusy(count: number) {
    const table = makeTable({ a: count });
    const gate = makeGate();
    let claims = 0;
    const worker = startWorker(table, {
      limits: { ...limits, perLane: 4, maxPerLane: 4 },
      pollMs: 3_600_000,
      claim: (request) => {
        claims += 1;
        return table.claim(request);
      },
      tryOnce: async (job) => {
        await gate.opened;
        return succeed(job);
      },
    });
    const create = (id: string) => table.rows.push({ id, lane: 'a', status: 'ready', lease: null });
    return { table, gate, worker, create, countClaims: () => claims };
  }

  test('for a lane that has no room is not lost', async () => {
    const { table, gate, worker, create } = startBusy(3);
    await waitFor('the first tries', () => worker.tried.length === 3);
    for (const id of ['b', 'c']) create(id);
    worker.wake();
    await waitFor('a window that is more than half full', () => table.leased('a').length === 5);
    create('d');
    worker.wake();
    gate.open();
    await waitFor('the end', () => table.count('done') === 6);
  });

  test('for lanes that have no room makes no claim, and neither does a claim that took all there was', async () => {
    const { table, gate, worker, create, countClaims } = startBusy(3);
    await waitFor('the first tries', () => worker.tried.length === 3);
    for (const id of ['b', 'c']) create(id);
    worker.wake(['a']);
    await waitFor('a window that is more than half full', () => table.leased('a').length === 5);
    create('d');
    worker.wake(['a']);
    // Whatever was woken has claimed when these are over.
    for (let n = 0; n < 5; n += 1) await new Promise((resolve) => setImmediate(resolve));
    assert.equal(countClaims(), 2);
    gate.open();
    await waitFor('the end', () => table.count('done') === 6);
  });
});

describe('a preparation that waits', () => {
  /** Lane a waits for ever, unless its signal aborts; it says which jobs wait. */
  function startWaiting(lanes: Record<string, number>) {
    const table = makeTable(lanes);
    const waiting = new Set<string>();
    const worker = startWorker(table, {
      prepare: ({ id, lane }, leaseEnd) => {
        if (lane !== 'a') return {};
        const signal = leaseEnd();
        waiting.add(id);
        return new Promise((_resolve, reject) =>
          signal.addEventListener('abort', () => {
            waiting.delete(id);
            reject(signal.reason);
          }),
        );
      },
    });
    return { table, worker, waiting };
  }

  test('ends when the worker stops: the job is free at once, and nothing is logged as a failure', async () => {
    const { table, worker, waiting } = startWaiting({ a: 3 });
    await waitFor('the wait', () => waiting.size === 2);
    await worker.stop();
    assert.equal(waiting.size, 0);
    assert.deepEqual(table.leased('a'), []);
    assert.deepEqual([worker.tried, worker.logged(/failed/)], [[], false]);
  });

  test('ends when its lease is lost, and the other jobs of its lane wait on', async () => {
    const { table, worker, waiting } = startWaiting({ a: 2, b: 1 });
    await waitFor('the wait', () => waiting.size === 2);
    const taken = table.rows.find(({ id }) => id === 'a0');
    assert.ok(taken);
    taken.lease = { token: 'of another process', until: 1e9 };
    await waitFor('the end of the wait', () => !waiting.has('a0'));
    assert.deepEqual([...waiting], ['a1']);
    assert.equal(taken.lease.token, 'of another process');
    assert.equal(worker.logged(/failed/), false);
  });
});

describe('an offer', () => {
  /** A worker that knows lane a, and has nothing to do. */
  async function startIdle(changed: Partial<TestQueue> = {}) {
    const table = makeTable({ a: 1, b: 0 });
    const worker = startWorker(table, changed);
    await waitFor('the first job', () => table.count('done') === 1);
    const create = (id: string, token: string) => {
      table.rows.push({ id, lane: 'a', status: 'ready', lease: { token, until: 1e9 } });
      return { id, lane: 'a', token };
    };
    return { table, worker, create };
  }

  test('lets a new job be tried without a claim, and its outcome be recorded', async () => {
    const { table, worker, create } = await startIdle();
    using offer = worker.offer(['a', 'b']);
    assert.deepEqual(offer?.laneKeys, ['a']);
    offer.adopt([create('new', offer.token)]);
    assert.deepEqual(worker.tried, ['a0', 'new']);
    await waitFor('the end', () => table.count('done') === 2);
  });

  test('that is not used gives its place back, once', async () => {
    const { worker } = await startIdle();
    for (let n = 0; n < 3 * limits.perLane; n += 1) {
      const offer = worker.offer(['a']);
      assert.ok(offer);
      offer[Symbol.dispose]();
      offer[Symbol.dispose]();
    }
    using one = worker.offer(['a']);
    using other = worker.offer(['a']);
    assert.ok(one && other);
    assert.equal(worker.offer(['a']), undefined);
  });

  test('whose lane was paused in the meantime releases the job', async () => {
    const { table, worker, create } = await startIdle({
      tryOnce: async (job) => (job.id.startsWith('bad') ? fail(job) : succeed(job)),
    });
    using late = worker.offer(['a']);
    assert.ok(late);
    for (let n = 0; n < limits.breakerFailures; n += 1) {
      using offer = worker.offer(['a']);
      assert.ok(offer);
      offer.adopt([create(`bad${n}`, offer.token)]);
      await waitFor('the outcome', () => table.rows.find(({ id }) => id === `bad${n}`)?.status === 'done');
    }
    late.adopt([create('late', late.token)]);
    await waitFor('the release', () => table.rows.find(({ id }) => id === 'late')?.lease === null);
    assert.ok(!worker.tried.includes('late'));
  });

  test('is not made by a worker that stops, which waits for earlier offers and releases their jobs', async () => {
    const { table, worker, create } = await startIdle();
    const offer = worker.offer(['a']);
    assert.ok(offer);
    const stopping = worker.stop();
    assert.equal(worker.offer(['a']), undefined);
    offer.adopt([create('late', offer.token)]);
    await stopping;
    assert.equal(table.rows.find(({ id }) => id === 'late')?.lease, null);
    assert.ok(!worker.tried.includes('late'));
  });
});

describe('a lane', () => {
  test('whose tries do not end holds up no other', async () => {
    const table = makeTable({ slow: 20, well: 20 });
    const gate = makeGate();
    const worker = startWorker(table, {
      tryOnce: async (job) => {
        if (job.lane === 'slow') await gate.opened;
        return succeed(job);
      },
    });
    await waitFor('the other lane', () => table.count('done') === 20);
    assert.deepEqual(
      worker.tried.filter((id) => id.startsWith('slow')),
      ['slow0', 'slow1'],
    );
    assert.equal(worker.gauges.running, 2);
    gate.open();
    await waitFor('the slow lane', () => table.count('done') === 40);
  });

  test('that only fails is paused: what it has claimed is released, and others go on', async () => {
    const table = makeTable({ dead: 20, well: 20 });
    const worker = startWorker(table, {
      tryOnce: async (job) => (job.lane === 'dead' ? fail(job) : succeed(job)),
    });
    await waitFor('the other lane', () =>
      table.rows.every(({ lane, status }) => lane === 'dead' || status === 'done'),
    );
    worker.wake();
    await waitFor('the breaker', () => worker.gauges.pausedLanes === 1);
    await waitFor('the release', () => table.leased('dead').length === 0);
    const tried = worker.tried.filter((id) => id.startsWith('dead'));
    assert.ok(tried.length >= 3 && tried.length <= 4, `${tried.length} were tried`);
  });

  test('that is to be skipped is not claimed', async () => {
    const table = makeTable({ a: 3, b: 3 });
    const worker = startWorker(table, { skippedLanes: () => ['a'] });
    await waitFor('the other lane', () => table.count('done') === 3);
    await worker.stop();
    assert.deepEqual(worker.tried.toSorted(), ['b0', 'b1', 'b2']);
  });
});

describe('a group', () => {
  test('whose tries do not end holds up no other, however many lanes it has', async () => {
    const slow = Object.fromEntries(Array.from({ length: 300 }, (_, n) => [`slow/${n}`, 5]));
    const table = makeTable({ ...slow, 'before/0': 9, 'well/0': 9 });
    const gate = makeGate();
    const worker = startWorker(table, {
      limits: { ...limits, perProcess: 16 },
      tryOnce: async (job) => {
        if (groupOf(job.lane) === 'slow') await gate.opened;
        return succeed(job);
      },
    });
    await waitFor('the other groups', () => table.count('done') === 18);
    const tried = worker.tried.filter((id) => id.startsWith('slow'));
    assert.ok(tried.length <= 12, `${tried.length} of 16 places`);
    gate.open();
    await waitFor('the slow group', () => table.count('done') === 1518);
  });

  test('that always has more in its first lanes gets to its last lanes too', async () => {
    const busy = Object.fromEntries(Array.from({ length: 200 }, (_, n) => [`busy/${n}`, 1]));
    const table = makeTable(busy);
    const rest = new Set(Object.keys(busy));
    const worker = startWorker(table, {
      // Every lane but the last ones has its next job when one is done.
      tryOnce: async (job) => {
        rest.delete(job.lane);
        const [done] = table.rows.filter(({ id }) => id === job.id);
        if (done && rest.size > 0) table.rows.push({ ...done, id: `${job.id}+`, lease: null });
        return succeed(job);
      },
    });
    await waitFor('every lane', () => rest.size === 0);
    await worker.stop();
  });
});

describe('a lease', () => {
  test('of a process that died runs out, another process does the job, and a late outcome is not recorded', async () => {
    const table = makeTable({ a: 1 });
    const gate = makeGate();
    const dead = startWorker(table, {
      renew: async () => {
        await gate.opened;
        return new Set();
      },
      tryOnce: async (job) => {
        await gate.opened;
        return succeed(job);
      },
    });
    await waitFor('the first try', () => dead.tried.length === 1);
    let claims = 0;
    const other = startWorker(table, {
      claim: (request) => {
        claims += 1;
        return table.claim(request);
      },
    });
    await waitFor('two claims', () => {
      other.wake();
      return claims >= 2;
    });
    assert.deepEqual(other.tried, [], 'the lease is not over');

    table.expireLeases();
    other.wake();
    await waitFor('the other process', () => other.recorded.length === 1);
    gate.open();
    await waitFor('a word in the log', () => dead.logged(/another process has claimed/));
    assert.deepEqual(dead.recorded, []);
  });

  test('that might end before the try does is given up instead', async () => {
    const table = makeTable({ a: 1 });
    let released = 0;
    const worker = startWorker(table, {
      maxTryMs: leaseMs + 1,
      release: (leases) => {
        released += 1;
        return table.release(leases);
      },
    });
    await waitFor('the release', () => released > 0);
    await worker.stop();
    assert.deepEqual(worker.tried, []);
    assert.deepEqual(table.leased('a'), []);
  });

  test('of a try that threw an error expires, and the lane goes on', async () => {
    const table = makeTable({ a: 3 });
    let isBroken = true;
    const worker = startWorker(table, {
      limits: { ...limits, perLane: 1 },
      tryOnce: async (job) => {
        if (job.id === 'a0' && isBroken) throw new Error('a bug');
        return succeed(job);
      },
    });
    await waitFor('the others', () => table.count('done') === 2);
    assert.ok(worker.logged(/a try threw an error/));
    assert.deepEqual(table.leased('a'), ['a0']);
    isBroken = false;
    table.expireLeases();
    worker.wake();
    await waitFor('the first', () => table.count('done') === 3);
  });
});

describe('what a try needs', () => {
  test('may come later, and is done with when the try has ended', async () => {
    const table = makeTable({ a: 1 });
    const steps: string[] = [];
    startWorker(table, {
      prepare: async () => ({ done: () => steps.push('done') }),
      tryOnce: async (job) => {
        steps.push('tried');
        return succeed(job);
      },
    });
    await waitFor('the end', () => table.count('done') === 1);
    assert.deepEqual(steps, ['tried', 'done']);
  });

  test('may be missing for good: the job is cancelled, and the next one tried', async () => {
    const table = makeTable({ a: 2 });
    const worker = startWorker(table, {
      limits: { ...limits, perLane: 1 },
      prepare: async ({ id }) => (id === 'a0' ? 'cancel' : {}),
    });
    await waitFor('the end', () => table.count('done') === 1 && table.count('cancelled') === 1);
    assert.deepEqual(worker.tried, ['a1']);
  });

  test('must not be sent now: all that the lane has claimed is held', async () => {
    const table = makeTable({ a: 2, b: 1 });
    const worker = startWorker(table, {
      limits: { ...limits, perProcess: 1 },
      prepare: async ({ lane }) => (lane === 'a' ? 'hold' : {}),
    });
    await waitFor('the end', () => table.count('held') === 2 && table.count('done') === 1);
    assert.deepEqual(worker.tried, ['b0']);
  });

  for (const [name, prepare] of [
    ['is not there now', async () => 'release' as const],
    ['cannot be read', async () => Promise.reject(new Error('the database is away'))],
  ] as const) {
    test(`${name}: all that the lane has claimed is released, and tried once it is there`, async () => {
      const table = makeTable({ a: 2 });
      let isThere = false;
      const released: string[] = [];
      const worker = startWorker(table, {
        limits: { ...limits, perProcess: 1 },
        prepare: () => (isThere ? {} : prepare()),
        release: async (leases) => {
          released.push(...leases.map(({ id }) => id));
          return table.release(leases);
        },
      });
      await waitFor('the release', () => released.length > 0);
      assert.deepEqual(released.slice(0, 2), ['a0', 'a1']);
      assert.deepEqual(worker.tried, []);
      isThere = true;
      worker.wake();
      await waitFor('the end', () => table.count('done') === 2);
    });
  }

  test('comes too late when the lane was paused meanwhile: the job is released', async () => {
    const table = makeTable({ a: 4 });
    const gate = makeGate();
    let isDone = false;
    const setDone = () => {
      isDone = true;
    };
    const worker = startWorker(table, {
      limits: { ...limits, perLane: 4 },
      prepare: ({ id }) => (id === 'a0' ? gate.opened.then(() => ({ done: setDone })) : {}),
      tryOnce: async (job) => fail(job),
    });
    await waitFor('three failures', () => table.count('done') === 3);
    gate.open();
    await waitFor('the release', () => isDone && table.leased('a').length === 0);
    assert.deepEqual(worker.tried, ['a1', 'a2', 'a3']);
  });

  test('is fetched ahead for a whole claim; a failure releases all of it', async () => {
    const table = makeTable({ a: 2, b: 2 });
    const asked: [string[], readonly string[]][] = [];
    const worker = startWorker(table, {
      prefetch: async (jobs, laneKeys) => {
        asked.push([jobs.map(({ id }) => id), laneKeys]);
        if (asked.length === 1) throw new Error('the database is away');
      },
    });
    await waitFor('the failure', () => worker.logged(/claiming errands failed/));
    assert.deepEqual([...table.leased('a'), ...table.leased('b')], []);
    worker.wake();
    await waitFor('the end', () => table.count('done') === 4);
    assert.deepEqual(asked[0], [
      ['a0', 'a1', 'b0', 'b1'],
      ['a', 'b'],
    ]);
    assert.deepEqual(asked[1], asked[0]);
  });
});

describe('a stop', () => {
  test('lets tries end, records them and releases the rest', async () => {
    const table = makeTable({ a: 6 });
    const gate = makeGate();
    const worker = startWorker(table, {
      limits: { ...limits, perProcess: 1 },
      tryOnce: async (job) => {
        await gate.opened;
        return succeed(job);
      },
    });
    await waitFor('a try', () => worker.tried.length === 1);
    const stopped = worker.stop();
    await waitFor('the release', () => table.leased('a').length === 1);
    gate.open();
    await stopped;
    assert.deepEqual(worker.tried, ['a0']);
    assert.deepEqual(worker.recorded, ['a0']);
    assert.deepEqual(table.leased('a'), []);
  });
});

test('a batch that the database rejects is given up: later batches are recorded, and its jobs are tried again', async () => {
  const table = makeTable({ a: 1, b: 2 });
  const gate = makeGate();
  let isRejected = true;
  const worker = startWorker(table, {
    tryOnce: async (job) => {
      if (job.lane === 'b') await gate.opened;
      return succeed(job);
    },
    async record(outcomes) {
      if (isRejected && outcomes.some(({ id }) => id === 'a0')) throw new Error('violates a constraint');
      return table.record(outcomes);
    },
  });
  await waitFor('the failed write', () => worker.logged(/recording errands failed; retrying/));
  gate.open();
  await waitFor('the next batch', () => table.count('done') === 2);
  assert.ok(worker.logged(/recording errands failed; giving up; .*when the lease expires/));
  assert.deepEqual(worker.recorded.toSorted(), ['b0', 'b1']);
  assert.deepEqual(table.leased('a'), ['a0'], 'the lease is not released: it expires');

  isRejected = false;
  table.expireLeases();
  worker.wake();
  await waitFor('the second try', () => table.count('done') === 3);
  assert.deepEqual(worker.tried.toSorted(), ['a0', 'a0', 'b0', 'b1']);
});

test('an outcome is kept for as long as the database is unavailable', async () => {
  const table = makeTable({ a: 1 });
  let refusals = 0;
  const worker = startWorker(table, {
    isUnavailable: () => true,
    async record(outcomes) {
      refusals += 1;
      if (refusals <= 6) throw new Error('the connection was refused');
      return table.record(outcomes);
    },
  });
  await waitFor('the outcome', () => table.count('done') === 1);
  assert.deepEqual(worker.tried, ['a0']);
});

test('retries are claimed when they come due', async () => {
  const table = makeTable({ a: 1 });
  const [row] = table.rows;
  assert.ok(row);
  row.status = 'done';
  let isDue = false;
  startWorker(table, {
    promote: async () => {
      if (!isDue) return { promoted: 0, nextInMs: null };
      isDue = false;
      row.status = 'ready';
      return { promoted: 1, nextInMs: null };
    },
  });
  isDue = true;
  await waitFor('the retry', () => row.status === 'done' && !isDue);
});

describe('without a poll', () => {
  /** Longer than any test may take. */
  const pollMs = 3_600_000;

  test('a retry is promoted at its time, also one that another process recorded', async () => {
    const table = makeTable({ a: 1 });
    const [row] = table.rows;
    assert.ok(row);
    row.status = 'done';
    let rounds = 0;
    startWorker(table, {
      pollMs,
      promote: async () => {
        rounds += 1;
        if (rounds === 1) return { promoted: 0, nextInMs: 5 };
        if (rounds === 2) row.status = 'ready';
        return { promoted: rounds === 2 ? 1 : 0, nextInMs: null };
      },
    });
    await waitFor('the retry', () => rounds === 3 && row.status === 'done');
  });

  test('a retry that is due before the next poll is noticed when its outcome is recorded', async () => {
    const table = makeTable({ a: 1 });
    const [row] = table.rows;
    assert.ok(row);
    let isRetried = false;
    startWorker(table, {
      pollMs,
      tryOnce: async (job) => ({ ...fail(job), waitSeconds: isRetried ? null : 0.001 }),
      promote: async () => {
        if (row.status !== 'done' || isRetried) return { promoted: 0, nextInMs: null };
        isRetried = true;
        row.status = 'ready';
        return { promoted: 1, nextInMs: null };
      },
    });
    await waitFor('the retry', () => isRetried && row.status === 'done');
  });
});
