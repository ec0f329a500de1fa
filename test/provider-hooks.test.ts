/** The hooks of Postmark, Mailgun and SendGrid: whose calls are taken, what comes of them, and that nothing of the others is stored. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { startNetwork } from './database-network.ts';
import { startDns } from './dns.ts';
import { type Answer, assertProblem, callUrl, startTestService, type TestUser, waitFor } from './harness.ts';
import { type Call, mailgun, postmark, sendgrid, writeMultipart } from './provider-calls.ts';
import { startReceiver } from './receiver.ts';

const dns = await startDns();
after(() => dns.close());
// In production an unverified identity receives no mail by SMTP or POST /inbound.
const service = await startTestService({
  POSTHORN_DNS_SERVERS: dns.address,
  POSTHORN_ACCEPT_UNVERIFIED: 'false',
  POSTHORN_MAX_MESSAGE_BYTES: '100000',
});
const { call, sql, user } = service;

type Provider = { id: string; inboundUrl: string; eventsUrl: string };

async function makeProvider(kind: string, credentials: unknown, as = user): Promise<Provider> {
  const answer = await call('POST', '/providers', { as, body: { kind, credentials } });
  assert.equal(answer.status, 201, answer.text);
  return answer.body;
}
const post = (url: string, { body, headers }: Call): Promise<Answer> =>
  callUrl('POST', url, { body: body as string, headers });

async function makeIdentity(as: TestUser = user, value = `a${randomBytes(6).toString('hex')}@prov.example`) {
  const answer = await call('POST', '/identities', { as, body: { value } });
  assert.equal(answer.status, 201, answer.text);
  return answer.body as { id: string; value: string };
}
const mail = () =>
  `From: Ada <ada@elsewhere.example>\r\nMessage-ID: <${randomBytes(8).toString('hex')}@elsewhere.example>\r\nSubject: Hi\r\n\r\nBody\r\n`;
const messagesOf = (identity: { id: string }) =>
  sql<{ id: string }[]>`select id from messages where identity_id = ${identity.id}`;
const countCalls = async ({ id }: { id: string }) =>
  (await sql`select from provider_calls where provider_id = ${id}`).count;

async function assertRefused(provider: Provider, url: string, given: Call): Promise<void> {
  const before = await countAll();
  const refused = await post(url, given);
  assertProblem(refused, 403, 'hook_refused');
  assert.deepEqual(await countAll(), before);
  assert.ok(provider.id);
}
/** Everything that a call could leave behind. */
async function countAll(): Promise<unknown> {
  const [row] = await sql`
    select (select count(*) from messages) as messages, (select count(*) from events) as events,
      (select count(*) from raw_chunks) as chunks, (select count(*) from provider_calls) as calls,
      (select count(*) from send_reports) as reports, (select count(*) from suppressions) as suppressions`;
  return row;
}

const providers = {
  postmark: await makeProvider('postmark', postmark.credentials),
  mailgun: await makeProvider('mailgun', mailgun.credentials),
  sendgrid: await makeProvider('sendgrid', sendgrid.credentials),
};
const inbound: Record<keyof typeof providers, (recipient: string, raw: string) => Call> = {
  postmark: (recipient, raw) => postmark.inbound(recipient, raw),
  mailgun: (recipient, raw) => mailgun.inbound(recipient, raw),
  sendgrid: (recipient, raw) => sendgrid.sign(sendgrid.inbound([recipient], raw), sendgrid.keys.inbound),
};

