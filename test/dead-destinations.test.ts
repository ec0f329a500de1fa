/** Which destinations are not tried for a short time. What that does to connections: connections.test.ts. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { DeadDestinations } from '../src/sending/dead-destinations.ts';
import type { Phase, TryReply } from '../src/sending/try-reply.ts';

const failure: TryReply = {
  ...{ kind: 'failed', phase: 'connect', response: null, error: 'connect_timeout', detail: 'No answer' },
  ...{ uncertain: false, host: 'mx.dest.example', address: null, tls: null },
};

function fail(dead: DeadDestinations, times: number, nowMs: number, change: Partial<TryReply> = {}): void {
  for (let n = 0; n < times; n++) dead.note('dest.example', { ...failure, ...change }, nowMs);
}

test('after five failures in a row a destination rests for 30 s', () => {
  const dead = new DeadDestinations();
  fail(dead, 4, 0);
  assert.equal(dead.find('dest.example', 0), null);
  fail(dead, 1, 0);
  assert.equal(dead.find('dest.example', 30_000)?.error, 'connect_timeout');
  assert.equal(dead.find('other.example', 30_000), null);
  assert.equal(dead.find('dest.example', 30_001), null);
});

for (const phase of ['connect', 'greeting', 'ehlo', 'tls', 'auth'] satisfies Phase[]) {
  test(`a server that hangs in the phase "${phase}" is dead`, () => {
    const dead = new DeadDestinations();
    fail(dead, 5, 0, { phase, error: 'reply_timeout' });
    assert.equal(dead.find('dest.example', 0)?.phase, phase);
  });
}

for (const phase of ['mail', 'rcpt', 'data', 'end-of-data'] satisfies Phase[]) {
  test(`a server that hangs in the phase "${phase}" is not: the sender, the recipient or the message may be the cause`, () => {
    const dead = new DeadDestinations();
    fail(dead, 5, 0, { phase, error: 'reply_timeout' });
    assert.equal(dead.find('dest.example', 0), null);
  });
}

test('a server that refuses, or a login that it cannot check, is not dead', () => {
  const dead = new DeadDestinations();
  for (const change of [
    { kind: 'refused', phase: 'greeting', error: null },
    { phase: 'auth', error: 'auth_unsupported' },
  ] satisfies Partial<TryReply>[]) {
    fail(dead, 5, 0, change);
    assert.equal(dead.find('dest.example', 0), null);
  }
});

test('after the rest one try is let through, and the others rest until it has ended', () => {
  const dead = new DeadDestinations();
  fail(dead, 5, 0);
  assert.equal(dead.find('dest.example', 31_000), null);
  assert.ok(dead.find('dest.example', 31_000));
  dead.note('dest.example', null, 32_000);
  assert.equal(dead.find('dest.example', 32_000), null);
  assert.equal(dead.find('dest.example', 32_000), null);
});

test('the reason is given once, also if a failure that was repeated is noted again', () => {
  const dead = new DeadDestinations();
  fail(dead, 5, 0);
  const repeated = dead.find('dest.example', 0);
  assert.equal(repeated?.detail, 'Not tried, because the last connections failed: No answer');
  dead.note('dest.example', repeated, 0);
  assert.equal(dead.find('dest.example', 0)?.detail, repeated.detail);
});
