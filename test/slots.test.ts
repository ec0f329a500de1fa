/** A limited resource that many wait for: who comes next, and that nothing of it is lost. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { type Share, Slots } from '../src/lib/slots.ts';

const settled = () => new Promise((resolve) => setImmediate(resolve));

/** Takes shares and notes who has been admitted, in order. */
function watch(slots: Slots) {
  const entered: string[] = [];
  const shares = new Map<string, Share[]>();
  async function take(owner: string, weight = 1, key = ''): Promise<void> {
    const share = await slots.take(owner, weight, { key });
    const name = key ? `${owner}/${key}` : owner;
    entered.push(name);
    shares.set(name, [...(shares.get(name) ?? []), share]);
  }
  async function release(name: string): Promise<void> {
    const share = shares.get(name)?.shift();
    assert.ok(share, `${name} has no share`);
    share.release();
    await settled();
  }
  return { entered, take, release };
}

describe('limits', () => {
  test('an owner has its share at most, whatever room there is', async () => {
    const { entered, take, release } = watch(new Slots({ inAll: 10, perOwner: 4 }));
    for (const weight of [2, 2, 2]) void take('a', weight);
    await settled();
    assert.deepEqual(entered, ['a', 'a']);
    await release('a');
    assert.deepEqual(entered, ['a', 'a', 'a']);
  });

  test('a key has its part of the share of its owner', async () => {
    const { entered, take } = watch(new Slots({ inAll: 10, perOwner: 4, perKey: 2 }));
    for (const key of ['x', 'x', 'x', 'y', 'y', 'y']) void take('a', 1, key);
    await settled();
    assert.deepEqual(entered, ['a/x', 'a/x', 'a/y', 'a/y']);
  });

  test('a key that must leave room has no more than it leaves, and so has the next key', async () => {
    const { entered, take, release } = watch(new Slots({ inAll: 100, perOwner: 8, keysLeaveRoom: true }));
    for (const key of ['x', 'x', 'x', 'x', 'x', 'y', 'y', 'y', 'z', 'z']) void take('a', 1, key);
    await settled();
    assert.deepEqual(entered, ['a/x', 'a/x', 'a/x', 'a/x', 'a/y', 'a/y', 'a/z']);
    await release('a/z');
    assert.deepEqual(entered.slice(7), ['a/z']);
    await release('a/x');
    assert.deepEqual(entered.slice(8), []);
    await release('a/x');
    assert.deepEqual(entered.slice(8), ['a/y']);
  });

  test('a weight above all there is comes alone', async () => {
    const { entered, take, release } = watch(new Slots({ inAll: 4, perOwner: 2 }));
    void take('small');
    void take('large', 100);
    await settled();
    assert.deepEqual(entered, ['small']);
    await release('small');
    assert.deepEqual(entered, ['small', 'large']);
    void take('next');
    await settled();
    assert.equal(entered.length, 2);
    await release('large');
    assert.deepEqual(entered, ['small', 'large', 'next']);
  });
});

describe('who comes next', () => {
  test('the owner that has least, though others asked before', async () => {
    const { entered, take, release } = watch(new Slots({ inAll: 4, perOwner: 4 }));
    for (const owner of ['a', 'a', 'a', 'a', 'a', 'b']) void take(owner);
    await settled();
    assert.deepEqual(entered, ['a', 'a', 'a', 'a']);
    await release('a');
    assert.deepEqual(entered, ['a', 'a', 'a', 'a', 'b']);
  });

  test('owners take turns where one is admitted at a time', async () => {
    const { entered, take, release } = watch(new Slots({ inAll: 1, perOwner: 1 }));
    for (const owner of ['a', 'a', 'a', 'a', 'b', 'b', 'c']) void take(owner);
    await settled();
    while (entered.length < 7) await release(entered.at(-1) ?? '');
    assert.deepEqual(entered, ['a', 'b', 'c', 'a', 'b', 'a', 'a']);
  });

  test('many keys give an owner no more than one key gives another', async () => {
    const { entered, take, release } = watch(new Slots({ inAll: 1, perOwner: 1, perKey: 1 }));
    for (const key of ['1', '2', '3', '4']) void take('a', 1, key);
    void take('b', 1, '1');
    await settled();
    await release('a/1');
    assert.deepEqual(entered, ['a/1', 'b/1']);
  });

  test('a large request reserves: smaller ones that came later wait for it', async () => {
    const { entered, take, release } = watch(new Slots({ inAll: 10, perOwner: 10 }));
    for (const owner of ['a', 'b', 'c']) void take(owner, 3);
    void take('large', 8);
    for (const owner of ['d', 'e']) void take(owner, 1);
    await settled();
    assert.deepEqual(entered, ['a', 'b', 'c']);
    await release('a');
    await release('b');
    assert.deepEqual(entered, ['a', 'b', 'c']);
    await release('c');
    assert.deepEqual(entered, ['a', 'b', 'c', 'large', 'd', 'e']);
  });

  test('an owner that has used up its share does not make others wait', async () => {
    const { entered, take } = watch(new Slots({ inAll: 10, perOwner: 4 }));
    void take('a', 4);
    void take('a', 4);
    void take('b', 4);
    await settled();
    assert.deepEqual(entered, ['a', 'b']);
  });
});