for (const kind of ['postmark', 'mailgun', 'sendgrid'] as const) {
  const { inboundUrl } = providers[kind];
  describe(`mail from ${kind}`, () => {
    test('is taken for an unverified identity, announced, and has its envelope', async () => {
      const receiver = await startReceiver();
      const identity = await makeIdentity();
      await service.makeWebhook(receiver.url(), { identityId: identity.id });
      const raw = mail();
      const answer = await post(inboundUrl, inbound[kind](identity.value, raw));
      assert.equal(answer.status, 200, answer.text);
      const [request] = await receiver.received(1);
      const { data } = JSON.parse(request?.body.toString() ?? '');
      assert.equal(data.rawEmail, raw);
      assert.equal(data.message.source, 'provider');
      assert.equal(data.message.envelope.mailFrom, 'sender@elsewhere.example');
      assert.deepEqual(data.message.envelope.rcptTo, [identity.value]);
      assert.equal(data.message.envelope.remoteIp, null);
      assert.equal(data.message.authentication.spf.result, 'none');
      await receiver.close();
    });

    test('a call that was taken already is 200 and does nothing, also when it comes twice at once', async () => {
      const identity = await makeIdentity();
      // Without a Message-ID the rule against repeated messages does not count.
      const given = inbound[kind](identity.value, 'Subject: again\r\n\r\nBody');
      const answers = await Promise.all([1, 2, 3].map(() => post(inboundUrl, given)));
      answers.push(await post(inboundUrl, given));
      for (const answer of answers) assert.equal(answer.status, 200, answer.text);
      assert.equal((await messagesOf(identity)).length, 1);
      const another = inbound[kind](identity.value, 'Subject: again\r\n\r\nBody');
      assert.equal((await post(inboundUrl, another)).status, 200);
      assert.equal((await messagesOf(identity)).length, 2);
    });

    test('also where another owner holds the address or its domain verified', async () => {
      const stranger = await service.makeUser();
      const value = `b@${randomBytes(6).toString('hex')}.example`;
      const theirs = await makeIdentity(stranger, value);
      await sql`update identities set status = 'verified' where id = ${theirs.id}`;
      const domain = await makeIdentity(stranger, value.split('@')[1]);
      await sql`update identities set status = 'verified' where id = ${domain.id}`;
      const ours = await makeIdentity(user, value);
      await sql`update identities set status = 'failed' where id = ${ours.id}`;
      assert.equal((await post(inboundUrl, inbound[kind](value, mail()))).status, 200);
      assert.equal((await messagesOf(ours)).length, 1);
      assert.equal((await messagesOf(theirs)).length, 0);
    });

    test('mail for an identity of another owner: 406, and nothing is stored', async () => {
      const stranger = await service.makeUser();
      const theirs = await makeIdentity(stranger);
      await sql`update identities set status = 'verified' where id = ${theirs.id}`;
      const before = await countAll();
      const answer = await post(inboundUrl, inbound[kind](theirs.value, mail()));
      assertProblem(answer, 406, 'unknown_recipient');
      assert.deepEqual(await countAll(), before);
    });

    test('the path of another provider of the same kind is 403, and so is an unknown path', async () => {
      if (kind === 'postmark') return;
      const identity = await makeIdentity();
      const changed = {
        mailgun: { ...mailgun.credentials, signingKey: 'another-key' },
        sendgrid: { apiKey: 'SG.k', verificationKey: sendgrid.credentials.verificationKey },
      }[kind];
      const other = await makeProvider(kind, changed);
      await assertRefused(other, other.inboundUrl, inbound[kind](identity.value, mail()));
      const unknown = inboundUrl.replace(/[0-9a-f]{64}/, randomBytes(32).toString('hex'));
      assertProblem(await post(unknown, inbound[kind](identity.value, mail())), 403, 'hook_refused');
    });

    test('a message beyond the limit is 413', async () => {
      const identity = await makeIdentity();
      const raw = `Subject: long\r\n\r\n${'x'.repeat(100_000)}`;
      assertProblem(await post(inboundUrl, inbound[kind](identity.value, raw)), 413, 'body_too_large');
      assertProblem(
        await post(inboundUrl, inbound[kind](identity.value, 'x'.repeat(2_000_000))),
        413,
        'body_too_large',
      );
    });
  });
}

