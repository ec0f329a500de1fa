/** Mail that leaves by a provider's SMTP service, and what the provider reports about it. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { makeSelfSigned } from '../src/net/self-signed.ts';
import { applyProviderReports } from '../src/sending/provider-reports.ts';
import { startDns } from './dns.ts';
import { assertProblem, callUrl, makeTestLog, startTestService } from './harness.ts';
import { openOutbox } from './outbox.ts';
import { type Call, mailgun, postmark, sendgrid, ses, snsCertificate, snsHost } from './provider-calls.ts';
import { startSink } from './smtp-sink.ts';
import { startSns } from './sns-server.ts';

/** Each stands at an address of its own, because all have the same port. */
const services = [
  { kind: 'postmark', host: 'smtp.postmarkapp.com', user: 'a-server-token', password: 'a-server-token' },
  { kind: 'mailgun', host: 'smtp.eu.mailgun.org', user: 'postmaster@mg.example', password: 'pw' },
  { kind: 'sendgrid', host: 'smtp.sendgrid.net', user: 'apikey', password: 'SG.key' },
  { kind: 'ses', host: 'email-smtp.us-east-1.amazonaws.com', user: 'AKIA', password: 'pw' },
] as const;
type Kind = (typeof services)[number]['kind'];

const dns = await startDns();
after(() => dns.close());
const extensions = ['PIPELINING', '8BITMIME', 'SIZE 50000000', 'STARTTLS', 'AUTH PLAIN LOGIN'];
const certificates: string[] = [];
const sinks = {} as Record<Kind, Awaited<ReturnType<typeof startSink>>>;
for (const [n, { kind, host }] of services.entries()) {
  const own = makeSelfSigned(host, new Date());
  certificates.push(own.cert);
  const address = `127.0.0.${n + 11}`;
  const port = sinks.postmark ? { port: sinks.postmark.port } : {};
  sinks[kind] = await startSink({ tls: own, host: address, extensions, ...port });
  dns.answer(host, { A: [address] });
}
const sns = await startSns(snsHost, snsCertificate);
dns.answer(snsHost, { A: ['127.0.0.1'] });

// The operator's way leads nowhere: whatever is sent left by a provider.
const relay = await startSink();
const settings = {
  POSTHORN_DNS_SERVERS: dns.address,
  POSTHORN_ALLOW_TARGETS: '127.0.0.0/8',
  POSTHORN_RELAY_URL: `smtp://127.0.0.1:${relay.port}`,
  POSTHORN_SEND_SCHEDULE: '3600',
  POSTHORN_ROLES: 'api,send',
};
const providerServers = {
  snsPort: sns.port,
  smtpPort: sinks.postmark.port,
  ca: [...certificates, sns.ca].join('\n'),
};
const service = await startTestService(settings, { providerServers });
const { call, sql } = service;
const { post, send, findEnded, findRecipient, events, attempts } = openOutbox(service);

const credentials = { postmark, mailgun, sendgrid, ses };
async function makeProvider(kind: Kind, more: object = {}) {
  const body = { kind, credentials: { ...credentials[kind].credentials, ...more } };
  const made = await call('POST', '/providers', { body });
  assert.equal(made.status, 201, made.text);
  return made.body as { id: string; inboundUrl: string; eventsUrl: string };
}
const address = () => `a${randomBytes(6).toString('hex')}@ours.example`;
async function makeIdentity(provider_id: string | null, value = address()) {
  const made = await call('POST', '/identities', { body: { value, provider_id } });
  assert.equal(made.status, 201, made.text);
  return made.body as { id: string; value: string };
}
const hook = (url: string, { body, headers }: Call) =>
  callUrl('POST', url, { body: body as string, headers });