describe('leaving', () => {
  test('without room the wait ends with the signal, and the next waiter is admitted', async () => {
    const slots = new Slots({ inAll: 10, perOwner: 10 });
    const { entered, take } = watch(slots);
    void take('a', 5);
    const leaving = new AbortController();
    const left = assert.rejects(async () => slots.take('large', 10, { signal: leaving.signal }), /gone/);
    void take('b', 5);
    await settled();
    assert.deepEqual(entered, ['a']);
    leaving.abort(new Error('gone'));
    await left;
    assert.deepEqual(entered, ['a', 'b']);
  });

  test('without room the wait ends after its time, and the next waiter is admitted', async () => {
    const slots = new Slots({ inAll: 10, perOwner: 10 });
    const { entered, take } = watch(slots);
    void take('a', 5);
    const timeout = { ms: 1, error: () => new Error('late') };
    const left = assert.rejects(async () => slots.take('large', 10, { timeout }), /late/);
    void take('b', 5);
    assert.deepEqual(entered, []);
    await left;
    assert.deepEqual(entered, ['a', 'b']);
  });

  test('a signal that was aborted before takes nothing, also when there is room', async () => {
    const slots = new Slots({ inAll: 1, perOwner: 1 });
    await assert.rejects(
      async () => slots.take('a', 1, { signal: AbortSignal.abort(new Error('gone')) }),
      /gone/,
    );
    assert.ok(slots.tryTake('b'));
  });

  test('a signal that is aborted after the admission changes nothing', async () => {
    const slots = new Slots({ inAll: 1, perOwner: 1 });
    const leaving = new AbortController();
    const first = await slots.take('a');
    const second = slots.take('b', 1, { signal: leaving.signal });
    first.release();
    leaving.abort();
    (await second).release();
    assert.ok(slots.tryTake('c'));
  });

  test('a share is released once, however often it is disposed of', async () => {
    const slots = new Slots({ inAll: 2, perOwner: 2 });
    {
      using share = await slots.take('a');
      share.release();
    }
    const rest = await slots.take('a', 2);
    assert.equal(slots.tryTake('b'), undefined);
    rest.release();
  });
});

type Step =
  | { act: 'take'; owner: number; key: number; weight: number }
  | { act: 'release' | 'leave'; which: number };

interface Asked {
  owner: number;
  key: number;
  weight: number;
  leaving: AbortController;
  state: 'waiting' | 'admitted' | 'released' | 'left';
  share?: Share;
}

const limits = { inAll: 12, perOwner: 8, perKey: 5 };

/** Also with one caller that has more than a limit allows: it must be alone. */
function assertWithin(limit: number, admitted: Asked[]): void {
  const sum = admitted.reduce((total, { weight }) => total + weight, 0);
  assert.ok(sum <= limit || admitted.length === 1, `${sum} of ${limit} in ${admitted.length} shares`);
}

function assertLimits(asked: Asked[]): void {
  const admitted = asked.filter(({ state }) => state === 'admitted');
  assertWithin(limits.inAll, admitted);
  for (const one of Map.groupBy(admitted, ({ owner }) => owner).values()) assertWithin(limits.perOwner, one);
  for (const one of Map.groupBy(admitted, ({ owner, key }) => `${owner}/${key}`).values())
    assertWithin(limits.perKey, one);
  if (admitted.length === 0)
    assert.ok(!asked.some(({ state }) => state === 'waiting'), 'all wait for nobody');
}

const step: fc.Arbitrary<Step> = fc.oneof(
  fc.record({
    act: fc.constant('take' as const),
    owner: fc.nat(3),
    key: fc.nat(2),
    weight: fc.integer({ min: 1, max: 14 }),
  }),
  fc.record({ act: fc.constantFrom('release' as const, 'leave' as const), which: fc.nat() }),
);