describe('postmark', () => {
  const { inboundUrl, eventsUrl } = providers.postmark;

  test('with basic auth only calls that have it', async () => {
    const basicAuth = { username: 'hook', password: 'correct-horse' };
    const provider = await makeProvider('postmark', { ...postmark.credentials, basicAuth });
    const identity = await makeIdentity();
    const given = postmark.inbound(identity.value, mail());
    const login = (text: string) => ({ authorization: `Basic ${Buffer.from(text).toString('base64')}` });
    for (const headers of [{}, login('hook:wrong'), login('hook:'), { authorization: 'Basic' }]) {
      await assertRefused(provider, provider.inboundUrl, {
        ...given,
        headers: { ...given.headers, ...headers },
      });
      await assertRefused(provider, provider.eventsUrl, {
        ...given,
        headers: { ...given.headers, ...headers },
      });
    }
    const good = { ...given, headers: { ...given.headers, ...login('hook:correct-horse') } };
    assert.equal((await post(provider.inboundUrl, good)).status, 200);
    assert.equal((await messagesOf(identity)).length, 1);
  });

  test('without RawEmail it is told which setting to change', async () => {
    const { body, ...rest } = postmark.inbound('a@prov.example', mail());
    const { RawEmail: _raw, ...parsed } = JSON.parse(String(body));
    const answer = await post(inboundUrl, { ...rest, body: JSON.stringify(parsed) });
    const { detail } = assertProblem(answer, 400, 'hook_incomplete');
    assert.match(detail, /Include raw email content/);
  });

  test('a call with more values than any provider sends is not parsed', async () => {
    const values = '{},'.repeat(200_000);
    for (const depth of [1, 200]) {
      const many = `${'['.repeat(depth)}${values}{}${']'.repeat(depth)}`;
      const body = `{"RecordType":"Delivery","DeliveredAt":${many}}`;
      const answer = await post(providers.postmark.eventsUrl, { headers: {}, body });
      assertProblem(answer, 400, 'hook_incomplete');
    }
  });

  test('what is no call of Postmark is 400', async () => {
    for (const body of ['', '{', '[]', 'null', '"x"', '{"RecordType":"constructor"}', '{"MessageID":{}}']) {
      const answers = [
        await post(inboundUrl, { body, headers: {} }),
        await post(eventsUrl, { body, headers: {} }),
      ];
      for (const { status, text } of answers) assert.ok(status === 400 || status === 200, text);
    }
  });
});

describe('mailgun', () => {
  const { inboundUrl, eventsUrl } = providers.mailgun;
  const hours = (number: number) => Math.floor(Date.now() / 1000) + number * 3600;

  test('the URL for mail ends so that Mailgun sends the whole message', () => {
    assert.match(inboundUrl, /\/hooks\/[0-9a-f]{64}\/inbound\/mime$/);
  });

  test('a urlencoded form brings the same bytes, whatever they are', async () => {
    const identity = await makeIdentity();
    const raw = Buffer.concat([
      Buffer.from('Subject: bytes\r\n\r\n'),
      Buffer.from([0xff, 0, 0x25, 0x2b, 0x26, 0xe9]),
      Buffer.from('\r\n'),
    ]);
    const escaped = [...raw].map((byte) => `%${byte.toString(16).padStart(2, '0')}`).join('');
    const { timestamp, token, signature } = mailgun.sign();
    const body = `recipient=${encodeURIComponent(identity.value)}&sender=a%40b.example&timestamp=${timestamp}&token=${token}&signature=${signature}&body-mime=${escaped}`;
    const headers = { 'content-type': 'application/x-www-form-urlencoded' };
    assert.equal((await post(inboundUrl, { body, headers })).status, 200);
    const [{ id } = { id: '' }] = await messagesOf(identity);
    const answer = await fetch(`${service.url}/messages/${id}/raw`, {
      headers: { authorization: `Bearer ${user.apiKey}` },
    });
    assert.deepEqual(Buffer.from(await answer.arrayBuffer()), raw);
  });

  const unsigned: [string, Record<string, string>][] = [
    ['no signature', {}],
    ['an empty signature', { ...mailgun.sign(), signature: '' }],
    ['another key', mailgun.sign({ key: 'another' })],
    ['another token', { ...mailgun.sign(), token: randomBytes(25).toString('hex') }],
    ['another time', { ...mailgun.sign(), timestamp: String(hours(-1)) }],
    ['a time 24 hours ago', mailgun.sign({ timestamp: hours(-24) - 60 })],
    ['a time in two hours', mailgun.sign({ timestamp: hours(2) })],
    ['a time that is none', mailgun.sign({ timestamp: '1e9' })],
    ['a token that is none', mailgun.sign({ token: '' })],
  ];
  for (const [what, signed] of unsigned) {
    test(`${what}: 403, and nothing is stored`, async () => {
      const identity = await makeIdentity();
      await assertRefused(providers.mailgun, inboundUrl, mailgun.inbound(identity.value, mail(), signed));
      await assertRefused(providers.mailgun, eventsUrl, mailgun.event({ event: 'delivered' }, signed));
    });
  }

  test('digits that move from the time into the token make no other call', async () => {
    const identity = await makeIdentity();
    const signed = mailgun.sign();
    assert.equal(
      (await post(inboundUrl, mailgun.inbound(identity.value, 'a: b\r\n\r\n', signed))).status,
      200,
    );
    const { timestamp, token, signature } = signed;
    const moved = { timestamp: `${timestamp}${token[0]}`, token: token.slice(1), signature };
    const answer = await post(inboundUrl, mailgun.inbound(identity.value, 'a: b\r\n\r\n', moved));
    assert.ok([200, 403].includes(answer.status));
    assert.equal((await messagesOf(identity)).length, 1);
  });

  test('23 hours ago is not too old', async () => {
    const identity = await makeIdentity();
    const signed = mailgun.sign({ timestamp: hours(-23) });
    assert.equal((await post(inboundUrl, mailgun.inbound(identity.value, mail(), signed))).status, 200);
  });

  test('bodies that are no form are 403', async () => {
    const boundary = { 'content-type': 'multipart/form-data; boundary=b' };
    const bodies: Call[] = [
      { body: '', headers: {} },
      { body: '{', headers: { 'content-type': 'application/json' } },
      { body: '--b', headers: boundary },
      { body: '--b\r\n\r\n--b--', headers: boundary },
      { body: '--b--\r\n--b\r\n', headers: boundary },
      { body: 'x', headers: { 'content-type': 'multipart/form-data' } },
      { body: '%&=&%zz=%', headers: { 'content-type': 'application/x-www-form-urlencoded' } },
    ];
    for (const given of bodies) await assertRefused(providers.mailgun, inboundUrl, given);
    await assertRefused(providers.mailgun, eventsUrl, { body: '{"signature":null}', headers: {} });
  });
});