for (const { kind, host, user, password } of services) {
  test(`${kind}: an unverified identity sends by its service, over verified TLS, with its login`, async () => {
    const sink = sinks[kind];
    const { id: providerId } = await makeProvider(kind);
    const { id: identityId, value } = await makeIdentity(providerId);
    const { id } = await send({ identityId, to: 'bob@dest.example' });
    const message = await findEnded(id);
    assert.equal(message.sending.status, 'sent');
    assert.equal(message.sending.transport, 'provider');
    const [mail] = sink.mails.slice(-1);
    assert.equal(mail?.isSecure, true);
    assert.match(mail?.mail ?? '', new RegExp(`^MAIL FROM:<${value}>`));
    const login = Buffer.from(`\0${user}\0${password}`).toString('base64');
    assert.ok(sink.commands.includes(`AUTH PLAIN ${login}`), sink.commands.join('\n'));
    const isPostmark = kind === 'postmark';
    assert.equal(mail?.raw.includes(`X-PM-Metadata-posthorn: ${id}\r\n`), isPostmark);
    assert.equal(mail?.raw.startsWith('X-PM-KeepID: true\r\n'), isPostmark);
    const [attempt] = await attempts(id);
    assert.equal(attempt.host, host);
    assert.match(attempt.tls.version, /^TLSv1\.[23]$/);
    assert.match(attempt.tls.cipher, /^TLS_/);
    assert.deepEqual(
      (await events(id)).map(({ event }) => event),
      ['message.sent'],
    );
    const { body: provider } = await call('GET', `/providers/${providerId}`);
    assert.equal(provider.send.state, 'ok');
    assert.equal(relay.mails.length, 0);
  });
}

describe('the way out', () => {
  test('an address without one uses the provider of its domain identity, if it is verified', async () => {
    const { id: provider_id } = await makeProvider('mailgun');
    const domain = `d${randomBytes(6).toString('hex')}.example`;
    await makeIdentity(provider_id, domain);
    const identity = await makeIdentity(null, `ada@${domain}`);
    assertProblem(await post({ identityId: identity.id }), 403, 'identity_not_verified');
    await sql`update identities set status = 'verified' where id = ${identity.id}`;
    const { id } = await send({ identityId: identity.id });
    assert.equal((await findEnded(id)).sending.transport, 'provider');
  });

  test('an account of its own comes before the provider', async () => {
    const { id: provider_id } = await makeProvider('mailgun');
    const account = await startSink();
    const smtp = { host: '127.0.0.1', port: account.port, username: 'ada', password: 'secret' };
    account.behave('EHLO', '250-sink.example\r\n250 AUTH PLAIN');
    const made = await call('POST', '/smtp-accounts', { body: { label: 'Post', smtp } });
    const identity = await makeIdentity(provider_id);
    await call('PATCH', `/identities/${identity.id}`, { body: { smtp_account_id: made.body.id } });
    const { id } = await send({ identityId: identity.id });
    assert.equal((await findEnded(id)).sending.transport, 'account');
    assert.equal(account.mails.length, 1);
  });

  test('in capture nothing leaves the machine', async () => {
    const capture = await startTestService(
      { POSTHORN_DNS_SERVERS: dns.address, POSTHORN_ALLOW_TARGETS: '127.0.0.0/8' },
      { providerServers },
    );
    const provider = await capture.call('POST', '/providers', {
      body: { kind: 'ses', credentials: ses.credentials },
    });
    const identity = await capture.call('POST', '/identities', {
      body: { value: address(), provider_id: provider.body.id },
    });
    const before = sinks.ses.connections();
    const outbox = openOutbox(capture);
    const { id } = await outbox.send({ identityId: identity.body.id });
    assert.equal((await outbox.findEnded(id)).sending.transport, 'capture');
    assert.equal(sinks.ses.connections(), before);
    await capture.stop();
  });
});

