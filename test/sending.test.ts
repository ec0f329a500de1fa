/** Sending by capture, from the request to the events: nothing leaves the machine. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { startTestService, type TestUser, waitFor } from './harness.ts';
import { startReceiver } from './receiver.ts';

const service = await startTestService({ POSTHORN_SEND_SCHEDULE: '3600' });
const { user, call } = service;

async function makeIdentity(value = 'ada@sender.example', as: TestUser = user): Promise<string> {
  const { status, body, text } = await call('POST', '/identities', { as, body: { value } });
  assert.ok(status === 201 || status === 409, text);
  if (status === 201) return body.id;
  const found = await call('GET', `/identities?value=${encodeURIComponent(value)}`, { as });
  return found.body[0].id;
}

const identityId = await makeIdentity();
const plain = { identityId, to: 'bob@dest.example', subject: 'Hello', text: 'How are you?' };

async function send(change: Record<string, unknown> = {}, headers: Record<string, string> = {}) {
  const answer = await call('POST', '/messages', { body: { ...plain, ...change }, headers });
  assert.equal(answer.status, 202, answer.text);
  return answer.body;
}

async function findEnded(id: string) {
  return waitFor(`message ${id}`, async () => {
    const { body } = await call('GET', `/messages/${id}`);
    return body.sending.status === 'queued' ? null : body;
  });
}

test('a message is taken, captured, and counts as sent and delivered', async () => {
  const receiver = await startReceiver();
  after(() => receiver.close());
  const events = ['message.sent', 'message.delivered', 'message.bounced'];
  await service.makeWebhook(receiver.url(), { events });
  const taken = await send({ metadata: { order: '7' } });
  assert.equal(taken.direction, 'outgoing');
  assert.equal(taken.sending.status, 'queued');
  assert.equal(taken.sending.recipients[0].status, 'queued');
  const { sending, ...message } = await findEnded(taken.id);
  const { sending: _, ...before } = taken;
  assert.deepEqual({ ...message, attachments: [] }, { ...before, attachments: [] });
  const [recipient] = sending.recipients;
  assert.deepEqual(
    { ...sending, recipients: [{ ...recipient, updatedAt: 'then' }] },
    {
      status: 'delivered',
      sendAt: null,
      metadata: { order: '7' },
      transport: 'capture',
      recipients: [
        {
          address: 'bob@dest.example',
          kind: 'to',
          status: 'delivered',
          attemptCount: 1,
          nextAttemptAt: null,
          lastResponse: { code: 250, enhanced: '2.0.0', text: 'Captured; nothing was sent' },
          updatedAt: 'then',
        },
      ],
    },
  );
  assert.equal(message.source, 'api');
  assert.equal(message.mailbox.kind, 'sent');
  assert.equal(message.authentication, null);
  assert.equal(message.recipient, null);
  assert.deepEqual(message.envelope.rcptTo, ['bob@dest.example']);
  const posted = await receiver.received(2);
  const bodies = posted.map(({ body }) => JSON.parse(body.toString()));
  assert.deepEqual(bodies.map(({ event }) => event).sort(), ['message.delivered', 'message.sent']);
  for (const { data } of bodies) {
    assert.equal(data.message.id, taken.id);
    assert.equal(data.message.sending.metadata.order, '7');
    assert.equal(data.recipient.address, 'bob@dest.example');
    assert.equal(data.recipient.bounce, null);
    assert.equal('text' in data.message, false);
  }
});
