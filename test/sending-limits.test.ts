/** Bodies of `POST /messages` that would take long to read, or that would get a long answer. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { assertProblem, startTestService } from './harness.ts';
import { openOutbox } from './outbox.ts';

const service = await startTestService({ POSTHORN_SEND_RATE: '0' });
const { call } = service;
const { makeIdentity, post } = openOutbox(service);
const identityId = await makeIdentity('ada@sender.example');

/** The body is refused by these errors alone. */
async function assertErrors(change: Record<string, unknown>, expected: [pointer: string, code: string][]) {
  const { status, body, text } = await post({ identityId, ...change });
  assert.equal(status, 400, text);
  assert.equal(body.code, 'invalid_body');
  const found = body.errors.map(({ pointer, code }: Record<string, string>) => [pointer, code]);
  assert.deepEqual(found, expected);
}

describe('a body with very many values', () => {
  const bodies = {
    'numbers as addresses': { to: Array(20_000).fill(1) },
    'empty attachments': { attachments: Array(20_000).fill({}) },
    'fields of an address': { to: Object.fromEntries(Array.from({ length: 20_000 }, (_, n) => [n, ''])) },
    'unknown fields': Object.fromEntries(Array.from({ length: 20_000 }, (_, n) => [`x${n}`, ''])),
  };
  for (const [name, change] of Object.entries(bodies)) {
    test(`is refused with one error: ${name}`, () => assertErrors(change, [['', 'too_long']]));
  }
});

test('a problem lists 100 errors, and says how many more there are', async () => {
  const fields = Object.fromEntries(Array.from({ length: 150 }, (_, n) => [`x${n}`, '']));
  for (const path of ['/messages', '/identities']) {
    const answer = await call('POST', path, { body: fields });
    assertProblem(answer, 400, 'invalid_body');
    const { errors } = answer.body;
    assert.equal(errors.length, 101);
    assert.equal(errors[100].code, 'more_errors');
    assert.match(errors[100].message, /^There are 5\d more errors\./);
  }
});

test('addresses have a limit in all, which is checked before they are read', async () => {
  const many = Array(1000).fill('ada@dest.example, '.repeat(3));
  await assertErrors({ to: many }, [['', 'too_long']]);
  await assertErrors({ replyTo: many }, [['', 'too_long']]);
});

test('a header that is not ASCII has at most 2,000 characters', async () => {
  await assertErrors({ headers: { 'X-Long': 'é'.repeat(2001) } }, [['/headers/X-Long', 'invalid_value']]);
});
