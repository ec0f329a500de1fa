/** The words of the dashboard that depend on the time. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { formatUntil } from '../dashboard/words.ts';

test('how long until the next try', () => {
  const now = new Date('2026-01-01T12:00:00Z');
  for (const [seconds, words] of [
    [-3, 'now'],
    [0, 'now'],
    [0.4, 'in 1 second'],
    [5, 'in 5 seconds'],
    [59.2, 'in 1 minute'],
    [300, 'in 5 minutes'],
    [3598, 'in 1 hour'],
    [86_400, 'in 24 hours'],
  ] as const)
    assert.equal(formatUntil(new Date(now.getTime() + seconds * 1000), now), words, `${seconds} s`);
});
