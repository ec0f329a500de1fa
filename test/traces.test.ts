/** Traces over the whole service: API → accept → deliver, over processes, to a real collector; and nothing where they are off. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { Webhook } from 'standardwebhooks';
import { startTestService, type TestService, type TestUser, waitFor } from './harness.ts';
import { type ReadSpan, readSpans } from './otlp.ts';
import { run } from './programs.ts';
import { answer, hang, type ReceivedRequest, startReceiver } from './receiver.ts';
import { connectSmtp, toWire } from './smtp-client.ts';

const collector = await startReceiver();
const receiver = await startReceiver();
after(() => Promise.all([collector.close(), receiver.close()]));
collector.behave(answer(200, { 'content-type': 'application/json' }, '{}'));

const common = {
  POSTHORN_SECRET_KEY: randomBytes(32).toString('base64'),
  POSTHORN_DNS_SERVERS: '127.0.0.1:9',
  POSTHORN_RETRY_SCHEDULE: '0',
};
const traced = {
  ...common,
  OTEL_EXPORTER_OTLP_ENDPOINT: collector.url('/otlp/'),
  OTEL_RESOURCE_ATTRIBUTES: 'deployment.environment.name=the%20test',
};
const service = await startTestService({ ...traced, POSTHORN_ROLES: 'api,smtp' });
/** What is accepted by the one is delivered by the other: the trace goes through the database. */
await startTestService({
  ...traced,
  OTEL_SERVICE_NAME: 'posthorn-deliver',
  POSTHORN_ROLES: 'api,deliver',
  DATABASE_URL: service.databaseUrl,
});

const callersTrace = '4bf92f3577b34da6a3ce929d0e0e4736';
const callersSpan = '00f067aa0ba902b7';
const traceparent = `00-${callersTrace}-${callersSpan}-01`;

/** A webhook, an identity, and an address of its own for each test. */
async function makeScene(at: TestService = service, as: TestUser = at.user) {
  const name = randomBytes(4).toString('hex');
  const address = `${name}@shop.example`;
  const { body: identity } = await at.call('POST', '/identities', { as, body: { value: address } });
  const webhook = await at.makeWebhook(receiver.url(`/${name}`), { identityId: identity.id }, as);
  return { path: `/${name}`, address, identity, webhook };
}

async function sendMail(port: number, ...addresses: string[]) {
  const client = await connectSmtp(port);
  await client.envelope('ada@example.com', ...addresses);
  const reply = await client.data(toWire('From: ada@example.com\r\nSubject: Quarterly\r\n\r\nHello\r\n'));
  await client.send('QUIT\r\n');
  return reply;
}

const atPath = (path: string) => receiver.received(1, ({ url }) => url === path);

const traceOf = (request: ReceivedRequest | undefined) =>
  String(request?.headers['webhook-id']).replaceAll('-', '');

/** The spans that match, once there are so many. */
function spans(count: number, matching: (span: ReadSpan) => boolean): Promise<ReadSpan[]> {
  return waitFor(`${count} spans`, () => {
    const found = readSpans(collector.requests).filter(matching);
    return found.length >= count ? found : null;
  });
}

const named = (found: ReadSpan[], name: string) => {
  const span = found.find((one) => one.name === name);
  assert.ok(span, `no span ${name} among ${found.map((one) => one.name)}`);
  return span;
};