describe('sendgrid', () => {
  const { inboundUrl, eventsUrl } = providers.sendgrid;
  const now = Math.floor(Date.now() / 1000);

  test('of the recipients in the envelope those of the owner get the message', async () => {
    const [one, other, theirs] = [
      await makeIdentity(),
      await makeIdentity(),
      await makeIdentity(await service.makeUser()),
    ];
    const given = sendgrid.inbound([one.value, theirs.value, other.value, 'none@nowhere.example'], mail());
    assert.equal((await post(inboundUrl, sendgrid.sign(given, sendgrid.keys.inbound))).status, 200);
    const counts = await Promise.all(
      [one, other, theirs].map(async (identity) => (await messagesOf(identity)).length),
    );
    assert.deepEqual(counts, [1, 1, 0]);
  });

  const bad: [string, (given: Call, key: typeof sendgrid.keys.other) => Call][] = [
    ['no signature', (given) => given],
    ['another key', (given) => sendgrid.sign(given, sendgrid.keys.other)],
    ['a time 24 hours ago', (given, key) => sendgrid.sign(given, key, now - 86_460)],
    ['a time in two hours', (given, key) => sendgrid.sign(given, key, now + 7200)],
    ['a time that is none', (given, key) => sendgrid.sign(given, key, 'soon')],
    [
      'a changed body',
      (given, key) => ({
        ...sendgrid.sign(given, key),
        body: Buffer.concat([Buffer.from(given.body as string), Buffer.from(' ')]),
      }),
    ],
    ['a changed time', (given, key) => withHeader(sendgrid.sign(given, key), 'timestamp', String(now - 5))],
    ['a signature that is none', (given, key) => withHeader(sendgrid.sign(given, key), 'signature', 'AAAA')],
    ['an empty signature', (given, key) => withHeader(sendgrid.sign(given, key), 'signature', '')],
  ];
  function withHeader(given: Call, name: string, value: string): Call {
    return { ...given, headers: { ...given.headers, [`x-twilio-email-event-webhook-${name}`]: value } };
  }
  for (const [what, change] of bad) {
    test(`${what}: 403, and nothing is stored`, async () => {
      const identity = await makeIdentity();
      const { keys } = sendgrid;
      await assertRefused(
        providers.sendgrid,
        inboundUrl,
        change(sendgrid.inbound([identity.value], mail()), keys.inbound),
      );
      await assertRefused(
        providers.sendgrid,
        eventsUrl,
        change(sendgrid.events({ event: 'delivered' }), keys.events),
      );
    });
  }

  test('the key of events does not sign mail, nor the other way round', async () => {
    const identity = await makeIdentity();
    const { keys } = sendgrid;
    const mailCall = sendgrid.sign(sendgrid.inbound([identity.value], mail()), keys.events);
    await assertRefused(providers.sendgrid, inboundUrl, mailCall);
    await assertRefused(providers.sendgrid, eventsUrl, sendgrid.sign(sendgrid.events({}), keys.inbound));
  });

  test('another signature of the same call is the same call', async () => {
    const identity = await makeIdentity();
    const given = sendgrid.inbound([identity.value], 'Subject: none\r\n\r\n');
    for (const _ of [1, 2])
      assert.equal((await post(inboundUrl, sendgrid.sign(given, sendgrid.keys.inbound, now))).status, 200);
    assert.equal((await messagesOf(identity)).length, 1);
  });

  test('a form without the raw message is told which setting to change', async () => {
    const given = sendgrid.sign(writeMultipart({ envelope: '{}', text: 'parsed' }), sendgrid.keys.inbound);
    const { detail } = assertProblem(await post(inboundUrl, given), 400, 'hook_incomplete');
    assert.match(detail, /POST the raw, full MIME message/);
  });
});

