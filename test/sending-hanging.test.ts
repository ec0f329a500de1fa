/**
 * Mail servers that hang, beside mail of another owner to a server that works. The queue has few places here, memory to sign one
 * large message, and memory to transfer two.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import { connect, transaction } from '../src/db/client.ts';
import { makeMetrics } from '../src/lib/metrics.ts';
import { makeSealer } from '../src/lib/secrets.ts';
import { makeDnsClient } from '../src/net/dns.ts';
import { makeEgress } from '../src/net/egress.ts';
import { makeMtaSts } from '../src/net/mta-sts.ts';
import { startSending } from '../src/sending/send.ts';
import { Signer } from '../src/sending/signer.ts';
import { makeWay } from '../src/sending/way.ts';
import { startDns } from './dns.ts';
import { makeTestLog, startTestService, type TestUser, waitFor } from './harness.ts';
import { openOutbox } from './outbox.ts';
import { hang, type Step, startSink } from './smtp-sink.ts';

const perProcess = 8;
/** Memory for the transfer of a message: for one of each owner, and two in all. */
const pieceBytes = 2 * 1024 * 1024;
const large = 'x'.repeat(70).concat('\r\n').repeat(20_000);

const dnsServer = await startDns();
after(() => dnsServer.close());
const dnsServers = [dnsServer.address];
const service = await startTestService({
  POSTHORN_ROLES: 'api',
  POSTHORN_OUTBOUND: 'direct',
  POSTHORN_DNS_SERVERS: dnsServer.address,
});
const { call } = service;
const { makeIdentity, send } = openOutbox(service);
const sql = connect(service.databaseUrl, { max: 2, applicationName: 'posthorn hanging' });
const good = await startSink();
dnsServer.answer('good.example', { MX: ['10 mx.good.example'] });
dnsServer.answer('mx.good.example', { A: ['127.0.0.1'] });

const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers });
const dns = makeDnsClient({ dnsServers });
const mtaSts = makeMtaSts({ dns, egress, now: () => new Date() });
const { log } = makeTestLog();
const way = makeWay({
  ...{ outbound: 'direct', relay: null, heloName: 'us.example', mxPort: good.port, dns, mtaSts, egress },
});
const sending = startSending({
  ...{ sql, log, metrics: makeMetrics(), wakeAfterEvents() {}, scheduleSeconds: [3600] },
  ways: { operator: way, choose: () => way, close: () => way.close() },
  signer: new Signer({
    ...{ sql, sealer: makeSealer([randomBytes(32)]), dns, log },
    sign: () => assert.fail('no key stands in DNS'),
  }),
  bounceAddress: () => 'bounces@us.example',
  confirmations: { mailHost: 'us.example', linkTo: () => null },
  limits: {
    ...{ perLane: 10, maxPerLane: 10, perProcess, maxWindow: 64, maxAhead: 512 },
    ...{ breakerFailures: Number.POSITIVE_INFINITY, breakerPauseMs: 1000, maxBreakerPauseMs: 60_000 },
  },
  largeMemory: { signing: { inAll: 1, perOwner: 1 }, transfers: { inAll: 2 * pieceBytes, perOwner: 1 } },
});
after(async () => {
  await sending.stop();
  await sql.end();
});

async function makeSender(): Promise<{ as: TestUser; identityId: string }> {
  const as = await service.makeUser();
  const identityId = await makeIdentity(`ada@${as.userId}.example`, { as });
  await service.sql`update identities set status = 'verified' where id = ${identityId}`;
  return { as, identityId };
}

/** Not by the API, which builds all of a large message for an answer, and answers 503 while the machine is too busy for it. */
async function findStatus(id: string): Promise<string> {
  const [row] = await service.sql<
    { status: string }[]
  >`select status from recipients where message_id = ${id}`;
  return row?.status ?? assert.fail(`${id} has no recipient`);
}

/** Returns when the server has it, byte for byte. */
async function assertArrives(text: string): Promise<void> {
  const { as, identityId } = await makeSender();
  const before = good.mails.length;
  const { id } = await send({ identityId, to: 'bob@good.example', text }, { as });
  sending.wake();
  await waitFor('the mail of another owner', async () => (await findStatus(id)) === 'delivered');
  assert.equal(good.mails.length, before + 1);
  const stored = await waitFor('the stored bytes', async () => {
    const answer = await call('GET', `/messages/${id}/raw`, { as });
    return answer.status === 503 ? null : answer;
  });
  assert.equal(stored.status, 200);
  assert.ok(good.mails.at(-1)?.raw === stored.text);
}