describe('mail over SMTP', () => {
  test('is one trace from its acceptance to its delivery by another process, and its receiver can go on', async () => {
    const { path, address, identity, webhook } = await makeScene();
    assert.equal((await sendMail(service.smtpPort, address)).status, 250);
    const [request] = await atPath(path);
    assert.ok(request);
    const traceId = traceOf(request);
    const found = await spans(4, (span) => span.traceId === traceId);
    assert.equal(found.length, 4);

    const accept = named(found, 'accept message');
    assert.equal(accept.kind, 'server');
    assert.equal(accept.parentSpanId, undefined);
    assert.equal(accept.attributes['posthorn.identity_id'], identity.id);
    assert.equal(accept.attributes['posthorn.source'], 'smtp');
    assert.equal(accept.attributes['posthorn.outcome'], 'recorded');
    assert.equal(accept.resource['service.name'], 'posthorn');
    assert.equal(accept.resource['deployment.environment.name'], 'the test');
    const { data } = JSON.parse(request.body.toString());
    assert.equal(accept.attributes['posthorn.message_id'], data.message.id);
    for (const name of ['examine', 'record']) {
      const child = named(found, name);
      assert.equal(child.parentSpanId, accept.spanId);
      assert.ok(accept.startNanos <= child.startNanos && child.endNanos <= accept.endNanos, name);
    }

    const deliver = named(found, 'deliver');
    assert.equal(deliver.kind, 'client');
    assert.equal(deliver.parentSpanId, accept.spanId);
    assert.equal(deliver.error, undefined);
    assert.equal(deliver.resource['service.name'], 'posthorn-deliver');
    const { 'server.address': host, ...attributes } = deliver.attributes;
    assert.equal(host, '127.0.0.1');
    const [{ id: deliveryId } = {}] = await service.sql`
      select id from deliveries where webhook_id = ${webhook.id}`;
    assert.deepEqual(attributes, {
      'http.request.method': 'POST',
      'http.response.status_code': 204n,
      'posthorn.webhook_id': webhook.id,
      'posthorn.event_id': request.headers['webhook-id'],
      'posthorn.delivery_id': deliveryId,
      'posthorn.attempt': 1n,
      'posthorn.outcome': 'delivered',
    });
    assert.equal(request.headers.traceparent, `00-${traceId}-${deliver.spanId}-01`);
    new Webhook(webhook.secret).verify(request.body.toString(), request.headers as Record<string, string>);
    const nowNanos = BigInt(Date.now()) * 1_000_000n;
    const ageNanos = nowNanos - accept.startNanos;
    assert.ok(ageNanos > 0n && ageNanos < 60_000_000_000n, `${ageNanos}`);
  });

  test('a try that failed and the next are in the same trace', async () => {
    const { path, address } = await makeScene();
    receiver.behaveAt(path, answer(500));
    await sendMail(service.smtpPort, address);
    const [request] = await atPath(path);
    receiver.behaveAt(path, answer(204));
    const tries = await spans(2, (span) => span.traceId === traceOf(request) && span.name === 'deliver');
    tries.sort((one, other) => (one.startNanos < other.startNanos ? -1 : 1));
    const told = tries.map(({ error, attributes }) => [
      attributes['posthorn.attempt'],
      error,
      attributes['error.type'],
    ]);
    assert.deepEqual(told, [
      [1n, 'http_error', 'http_error'],
      [2n, undefined, undefined],
    ]);
  });

  test('for two owners is two traces that do not know each other', async () => {
    const one = await makeScene();
    const other = await makeScene(service, await service.makeUser());
    await sendMail(service.smtpPort, one.address, other.address);
    const [[first], [second]] = await Promise.all([atPath(one.path), atPath(other.path)]);
    assert.notEqual(traceOf(first), traceOf(second));
    for (const request of [first, second]) {
      const found = await spans(4, (span) => span.traceId === traceOf(request));
      assert.deepEqual(
        found.map(({ name, links }) => [name, links]).sort(),
        ['accept message', 'deliver', 'examine', 'record'].map((name) => [name, []]),
      );
      assert.equal(request?.headers.traceparent?.slice(3, 35), traceOf(request));
    }
  });

  test('that could not be stored is told as such', async () => {
    const { address, identity } = await makeScene();
    await service.sql.script(`
      create function full_disk() returns trigger language plpgsql as
        $$ begin raise exception 'no room' using errcode = '53100'; end $$;
      create trigger full_disk before insert on messages for each row execute function full_disk()`);
    const reply = await sendMail(service.smtpPort, address);
    await service.sql`drop function full_disk cascade`;
    assert.equal(reply.status, 452);
    const failed = (span: ReadSpan) => span.attributes['posthorn.identity_id'] === identity.id;
    const [accept] = await spans(1, failed);
    assert.equal(accept?.error, '53100');
    assert.equal(accept.attributes['posthorn.outcome'], 'failed');
    assert.equal(accept.attributes['posthorn.message_id'], undefined);
  });
});