describe('the hooks', () => {
  test('are never logged: neither their paths nor their secrets', async () => {
    for (const { inboundUrl, eventsUrl } of Object.values(providers)) {
      const secret = /[0-9a-f]{64}/.exec(inboundUrl)?.[0] ?? '';
      assert.ok(eventsUrl.includes(secret));
      assert.ok(!JSON.stringify(service.logged).includes(secret));
    }
    assert.ok(service.logged.length > 0);
  });

  test('have a limit of their own for each provider', async () => {
    const limited = await startTestService({ POSTHORN_RATE_LIMIT: '3', DATABASE_URL: service.databaseUrl });
    const at = (url: string) => `${limited.url}/hooks/${url.split('/hooks/')[1]}`;
    const given = postmark.event({ RecordType: 'Open' });
    for (const status of [200, 200, 200, 429])
      assert.equal((await post(at(providers.postmark.eventsUrl), given)).status, status);
    const other = await makeProvider('postmark', postmark.credentials);
    assert.equal((await post(at(other.eventsUrl), given)).status, 200);
    assert.equal((await limited.call('GET', '/me')).status, 200);
    await limited.stop();
  });

  test('answer 503 while the connection to the database is lost, and the call that comes again is taken', async (t) => {
    const network = await startNetwork(t, service.databaseUrl);
    const other = await startTestService({ DATABASE_URL: network.url(1) });
    const identity = await makeIdentity();
    const given = mailgun.inbound(identity.value, 'Subject: lost\r\n\r\nBody');
    const url = `${other.url}/hooks/${providers.mailgun.inboundUrl.split('/hooks/')[1]}`;
    // In the middle of the transaction, and at its end, where nobody knows whether it was committed.
    for (const lost of [{ question: 'insert into provider_calls' }, { question: 'commit' }]) {
      network.cutAt(lost);
      const answer = await post(url, given);
      assertProblem(answer, 503, 'database_unavailable');
      assert.ok(answer.headers.get('retry-after'));
      assert.equal((await messagesOf(identity)).length, 0);
    }
    for (const _ of [1, 2]) assert.equal((await post(url, given)).status, 200);
    assert.equal((await messagesOf(identity)).length, 1);
    await other.stop();
  });

  test('end with their provider', async () => {
    const provider = await makeProvider('postmark', postmark.credentials);
    assert.equal((await call('DELETE', `/providers/${provider.id}`)).status, 204);
    assertProblem(
      await post(provider.eventsUrl, postmark.event({ RecordType: 'Open' })),
      403,
      'hook_refused',
    );
  });

  test('forget a call after 25 hours', async () => {
    const provider = await makeProvider('postmark', postmark.credentials);
    for (const id of ['old', 'new'])
      assert.equal(
        (await post(provider.eventsUrl, postmark.event({ RecordType: 'Open', MessageID: id }))).status,
        200,
      );
    assert.equal(await countCalls(provider), 2);
    await sql`
      update provider_calls set created_at = now() - interval '25 hours 1 minute'
      where ctid = (select min(ctid) from provider_calls where provider_id = ${provider.id})`;
    await waitFor('the purge', async () => (await countCalls(provider)) === 1);
  });
});
