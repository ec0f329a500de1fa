/** Room that many wait for, and who comes next. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Slots } from '../src/lib/slots.ts';

/** Notes who has been let in, in order. */
function watch(slots: Slots) {
  const entered: string[] = [];
  const take = (key: string, weight?: number) => {
    void slots.take(key, weight).then(() => entered.push(key));
  };
  const settled = () => new Promise((resolve) => setImmediate(resolve));
  return { entered, take, settled };
}

test('a key holds its share at most, whatever room there is', async () => {
  const slots = new Slots({ inAll: 10, perKey: 4 });
  const { entered, take, settled } = watch(slots);
  for (const weight of [2, 2, 2]) take('a', weight);
  await settled();
  assert.deepEqual(entered, ['a', 'a']);
  slots.release('a', 2);
  await settled();
  assert.deepEqual(entered, ['a', 'a', 'a']);
});

test('room that gets free goes to the one who holds least, though others asked before', async () => {
  const slots = new Slots({ inAll: 4, perKey: 4 });
  const { entered, take, settled } = watch(slots);
  for (const key of ['a', 'a', 'a', 'a', 'a', 'b']) take(key);
  await settled();
  assert.deepEqual(entered, ['a', 'a', 'a', 'a']);
  slots.release('a');
  await settled();
  assert.deepEqual(entered, ['a', 'a', 'a', 'a', 'b']);
});

test('what is larger than all there is comes alone', async () => {
  const slots = new Slots({ inAll: 4, perKey: 2 });
  const { entered, take, settled } = watch(slots);
  take('small');
  take('large', 100);
  await settled();
  assert.deepEqual(entered, ['small']);
  slots.release('small');
  await settled();
  assert.deepEqual(entered, ['small', 'large']);
  take('next');
  await settled();
  assert.equal(entered.length, 2);
  slots.release('large', 100);
  await settled();
  assert.deepEqual(entered, ['small', 'large', 'next']);
});