describe('the login', () => {
  test('verify tells that it is right', async () => {
    const { id } = await makeProvider('ses');
    const { status, body } = await call('POST', `/providers/${id}/verify`);
    assert.equal(status, 200);
    assert.equal(body.send.state, 'ok');
    assert.equal(body.send.error, null);
  });

  test('a refused login is shown with what to do; new credentials make it unknown', async () => {
    sinks.sendgrid.behave('AUTH', '535 5.7.8 Authentication failed: bad key');
    const { id, inboundUrl } = await makeProvider('sendgrid');
    const { body } = await call('POST', `/providers/${id}/verify`);
    assert.equal(body.send.state, 'failing');
    assert.equal(body.send.error.code, 'authentication_failed');
    assert.match(body.send.error.response, /^535 5\.7\.8 /);
    const identity = await makeIdentity(id);
    const { id: messageId } = await send({ identityId: identity.id });
    const recipient = await findRecipient(messageId, ({ attemptCount }) => attemptCount > 0);
    assert.equal(recipient.status, 'queued');
    sinks.sendgrid.behave('AUTH', '235 2.7.0 Welcome');
    const { body: changed } = await call('PATCH', `/providers/${id}`, {
      body: { credentials: sendgrid.credentials },
    });
    assert.deepEqual(changed.send, { state: 'unknown', checkedAt: null, error: null });
    assert.equal(changed.inboundUrl, inboundUrl);
  });

  test('without TLS, or with a certificate of somebody else, the password does not go out', async () => {
    const { id } = await makeProvider('mailgun', { region: 'us' });
    const plain = await startSink({
      ...{ host: '127.0.0.21', port: sinks.postmark.port, extensions: ['AUTH PLAIN'] },
    });
    dns.answer('smtp.mailgun.org', { A: ['127.0.0.21'] });
    const refused = await call('POST', `/providers/${id}/verify`);
    assert.equal(refused.body.send.error.code, 'tls_unavailable');
    const other = await startSink({
      ...{ tls: makeSelfSigned('smtp.mailgun.org', new Date()), host: '127.0.0.22', extensions },
      port: sinks.postmark.port,
    });
    dns.answer('smtp.mailgun.org', { A: ['127.0.0.22'] });
    const untrusted = await call('POST', `/providers/${id}/verify`);
    assert.equal(untrusted.body.send.error.code, 'certificate_invalid');
    assert.ok(![...plain.commands, ...other.commands].some((line) => line.startsWith('AUTH')));
  });
});

interface Reported {
  id: string;
  messageId: string;
  to: string;
  provider: { id: string; eventsUrl: string };
}

async function sendBy(kind: Kind): Promise<Reported> {
  const provider = await makeProvider(kind);
  const identity = await makeIdentity(provider.id);
  const to = `r${randomBytes(6).toString('hex')}@dest.example`;
  const { id, messageId } = await send({ identityId: identity.id, to: [to, 'other@dest.example'] });
  await findEnded(id);
  return { id, messageId, to, provider };
}

