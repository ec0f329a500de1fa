/** The leases that a process holds, with the time as an argument. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Lease, LeaseEnded, Leases, renewMs } from '../src/queue/leases.ts';

const limits = { leaseMs: 20_000, maxTryMs: 15_000 };
const [a, b] = [
  { id: 'a', token: '1' },
  { id: 'b', token: '1' },
];

/** A database in which these leases are still ours; `asked` are those that were to be renewed. */
function renewing(ours: readonly string[]) {
  const asked: Lease[] = [];
  const renew = async (due: readonly Lease[]) => {
    asked.push(...due);
    return new Set(ours);
  };
  return { asked, renew };
}

test('a try may start while it would end before its lease, and not later', () => {
  const leases = new Leases(limits);
  leases.add([a], 1000);
  assert.equal(leases.findSafe('a', 6000)?.token, '1');
  assert.equal(leases.findSafe('a', 6001), undefined);
  assert.equal(leases.findSafe('b', 1000), undefined, 'nor without a lease');
});

test('a renewal moves that time, and not the time of the claim', async () => {
  const leases = new Leases(limits);
  leases.add([a], 1000);
  await leases.renew(renewing(['a']).renew, 4000);
  assert.equal(leases.findSafe('a', 9000)?.claimedAt, 1000);
  assert.equal(leases.findSafe('a', 9001), undefined);
});

test('only leases that are due are renewed', async () => {
  const leases = new Leases(limits);
  leases.add([a], 0);
  leases.add([b], 1);
  const { asked, renew } = renewing(['a', 'b']);
  await leases.renew(renew, renewMs);
  assert.deepEqual(
    asked.map(({ id }) => id),
    ['a'],
  );
});

test('a lease that another process has is dropped: its job is not tried here', async () => {
  const leases = new Leases(limits);
  leases.add([a, b], 0);
  await leases.renew(renewing(['b']).renew, 3000);
  assert.equal(leases.findSafe('a', 3000), undefined);
  assert.ok(leases.findSafe('b', 3000));
});

test('a lease that was replaced during the renewal is kept', async () => {
  const leases = new Leases(limits);
  leases.add([a], 0);
  await leases.renew(async () => {
    leases.drop([a]);
    leases.add([{ id: 'a', token: '2' }], 3000);
    return new Set();
  }, 3000);
  assert.equal(leases.findSafe('a', 3000)?.token, '2');
});

test('a job that is held already is not new, whatever claimed it again', () => {
  const leases = new Leases(limits);
  leases.add([a], 0);
  assert.deepEqual(leases.add([{ id: 'a', token: '2' }, b], 5000), [b]);
  leases.drop([a, b]);
  assert.deepEqual(leases.list(), []);
});

test('the signal of a lease aborts when the lease is lost or ended, and no other', async () => {
  const leases = new Leases(limits);
  leases.add([a, b], 0);
  const [ofA, ofB] = [leases.endSignal('a'), leases.endSignal('b')];
  await leases.renew(renewing(['b']).renew, renewMs);
  assert.deepEqual([ofA.aborted, ofB.aborted], [true, false]);
  assert.ok(ofA.reason instanceof LeaseEnded);
  leases.drop([b]);
  assert.equal(ofB.aborted, true);
  assert.equal(leases.endSignal('a').aborted, true, 'without a lease it has aborted already');
});

test('when the process stops, all signals abort, also those that come later', () => {
  const leases = new Leases(limits);
  leases.add([a, b], 0);
  const ofA = leases.endSignal('a');
  leases.endWaits();
  assert.ok(ofA.reason instanceof LeaseEnded);
  assert.equal(leases.endSignal('b').aborted, true);
  assert.deepEqual(
    leases.list().map(({ id }) => id),
    ['a', 'b'],
    'the leases are still ours',
  );
});
