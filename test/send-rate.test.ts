/** The limit of recipients in a minute (`POSTHORN_SEND_RATE`), with two processes on one database. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { assertProblem, startTestService, type TestUser } from './harness.ts';
import { openOutbox } from './outbox.ts';
import { assertReply, signIn, submit } from './submission-client.ts';

const one = await startTestService({ POSTHORN_SEND_RATE: '200' });
const two = await startTestService({ POSTHORN_SEND_RATE: '200', DATABASE_URL: one.databaseUrl });
const { makeIdentity, post, send } = openOutbox(one);
const other = openOutbox(two);
const { sql } = one;
const to = Array.from({ length: 50 }, (_, n) => `r${n}@dest.example`);

async function makeSender(): Promise<{ as: TestUser; identityId: string }> {
  const as = await one.makeUser();
  return { as, identityId: await makeIdentity('ada@sender.example', { as }) };
}

/** A minute that does not end during the test, however slow the machine is. */
function keepMinute({ userId }: TestUser) {
  return sql`update send_rates set started_at = now() + interval '59 seconds' where owner_id = ${userId}`;
}

test('is shared by all processes, and by the API and SMTP', async () => {
  const { as, identityId } = await makeSender();
  await send({ identityId, to }, { as });
  await keepMinute(as);
  await send({ identityId, to }, { as });
  for (let n = 0; n < 2; n++) await other.send({ identityId, to }, { as });
  for (const outbox of [openOutbox(one), other])
    assertProblem(await outbox.post({ identityId, to: 'bob@dest.example' }, { as }), 429, 'rate_limited');
  const client = await signIn(two.submissionPort, as.apiKey);
  assertReply(await submit(client), 451, '4.7.1', /Retry in \d+ s/);
});

test('holds for messages that come at the same moment', async () => {
  const { as, identityId } = await makeSender();
  await send({ identityId, to }, { as });
  await keepMinute(as);
  const answers = await Promise.all(
    Array.from({ length: 10 }, (_, n) => (n % 2 ? post : other.post)({ identityId, to }, { as })),
  );
  assert.equal(answers.filter(({ status }) => status === 202).length, 3);
  assert.equal(answers.filter(({ status }) => status === 429).length, 7);
});

test('a message that is refused does not count: a smaller one still goes', async () => {
  const { as, identityId } = await makeSender();
  await send({ identityId, to }, { as });
  await keepMinute(as);
  for (let n = 0; n < 2; n++) await send({ identityId, to }, { as });
  await send({ identityId, to: to.slice(0, 20) }, { as });
  assertProblem(await post({ identityId, to }, { as }), 429, 'rate_limited');
  await send({ identityId, to: to.slice(0, 30) }, { as });
  assertProblem(await post({ identityId, to: 'bob@dest.example' }, { as }), 429, 'rate_limited');
});

test('Retry-After is the rest of the minute, after which mail goes again', async () => {
  const { as, identityId } = await makeSender();
  for (let n = 0; n < 4; n++) await send({ identityId, to }, { as });
  await sql`update send_rates set started_at = now() + interval '30 seconds' where owner_id = ${as.userId}`;
  const refused = await post({ identityId, to }, { as });
  assertProblem(refused, 429, 'rate_limited');
  const seconds = Number(refused.headers.get('retry-after'));
  assert.ok(seconds >= 1 && seconds <= 90, String(seconds));
  await sql`update send_rates set started_at = now() - interval '1 minute' where owner_id = ${as.userId}`;
  for (let n = 0; n < 4; n++) await send({ identityId, to }, { as });
});

test('a clock of the database that was set back does not stop an owner', async () => {
  const { as, identityId } = await makeSender();
  for (let n = 0; n < 4; n++) await send({ identityId, to }, { as });
  await sql`update send_rates set started_at = now() + interval '1 hour' where owner_id = ${as.userId}`;
  await send({ identityId, to }, { as });
});

test('a message always goes when it is the first of a minute', async () => {
  const strict = await startTestService({ POSTHORN_SEND_RATE: '1', DATABASE_URL: one.databaseUrl });
  const { as, identityId } = await makeSender();
  const outbox = openOutbox(strict);
  await outbox.send({ identityId, to }, { as });
  await keepMinute(as);
  assertProblem(await outbox.post({ identityId, to: 'bob@dest.example' }, { as }), 429, 'rate_limited');
});

test('0: nothing is counted', async () => {
  const free = await startTestService({ POSTHORN_SEND_RATE: '0', DATABASE_URL: one.databaseUrl });
  const { as, identityId } = await makeSender();
  for (let n = 0; n < 5; n++) await openOutbox(free).send({ identityId, to }, { as });
  assert.equal((await sql`select from send_rates where owner_id = ${as.userId}`).count, 0);
});

test('a repeated answer (Idempotency-Key) is not counted again', async () => {
  const { as, identityId } = await makeSender();
  const headers = { 'idempotency-key': 'once' };
  for (let n = 0; n < 3; n++) await send({ identityId, to }, { as, headers });
  const [row] = await sql`select recipients from send_rates where owner_id = ${as.userId}`;
  assert.equal(row?.recipients, 50);
});
