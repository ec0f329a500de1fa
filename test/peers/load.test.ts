/** Postfix's load generator: every accepted message is stored once and delivered. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { waitFor } from '../harness.ts';
import { startMailroom } from './mailroom.ts';
import { succeed } from './programs.ts';

const count = 500;

test(`${count} messages of 5 KB over 20 sessions`, async (t) => {
  const { service, receiver, addIdentity } = await startMailroom();
  await addIdentity('load@shop.example');
  const startedMs = performance.now();
  // The load generator exits with an error at the first refusal.
  await succeed('smtp-source', [
    ...['-s', '20', '-m', String(count), '-l', '5120', '-S', 'load'],
    ...['-f', 'source@client.example', '-t', 'load@shop.example', `127.0.0.1:${service.smtpPort}`],
  ]);
  const acceptedMs = performance.now() - startedMs;
  await receiver.received(count);
  const deliveredMs = performance.now() - startedMs;
  t.diagnostic(
    `accepted ${rate(acceptedMs)} messages/s, delivered ${rate(deliveredMs)} messages/s by the end`,
  );

  const events = receiver.requests.map(({ body }) => JSON.parse(body.toString()));
  const messages = events.map(({ data }) => data.message);
  assert.equal(new Set(messages.map(({ messageId }) => messageId)).size, count);
  assert.equal(new Set(messages.map(({ id }) => id)).size, count);
  assert.ok(messages.every(({ size }) => size > 5000));
  await waitFor('every delivery to be recorded', async () => {
    const [row] = await service.sql`
      select (select count(*)::int from messages) as messages,
        (select count(*)::int from deliveries where status = 'delivered') as delivered`;
    return row?.messages === count && row.delivered === count;
  });
});

function rate(ms: number): number {
  return Math.round(count / (ms / 1000));
}
