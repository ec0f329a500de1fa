/** Sending by capture: replies and threads, keys that only send, idempotency, the limit of recipients, lists. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { assertProblem, startTestService, type TestUser } from './harness.ts';
import { openOutbox } from './outbox.ts';

const service = await startTestService({ POSTHORN_SEND_SCHEDULE: '3600', POSTHORN_SEND_RATE: '200' });
const { user, call, sql } = service;
const { makeIdentity, send, post, findMessage } = openOutbox(service);
const identityId = await makeIdentity('ada@sender.example');
const domainId = await makeIdentity('wide.example');
await call('PATCH', `/identities/${domainId}`, { body: { incoming_domain: true } });

async function receive(raw: string, recipient: string): Promise<string> {
  const answer = await call('POST', `/inbound?recipient=${encodeURIComponent(recipient)}`, {
    body: raw,
    headers: { 'content-type': 'message/rfc822' },
  });
  assert.equal(answer.status, 202, answer.text);
  return answer.body.messageIds[0];
}

const listed = async (query: string, as: TestUser = user): Promise<string[]> => {
  const { status, body, text } = await call('GET', `/messages?${query}`, { as });
  assert.equal(status, 200, text);
  return body.map(({ id }: { id: string }) => id);
};

describe('a reply', () => {
  const incoming = [
    'From: Grace <grace@dest.example>',
    'Subject: A question',
    'Message-ID: <question@dest.example>',
    'References: <root@dest.example>',
    '',
    'Well?',
  ];

  test('by id: subject, recipients, In-Reply-To, References and thread', async () => {
    const id = await receive(incoming.join('\r\n'), 'ada@sender.example');
    const parent = await findMessage(id);
    const reply = await send({ identityId, inReplyTo: id.toUpperCase(), to: undefined, subject: undefined });
    assert.equal(reply.subject, 'Re: A question');
    assert.deepEqual(reply.to, [{ name: 'Grace', address: 'grace@dest.example' }]);
    assert.equal(reply.inReplyTo, '<question@dest.example>');
    assert.deepEqual(reply.references, ['<root@dest.example>', '<question@dest.example>']);
    assert.equal(reply.threadId, parent.threadId);
    assert.deepEqual(await listed(`thread_id=${parent.threadId}`), [reply.id, id]);
    assert.deepEqual(await listed(`thread_id=${parent.threadId}&direction=incoming`), [id]);
    assert.deepEqual(await listed(`thread_id=${parent.threadId}&direction=outgoing`), [reply.id]);
    const again = `From: grace@dest.example\r\nSubject: Re: A question\r\nIn-Reply-To: ${reply.messageId}\r\n\r\nThanks`;
    assert.equal((await findMessage(await receive(again, 'ada@sender.example'))).threadId, parent.threadId);
  });

  test('by Message-ID: Reply-To wins over From, what is given wins over both', async () => {
    const to = ['Reply-To: office@dest.example, Desk <desk@dest.example>', ...incoming];
    await receive(to.join('\r\n').replace('<question@', '<second@'), 'ada@sender.example');
    const given = { identityId, inReplyTo: '<second@dest.example>', to: undefined, subject: undefined };
    const reply = await send(given);
    assert.deepEqual(reply.envelope.rcptTo, ['office@dest.example', 'desk@dest.example']);
    const own = await send({ ...given, cc: 'carol@dest.example', subject: 'Mine' });
    assert.deepEqual(own.envelope.rcptTo, ['carol@dest.example']);
    assert.equal(own.subject, 'Mine');
  });

  test('by Message-ID to mail of another identity of the owner; the same Message-ID of another owner stays hidden', async () => {
    const other = await service.makeUser();
    const theirs = await makeIdentity('eve@elsewhere.example', { as: other });
    const raw = (subject: string) =>
      `From: grace@dest.example\r\nSubject: ${subject}\r\nMessage-ID: <both@dest.example>\r\n\r\nx`;
    const headers = { 'content-type': 'message/rfc822' };
    const path = '/inbound?recipient=eve@elsewhere.example';
    await call('POST', path, { as: other, headers, body: raw('Of the other') });
    const given = { inReplyTo: '<both@dest.example>', to: undefined, subject: undefined };
    assertProblem(await post({ ...given, identityId }), 400, 'invalid_body');
    const parent = await findMessage(await receive(raw('Mine'), 'shop@wide.example'));
    const reply = await send({ ...given, identityId });
    assert.deepEqual([reply.subject, reply.threadId], ['Re: Mine', parent.threadId]);
    const answer = await send({ ...given, identityId: theirs }, { as: other });
    assert.equal(answer.subject, 'Re: Of the other');
    assert.notEqual(answer.threadId, reply.threadId);
  });

  test('of a domain identity comes from the address that the message came to', async () => {
    const id = await receive(incoming.join('\r\n').replace('<question@', '<third@'), 'shop@wide.example');
    const given = { identityId: domainId, inReplyTo: id, to: undefined, subject: undefined };
    assert.deepEqual((await send(given)).from, { name: null, address: 'shop@wide.example' });
  });

  test('to a message without an address to reply to needs a recipient', async () => {
    const id = await receive('From: nobody\r\nSubject: x\r\n\r\nx', 'ada@sender.example');
    const given = { identityId, inReplyTo: id, to: undefined, subject: undefined };
    const { errors } = assertProblem(await post(given), 400, 'invalid_body');
    assert.deepEqual(
      errors?.map(({ pointer, code }) => [pointer, code]),
      [['/to', 'required']],
    );
    assert.equal((await send({ ...given, to: 'bob@dest.example' })).subject, 'Re: x');
  });
});

describe('a key with the scope `send`', () => {
  test('replies to a message that it cannot read only if it tells who gets what: the answer would show it', async () => {
    const { body: key } = await call('POST', '/api-keys', { body: { name: 'replies', scope: 'send' } });
    const as = { ...user, apiKey: key.apiKey };
    const id = await receive(
      'From: Grace <grace@dest.example>\r\nSubject: A secret\r\n\r\n',
      'ada@sender.example',
    );
    const given = { identityId, inReplyTo: id, text: 'Yes' };
    for (const more of [{}, { to: 'bob@dest.example' }, { subject: 'Re: it' }]) {
      const answer = await call('POST', '/messages', { as, body: { ...given, ...more } });
      assertProblem(answer, 403, 'scope_insufficient');
      assert.doesNotMatch(answer.text, /secret|grace/i);
    }
    const body = { ...given, to: 'bob@dest.example', subject: 'Re: it' };
    const { status, text } = await call('POST', '/messages', { as, body });
    assert.equal(status, 202, text);
    assert.doesNotMatch(text, /secret|grace/i);
  });

  test('sees the messages that were made with it, and no others, on every route', async () => {
    const keys: TestUser[] = [];
    for (const name of ['one', 'two']) {
      const { body } = await call('POST', '/api-keys', { body: { name, scope: 'send' } });
      keys.push({ ...user, apiKey: body.apiKey });
    }
    const [one, two] = keys as [TestUser, TestUser];
    const later = { identityId, sendAt: new Date(Date.now() + 86_400_000).toISOString() };
    const ofOne = await send(later, { as: one });
    const ofFull = await send(later);
    const incoming = await receive('From: a@b.example\r\nSubject: x\r\n\r\nx', 'ada@sender.example');
    assert.deepEqual(await listed('', one), [ofOne.id]);
    assert.deepEqual(await listed('status=queued', one), [ofOne.id]);
    assert.deepEqual(await listed(`status=queued&identity_id=${identityId}`, one), [ofOne.id]);
    assert.deepEqual(await listed(`thread_id=${ofFull.threadId}`, one), []);
    assert.deepEqual(await listed('direction=incoming', one), []);
    assert.deepEqual(await listed('', two), []);
    for (const path of ['', '/raw', '/attempts']) {
      assert.equal((await call('GET', `/messages/${ofOne.id}${path}`, { as: one })).status, 200);
      assertProblem(await call('GET', `/messages/${ofOne.id}${path}`, { as: two }), 404, 'not_found');
      for (const id of [ofFull.id, incoming])
        assertProblem(await call('GET', `/messages/${id}${path}`, { as: one }), 404, 'not_found');
    }
    assertProblem(await call('POST', `/messages/${ofFull.id}/cancel`, { as: one }), 404, 'not_found');
    assertProblem(await call('POST', `/messages/${ofOne.id}/cancel`, { as: two }), 404, 'not_found');
    assert.equal((await findMessage(ofFull.id)).sending.status, 'queued');
    const cancelled = await call('POST', `/messages/${ofOne.id}/cancel`, { as: one });
    assert.equal(cancelled.body.sending.status, 'cancelled');
    for (const path of ['/events', '/suppressions', '/identities'])
      assertProblem(await call('GET', path, { as: one }), 403, 'scope_insufficient');
    const read = await call('POST', '/api-keys', { body: { name: 'read', scope: 'read' } });
    const reader = { ...user, apiKey: read.body.apiKey };
    assertProblem(await post({ identityId }, { as: reader }), 403, 'scope_insufficient');
    assertProblem(
      await call('POST', `/messages/${ofFull.id}/cancel`, { as: reader }),
      403,
      'scope_insufficient',
    );
    assert.equal((await call('GET', `/messages/${ofFull.id}/attempts`, { as: reader })).status, 200);
  });
});

describe('an Idempotency-Key', () => {
  test('also for a finished message; other bytes, another identity or another recipient are 409', async () => {
    const submit = (body: string, query = '', id = identityId) =>
      call('POST', `/messages?identity_id=${id}${query}`, {
        body: `From: ada@sender.example\r\nTo: bob@dest.example\r\n\r\n${body}`,
        headers: { 'content-type': 'message/rfc822', 'idempotency-key': 'raw-7' },
      });
    const first = await submit('Hello');
    assert.equal(first.status, 202, first.text);
    assert.equal((await submit('Hello')).text, first.text);
    assertProblem(await submit('Hallo'), 409, 'idempotency_mismatch');
    assertProblem(await submit('Hello', '&recipient=eve@dest.example'), 409, 'idempotency_mismatch');
    assertProblem(await submit('Hello', '', domainId), 409, 'idempotency_mismatch');
  });

  test('repeats the first answer, also when the message was cancelled or deleted since', async () => {
    const options = { headers: { 'idempotency-key': 'gone-7' } };
    const given = { identityId, sendAt: new Date(Date.now() + 3_600_000).toISOString() };
    const first = await post(given, options);
    await call('POST', `/messages/${first.body.id}/cancel`);
    assert.equal((await post(given, options)).text, first.text);
    await call('DELETE', `/messages/${first.body.id}`);
    assert.equal((await post(given, options)).text, first.text);
    assert.equal((await sql`select from messages where id = ${first.body.id}`).count, 0);
  });

  test('makes one message of two requests; another body is 409', async () => {
    const options = { headers: { 'idempotency-key': 'order-7' } };
    const first = await send({ identityId }, options);
    const repeated = await post({ identityId }, options);
    assert.equal(repeated.headers.get('idempotent-replayed'), 'true');
    assert.equal(repeated.body.id, first.id);
    assert.match(repeated.headers.get('location') ?? '', new RegExp(`/messages/${first.id}$`));
    assertProblem(await post({ identityId, subject: 'Other' }, options), 409, 'idempotency_mismatch');
    const [row] = await sql`select count(*)::int as count from recipients where message_id = ${first.id}`;
    assert.equal(row?.count, 1);
    const raw = (text: string) =>
      call('POST', `/messages?identity_id=${identityId}`, {
        body: `From: ada@sender.example\r\nTo: b@c.example\r\n\r\n${text}`,
        headers: { 'content-type': 'message/rfc822', 'idempotency-key': 'raw' },
      });
    const { body } = await raw('a');
    assert.equal((await raw('a')).body.id, body.id);
    assertProblem(await raw('b'), 409, 'idempotency_mismatch');
  });

  test('is free again after a request that failed', async () => {
    const options = { headers: { 'idempotency-key': 'failed' } };
    const refused = await post({ identityId, from: 'eve@evil.example' }, options);
    assertProblem(refused, 400, 'invalid_body');
    await send({ identityId }, options);
  });
});

describe('the list of messages', () => {
  test('by status, in pages', async () => {
    const owner = await service.makeUser();
    const own = await makeIdentity('list@sender.example', { as: owner });
    const mine = {
      ...service,
      call: (...[method, path, options]: Parameters<typeof call>) =>
        call(method, path, { as: owner, ...options }),
    };
    const outbox = openOutbox(mine);
    const ids: string[] = [];
    for (const to of [
      'a@dest.example',
      'a@bounce.test',
      'a@defer.test',
      'b@dest.example, b@bounce.test',
      'c@dest.example',
    ])
      ids.unshift((await outbox.send({ identityId: own, to })).id);
    const [last, mixed, deferred, bounced, first] = ids as [string, string, string, string, string];
    for (const id of [last, mixed, bounced, first]) await outbox.findEnded(id);
    assert.deepEqual(await listed('', owner), ids);
    assert.deepEqual(await listed('status=delivered', owner), [last, first]);
    assert.deepEqual(await listed('status=mixed', owner), [mixed]);
    assert.deepEqual(await listed('status=bounced', owner), [bounced]);
    assert.deepEqual(await listed(`status=queued&identity_id=${own}&direction=outgoing`, owner), [deferred]);
    assert.deepEqual(await listed('status=bounced&direction=incoming', owner), []);
    const page = await mine.call('GET', '/messages?status=delivered&limit=1');
    assert.deepEqual(
      page.body.map(({ id }: { id: string }) => id),
      [last],
    );
    const [, next = ''] = /<([^>]+)>; rel="next"/.exec(page.headers.get('link') ?? '') ?? [];
    const second = await mine.call('GET', next.slice(next.indexOf('/messages')));
    assert.deepEqual(
      second.body.map(({ id }: { id: string }) => id),
      [first],
    );
    assertProblem(await mine.call('GET', '/messages?status=unknown'), 400, 'invalid_query');
  });
});

describe('the limit of recipients in a minute', () => {
  test('is 429 with Retry-After, for this owner alone', async () => {
    const [busy, other] = [await service.makeUser(), await service.makeUser()];
    const own = await makeIdentity('busy@sender.example', { as: busy });
    const to = Array.from({ length: 50 }, (_, n) => `r${n}@dest.example`);
    let taken = 0;
    let refused = await post({ identityId: own, to }, { as: busy });
    // A new minute may begin between two requests, but not again and again.
    for (; refused.status === 202 && taken < 50; taken += 1)
      refused = await post({ identityId: own, to }, { as: busy });
    assertProblem(refused, 429, 'rate_limited');
    assert.ok(taken >= 4, `${taken}`);
    const seconds = Number(refused.headers.get('retry-after'));
    assert.ok(seconds >= 1 && seconds <= 60, String(seconds));
    const [row] = await sql`select count(*)::int as count from outgoing where owner_id = ${busy.userId}`;
    assert.equal(row?.count, taken);
    const theirs = await makeIdentity('calm@sender.example', { as: other });
    await send({ identityId: theirs }, { as: other });
  });
});

test('moments of `sendAt` that are close together are one moment of the queue, and none is early', async () => {
  const start = Math.ceil(Date.now() / 1000) * 1000 + 3_600_000;
  const times = [1, 40, 99, 100].map((ms) => new Date(start + ms).toISOString());
  const ids: string[] = [];
  for (const sendAt of times) {
    const { id, sending } = await send({ identityId, sendAt });
    assert.equal(sending.recipients[0].nextAttemptAt, sendAt);
    ids.push(id);
  }
  const rows = await sql<{ dueAt: Date }[]>`
    select distinct next_attempt_at as "dueAt" from send_queue where message_id = any (${ids}::uuid[])`;
  assert.deepEqual(
    rows.map(({ dueAt }) => dueAt.getTime()),
    [start + 100],
  );
});
