/** What becomes of deliveries when their webhook is switched off, changed, deleted, or only fails. */
import assert from 'node:assert/strict';
import { after, afterEach, describe, test } from 'node:test';
import { newId } from '../src/lib/ids.ts';
import { recordEvent } from '../src/store/events.ts';
import { disableGone, noteFailures, readTargets } from '../src/store/targets.ts';
import { startTestService, type TestWebhook, waitFor } from './harness.ts';
import { answer, type ReceivedRequest, startReceiver } from './receiver.ts';

const service = await startTestService({ POSTHORN_RETRY_SCHEDULE: '0' });
const { sql, call, makeWebhook, makeEvent, findDelivery } = service;
const receiver = await startReceiver();
after(() => receiver.close());
/** Every webhook of the owner gets the events of later tests too, some of which are many or large. */
afterEach(async () => {
  for (const { id } of (await call('GET', '/webhooks')).body)
    assert.equal((await call('DELETE', `/webhooks/${id}`)).status, 204);
});

const patch = async ({ id }: TestWebhook, body: object) => {
  const answer = await call('PATCH', `/webhooks/${id}`, { body });
  assert.equal(answer.status, 200, answer.text);
  return answer.body;
};
const read = async ({ id }: TestWebhook) => (await call('GET', `/webhooks/${id}`)).body;
const at = (path: string) => (request: ReceivedRequest) => request.url === path;

/** With a delivery that waits for its second try, an hour from now; so that it is surely not under way. */
async function makePending(path: string): Promise<{ webhook: TestWebhook; eventId: string }> {
  receiver.behaveAt(path, answer(503, { 'retry-after': '3600' }));
  const webhook = await makeWebhook(receiver.url(path));
  const eventId = await makeEvent();
  await findDelivery(eventId, webhook, ({ attemptCount }) => attemptCount === 1);
  receiver.behaveAt(path, answer(200));
  return { webhook, eventId };
}

/** Now, instead of in an hour. */
async function makeDue(eventId: string): Promise<void> {
  await sql`update delivery_queue set next_attempt_at = now() where event_id = ${eventId}`;
  await waitFor('the promotion', async () => {
    const left = await sql`
      select from delivery_queue
      where event_id = ${eventId} and not ready and next_attempt_at <= now()`;
    return left.count === 0;
  });
}

/** Waits until the delivery is held: pending, with no attempt planned. */
const held = (eventId: string, webhook: TestWebhook) =>
  findDelivery(
    eventId,
    webhook,
    ({ status, nextAttemptAt }) => status === 'pending' && nextAttemptAt === null,
  );

describe('a webhook that is disabled', () => {
  test('gets no new delivery, while the event is kept', async () => {
    const off = await makeWebhook(receiver.url('/off'), { enabled: false });
    const on = await makeWebhook(receiver.url('/on'));
    const eventId = await makeEvent();
    await findDelivery(eventId, on);
    assert.deepEqual((await call('GET', `/webhooks/${off.id}/deliveries`)).body, []);
    assert.equal((await call('GET', `/events/${eventId}`)).status, 200);
    await patch(off, { enabled: true });
    await findDelivery(await makeEvent(), off);
    assert.equal(receiver.requests.filter(at('/off')).length, 1, 'the event from before is not made up for');
  });

  test('lets pending ones wait; they go on when it is enabled again', async () => {
    const { webhook, eventId } = await makePending('/paused');
    await patch(webhook, { enabled: false });
    await makeDue(eventId);
    const other = await makeWebhook(receiver.url('/meanwhile'));
    for (let turn = 0; turn < 3; turn++) await findDelivery(await makeEvent(), other);
    const waiting = await findDelivery(eventId, webhook, () => true);
    assert.equal(waiting.status, 'pending');
    assert.equal(waiting.attemptCount, 1);
    assert.equal(receiver.requests.filter(at('/paused')).length, 1);

    await patch(webhook, { enabled: true });
    assert.equal((await findDelivery(eventId, webhook)).status, 'delivered');
  });

  test('lets a redelivery wait until it is enabled', async () => {
    const webhook = await makeWebhook(receiver.url('/again'));
    const eventId = await makeEvent();
    const { id } = await findDelivery(eventId, webhook);
    await patch(webhook, { enabled: false });
    assert.equal((await call('POST', `/deliveries/${id}/redeliver`)).status, 202);
    await held(eventId, webhook);
    assert.equal(receiver.requests.filter(at('/again')).length, 1);
    await patch(webhook, { enabled: true });
    assert.equal((await findDelivery(eventId, webhook)).attemptCount, 2);
  });

  test('by a 410 keeps what waits behind the try; enabling sends all of it', async () => {
    receiver.behaveAt('/ends', answer(410));
    const webhook = await makeWebhook(receiver.url('/ends'));
    const given = { ownerId: service.user.userId, event: 'message.received', identityId: null, data: '{}' };
    const events = await sql.begin(async (sql) => {
      const made: string[] = [];
      for (let n = 0; n < 200; n += 1) made.push((await recordEvent(sql, given)).id);
      return made;
    });
    await waitFor('the end of it', async () => !(await read(webhook)).enabled);
    await waitFor('all others to be held', async () => {
      const left = await sql`
        select from delivery_queue where webhook_id = ${webhook.id} and (ready or lease_token is not null)`;
      return left.count === 0;
    });
    const failed = receiver.requests.filter(at('/ends')).length;
    assert.ok(failed < events.length, `${failed} were tried`);
    receiver.behaveAt('/ends', answer(204));
    await patch(webhook, { enabled: true });
    await receiver.received(events.length, at('/ends'));
  });
});