test('an owner whose servers all hang leaves places for others', async () => {
  const hanging = await startSink({ host: '127.0.0.2', port: good.port });
  hanging.behave('connect', hang);
  const { as, identityId } = await makeSender();
  for (let n = 0; n < 2 * perProcess; n++) {
    dnsServer.answer(`hang${n}.example`, { MX: [`10 mx.hang${n}.example`] });
    dnsServer.answer(`mx.hang${n}.example`, { A: ['127.0.0.2'] });
    await send({ identityId, to: `a@hang${n}.example` }, { as });
  }
  sending.wake();
  await waitFor('three quarters of the places', () => hanging.connections() === (perProcess * 3) / 4);
  await assertArrives('Hello');
  assert.equal(hanging.connections(), (perProcess * 3) / 4);
  await hanging.close();
  await waitFor('the end of all tries', async () => {
    const [row] = await service.sql`select from send_queue where tries = 0 limit 1`;
    return !row;
  });
});

for (const step of ['connect', 'MAIL', '.'] satisfies Step[]) {
  test(`a server that hangs at ${step} holds no memory that large mail of others waits for`, async () => {
    const hanging = await startSink({ host: '127.0.0.3', port: good.port, extensions: [] });
    hanging.behave(step, hang);
    dnsServer.answer('large.example', { MX: ['10 mx.large.example'] });
    dnsServer.answer('mx.large.example', { A: ['127.0.0.3'] });
    const { as, identityId } = await makeSender();
    await send({ identityId, to: 'a@large.example', text: large }, { as });
    sending.wake();
    const hasCome = () => (step === '.' ? hanging.mails.length : hanging.connections()) === 1;
    await waitFor('the message to get there', hasCome);
    await assertArrives(large);
    assert.equal(hanging.openConnections(), 1);
    await hanging.close();
  });
}

test('a server that reads slowly holds one share of its owner, and none that large mail of others waits for', async () => {
  const slow = await startSink({ host: '127.0.0.3', port: good.port });
  const reading = Promise.withResolvers<() => void>();
  slow.behave('body', ({ socket }) => {
    socket.pause();
    reading.resolve(() => socket.resume());
  });
  const { as, identityId } = await makeSender();
  const sent: { id: string }[] = [];
  for (let n = 0; n < 3; n++)
    sent.push(await send({ identityId, to: `a${n}@large.example`, text: large.repeat(14) }, { as }));
  sending.wake();
  const goOn = await reading.promise;
  await slow.got(/^DATA$/, sent.length);
  await assertArrives(large);
  assert.equal(slow.mails.length, 0);
  slow.behave('body', '');
  goOn();
  for (const { id } of sent)
    await waitFor('the slow mail', async () => (await findStatus(id)) === 'delivered');
});

test('a message that waits to be signed and is cancelled is not tried any more', async () => {
  const sendAt = new Date(Date.now() + 3_600_000).toISOString();
  const senders = [await makeSender(), await makeSender()];
  const sent: string[] = [];
  for (const { as, identityId } of senders)
    sent.push((await send({ identityId, to: 'bob@good.example', text: large, sendAt }, { as })).id);
  const [first = '', second = ''] = sent;
  const statusOf = (n: number) => findStatus(sent[n] ?? '');
  await transaction(service.sql, async (held) => {
    // The first holds the memory while it waits for its bytes.
    await held`lock table raw_chunks in access exclusive mode`;
    await service.sql`update send_queue set next_attempt_at = now() where message_id = any (${sent}::uuid[])`;
    sending.wake();
    await waitFor('both claims', async () => {
      const rows = await sql`
        select from send_queue where message_id in (${first}, ${second}) and lease_until is not null`;
      return rows.count === 2;
    });
    for (const [n, { as }] of senders.entries()) {
      const { status, body, text } = await call('POST', `/messages/${sent[n]}/cancel`, { as });
      assert.equal(status, 200, text);
      assert.equal(body.sending.status, 'queued');
    }
  });
  for (const [n, id] of sent.entries()) {
    await waitFor('its end', async () => (await statusOf(n)) === 'cancelled');
    const attempts = await call('GET', `/messages/${id}/attempts`, { as: senders[n]?.as ?? assert.fail() });
    assert.deepEqual(attempts.body, []);
  }
});
