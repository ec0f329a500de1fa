/** Traces over the whole service: API → accept → deliver, over processes, to a real collector; and nothing where they are off. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { Webhook } from 'standardwebhooks';
import { startTestService, type TestService, type TestUser, waitFor } from './harness.ts';
import { type ReadSpan, readSpans } from './otlp.ts';
import { type Program, run } from './programs.ts';
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
  OTEL_EXPORTER_OTLP_PROTOCOL: 'http/json',
  OTEL_BSP_SCHEDULE_DELAY: '20',
};
const service = await startTestService({ ...traced, POSTHORN_ROLES: 'api,smtp' });
/** What the service accepts, another process delivers: the trace goes through the database. */
const deliverer = serve({
  ...traced,
  OTEL_SERVICE_NAME: 'posthorn-deliver',
  OTEL_RESOURCE_ATTRIBUTES: 'deployment.environment.name=the%20test',
  OTEL_EXPORTER_OTLP_HEADERS: 'x-team=mail',
  POSTHORN_ROLES: 'deliver',
  POSTHORN_PUBLIC_URL: service.url,
  DATABASE_URL: service.databaseUrl,
});
await deliverer.line(/is ready/);

function serve(settings: Record<string, string>, ...options: string[]): Program {
  const program = run(process.execPath, [...options, 'src/cli/posthorn.ts', 'serve'], {
    ...{ PORT: '0', POSTHORN_SMTP_PORT: '0', ...settings },
  });
  after(() => program.child.kill('SIGKILL'));
  return program;
}

async function endProgram(program: Program): Promise<void> {
  program.child.kill('SIGTERM');
  assert.equal(await program.ended, 0, program.output());
}

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
    assert.match(String(accept.resource['service.instance.id']), /^[0-9a-f-]{36}$/);
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
    assert.equal(deliver.resource['deployment.environment.name'], 'the test');
    assert.ok(collector.requests.some(({ headers }) => headers['x-team'] === 'mail'));
    const { 'server.address': host, ...attributes } = deliver.attributes;
    assert.equal(host, '127.0.0.1');
    const [{ id: deliveryId } = {}] = await service.sql`
      select id from deliveries where webhook_id = ${webhook.id}`;
    assert.deepEqual(attributes, {
      'http.request.method': 'POST',
      'http.response.status_code': 204,
      'posthorn.webhook_id': webhook.id,
      'posthorn.event_id': request.headers['webhook-id'],
      'posthorn.delivery_id': deliveryId,
      'posthorn.attempt': 1,
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
      [1, 'http_error', 'http_error'],
      [2, undefined, undefined],
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
      'http.response.status_code': 404,
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
    const pick = (span: ReadSpan) => ({ traceId: span.traceId, spanId: span.spanId });
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
  const gone = 'http://127.0.0.1:9/v1/traces';
  collector.behaveAt('/hangs', hang());
  for (const [what, endpoint] of [
    ['hangs', collector.url('/hangs')],
    ['is not there', gone],
  ] as const) {
    test(`that ${what} holds up neither mail nor its delivery, nor the end`, async () => {
      const untraced = await startTestService({ ...common, POSTHORN_ROLES: 'api' });
      const program = serve({
        ...traced,
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: endpoint,
        // An end that waited for these would not come before the test is over.
        OTEL_EXPORTER_OTLP_TIMEOUT: '600000',
        OTEL_BSP_EXPORT_TIMEOUT: '600000',
        POSTHORN_ROLES: 'smtp,deliver',
        DATABASE_URL: untraced.databaseUrl,
      });
      const { path, address } = await makeScene(untraced);
      const [, port] = await program.line(/accepts mail on port (\d+)/);
      assert.equal((await sendMail(Number(port), address)).status, 250);
      const [request] = await atPath(path);
      assert.ok(request?.headers.traceparent);
      if (endpoint !== gone) await collector.received(1, ({ url }) => url === '/hangs');
      assert.equal((await sendMail(Number(port), address)).status, 250);
      await receiver.received(2, ({ url }) => url === path);
      await endProgram(program);
      assert.match(program.output(), /the last spans were not sent/);
    });
  }

  test('gets what waits when the service stops', async () => {
    const other = await startTestService({ ...traced, OTEL_BSP_SCHEDULE_DELAY: '600000' });
    await other.call('GET', '/me', { headers: { 'x-request-id': 'traced-5' } });
    const sent = () =>
      readSpans(collector.requests).filter((span) => span.attributes['posthorn.request_id'] === 'traced-5');
    assert.equal(sent().length, 0);
    await other.stop();
    assert.equal(sent().length, 1);
  });

  test('that refuses what it gets: the loss is in the metrics', async () => {
    collector.behaveAt('/refuses', answer(400));
    const other = await startTestService({
      ...traced,
      OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: collector.url('/refuses'),
    });
    await other.call('GET', '/me');
    await waitFor('the loss in the metrics', async () => {
      const { text } = await other.call('GET', '/metrics');
      return /posthorn_trace_spans_total\{outcome="dropped"\} [1-9]/.test(text);
    });
  });

  test('and a setting that the exporter cannot use: the log names the setting', async () => {
    const program = serve({
      ...traced,
      OTEL_EXPORTER_OTLP_COMPRESSION: 'zip',
      POSTHORN_ROLES: 'deliver',
      DATABASE_URL: service.databaseUrl,
    });
    await program.line(/is ready/);
    await endProgram(program);
    assert.match(program.output(), /OTEL_EXPORTER_OTLP_COMPRESSION is invalid/);
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
    '{if(/lib\\/tracing\\.ts$|@opentelemetry.*mjs$/.test(url))console.log("loaded "+url);return next(url,context)}})';

  async function startWatched(settings: Record<string, string>): Promise<string> {
    const database = { DATABASE_URL: service.databaseUrl, POSTHORN_ROLES: 'api' };
    const program = serve({ ...common, ...database, ...settings }, '--import', watch);
    await program.line(/is ready: (http:\S+)/);
    await endProgram(program);
    return program.output();
  }

  test('the code for traces is not loaded', async () => {
    assert.doesNotMatch(await startWatched({}), /loaded/);
    const { OTEL_EXPORTER_OTLP_ENDPOINT } = traced;
    const loaded = await startWatched({ OTEL_EXPORTER_OTLP_ENDPOINT });
    assert.match(loaded, /loaded \S+tracing\.ts/);
    assert.match(loaded, /loaded \S+@opentelemetry\/sdk-trace/);
  });
});