describe('a webhook that is changed', () => {
  test('takes its pending deliveries along to the new URL', async () => {
    const { webhook, eventId } = await makePending('/before');
    await patch(webhook, { url: receiver.url('/after') });
    await makeDue(eventId);
    assert.equal((await findDelivery(eventId, webhook)).status, 'delivered');
    assert.equal(receiver.requests.filter(at('/before')).length, 1);
    assert.equal(receiver.requests.filter(at('/after')).length, 1);
  });

  test('so do those that were claimed ahead and wait in line', async () => {
    // Quick at first, so that many are claimed ahead; then all answers are held back.
    const held: (() => void)[] = [];
    let quick = 100;
    receiver.behaveAt('/first', (_request, response) => {
      const answer = () => response.writeHead(204).end();
      quick -= 1;
      if (quick >= 0) answer();
      else held.push(answer);
    });
    const webhook = await makeWebhook(receiver.url('/first'));
    // In one commit, so that they are there all at once.
    const given = { ownerId: service.user.userId, event: 'message.received', identityId: null, data: '{}' };
    const events = await sql.begin(async (sql) => {
      const made: string[] = [];
      for (let n = 0; n < 300; n += 1) made.push((await recordEvent(sql, given)).id);
      return made;
    });
    await waitFor('all tries to be held and more to be claimed', async () => {
      const [row] = await sql`
        select count(*)::int as leased from delivery_queue where webhook_id = ${webhook.id} and lease_token is not null`;
      // Every recorded answer was a quick one, so no other try is under way.
      const recorded =
        await sql`select from deliveries where webhook_id = ${webhook.id} and status = 'delivered'`;
      return recorded.count === 100 && held.length >= 16 && row?.leased > held.length;
    });
    await patch(webhook, { url: receiver.url('/second') });
    await waitFor('a second, for which a webhook is taken to be as it was', async () => {
      const [row] = await sql`
        select updated_at < now() - interval '1 second' as past from webhooks where id = ${webhook.id}`;
      return row?.past;
    });
    const first = 100 + held.length;
    for (const answer of held) answer();
    for (const eventId of events) await findDelivery(eventId, webhook);
    assert.equal(receiver.requests.filter(at('/first')).length, first);
    assert.equal(receiver.requests.filter(at('/second')).length, events.length - first);
  });
});

describe('a large body', () => {
  test('is read when it is tried, a few at a time, and arrives whole', async () => {
    const webhooks = [
      await makeWebhook(receiver.url('/large-1')),
      await makeWebhook(receiver.url('/large-2')),
    ];
    const data = JSON.stringify({ text: 'y'.repeat(3 * 1024 * 1024) });
    const events = await Promise.all(Array.from({ length: 12 }, () => makeEvent({ data })));
    for (const webhook of webhooks) {
      for (const eventId of events) assert.equal((await findDelivery(eventId, webhook)).status, 'delivered');
    }
    const bodies = receiver.requests.filter(({ url }) => url.startsWith('/large-')).map(({ body }) => body);
    assert.equal(bodies.length, 24);
    for (const body of bodies) assert.equal(String(body), `{"event":"message.received","data":${data}}`);
  });
});