describe('the API', () => {
  test('goes on with the trace of its caller, and tells route, status and request id', async () => {
    const headers = { traceparent, 'x-request-id': 'traced-1' };
    await service.call('GET', `/webhooks/${crypto.randomUUID()}`, { headers });
    const [span] = await spans(1, (one) => one.attributes['posthorn.request_id'] === 'traced-1');
    assert.equal(span?.name, 'GET /webhooks/:id');
    assert.equal(span.kind, 'server');
    assert.equal(span.traceId, callersTrace);
    assert.equal(span.parentSpanId, callersSpan);
    assert.equal(span.error, undefined);
    assert.deepEqual(span.attributes, {
      'http.request.method': 'GET',
      'http.route': '/webhooks/:id',
      'http.response.status_code': 404n,
      'posthorn.request_id': 'traced-1',
    });
  });

  test('a message handed in begins the trace of its event, and the two lead to each other', async () => {
    const { path, address } = await makeScene();
    const taken = await service.call('POST', `/inbound?recipient=${address}`, {
      body: 'From: ada@example.com\r\nSubject: Quarterly\r\n\r\nHello\r\n',
      headers: { 'content-type': 'message/rfc822', traceparent, 'x-request-id': 'traced-2' },
    });
    assert.equal(taken.status, 202, taken.text);
    const [request] = await atPath(path);
    const found = await spans(4, (span) => span.traceId === traceOf(request));
    const [asked] = await spans(1, (span) => span.attributes['posthorn.request_id'] === 'traced-2');
    const accept = named(found, 'accept message');
    assert.equal(accept.kind, 'internal');
    assert.equal(asked?.traceId, callersTrace);
    const pick = (span: ReadSpan) => ({ traceId: span.traceId, spanId: span.spanId, flags: 1 });
    assert.deepEqual(accept.links, [pick(asked)]);
    assert.deepEqual(asked.links, [pick(accept)]);
    assert.equal(named(found, 'deliver').parentSpanId, accept.spanId);
  });

  test('a try that a request asks for is in the trace of the request', async () => {
    const { path, webhook } = await makeScene();
    const headers = { traceparent, 'x-request-id': 'traced-3' };
    const tested = await service.call('POST', `/webhooks/${webhook.id}/test`, { headers });
    assert.equal(tested.body.delivered, true, tested.text);
    const [request] = await atPath(path);
    const [asked] = await spans(1, (span) => span.attributes['posthorn.request_id'] === 'traced-3');
    const mine = (span: ReadSpan) => span.attributes['posthorn.webhook_id'] === webhook.id;
    const [deliver] = await spans(1, mine);
    assert.equal(deliver?.traceId, callersTrace);
    assert.equal(deliver.parentSpanId, asked?.spanId);
    assert.equal(request?.headers.traceparent, `00-${callersTrace}-${deliver.spanId}-01`);
  });

  test('says nothing of addresses, subjects, keys, URLs or signatures, and nothing of probes', async () => {
    const { path, address, webhook } = await makeScene();
    await sendMail(service.smtpPort, address);
    const [request] = await atPath(path);
    const { data } = JSON.parse(String(request?.body));
    assert.equal((await fetch(data.rawEmailUrl)).status, 200);
    assert.equal((await service.call('GET', '/health/ready')).status, 200);
    assert.equal((await service.call('GET', '/nowhere')).status, 404);
    // After those: what it waits for, they did not lack time for.
    await service.call('GET', '/me', { headers: { 'x-request-id': 'traced-4' } });
    await spans(1, (span) => span.attributes['posthorn.request_id'] === 'traced-4');
    await spans(4, (span) => span.traceId === traceOf(request));
    const sent = collector.requests.map(({ body }) => body.toString()).join('\n');
    assert.match(sent, /GET \/messages\/:id\/raw/);
    const { signature } = Object.fromEntries(new URL(data.rawEmailUrl).searchParams);
    assert.ok(signature);
    for (const secret of [signature, address, 'ada@example.com', 'Quarterly', path, webhook.secret])
      assert.ok(!sent.includes(secret), secret);
    assert.ok(!sent.includes(service.user.apiKey));
    assert.doesNotMatch(sent, /health|nowhere/);
  });
});

