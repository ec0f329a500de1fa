/** What every answer has in common, whatever the route: problem documents, request ids, limits, links, doors. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import { describe, test } from 'node:test';
import { problems } from '../src/problems.ts';
import {
  type Answer,
  assertProblem,
  callUrl,
  startTestService,
  type TestService,
  waitFor,
} from './harness.ts';

const service = await startTestService();
const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const production = {
  NODE_ENV: 'production',
  POSTHORN_MAIL_HOST: 'mx.example.com',
  POSTHORN_PUBLIC_URL: 'https://mail.example.com',
};

describe('problem documents', () => {
  test('hold exactly the fields of RFC 9457 and ours, in their types', async () => {
    const answer = await service.call('POST', '/identities', { body: { valu: 1 } });
    assertProblem(answer, 400, 'invalid_body');
    const { requestId, errors, ...rest } = answer.body;
    assert.match(requestId, uuid);
    assert.deepEqual(rest, {
      type: 'urn:posthorn:problem:invalid_body',
      title: problems.invalid_body.title,
      status: 400,
      detail: problems.invalid_body.remedy,
      code: 'invalid_body',
    });
    for (const error of errors) {
      assert.deepEqual(Object.keys(error), ['pointer', 'code', 'message']);
      assert.match(error.code, /^[a-z_]+$/);
    }
    assert.deepEqual(errors.map((error: { pointer: string }) => error.pointer).sort(), ['/valu', '/value']);
  });

  test('leave `errors` out where no field is at fault', async () => {
    const answer = await service.call('GET', '/nothing-here');
    assertProblem(answer, 404, 'route_not_found');
    assert.deepEqual(Object.keys(answer.body).sort(), [
      'code',
      'detail',
      'requestId',
      'status',
      'title',
      'type',
    ]);
  });

  test('an unknown route is 404 with or without a key, and whatever is sent to it', async () => {
    for (const as of [service.user, null]) {
      assertProblem(await service.call('GET', '/nothing-here', { as }), 404, 'route_not_found');
      const headers = { 'content-type': 'message/rfc822' };
      const post = await service.call('POST', '/nothing-here', { as, body: 'x'.repeat(100_000), headers });
      assertProblem(post, 404, 'route_not_found');
    }
  });

  test('a failure inside tells nothing of the inside, and logs the cause under the request id', async () => {
    const broken = await startTestService();
    await broken.sql`drop table webhooks cascade`;
    const answer = await broken.call('GET', '/webhooks', { headers: { 'x-request-id': 'find-me' } });
    assertProblem(answer, 500, 'internal_error');
    assert.equal(answer.body.detail, problems.internal_error.remedy);
    assert.doesNotMatch(answer.text, /relation|select|postgres|\bat \/|node_modules|42P01/i);
    const line = await waitFor('the line', () =>
      broken.logged.find(({ level, requestId }) => level === 'error' && requestId),
    );
    assert.equal(line.requestId, 'find-me');
    assert.match(JSON.stringify(line.err), /relation \\"webhooks\\" does not exist/);
    assert.equal((await broken.call('GET', '/me')).status, 200, 'the rest goes on');
    await broken.stop();
  });
});

describe('X-Request-Id', () => {
  for (const given of ['a', 'A.b_c-9', 'x'.repeat(128)]) {
    test(`${given.slice(0, 9)} (${given.length} characters) is taken over`, async () => {
      const answer = await service.call('GET', '/me', { headers: { 'x-request-id': given } });
      assert.equal(answer.headers.get('x-request-id'), given);
      const failed = await service.call('GET', '/nope', { headers: { 'x-request-id': given } });
      assert.equal(failed.body.requestId, given);
    });
  }

  for (const given of ['', 'a b', 'x'.repeat(129), 'ä', 'a/b', '<script>', 'a,b']) {
    test(`"${given.slice(0, 9)}" (${given.length} characters) is replaced`, async () => {
      const answer = await service.call('GET', '/me', { headers: { 'x-request-id': given } });
      assert.match(answer.headers.get('x-request-id') ?? '', uuid);
    });
  }

  test('each request gets one of its own, those that no route takes included', async () => {
    const targets = [
      '/me',
      '/me',
      '/nope',
      '/identities/%zz',
      `/identities/${'x'.repeat(999)}`,
      '/health/live',
    ];
    const answers = await Promise.all(targets.map((path) => service.call('GET', path)));
    const ids = answers.map((answer) => answer.headers.get('x-request-id'));
    assert.ok(
      ids.every((id) => uuid.test(id ?? '')),
      String(ids),
    );
    assert.equal(new Set(ids).size, targets.length);
  });
});

describe('bodies', () => {
  const limit = 64 * 1024;
  const padded = (size: number, value: string) => JSON.stringify({ value }).padEnd(size, ' ');

  test('64 KiB are taken and a byte more is 413', async () => {
    const whole = await service.call('POST', '/identities', { body: padded(limit, 'just.example') });
    assert.equal(whole.status, 201, whole.text);
    const over = await service.call('POST', '/identities', { body: padded(limit + 1, 'over.example') });
    const { detail } = assertProblem(over, 413, 'body_too_large');
    assert.match(detail, /64 KiB/);
  });

  test('a body without a declared length is cut off at the same size', async () => {
    const chunks = [padded(limit, 'chunked.example'), ' '];
    const response = await fetch(`${service.url}/identities`, {
      method: 'POST',
      headers: { authorization: `Bearer ${service.user.apiKey}`, 'content-type': 'application/json' },
      body: ReadableStream.from(chunks.map((chunk) => new TextEncoder().encode(chunk))),
      duplex: 'half',
    });
    assert.equal(response.status, 413);
    assert.equal(((await response.json()) as { code: string }).code, 'body_too_large');
  });

  const types: [string, string, number][] = [
    ['POST', 'application/json; charset=utf-8', 201],
    ['POST', 'APPLICATION/JSON', 201],
    ['POST', 'text/plain', 415],
    ['POST', 'application/x-www-form-urlencoded', 415],
    ['POST', 'application/jsonx', 415],
    ['POST', 'nonsense', 415],
    ['POST', 'application/merge-patch+json', 415],
    ['PATCH', 'application/merge-patch+json', 200],
    ['PATCH', 'application/json-patch+json', 415],
  ];
  for (const [index, [method, type, status]] of types.entries()) {
    test(`${method} of ${type} is ${status}`, async () => {
      const made = await service.call('POST', '/identities', { body: { value: `t${index}.example` } });
      const path = method === 'PATCH' ? `/identities/${made.body.id}` : '/identities';
      const body = method === 'PATCH' ? '{"meta":{}}' : `{"value":"u${index}.example"}`;
      const answer = await service.call(method, path, { body, headers: { 'content-type': type } });
      if (status === 415) assertProblem(answer, 415, 'unsupported_media_type');
      else assert.equal(answer.status, status, answer.text);
    });
  }
});

describe('CORS', () => {
  const asked = { origin: 'https://app.example.com', 'access-control-request-method': 'PATCH' };
  const corsHeaders = (answer: Answer) =>
    [...answer.headers.keys()].filter((name) => name.startsWith('access-control-'));

  test('is off by default', async () => {
    assert.deepEqual(corsHeaders(await service.call('GET', '/me', { headers: asked })), []);
    assert.deepEqual(corsHeaders(await service.call('OPTIONS', '/me', { as: null, headers: asked })), []);
  });

  test('lets the named origins in and no other', async () => {
    const open = await startTestService({
      POSTHORN_CORS_ORIGINS: 'https://app.example.com,https://b.example',
    });
    const id = '/identities/0198c0de-0000-7000-8000-000000000000';
    const preflight = await open.call('OPTIONS', id, { as: null, headers: asked });
    assert.equal(preflight.status, 204);
    assert.equal(preflight.headers.get('access-control-allow-origin'), 'https://app.example.com');
    assert.match(preflight.headers.get('access-control-allow-methods') ?? '', /\bPATCH\b/);
    assert.match(
      preflight.headers.get('access-control-allow-headers') ?? '',
      /authorization.*idempotency-key/,
    );

    for (const [path, status] of [
      ['/me', 200],
      ['/nope', 404],
      [id, 404],
    ] as const) {
      const answer = await open.call('GET', path, { headers: asked });
      assert.equal(answer.status, status);
      assert.equal(answer.headers.get('access-control-allow-origin'), 'https://app.example.com', path);
      assert.match(answer.headers.get('access-control-expose-headers') ?? '', /link/);
      assert.match(answer.headers.get('vary') ?? '', /origin/i);
    }
    for (const origin of ['https://evil.example', 'https://app.example.com.evil.example', 'null']) {
      const answer = await open.call('GET', '/me', { headers: { origin } });
      assert.deepEqual(corsHeaders(answer), [], origin);
      assert.match(answer.headers.get('vary') ?? '', /origin/i);
    }
  });
});

test('rate limit: told in headers, 429 with Retry-After, for each owner by itself', async () => {
  const limited = await startTestService({ POSTHORN_RATE_LIMIT: '3' });
  for (const left of [2, 1, 0]) {
    const answer = await limited.call('GET', '/me');
    assert.equal(answer.status, 200);
    assert.equal(answer.headers.get('ratelimit-policy'), '"default";q=3;w=60');
    assert.match(answer.headers.get('ratelimit') ?? '', new RegExp(`^"default";r=${left};t=\\d{1,2}$`));
  }
  const refused = await limited.call('GET', '/me');
  assertProblem(refused, 429, 'rate_limited');
  const wait = Number(refused.headers.get('retry-after'));
  assert.ok(Number.isInteger(wait) && wait >= 1 && wait <= 60, String(wait));
  assert.match(refused.headers.get('ratelimit') ?? '', /r=0;/);

  assert.equal((await limited.call('GET', '/me', { as: await limited.makeUser() })).status, 200);
  assert.equal((await limited.call('GET', '/health/live', { as: null })).status, 200);
  assert.equal((await service.call('GET', '/me')).headers.get('ratelimit'), null, 'none where there is none');
});

test('rate limit: all keys of an owner share one limit, because a key can make keys', async () => {
  const limited = await startTestService({ POSTHORN_RATE_LIMIT: '4' });
  const made = await limited.call('POST', '/api-keys', { body: {} });
  assert.equal(made.status, 201, made.text);
  const second = { ...limited.user, apiKey: made.body.apiKey };
  const keys = [limited.user, second, second, second, limited.user];
  const statuses: number[] = [];
  for (const as of keys) statuses.push((await limited.call('GET', '/me', { as })).status);
  assert.deepEqual(statuses, [200, 200, 200, 429, 429]);
  assert.equal((await limited.call('GET', '/me', { as: await limited.makeUser() })).status, 200);
});

describe('links', () => {
  async function makeTwo(at: TestService): Promise<Answer> {
    await at.call('POST', '/identities', { body: { value: 'one.example' } });
    return at.call('POST', '/identities', { body: { value: 'two.example' } });
  }
  const host = { host: 'evil.example', 'x-forwarded-host': 'evil.example', forwarded: 'host=evil.example' };

  test('are path-absolute without a public URL, whatever Host says', async () => {
    const { headers, body } = await makeTwo(service);
    assert.equal(headers.get('location'), `/identities/${body.id}`);
    const page = await service.call('GET', '/identities?limit=1&kind=domain', { headers: host });
    assert.match(
      page.headers.get('link') ?? '',
      /^<\/identities\?limit=1&kind=domain&cursor=[\w-]+>; rel="next"$/,
    );
  });

  test('are absolute under the public URL and the base path, and can be followed', async () => {
    const prefixed = await startTestService({
      POSTHORN_PUBLIC_URL: 'https://mail.example.com/',
      POSTHORN_BASE_PATH: '/api/v2',
    });
    const { headers, body } = await makeTwo(prefixed);
    assert.equal(headers.get('location'), `https://mail.example.com/api/v2/identities/${body.id}`);
    const page = await prefixed.call('GET', '/identities?limit=1', { headers: host });
    const [, next = ''] = /^<([^>]+)>; rel="next"$/.exec(page.headers.get('link') ?? '') ?? [];
    const { origin, pathname, search } = new URL(next);
    assert.equal(origin + pathname, 'https://mail.example.com/api/v2/identities');
    const last = await prefixed.call('GET', `/identities${search}`);
    assert.deepEqual(
      last.body.map((identity: { value: string }) => identity.value),
      ['one.example'],
    );
    assert.equal(last.headers.get('link'), null);

    const { paths } = (await prefixed.call('GET', '/openapi.json')).body;
    const bare = prefixed.url.slice(0, -'/api/v2'.length);
    for (const path of Object.keys(paths).filter((name) => !name.includes('{') && paths[name].get)) {
      // A stream does not end.
      const method = path.endsWith('/stream') ? 'HEAD' : 'GET';
      // An API key has no session.
      const expected = path === '/sessions/current' ? 404 : 200;
      assert.equal((await prefixed.call(method, path)).status, expected, path);
      assertProblem(await callUrl('GET', bare + path, { as: prefixed.user }), 404, 'route_not_found');
    }
  });
});

describe('operation', () => {
  test('health: live and ready answer without a key', async () => {
    for (const path of ['/health/live', '/health/ready']) {
      const answer = await service.call('GET', path, { as: null });
      assert.equal(answer.status, 200);
      assert.deepEqual(answer.body, { status: 'ok' });
    }
  });

  test('metrics are open in development, and no caller can make labels', async () => {
    await service.call('GET', '/made-up-by-a-caller');
    await service.call('GET', '/identities/made-up-by-a-caller');
    await service.call('PROPFIND', '/made-up-by-a-caller');
    const { headers, text, status } = await service.call('GET', '/metrics', { as: null });
    assert.equal(status, 200);
    assert.match(headers.get('content-type') ?? '', /^text\/plain/);
    assert.match(
      text,
      /posthorn_http_request_seconds_count\{method="GET",route="\/identities\/:id",status="404"\} [1-9]/,
    );
    assert.match(text, /route="none",status="404"/);
    assert.doesNotMatch(text, /made-up-by-a-caller/);
  });

  test('metrics do not exist in production unless the operator opens them', async () => {
    const shut = await startTestService(production);
    assertProblem(await shut.call('GET', '/metrics'), 404, 'route_not_found');
  });

  test('metrics take their token, in production too', async () => {
    const token = 't'.repeat(32);
    const guarded = await startTestService({ ...production, POSTHORN_METRICS_TOKEN: token });
    const call = (authorization?: string) =>
      guarded.call('GET', '/metrics', { as: null, headers: authorization ? { authorization } : {} });
    assertProblem(await call(), 401, 'missing_token');
    assertProblem(await call(`Bearer ${token}x`), 401, 'invalid_token');
    assertProblem(await call(`Bearer ${guarded.user.apiKey}`), 401, 'invalid_token');
    assert.equal((await call(`bearer ${token}`)).status, 200);
  });

  test('metrics move to a port of their own', async () => {
    const port = await findFreePort();
    const apart = await startTestService({ ...production, POSTHORN_METRICS_PORT: String(port) });
    assertProblem(await apart.call('GET', '/metrics'), 404, 'route_not_found');
    const at = (path: string) => callUrl('GET', `http://127.0.0.1:${port}${path}`, {});
    await apart.call('GET', '/me');
    assert.match(
      (await at('/metrics')).text,
      /posthorn_http_request_seconds_count\{method="GET",route="\/me"/,
    );
    assertProblem(await at('/me'), 404, 'route_not_found');
  });
});

describe('what is not HTTP', () => {
  const broken: [string, string][] = [
    ['nonsense', 'NONSENSE\r\n\r\n'],
    ['a header without a colon', 'GET /me HTTP/1.1\r\nHost: x\r\nbroken\r\n\r\n'],
    ['a head of 20 KiB', `GET /me HTTP/1.1\r\nHost: x\r\nX-Long: ${'x'.repeat(20_000)}\r\n\r\n`],
    [
      'two lengths',
      'POST /me HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
    ],
  ];
  for (const [what, text] of broken) {
    test(`${what} is a 400 problem and the end of the connection`, async () => {
      const answer = await exchange(text);
      assert.match(answer, /^HTTP\/1\.1 400 Bad Request\r\n/);
      assert.match(answer, /content-type: application\/problem\+json/i);
      const document = JSON.parse(answer.slice(answer.indexOf('\r\n\r\n') + 4));
      assert.equal(document.code, 'bad_request');
      assert.match(document.requestId, uuid);
      assert.match(answer, new RegExp(`^x-request-id: ${document.requestId}\r$`, 'm'));
    });
  }

  test('behind a request whose answer is under way, it is no part of that answer', async () => {
    await service.call('POST', '/identities', { body: { value: 'long@answers.example' } });
    const raw = `Subject: long\r\n\r\n${'a'.repeat(8_000_000)}`;
    const headers = { 'content-type': 'message/rfc822' };
    const taken = await service.call('POST', '/inbound?recipient=long@answers.example', {
      body: raw,
      headers,
    });
    const path = `/messages/${taken.body.messageIds[0]}/raw`;
    const head = `Host: x\r\nAuthorization: Bearer ${service.user.apiKey}`;
    const answer = await exchange(`GET ${path} HTTP/1.1\r\n${head}\r\n\r\n`, 'NONSENSE\r\n\r\n');
    assert.match(answer, /^HTTP\/1\.1 200 OK\r\n/);
    const start = answer.indexOf('\r\n\r\n') + 4;
    assert.ok(raw.startsWith(answer.slice(start, start + raw.length)));
  });

  test('HTTP/1.1 without a Host is a 400 problem, and HTTP/1.0 has none', async () => {
    const answer = await exchange('GET /health/live HTTP/1.1\r\nConnection: close\r\n\r\n');
    assert.match(answer, /^HTTP\/1\.1 400 Bad Request\r\n/);
    assert.equal(JSON.parse(answer.slice(answer.indexOf('\r\n\r\n') + 4)).code, 'bad_request');
    assert.match(await exchange('GET /health/live HTTP/1.0\r\n\r\n'), /^HTTP\/1\.1 200 OK\r\n/);
  });

  test('two Host headers are a 400 problem, also when they are equal', async () => {
    for (const second of ['Host: x', 'hOST: y', 'Host:']) {
      const answer = await exchange(
        `GET /health/live HTTP/1.1\r\nHost: x\r\n${second}\r\nConnection: close\r\n\r\n`,
      );
      assert.match(answer, /^HTTP\/1\.1 400 Bad Request\r\n/, second);
      assert.equal(JSON.parse(answer.slice(answer.indexOf('\r\n\r\n') + 4)).code, 'bad_request');
    }
  });

  test('an expectation that nobody knows is passed over', async () => {
    const head = `Host: x\r\nExpect: x\r\nConnection: close\r\nAuthorization: Bearer ${service.user.apiKey}`;
    assert.match(await exchange(`GET /me HTTP/1.1\r\n${head}\r\n\r\n`), /^HTTP\/1\.1 200 OK\r\n/);
    assert.match(
      await exchange('GET /me HTTP/1.1\r\nHost: x\r\nExpect: x\r\nConnection: close\r\n\r\n'),
      /missing_api_key/,
    );
  });

  /** All that comes back until the service closes the connection. `then` is sent once something has come. */
  async function exchange(text: string, then = ''): Promise<string> {
    const socket = connect(Number(new URL(service.url).port), '127.0.0.1');
    socket.setEncoding('utf8').write(text);
    socket.once('data', () => then && socket.write(then));
    // A reset ends it as well.
    const closed = new Promise((resolve) => socket.on('error', resolve).on('close', resolve));
    let answer = '';
    socket.on('data', (chunk) => {
      answer += chunk;
    });
    await closed;
    return answer;
  }
});

async function findFreePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as { port: number };
  server.close();
  await once(server, 'close');
  return port;
}