describe('a webhook that is deleted', () => {
  test('is gone with its deliveries at once, their rows soon after; its events remain', async () => {
    const { webhook, eventId } = await makePending('/deleted');
    const delivery = await findDelivery(eventId, webhook, () => true);
    assert.equal((await call('DELETE', `/webhooks/${webhook.id}`)).status, 204);
    for (const route of [
      `/webhooks/${webhook.id}`,
      `/webhooks/${webhook.id}/deliveries`,
      `/deliveries/${delivery.id}`,
    ])
      assert.equal((await call('GET', route)).status, 404, route);
    assert.equal((await call('POST', `/deliveries/${delivery.id}/redeliver`)).status, 404);
    assert.equal((await call('POST', `/webhooks/${webhook.id}/test`)).status, 404);
    assert.equal((await call('GET', `/events/${eventId}`)).status, 200);
    const later = await makeEvent();
    assert.equal(
      (await sql`select from deliveries where event_id = ${later} and webhook_id = ${webhook.id}`).count,
      0,
    );
    await waitFor('the purge', async () => {
      const rows = await sql`
        select from webhooks where id = ${webhook.id}
        union all select from deliveries where webhook_id = ${webhook.id}
        union all select from attempts where delivery_id = ${delivery.id}`;
      return rows.count === 0;
    });
    assert.equal(receiver.requests.filter(at('/deleted')).length, 1);
    assert.equal((await call('GET', `/events/${eventId}`)).status, 200);
  });

  test('by the deletion of the identity it is restricted to, and no other webhook with it', async () => {
    const identity = (await call('POST', '/identities', { body: { value: 'gone@restricted.example' } })).body;
    const restricted = await makeWebhook(receiver.url('/restricted'), { identityId: identity.id });
    const free = await makeWebhook(receiver.url('/free'));
    const eventId = await makeEvent({ identityId: identity.id });
    const delivered = await findDelivery(eventId, restricted);
    assert.equal((await call('DELETE', `/identities/${identity.id}`)).status, 204);
    assert.equal((await call('GET', `/webhooks/${restricted.id}`)).status, 404);
    assert.equal((await call('GET', `/deliveries/${delivered.id}`)).status, 404);
    assert.equal((await call('GET', `/webhooks/${free.id}`)).status, 200);
    assert.equal((await findDelivery(eventId, free)).status, 'delivered');
    assert.equal((await call('GET', `/events/${eventId}`)).status, 200);
  });
});

