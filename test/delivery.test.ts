/** From event to receiver: signed, recorded, retried. */
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { after, test } from 'node:test';
import { Webhook } from 'standardwebhooks';
import { recordEvent } from '../src/store/events.ts';
import { startTestService, waitFor } from './harness.ts';

const service = await startTestService({ POSTHORN_RETRY_SCHEDULE: '0,0' });
const { user } = service;

const seen: { headers: Record<string, string>; body: string }[] = [];
let status = 200;
const server = createServer(async (request, response) => {
  let body = '';
  for await (const chunk of request) body += chunk;
  seen.push({ headers: request.headers as Record<string, string>, body });
  response.writeHead(status).end('ok');
});
await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
after(() => server.close());
const address = server.address();
const url = `http://127.0.0.1:${typeof address === 'object' ? address?.port : ''}/hook`;

test('an event reaches a webhook that listens, signed so that standardwebhooks verifies it', async () => {
  const webhook = (
    await service.call('POST', '/webhooks', {
      body: { url, events: ['message.received'], ownerId: user.userId },
    })
  ).body;
  const event = {
    ownerId: user.userId,
    event: 'message.received',
    identityId: null,
    data: '{"message":{"id":1}}',
  };
  const { id, deliveries } = await recordEvent(service.sql, event);
  assert.equal(deliveries, 1);
  const [request] = await waitFor('the POST', () => (seen.length > 0 ? seen : null));
  assert.equal(request?.body, '{"event":"message.received","data":{"message":{"id":1}}}');
  assert.equal(request?.headers['webhook-id'], id);
  assert.ok(new Webhook(webhook.secret).verify(request?.body ?? '', request?.headers ?? {}));
  const [listed] = await waitFor('the record', async () => {
    const { body } = await service.call('GET', `/webhooks/${webhook.id}/deliveries?status=delivered`);
    return body.length > 0 ? body : null;
  });
  const { body } = await service.call('GET', `/deliveries/${listed.id}`);
  assert.equal(body.attempts.length, 1);
  assert.equal(body.attempts[0].responseStatus, 200);
  assert.equal(body.attempts[0].responseBody, 'ok');

  status = 500;
  const again = await service.call('POST', `/deliveries/${listed.id}/redeliver`);
  assert.equal(again.status, 202);
  const failed = await waitFor('giving up', async () => {
    const { body } = await service.call('GET', `/deliveries/${listed.id}`);
    return body.status === 'failed' ? body : null;
  });
  assert.equal(failed.attemptCount, 4);
  const tested = await service.call('POST', `/webhooks/${webhook.id}/test`);
  assert.equal(tested.body.delivered, false, tested.text);
  status = 200;
  const replay = await service.call('POST', `/webhooks/${webhook.id}/replay`, {
    body: { since: '2020-01-01T00:00:00Z' },
  });
  assert.equal(replay.status, 202, replay.text);
  const where = replay.headers.get('location') ?? '';
  const done = await waitFor('the replay', async () => {
    const { body } = await service.call('GET', where);
    return body.completedAt ? body : null;
  });
  assert.equal(done.queued, 1, JSON.stringify(done));
});
