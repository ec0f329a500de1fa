/** The words of the dashboard that no test of a view reaches: times, and the verdicts of mail authentication. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { describeAuthentication, formatUntil } from '../dashboard/words.ts';

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

test('the verdicts of SPF, DKIM and DMARC are sentences, and the best signature counts', () => {
  const signature = { domain: 'shop.example', selector: 's', reason: null };
  const words = (given: object) =>
    describeAuthentication(given as Parameters<typeof describeAuthentication>[0]).map(
      ({ name, result, text }) => [name, result, text],
    );
  const proven = {
    spf: { result: 'pass', domain: 'shop.example' },
    dkim: [
      { ...signature, result: 'fail', aligned: true },
      { ...signature, result: 'pass', aligned: true },
    ],
    dmarc: { result: 'pass', policy: 'reject', reason: null },
  };
  assert.deepEqual(words(proven), [
    ['SPF', 'pass', 'shop.example allows this server to send its mail.'],
    ['DKIM', 'pass', 'shop.example signed the message, and nobody changed it since.'],
    ['DMARC', 'pass', 'The address of the sender is proven by SPF or DKIM.'],
  ]);
  const forged = {
    spf: { result: 'fail', domain: 'shop.example' },
    dkim: [{ ...signature, result: 'fail', aligned: true, reason: 'the body was changed' }],
    dmarc: { result: 'fail', policy: 'reject', reason: null },
  };
  assert.deepEqual(words(forged), [
    ['SPF', 'fail', 'shop.example says that this server may not send its mail.'],
    ['DKIM', 'fail', 'The signature of shop.example is not valid: the body was changed'],
    ['DMARC', 'fail', 'The address of the sender is not proven; its domain asks for "reject".'],
  ]);
});
