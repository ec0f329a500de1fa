import assert from 'node:assert/strict';
import { test } from 'node:test';
import { assertProblem, startTestService } from './harness.ts';

const service = await startTestService();

test('seed 2.1: GET /me answers exactly the user who owns the key', async () => {
  const answer = await service.call('GET', '/me');
  assert.equal(answer.status, 200);
  assert.deepEqual(answer.body, { userId: service.user.userId });
});

test('seed 5: a call without a key is 401', async () => {
  assertProblem(await service.call('GET', '/me', { as: null }), 401, 'missing_api_key');
});
