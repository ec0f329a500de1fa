/** POST /inbound: mail handed in over HTTP, by the key's owner for the owner's identities. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import http from 'node:http';
import { after, describe, test } from 'node:test';
import { startDns } from './dns.ts';
import { assertProblem, startTestService, type TestUser } from './harness.ts';
import { startReceiver } from './receiver.ts';

const dns = await startDns();
const maxBytes = 200_000;
const service = await startTestService({
  POSTHORN_DNS_SERVERS: dns.address,
  POSTHORN_MAX_MESSAGE_BYTES: String(maxBytes),
});
const { call, sql } = service;
after(() => dns.close());

const message = 'Subject: handed in\r\n\r\nBody';

async function makeIdentity(
  more: Record<string, unknown> = {},
  as = service.user,
): Promise<{ id: string; value: string }> {
  const value = `a${randomBytes(5).toString('hex')}@in.example`;
  const answer = await call('POST', '/identities', { as, body: { value, ...more } });
  assert.equal(answer.status, 201, answer.text);
  return answer.body;
}

interface Options {
  as?: TestUser;
  body?: string | Buffer;
  headers?: Record<string, string>;
}

function post(query: string, { as = service.user, body = message, headers = {} }: Options = {}) {
  return call('POST', `/inbound${query}`, {
    as,
    body,
    headers: { 'content-type': 'message/rfc822', ...headers },
  });
}

const countOf = async ({ id }: { id: string }) =>
  (await sql`select from messages where identity_id = ${id}`).count;

const one = await makeIdentity();
const other = await makeIdentity();

describe('is taken: 202 with the ids', () => {
  test('for ?recipient=, and announced', async () => {
    const receiver = await startReceiver();
    const identity = await makeIdentity();
    await service.makeWebhook(receiver.url(), { identityId: identity.id });
    const answer = await post(`?recipient=${identity.value}`);
    assert.equal(answer.status, 202, answer.text);
    assert.deepEqual(Object.keys(answer.body), ['messageIds']);
    const [id, ...more] = answer.body.messageIds;
    assert.deepEqual(more, []);
    const [request] = await receiver.received(1);
    const { data } = JSON.parse(request?.body.toString() ?? '');
    assert.deepEqual([data.message.id, data.rawEmail], [id, message]);
    await receiver.close();
  });

  test('for X-Recipient, one or several', async () => {
    const single = await post('', { headers: { 'x-recipient': one.value } });
    assert.equal(single.status, 202, single.text);
    const both = await post('', { headers: { 'x-recipient': ` ${one.value} ,${other.value}, ` } });
    assert.equal(both.body.messageIds.length, 2);
  });

  test('for several recipients: a message for each identity, the bytes once', async () => {
    const owner = await service.makeUser();
    const [a, b] = [await makeIdentity({}, owner), await makeIdentity({}, owner)];
    const tagged = a.value.replace('@', '%2Bt@');
    const answer = await post(`?recipient=${a.value}&recipient=${b.value}&recipient=${tagged}`, {
      as: owner,
    });
    assert.equal(answer.status, 202, answer.text);
    const read = answer.body.messageIds.map(async (id: string) => {
      const { body } = await call('GET', `/messages/${id}`, { as: owner });
      return [body.identity.id, body.envelope.rcptTo];
    });
    assert.deepEqual(
      (await Promise.all(read)).sort(),
      [
        [a.id, [a.value, a.value.replace('@', '+t@')]],
        [b.id, [b.value]],
      ].sort(),
    );
    assert.equal((await sql`select from raw_chunks where owner_id = ${owner.userId}`).count, 1);
  });

  test('with parameters after the content type, and it is not changed by them', async () => {
    const headers = { 'content-type': 'Message/RFC822; charset=utf-16' };
    const answer = await post(`?recipient=${one.value}`, { headers });
    assert.equal(answer.status, 202, answer.text);
    const raw = await call('GET', `/messages/${answer.body.messageIds[0]}/raw`);
    assert.equal(raw.text, message);
  });

  test('in chunks of any size, as pipes send it', async () => {
    const chunks = Array.from({ length: 50 }, (_, n) => Buffer.from(`${n}\r\n`));
    const answer = await new Promise<{ status: number; text: string }>((resolve, reject) => {
      const authorization = `Bearer ${service.user.apiKey}`;
      const headers = { authorization, 'content-type': 'message/rfc822' };
      const request = http.request(`${service.url}/inbound?recipient=${one.value}`, {
        method: 'POST',
        headers,
      });
      request.on('error', reject).on('response', async (response) => {
        const parts = await response.toArray();
        resolve({ status: response.statusCode ?? 0, text: Buffer.concat(parts).toString() });
      });
      for (const chunk of chunks) request.write(chunk);
      request.end();
    });
    assert.equal(answer.status, 202, answer.text);
    const [id] = JSON.parse(answer.text).messageIds;
    assert.equal((await call('GET', `/messages/${id}/raw`)).text, Buffer.concat(chunks).toString());
  });

  test('the same message twice: the same id; without a Message-ID another', async () => {
    const body = 'Message-ID: <twice@x.example>\r\n\r\nBody';
    const first = await post(`?recipient=${one.value}`, { body });
    assert.deepEqual((await post(`?recipient=${one.value}`, { body })).body, first.body);
    const [a, b] = [await post(`?recipient=${one.value}`), await post(`?recipient=${one.value}`)];
    assert.notDeepEqual(a.body, b.body);
  });

  test('though another owner claims the address too: each hands in for themselves', async () => {
    const stranger = await service.makeUser();
    const identity = await makeIdentity();
    const { body: theirs } = await call('POST', '/identities', {
      as: stranger,
      body: { value: identity.value },
    });
    const answers = [
      await post(`?recipient=${identity.value}`),
      await post(`?recipient=${identity.value}`, { as: stranger }),
    ];
    assert.deepEqual(
      answers.map(({ status }) => status),
      [202, 202],
    );
    assert.deepEqual([await countOf(identity), await countOf(theirs)], [1, 1]);
  });
});

describe('is refused', () => {
  const pointers = (body: { errors?: { pointer: string; code: string }[] }) =>
    body.errors?.map(({ pointer, code }) => `${pointer} ${code}`);

  test('for an unknown recipient: 400 with its pointer, and nothing is stored for the others', async () => {
    const identity = await makeIdentity();
    const query = `?recipient=${identity.value}&recipient=nobody@in.example&recipient=nonsense`;
    const problem = assertProblem(await post(query), 400, 'invalid_query');
    assert.deepEqual(pointers(problem), ['/recipient unknown_recipient', '/recipient unknown_recipient']);
    assert.match(problem.errors?.[0]?.message ?? '', /nobody@in\.example/);
    assert.equal(await countOf(identity), 0);
  });

  test("for another owner's identity: 400 as for an unknown one, and its owner has nothing", async () => {
    const stranger = await service.makeUser();
    const theirs = await makeIdentity({}, stranger);
    await sql`update identities set status = 'verified' where id = ${theirs.id}`;
    const problem = assertProblem(await post(`?recipient=${theirs.value}`), 400, 'invalid_query');
    assert.deepEqual(pointers(problem), ['/recipient unknown_recipient']);
    assert.equal(await countOf(theirs), 0);
  });

  test('without a recipient, or with an empty one: 400 with its pointer', async () => {
    for (const query of ['', '?recipient=', '?recipient=%20']) {
      assert.deepEqual(pointers(assertProblem(await post(query), 400, 'invalid_query')), [
        '/recipient required',
      ]);
    }
  });

  test('with more than 100 recipients, or an unknown parameter: 400', async () => {
    const many = Array.from({ length: 101 }, (_, n) => `recipient=${n}@in.example`).join('&');
    assertProblem(await post(`?${many}`), 400, 'invalid_query');
    assertProblem(await post(`?recipient=${one.value}&to=x`), 400, 'invalid_query');
  });

  test('with another content type, or none: 415', async () => {
    for (const type of [
      'application/json',
      'text/plain',
      'message/global',
      'multipart/form-data; boundary=x',
      'x',
    ]) {
      const answer = await post(`?recipient=${one.value}`, { headers: { 'content-type': type } });
      assertProblem(answer, 415, 'unsupported_media_type');
    }
    const authorization = `Bearer ${service.user.apiKey}`;
    const untyped = await fetch(`${service.url}/inbound?recipient=${one.value}`, {
      method: 'POST',
      headers: { authorization },
      body: Buffer.from(message),
    });
    assert.equal(untyped.status, 415);
  });

  test('without a body: 400', async () => {
    const answer = await post(`?recipient=${one.value}`, { body: '' });
    assertProblem(answer, 400, 'bad_request');
  });

  test('over the limit: 413 that tells it; at the limit it is taken', async () => {
    const big = Buffer.alloc(maxBytes + 1, 'x');
    const problem = assertProblem(
      await post(`?recipient=${one.value}`, { body: big }),
      413,
      'body_too_large',
    );
    assert.doesNotMatch(problem.detail, /64 KiB/, 'that is the limit of the other routes');
    assert.equal((await post(`?recipient=${one.value}`, { body: big.subarray(1) })).status, 202);
    const unannounced = await fetch(`${service.url}/inbound?recipient=${one.value}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${service.user.apiKey}`, 'content-type': 'message/rfc822' },
      body: new Blob([big]).stream(),
      duplex: 'half',
    });
    assert.equal(unannounced.status, 413);
  });

  test('without a key: 401', async () => {
    const headers = { 'content-type': 'message/rfc822' };
    assertProblem(
      await call('POST', `/inbound?recipient=${one.value}`, { as: null, body: message, headers }),
      401,
      'missing_api_key',
    );
  });

  test('for an identity that is not verified, where only those receive: 400', async () => {
    const strict = await startTestService({
      POSTHORN_DNS_SERVERS: dns.address,
      POSTHORN_ACCEPT_UNVERIFIED: 'false',
    });
    const { body: identity } = await strict.call('POST', '/identities', { body: { value: 'a@in.example' } });
    const options = { body: message, headers: { 'content-type': 'message/rfc822' } };
    assertProblem(
      await strict.call('POST', '/inbound?recipient=a@in.example', options),
      400,
      'invalid_query',
    );
    await strict.sql`update identities set status = 'verified' where id = ${identity.id}`;
    assert.equal((await strict.call('POST', '/inbound?recipient=a@in.example', options)).status, 202);
    await strict.stop();
  });
});

describe('with an Idempotency-Key', () => {
  const key = () => ({ 'idempotency-key': randomBytes(8).toString('hex') });

  test('is done once, though it has no Message-ID: the answer is replayed', async () => {
    const identity = await makeIdentity();
    const headers = key();
    const first = await post(`?recipient=${identity.value}`, { headers });
    const again = await post(`?recipient=${identity.value}`, { headers });
    assert.deepEqual([first.status, again.status, again.text], [202, 202, first.text]);
    assert.equal(again.headers.get('idempotent-replayed'), 'true');
    assert.equal(await countOf(identity), 1);
  });

  test('at the same moment is done once: 202 or 409', async () => {
    const identity = await makeIdentity();
    const headers = key();
    const answers = await Promise.all(
      Array.from({ length: 6 }, () => post(`?recipient=${identity.value}`, { headers })),
    );
    for (const answer of answers) assert.ok([202, 409].includes(answer.status), answer.text);
    assert.equal(await countOf(identity), 1);
  });

  test('is another request with another body or recipient: 409', async () => {
    const headers = key();
    await post(`?recipient=${one.value}`, { headers });
    assertProblem(
      await post(`?recipient=${one.value}`, { headers, body: `${message}!` }),
      409,
      'idempotency_mismatch',
    );
    assertProblem(await post(`?recipient=${other.value}`, { headers }), 409, 'idempotency_mismatch');
  });

  test('is another request with another X-Recipient: 409, not the answer of the first', async () => {
    const [a, b] = [await makeIdentity(), await makeIdentity()];
    const headers = key();
    assert.equal((await post('', { headers: { ...headers, 'x-recipient': a.value } })).status, 202);
    const second = await post('', { headers: { ...headers, 'x-recipient': b.value } });
    assertProblem(second, 409, 'idempotency_mismatch');
  });

  test('is replayed though the identity is gone meanwhile: 202', async () => {
    const identity = await makeIdentity();
    const headers = key();
    const first = await post(`?recipient=${identity.value}`, { headers });
    await call('DELETE', `/identities/${identity.id}`);
    const again = await post(`?recipient=${identity.value}`, { headers });
    assert.deepEqual([again.status, again.text], [202, first.text]);
  });

  test('is free again after a refusal', async () => {
    const headers = key();
    assert.equal((await post('?recipient=nobody@in.example', { headers })).status, 400);
    assert.equal((await post(`?recipient=${one.value}`, { headers })).status, 202);
  });
});

test('a message in chunks of one byte is 400 bad_request', { timeout: 60_000 }, async () => {
  const { value } = await makeIdentity();
  const request = http.request(`${service.url}/inbound?recipient=${value}`, {
    method: 'POST',
    headers: { authorization: `Bearer ${service.user.apiKey}`, 'content-type': 'message/rfc822' },
  });
  const answered = Promise.withResolvers<http.IncomingMessage>();
  request.on('response', answered.resolve).on('error', answered.reject);
  for (let chunks = 0; chunks <= 1000; chunks += 1) request.write('x');
  const answer = await answered.promise;
  assert.equal(answer.statusCode, 400);
  assert.match((await answer.toArray()).join(''), /chunks that are too small/);
  request.destroy();
});