type Outcome = 'delivered' | 'bounced' | 'complained' | 'temporary';
/** How each provider says it. */
const say: Record<Kind, (outcome: Outcome, about: Reported) => Call> = {
  postmark(outcome, { id, to }) {
    const Metadata = { posthorn: id };
    const bounce = {
      RecordType: 'Bounce',
      Email: to,
      Metadata,
      ID: 4,
      Details: 'smtp;550 5.1.1 No such user',
    };
    return postmark.event(
      {
        delivered: { RecordType: 'Delivery', Recipient: to, Metadata, Details: '250 2.0.0 OK' },
        bounced: { ...bounce, Type: 'HardBounce' },
        complained: { ...bounce, RecordType: 'SpamComplaint', Type: 'SpamComplaint', Details: '' },
        temporary: { ...bounce, Type: 'Transient' },
      }[outcome],
    );
  },
  mailgun(outcome, { messageId, to }) {
    const message = { headers: { 'message-id': messageId.replace(/^<|>$/g, '') } };
    const failed = { event: 'failed', recipient: to, message, reason: 'bounce' };
    const status = { code: 550, message: '5.1.1 No such user', 'mx-host': 'mx.dest.example' };
    return mailgun.event(
      {
        delivered: {
          event: 'delivered',
          recipient: to,
          message,
          'delivery-status': { code: 250, message: 'OK' },
        },
        bounced: { ...failed, severity: 'permanent', 'delivery-status': status },
        complained: { event: 'complained', recipient: to, message },
        temporary: { ...failed, severity: 'temporary', 'delivery-status': { ...status, code: 450 } },
      }[outcome],
    );
  },
  sendgrid(outcome, { messageId, to }) {
    const base = { email: to, 'smtp-id': messageId };
    const bounce = {
      ...base,
      event: 'bounce',
      type: 'bounce',
      status: '5.1.1',
      reason: '550 5.1.1 No such user',
    };
    const event = {
      delivered: { ...base, event: 'delivered', response: '250 OK' },
      bounced: bounce,
      complained: { ...base, event: 'spamreport' },
      temporary: { ...bounce, event: 'deferred' },
    }[outcome];
    return sendgrid.sign(sendgrid.events({ ...base, event: 'open' }, event), sendgrid.keys.events);
  },
  ses(outcome, { messageId, to }) {
    const mail = { messageId: '0100-ses', headers: [{ name: 'Message-ID', value: messageId }] };
    const bouncedRecipients = [
      { emailAddress: to, action: 'failed', status: '5.1.1', diagnosticCode: 'smtp; 550 5.1.1 No such user' },
    ];
    const complained = { complainedRecipients: [{ emailAddress: to }], complaintFeedbackType: 'abuse' };
    const told = {
      delivered: {
        notificationType: 'Delivery',
        mail,
        delivery: { recipients: [to], smtpResponse: '250 OK' },
      },
      bounced: {
        notificationType: 'Bounce',
        mail,
        bounce: { bounceType: 'Permanent', bounceSubType: 'General', bouncedRecipients },
      },
      complained: { eventType: 'Complaint', mail, complaint: complained },
      temporary: { eventType: 'DeliveryDelay', mail },
    }[outcome];
    return ses.sign({ Message: JSON.stringify(told) }, { version: '2' });
  },
};

const countSuppressed = async (to: string) =>
  (await sql`select from suppressions where address = ${to}`).count;

for (const { kind } of services) {
  describe(`${kind} reports`, () => {
    test('a delivery, and then nothing of a temporary failure', async () => {
      const about = await sendBy(kind);
      for (const outcome of ['temporary', 'delivered', 'temporary'] as const) {
        const answer = await hook(about.provider.eventsUrl, say[kind](outcome, about));
        assert.equal(answer.status, 200, answer.text);
      }
      const [delivered] = (await events(about.id)).slice(2);
      assert.equal(delivered?.event, 'message.delivered');
      assert.equal(delivered?.data.recipient.address, about.to);
      assert.equal(delivered?.data.recipient.bounce, null);
      const { recipients } = (await findEnded(about.id)).sending;
      assert.deepEqual(
        recipients.map((one: { status: string }) => one.status),
        ['delivered', 'sent'],
      );
    });

    test('a bounce: the event, the type by its status, and the suppression', async () => {
      const about = await sendBy(kind);
      const given = say[kind]('bounced', about);
      for (const _ of [1, 2]) assert.equal((await hook(about.provider.eventsUrl, given)).status, 200);
      const [bounced, ...more] = (await events(about.id)).slice(2);
      assert.deepEqual(more, []);
      assert.equal(bounced?.event, 'message.bounced');
      assert.deepEqual(bounced?.data.recipient.bounce, { type: 'hard', source: 'provider' });
      assert.equal(bounced?.data.recipient.response.code, 550);
      assert.equal(bounced?.data.recipient.response.enhanced, '5.1.1');
      assert.equal(await countSuppressed(about.to), 1);
    });

    test('a complaint once: the event and the suppression, and no other status', async () => {
      const about = await sendBy(kind);
      for (const _ of [1, 2])
        assert.equal((await hook(about.provider.eventsUrl, say[kind]('complained', about))).status, 200);
      const [complained, ...more] = (await events(about.id)).slice(2);
      assert.deepEqual(more, []);
      assert.equal(complained?.event, 'message.complained');
      assert.equal((await findEnded(about.id)).sending.recipients[0].status, 'sent');
      assert.equal(await countSuppressed(about.to), 1);
    });

    test("nothing about another owner's message, or one that left on another way", async () => {
      const about = await sendBy(kind);
      const stranger = await service.makeUser();
      const theirs = await call('POST', '/providers', {
        as: stranger,
        body: { kind, credentials: credentials[kind].credentials },
      });
      assert.equal((await hook(theirs.body.eventsUrl, say[kind]('bounced', about))).status, 200);
      await sql`update outgoing set transport = 'relay' where id = ${about.id}`;
      assert.equal((await hook(about.provider.eventsUrl, say[kind]('bounced', about))).status, 200);
      assert.equal((await events(about.id)).length, 2);
      assert.equal(await countSuppressed(about.to), 0);
    });
  });
}