describe('a receiver that fails', () => {
  test('410 disables the webhook with the reason "gone"; enabling clears it', async () => {
    receiver.behaveAt('/gone', answer(410));
    const webhook = await makeWebhook(receiver.url('/gone'));
    const before = await read(webhook);
    const eventId = await makeEvent();
    const delivery = await findDelivery(eventId, webhook);
    assert.equal(delivery.status, 'failed');
    assert.equal(delivery.attempts[0].error, 'gone');
    assert.equal(delivery.attempts.length, 1);
    const disabled = await waitFor('the end of it', async () => {
      const now = await read(webhook);
      return now.enabled ? null : now;
    });
    assert.equal(disabled.disabledReason, 'gone');
    assert.ok(disabled.updatedAt > before.updatedAt);
    const enabled = await patch(webhook, { enabled: true });
    assert.equal(enabled.disabledReason, null);
    receiver.behaveAt('/gone', answer(200));
    assert.equal((await findDelivery(await makeEvent(), webhook)).status, 'delivered');
  });

  test('a 410 to a try from before the webhook was enabled again does not disable it', async () => {
    const { id } = await makeWebhook(receiver.url('/again'));
    const before = await readTargets(sql, [id]);
    await patch({ id } as TestWebhook, { enabled: true });
    assert.deepEqual(await disableGone(sql, before), []);
    assert.deepEqual(await disableGone(sql, await readTargets(sql, [id])), [id]);
  });

  test('a redirect is not followed, wherever it points', async () => {
    receiver.behaveAt('/redirects', answer(307, { location: receiver.url('/redirected') }));
    const webhook = await makeWebhook(receiver.url('/redirects'));
    const delivery = await findDelivery(await makeEvent(), webhook);
    assert.equal(delivery.status, 'failed');
    assert.deepEqual(
      delivery.attempts.map(({ error, responseStatus }: Record<string, unknown>) => [error, responseStatus]),
      [
        ['redirect', 307],
        ['redirect', 307],
      ],
    );
    assert.equal(receiver.requests.filter(at('/redirected')).length, 0);
  });

  /** As if it had failed before, so long ago and so often; and then fails or succeeds once more. */
  async function tryAfter(path: string, history: { days: number; tries: number }, status: number) {
    const webhook = await makeWebhook(receiver.url(path));
    await sql`
      update webhooks set first_failure_at = now() - ${history.days} * interval '1 day', failed_tries = ${history.tries}
      where id = ${webhook.id}`;
    receiver.behaveAt(path, answer(status, { 'retry-after': '3600' }));
    await findDelivery(await makeEvent(), webhook, ({ attemptCount }) => attemptCount === 1);
    await waitFor('the count', async () => {
      const [row] = await sql`select failed_tries from webhooks where id = ${webhook.id}`;
      return row?.failed_tries !== history.tries;
    });
    return webhook;
  }

  test('nothing but failure for 5 days and 10 tries disables it with the reason "failing"; enabling clears it', async () => {
    const webhook = await tryAfter('/failing', { days: 5.01, tries: 9 }, 503);
    const disabled = await read(webhook);
    assert.equal(disabled.enabled, false);
    assert.equal(disabled.disabledReason, 'failing');
    assert.ok(disabled.updatedAt > disabled.createdAt);
    const enabled = await patch(webhook, { enabled: true });
    assert.equal(enabled.disabledReason, null);
    const [row] = await sql`select first_failure_at, failed_tries from webhooks where id = ${webhook.id}`;
    assert.deepEqual({ ...row }, { first_failure_at: null, failed_tries: 0 });
  });

  test('not before 5 days, not before 10 tries', async () => {
    const early = await tryAfter('/early', { days: 4.99, tries: 500 }, 503);
    assert.equal((await read(early)).enabled, true);
    const few = await tryAfter('/few', { days: 30, tries: 8 }, 503);
    assert.equal((await read(few)).enabled, true);
  });

  test('a success ends the count', async () => {
    const webhook = await tryAfter('/recovers', { days: 30, tries: 500 }, 200);
    const [row] = await sql`select first_failure_at, failed_tries from webhooks where id = ${webhook.id}`;
    assert.deepEqual({ ...row }, { first_failure_at: null, failed_tries: 0 });
    assert.equal((await read(webhook)).enabled, true);
  });

  test('a success and a failure recorded together are not "nothing but failure"', async () => {
    // Both tries end at the same moment, so they are recorded in one batch.
    const held: ((status: number) => void)[] = [];
    receiver.behaveAt('/mixed', (_request, response) => {
      held.push((status) => response.writeHead(status).end());
    });
    const webhook = await makeWebhook(receiver.url('/mixed'));
    await sql`
      update webhooks set first_failure_at = now() - interval '6 days', failed_tries = 20 where id = ${webhook.id}`;
    const events = [await makeEvent(), await makeEvent()];
    await waitFor('both tries', () => held.length === 2);
    held[0]?.(204);
    held[1]?.(500);
    await waitFor('both outcomes', async () => {
      const rows = await sql`
        select from deliveries where webhook_id = ${webhook.id} and attempt_count > 0`;
      return rows.count === events.length;
    });
    receiver.behaveAt('/mixed', answer(204));
    await findDelivery(await makeEvent(), webhook);
    assert.equal((await read(webhook)).enabled, true);
  });

  test('one that was switched off by hand meanwhile keeps its lack of a reason', async () => {
    const webhook = await makeWebhook(receiver.url('/by-hand'));
    await patch(webhook, { enabled: false });
    await sql`update webhooks set first_failure_at = now() - interval '9 days', failed_tries = 99 where id = ${webhook.id}`;
    await noteFailures(sql, [webhook.id]);
    await disableGone(sql, await readTargets(sql, [webhook.id]));
    const { enabled, disabledReason } = await read(webhook);
    assert.deepEqual({ enabled, disabledReason }, { enabled: false, disabledReason: null });
  });
});

test('a webhook whose secret no longer opens waits, and holds up no other', async () => {
  const broken = await makeWebhook(receiver.url('/sealed'));
  const fine = await makeWebhook(receiver.url('/opened'));
  await sql`update webhooks set secret = '\\x00112233445566778899' where id = ${broken.id}`;
  const eventId = await makeEvent();
  assert.equal((await findDelivery(eventId, fine)).status, 'delivered');
  assert.equal((await findDelivery(eventId, broken, () => true)).status, 'pending');
  assert.equal(receiver.requests.filter(at('/sealed')).length, 0);
  assert.ok(service.logged.some(({ webhookId, level }) => webhookId === broken.id && level === 'error'));
});

test('a delivery whose event is gone ends as cancelled, instead of being claimed for ever', async () => {
  const webhook = await makeWebhook(receiver.url('/no-event'), { enabled: false });
  await sql`update webhooks set enabled = true where id = ${webhook.id}`;
  const { userId } = service.user;
  const eventId = newId();
  await sql`
    insert into delivery_queue (id, owner_id, event_id, webhook_id, event)
    values (delivery_id(${eventId}, ${webhook.id}), ${userId}, ${eventId}, ${webhook.id}, 'message.received')`;
  await sql`select pg_notify('posthorn_ready', '')`;
  assert.equal((await findDelivery(eventId, webhook)).status, 'cancelled');
  assert.equal(receiver.requests.filter(at('/no-event')).length, 0);
});
