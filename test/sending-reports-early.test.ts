/** A report that comes while the outcome of its try is not recorded is put off, and not lost. Nothing is sent here. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { test } from 'node:test';
import { applyReport } from '../src/sending/reports.ts';
import { makeTestLog, startTestService } from './harness.ts';
import { openOutbox } from './outbox.ts';

const service = await startTestService({ POSTHORN_ROLES: 'api' });
const { sql } = service;
const { makeIdentity, send } = openOutbox(service);

test('a report that comes before the outcome of its try must come again', async () => {
  const identityId = await makeIdentity('ada@sender.example');
  const { id: messageId } = await send({ identityId });
  await sql`
    update send_queue set lease_token = ${randomUUID()}, lease_until = now() + interval '1 hour'
    where message_id = ${messageId}`;
  const parts = {
    ...{ sql, bounceKeys: [], bounceDomain: 'mail.example', log: makeTestLog().log, outcomeMs: 0 },
    ...{ read: async () => null, wakeAfterEvents: () => {} },
  };
  const report = () => applyReport(parts, { messageId, recipient: 0 }, Buffer.from('a report'));
  assert.equal(await report(), false);
  assert.equal((await sql`select from send_reports`).count, 0);
  await sql`update send_queue set lease_token = null, lease_until = null where message_id = ${messageId}`;
  assert.equal(await report(), true);
  assert.equal((await sql`select from send_reports`).count, 1);
});
