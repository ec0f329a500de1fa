/** Which thread a message joins, how a thread is listed, and which mailbox a message gets into. */
import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { startDns } from './dns.ts';
import { assertProblem, startTestService } from './harness.ts';
import { startReceiver } from './receiver.ts';
import { connectSmtp, toWire } from './smtp-client.ts';

const dns = await startDns();
const service = await startTestService({ POSTHORN_DNS_SERVERS: dns.address });
after(() => dns.close());
const { call, user } = service;

async function makeIdentity(as = user): Promise<{ id: string; value: string }> {
  const value = `a${randomBytes(5).toString('hex')}@thread.example`;
  const answer = await call('POST', '/identities', { as, body: { value } });
  assert.equal(answer.status, 201);
  return answer.body;
}

interface Links {
  id?: string;
  replyTo?: string;
  references?: string[];
}

/** Posts a message with these ids; returns its thread id. */
async function arrive(
  { value }: { value: string },
  { id, replyTo, references }: Links,
  as = user,
): Promise<string> {
  const lines = [
    ...(id ? [`Message-ID: <${id}>`] : []),
    ...(replyTo ? [`In-Reply-To: <${replyTo}>`] : []),
    ...(references ? [`References: ${references.map((one) => `<${one}>`).join(' ')}`] : []),
  ];
  const body = `${lines.join('\r\n')}\r\n\r\n${randomBytes(4).toString('hex')}`;
  const headers = { 'content-type': 'message/rfc822' };
  const taken = await call('POST', `/inbound?recipient=${value}`, { as, body, headers });
  assert.equal(taken.status, 202, taken.text);
  const got = await call('GET', `/messages/${taken.body.messageIds[0]}`, { as });
  return got.body.threadId;
}

describe('a reply is in the thread of the message that it answers', () => {
  test('found through In-Reply-To alone', async () => {
    const to = await makeIdentity();
    const thread = await arrive(to, { id: '1@x' });
    assert.equal(await arrive(to, { id: '2@x', replyTo: '1@x' }), thread);
    assert.equal(await arrive(to, { id: '3@x', replyTo: '2@x' }), thread, 'and the reply to the reply');
  });

  test('found through References alone, whichever of them is stored', async () => {
    const to = await makeIdentity();
    const thread = await arrive(to, { id: '2@x' });
    assert.equal(await arrive(to, { id: '4@x', references: ['1@x', '2@x', '3@x'] }), thread);
    assert.equal(await arrive(to, { id: '6@x', references: ['5@x', '4@x'] }), thread);
  });

  test('through more references than are read', async () => {
    const to = await makeIdentity();
    const thread = await arrive(to, { id: 'root@x' });
    const between = Array.from({ length: 200 }, (_, n) => `${n}@x`);
    assert.equal(await arrive(to, { id: 'end@x', references: ['root@x', ...between] }), thread);
  });

  test('through the first reference, whose own thread is older, past all those between', async () => {
    const to = await makeIdentity();
    const thread = await arrive(to, { id: 'root@x', replyTo: 'older@x' });
    const between = Array.from({ length: 30 }, (_, n) => `${n}@x`);
    assert.equal(await arrive(to, { id: 'end@x', references: ['root@x', ...between] }), thread);
  });

  test('also if it arrives before the original', async () => {
    const to = await makeIdentity();
    const thread = await arrive(to, { id: '2@x', replyTo: '1@x', references: ['1@x'] });
    assert.equal(await arrive(to, { id: '1@x' }), thread);
    assert.equal(await arrive(to, { id: '3@x', replyTo: '1@x' }), thread);
  });

  test('also if the whole conversation arrives in reverse order', async () => {
    const to = await makeIdentity();
    const thread = await arrive(to, { id: '4@x', replyTo: '3@x', references: ['1@x', '2@x', '3@x'] });
    assert.equal(await arrive(to, { id: '3@x', replyTo: '2@x', references: ['1@x', '2@x'] }), thread);
    assert.equal(await arrive(to, { id: '2@x', replyTo: '1@x', references: ['1@x'] }), thread);
    assert.equal(await arrive(to, { id: '1@x' }), thread);
  });

  test('also without a Message-ID of its own', async () => {
    const to = await makeIdentity();
    const thread = await arrive(to, { id: '1@x' });
    assert.equal(await arrive(to, { replyTo: '1@x' }), thread);
  });

  test('and so are two replies to a message that never arrived', async () => {
    const to = await makeIdentity();
    const thread = await arrive(to, { id: '2@x', replyTo: 'lost@x' });
    assert.equal(await arrive(to, { id: '3@x', replyTo: 'lost@x', references: ['lost@x'] }), thread);
  });
});

describe('a new thread begins with', () => {
  test('each message that answers nothing, with and without a Message-ID', async () => {
    const to = await makeIdentity();
    const threads = [];
    for (const links of [{ id: '1@x' }, { id: '2@x' }, {}, {}]) threads.push(await arrive(to, links));
    assert.equal(new Set(threads).size, 4);
  });

  test('the same conversation in another identity of the same owner', async () => {
    const [one, other] = [await makeIdentity(), await makeIdentity()];
    const thread = await arrive(one, { id: '1@x' });
    assert.notEqual(await arrive(other, { id: '2@x', replyTo: '1@x' }), thread);
    assert.notEqual(await arrive(other, { id: '1@x' }), thread);
  });

  test('the same conversation with another owner', async () => {
    const stranger = await service.makeUser();
    const [mine, theirs] = [await makeIdentity(), await makeIdentity(stranger)];
    const thread = await arrive(mine, { id: '1@x' });
    const other = await arrive(theirs, { id: '2@x', replyTo: '1@x' }, stranger);
    assert.notEqual(other, thread);
    assert.equal(await arrive(mine, { id: '3@x', replyTo: '1@x' }), thread);
  });
});