describe('what a report says', () => {
  test('a bounce without a status has the type that the provider gives, and suppresses nothing', async () => {
    const about = await sendBy('postmark');
    const given = postmark.event({
      ...{ RecordType: 'Bounce', Type: 'HardBounce', Email: about.to, ID: 7, Details: '550 unknown' },
      Metadata: { posthorn: about.id },
    });
    assert.equal((await hook(about.provider.eventsUrl, given)).status, 200);
    const [bounced] = (await events(about.id)).slice(2);
    assert.deepEqual(bounced?.data.recipient.bounce, { type: 'hard', source: 'provider' });
    assert.equal(await countSuppressed(about.to), 0);
  });

  test('several events of one call, about two messages', async () => {
    const [one, other] = [await sendBy('sendgrid'), await sendBy('sendgrid')];
    const list = [one, other].flatMap(({ messageId, to }) => [
      { event: 'delivered', email: to, 'smtp-id': messageId },
      {
        event: 'bounce',
        type: 'blocked',
        email: 'other@dest.example',
        'smtp-id': messageId,
        reason: 'blocked',
      },
    ]);
    const given = sendgrid.sign(sendgrid.events(...list), sendgrid.keys.events);
    assert.equal((await hook(one.provider.eventsUrl, given)).status, 200);
    for (const { id } of [one, other]) {
      const { recipients } = (await findEnded(id)).sending;
      assert.deepEqual(
        recipients.map(({ status }: { status: string }) => status),
        ['delivered', 'bounced'],
      );
    }
  });

  test('"not spam" of SES is no complaint', async () => {
    const about = await sendBy('ses');
    const told = JSON.parse(JSON.parse(String(say.ses('complained', about).body)).Message);
    told.complaint.complaintFeedbackType = 'not-spam';
    assert.equal(
      (await hook(about.provider.eventsUrl, ses.sign({ Message: JSON.stringify(told) }))).status,
      200,
    );
    assert.equal((await events(about.id)).length, 2);
  });

  test('a report that comes before the outcome of its try must come again', async () => {
    const { id: provider_id } = await makeProvider('mailgun');
    const { id: identityId } = await makeIdentity(provider_id);
    const to = `r${randomBytes(6).toString('hex')}@dest.example`;
    const sendAt = new Date(Date.now() + 86_400_000).toISOString();
    const { id, messageId } = await send({ identityId, to, sendAt });
    await sql`update send_queue set lease_until = now() + interval '1 hour' where message_id = ${id}`;
    const parts = { sql, log: makeTestLog().log, wakeAfterEvents: () => assert.fail(), outcomeMs: 0 };
    const report = {
      ...{ message: { messageId }, address: to, outcome: 'delivered' as const },
      ...{
        action: 'delivered',
        reply: { code: null, enhanced: null },
        diagnostic: null,
        remoteMta: null,
        bounceType: null,
      },
    };
    const apply = (record: () => Promise<boolean>) =>
      applyProviderReports(parts, service.user.userId, [report], record);
    assert.equal(await apply(() => assert.fail('nothing is recorded')), 'early');
    await sql`update send_queue set lease_until = null where message_id = ${id}`;
    assert.equal(await apply(async () => false), 'applied');
  });
});