test('whatever comes, leaves and is released: within the limits, nobody is forgotten, nothing is lost', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 60 }), async (steps) => {
      const slots = new Slots(limits);
      const asked: Asked[] = [];
      const pick = (state: Asked['state'], which: number) => {
        const candidates = asked.filter((one) => one.state === state);
        return candidates[which % candidates.length];
      };

      async function take(one: Asked): Promise<void> {
        asked.push(one);
        try {
          const { signal } = one.leaving;
          one.share = await slots.take(String(one.owner), one.weight, { key: String(one.key), signal });
          one.state = 'admitted';
        } catch {
          one.state = 'left';
        }
      }
      async function release(one: Asked | undefined): Promise<void> {
        one?.share?.release();
        if (one) one.state = 'released';
        await settled();
        assertLimits(asked);
      }

      for (const next of steps) {
        if (next.act === 'take') {
          const { owner, key, weight } = next;
          void take({ owner, key, weight, leaving: new AbortController(), state: 'waiting' });
        } else if (next.act === 'leave') pick('waiting', next.which)?.leaving.abort();
        else await release(pick('admitted', next.which));
        await settled();
        assertLimits(asked);
      }
      // The oldest share is released first; every waiter is admitted in the end.
      while (asked.some(({ state }) => state === 'admitted')) await release(pick('admitted', 0));
      assert.ok(asked.every(({ state }) => state === 'released' || state === 'left'));
      assert.ok(slots.tryTake('anyone', limits.inAll), 'everything is free again');
    }),
    { numRuns: 300 },
  );
});

test('a waiter is admitted within a bounded number of admissions, though others keep coming', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.record({ owner: fc.nat(5), weight: fc.integer({ min: 1, max: 4 }) }), {
        minLength: 40,
        maxLength: 40,
      }),
      fc.integer({ min: 1, max: 12 }),
      async (others, weight) => {
        const slots = new Slots({ inAll: 12, perOwner: 12 });
        const held: Share[] = [];
        const ask = async ({ owner, weight }: { owner: number; weight: number }) =>
          held.push(await slots.take(String(owner), weight));
        for (const other of others.slice(0, 20)) void ask(other);
        await settled();
        let isAdmitted = false;
        const patient = slots.take('patient', weight).then((share) => {
          isAdmitted = true;
          return share;
        });
        let released = 0;
        for (const other of others.slice(20)) {
          void ask(other);
          held.shift()?.release();
          released += 1;
          await settled();
          if (isAdmitted) break;
        }
        // Each of the six others may have come first once, and those that were admitted must end: at most 12 of weight 1.
        assert.ok(isAdmitted || released <= 18, `${released} were released before`);
        while (held.length > 0) {
          held.shift()?.release();
          await settled();
        }
        (await patient).release();
      },
    ),
    { numRuns: 200 },
  );
});

describe('costs', () => {
  /** Whoever is admitted, in turn: each share costs what `costs` says of its owner. */
  async function useInTurns(costs: Record<string, number>, count: number): Promise<string[]> {
    const slots = new Slots({ inAll: 1, perOwner: 1 });
    const order: string[] = [];
    const use = async (owner: string) => {
      using share = await slots.take(owner);
      order.push(owner);
      await settled();
      share.charge(costs[owner] ?? 0);
    };
    await Promise.all(Object.keys(costs).flatMap((owner) => Array.from({ length: count }, () => use(owner))));
    return order;
  }

  test('count against the next turn: the cheap jobs of one owner go before the next costly job of another', async () => {
    const order = await useInTurns({ costly: 100, cheap: 1 }, 20);
    assert.deepEqual(order.slice(0, 21), ['costly', ...Array.from({ length: 20 }, () => 'cheap')]);
  });

  test('of equal size make owners take turns', async () => {
    const order = await useInTurns({ a: 5, b: 5 }, 5);
    assert.equal(order.join(''), 'ababababab');
  });

  test('of the past are not held against an owner who was alone', async () => {
    const slots = new Slots({ inAll: 2, perOwner: 1 });
    for (let n = 0; n < 10; n++) {
      using share = await slots.take('early');
      share.charge(1000);
    }
    const { entered, take, release } = watch(slots);
    for (const owner of ['early', 'late', 'late', 'early', 'late']) void take(owner);
    await settled();
    await release('late');
    await release('early');
    assert.deepEqual(entered.toSorted(), ['early', 'early', 'late', 'late']);
  });
});
