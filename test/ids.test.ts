/** Ids of rows: in the order in which they were made, whatever the clock does. */
import assert from 'node:assert/strict';
import { mock, test } from 'node:test';
import { isUuid, newId } from '../src/lib/ids.ts';

test('ids are UUIDs of version 7 and grow, also within a millisecond and when the clock goes back', () => {
  mock.timers.enable({ apis: ['Date'], now: Date.now() + 1000 });
  try {
    let before = newId();
    for (let n = 0; n < 3000; n++) {
      if (n % 1000 === 999) mock.timers.setTime(Date.now() + (n === 999 ? -500 : 800));
      const id = newId();
      assert.ok(isUuid(id) && id[14] === '7' && /[89ab]/.test(id[19] ?? ''), id);
      assert.ok(id > before, `${id} after ${before}`);
      before = id;
    }
  } finally {
    mock.timers.reset();
  }
});

test('what is random in two ids differs', () => {
  const tails = new Set(Array.from({ length: 1000 }, () => newId().slice(-12)));
  assert.equal(tails.size, 1000);
});