describe('GET /messages?thread_id=', () => {
  const list = (query: string, as = user) => call('GET', `/messages?${query}`, { as });
  const read = async (query: string, as = user) =>
    (await list(query, as)).body.map((message: { messageId: string }) => message.messageId);

  test('lists the thread alone, newest first, with every other filter', async () => {
    const [to, elsewhere] = [await makeIdentity(), await makeIdentity()];
    const thread = await arrive(to, { id: '1@x' });
    await arrive(to, { id: '2@x', replyTo: '1@x' });
    await arrive(to, { id: '3@x', references: ['1@x', '2@x'] });
    await arrive(to, { id: '4@x' });
    await arrive(elsewhere, { id: '5@x', replyTo: '1@x' });
    const whole = ['<3@x>', '<2@x>', '<1@x>'];
    for (const [filters, found] of [
      ['', whole],
      [`&identity_id=${to.id}`, whole],
      [`&identity_id=${elsewhere.id}`, []],
      ['&since=2020-01-01T00:00:00Z', whole],
      ['&since=2100-01-01T00:00:00Z', []],
      [`&identity_id=${to.id}&since=2020-01-01T00:00:00Z`, whole],
      [`&identity_id=${to.id}&since=2100-01-01T00:00:00Z`, []],
    ] as const)
      assert.deepEqual(await read(`thread_id=${thread}${filters}`), found, filters);
    const { body, headers } = await list(`thread_id=${thread}&identity_id=${to.id}&limit=2`);
    const next = /<[^>]*\?([^>]+)>; rel="next"/.exec(headers.get('link') ?? '')?.[1] ?? '';
    assert.equal(body.length, 2);
    assert.deepEqual(await read(next), ['<1@x>']);
  });

  test("is empty for an unknown thread and for another owner's; a malformed id is 400", async () => {
    const thread = await arrive(await makeIdentity(), { id: '1@x' });
    assert.equal((await read(`thread_id=${thread}`)).length, 1);
    assert.deepEqual(await read(`thread_id=${thread}`, await service.makeUser()), []);
    assert.deepEqual(await read(`thread_id=${randomUUID()}`), []);
    const { errors = [] } = assertProblem(await list('thread_id=x'), 400, 'invalid_query');
    assert.deepEqual(
      errors.map(({ pointer, code }) => [pointer, code]),
      [['/thread_id', 'invalid_value']],
    );
  });
});

describe('mailboxes', () => {
  for (const [policy, mailbox] of [
    ['reject', 'spam'],
    ['quarantine', 'spam'],
    ['none', 'inbox'],
  ] as const) {
    test(`mail that fails DMARC under p=${policy} goes to ${mailbox}, and is announced`, async () => {
      const receiver = await startReceiver();
      const to = await makeIdentity();
      await service.makeWebhook(receiver.url(), { identityId: to.id });
      const domain = `${policy}.${randomBytes(4).toString('hex')}.example`;
      dns.answer(domain, { TXT: ['v=spf1 -all'] });
      dns.answer(`_dmarc.${domain}`, { TXT: [`v=DMARC1; p=${policy}`] });
      const client = await connectSmtp(service.smtpPort);
      await client.envelope(`ada@${domain}`, to.value);
      const taken = await client.data(toWire(`From: ada@${domain}\r\nSubject: forged\r\n\r\n`));
      client.close();
      assert.equal(taken.status, 250, taken.full);
      const [request] = await receiver.received(1);
      const { message } = JSON.parse(request?.body.toString() ?? '').data;
      assert.deepEqual(message.authentication.spf, { result: 'fail', domain });
      assert.deepEqual(message.authentication.dmarc, {
        result: 'fail',
        policy,
        aligned: false,
        reason: `Neither SPF nor DKIM authenticates ${domain}.`,
      });
      const [box] = await service.sql`
        select id from mailboxes where identity_id = ${to.id} and kind = ${mailbox}`;
      assert.deepEqual(message.mailbox, { id: box?.id, kind: mailbox });
      assert.deepEqual(
        (await call('GET', `/messages?identity_id=${to.id}`)).body[0].mailbox,
        message.mailbox,
      );
      await receiver.close();
    });
  }

  test('mail that passes DMARC under p=reject, and mail without DNS records, goes to the inbox', async () => {
    const to = await makeIdentity();
    dns.answer('pass.example', { TXT: ['v=spf1 ip4:127.0.0.1 -all'] });
    dns.answer('_dmarc.pass.example', { TXT: ['v=DMARC1; p=reject'] });
    dns.answer('silent.example', 'SERVFAIL');
    dns.answer('_dmarc.silent.example', 'SERVFAIL');
    for (const [domain, result] of [
      ['pass.example', 'pass'],
      ['silent.example', 'temperror'],
    ] as const) {
      const client = await connectSmtp(service.smtpPort);
      await client.envelope(`ada@${domain}`, to.value);
      const taken = await client.data(toWire(`From: ada@${domain}\r\n\r\n`));
      client.close();
      assert.equal(taken.status, 250, taken.full);
      const [message] = (await call('GET', `/messages?identity_id=${to.id}&limit=1`)).body;
      assert.deepEqual([message.authentication.dmarc.result, message.mailbox.kind], [result, 'inbox']);
    }
  });
});