describe('a collector', () => {
  test('that hangs holds up neither mail nor its delivery, nor the end, and the loss is told', async () => {
    const slow = '/hangs/v1/traces';
    collector.behaveAt(slow, hang());
    const other = await startTestService({
      ...common,
      OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: collector.url(slow),
    });
    const { path, address } = await makeScene(other);
    assert.equal((await sendMail(other.smtpPort, address)).status, 250);
    const [request] = await atPath(path);
    assert.ok(request?.headers.traceparent);
    await collector.received(1, ({ url }) => url === slow);
    assert.equal((await sendMail(other.smtpPort, address)).status, 250);
    await receiver.received(2, ({ url }) => url === path);
    const startedAt = performance.now();
    await other.stop();
    assert.ok(performance.now() - startedAt < 8000, 'not as long as a POST may take');
    const lost = other.logged.map(({ msg }) => String(msg)).find((line) => line.includes('were not sent'));
    assert.match(lost ?? '', /^\d+ spans were not sent before the end$/);
  });

  test('that refuses what it gets: the loss is in the metrics', async () => {
    collector.behaveAt('/refuses', answer(400));
    const other = await startTestService({
      ...common,
      OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: collector.url('/refuses'),
    });
    await other.call('GET', '/me');
    await waitFor('the loss in the metrics', async () => {
      const { text } = await other.call('GET', '/metrics');
      return /posthorn_trace_spans_total\{outcome="dropped"\} [1-9]/.test(text);
    });
  });
});

describe('without an endpoint', () => {
  test('a delivery has no traceparent, also when its caller sends one', async () => {
    const other = await startTestService(common);
    const { path, address, webhook } = await makeScene(other);
    await sendMail(other.smtpPort, address);
    await atPath(path);
    await other.call('POST', `/webhooks/${webhook.id}/test`, { headers: { traceparent } });
    const requests = await receiver.received(2, ({ url }) => url === path);
    for (const { headers } of requests) assert.equal(headers.traceparent, undefined);
  });

  const watch =
    'data:text/javascript,import{registerHooks}from"node:module";registerHooks({load(url,context,next)' +
    '{if(/lib\\/(tracing|otlp)\\.ts$/.test(url))console.log("loaded "+url);return next(url,context)}})';

  async function startWatched(settings: Record<string, string>): Promise<string> {
    const program = run(process.execPath, ['--import', watch, 'src/cli/posthorn.ts', 'serve'], {
      ...common,
      ...{ DATABASE_URL: service.databaseUrl, PORT: '0', POSTHORN_SMTP_PORT: '0', POSTHORN_ROLES: 'api' },
      ...settings,
    });
    await program.line(/is ready: (http:\S+)/);
    program.child.kill('SIGTERM');
    assert.equal(await program.ended, 0, program.output());
    return program.output();
  }

  test('the code for it is not even loaded', async () => {
    assert.doesNotMatch(await startWatched({}), /loaded/);
    const { OTEL_EXPORTER_OTLP_ENDPOINT } = traced;
    assert.match(await startWatched({ OTEL_EXPORTER_OTLP_ENDPOINT }), /loaded \S+tracing\.ts/);
  });
});
