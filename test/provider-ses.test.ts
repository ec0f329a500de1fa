/** The hooks of Amazon SES, through a server of the test's own that acts as Amazon SNS: https, and the name of its region. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, before, beforeEach, describe, test } from 'node:test';
import { makeSelfSigned } from '../src/net/self-signed.ts';
import { readSnsUrl } from '../src/providers/sns.ts';
import { startDns } from './dns.ts';
import { type Answer, assertProblem, callUrl, startTestService } from './harness.ts';
import { type Call, ses, snsCertificate, snsHost } from './provider-calls.ts';
import { startSns } from './sns-server.ts';

const dns = await startDns();
dns.answer(snsHost, { A: ['127.0.0.1'] });
/** Look-alikes lead to the same server, so that only the rule about names keeps us from calling it. */
const lookAlikes = [
  'sns.us-east-1.amazonaws.com.evil.example',
  'sns.eu-west-1.amazonaws.com',
  'evil.example',
];
for (const name of lookAlikes) dns.answer(name, { A: ['127.0.0.1'] });

const sns = await startSns(snsHost, snsCertificate);
const { asked, port } = sns;
after(() => dns.close());

const settings = { POSTHORN_DNS_SERVERS: dns.address, POSTHORN_ALLOW_TARGETS: '127.0.0.1' };
const providerServers = { snsPort: port, ca: sns.ca };
const service = await startTestService(settings, { providerServers });
const { call, sql } = service;
let provider: { id: string; inboundUrl: string; eventsUrl: string };
before(async () => {
  const { status, body, text } = await call('POST', '/providers', {
    body: { kind: 'ses', credentials: ses.credentials },
  });
  assert.equal(status, 201, text);
  provider = body;
});
beforeEach(() => {
  asked.length = 0;
  sns.answer = { status: 200, body: snsCertificate };
});

const post = (given: Call, url = provider.inboundUrl): Promise<Answer> =>
  callUrl('POST', url, { body: given.body as string, headers: given.headers });

async function makeIdentity() {
  const value = `a${randomBytes(6).toString('hex')}@ses.example`;
  return (await call('POST', '/identities', { body: { value } })).body as { id: string; value: string };
}
const countOf = async ({ id }: { id: string }) =>
  (await sql`select from messages where identity_id = ${id}`).count;
const mail = (subject = 'Hi') => `From: ada@elsewhere.example\r\nSubject: ${subject}\r\n\r\nBody\r\n`;
/** A certificate of another name, so that it is not cached. */
const newCertificateUrl = () =>
  `https://${snsHost}/SimpleNotificationService-${randomBytes(16).toString('hex')}.pem`;

async function assertRefused(given: Call): Promise<void> {
  const count = async () =>
    (
      await sql`select (select count(*) from messages) as messages, (select count(*) from provider_calls) as calls`
    )[0];
  const stored = await count();
  assertProblem(await post(given), 403, 'hook_refused');
  assertProblem(await post(given, provider.eventsUrl), 403, 'hook_refused');
  assert.deepEqual(await count(), stored);
}

for (const version of ['1', '2'] as const) {
  test(`mail with a signature of version ${version} is taken, from the bytes in base64`, async () => {
    const identity = await makeIdentity();
    const raw = Buffer.concat([Buffer.from(mail()), Buffer.from([0xff, 0, 0xe9])]);
    const Message = ses.received([identity.value, 'else@nowhere.example'], raw);
    const given = ses.sign({ Message, SigningCertURL: newCertificateUrl() }, { version });
    assert.equal((await post(given)).status, 200);
    assert.equal(asked.length, 1);
    const [{ id } = {}] = await sql`select id from messages where identity_id = ${identity.id}`;
    const { body: shown } = await call('GET', `/messages/${id}`);
    assert.equal(shown.source, 'provider');
    assert.equal(shown.envelope.mailFrom, 'sender@elsewhere.example');
    assert.deepEqual(shown.envelope.rcptTo, [identity.value]);
    assert.equal(shown.size, raw.length);
    assert.equal((await post(given)).status, 200);
    assert.equal((await post(given, provider.eventsUrl)).status, 200);
    assert.equal(await countOf(identity), 1, 'the same call on the other path does nothing');
    assert.equal(asked.length, 1, 'the certificate is kept');
  });
}

test('a Subject is signed too', async () => {
  const identity = await makeIdentity();
  const Message = ses.received([identity.value], mail(), 'UTF8');
  assert.equal((await post(ses.sign({ Message, Subject: 'Amazon SES Email Receipt' }))).status, 200);
  assert.equal(await countOf(identity), 1);
  const changed = ses.sign({ Message, Subject: 'one' });
  await assertRefused({ ...changed, body: String(changed.body).replace('"one"', '"two"') });
});

test('a notification without the message is told which setting to change', async () => {
  const Message = JSON.stringify({ notificationType: 'Received', receipt: { recipients: ['a@b.example'] } });
  const { detail } = assertProblem(await post(ses.sign({ Message })), 400, 'hook_incomplete');
  assert.match(detail, /SNS action/);
});

test('messages of SNS that say nothing of ours are 200', async () => {
  for (const Message of [
    '',
    'hello',
    '{}',
    '[]',
    'null',
    '{"notificationType":"AmazonSnsSubscriptionSucceeded"}',
  ])
    assert.equal((await post(ses.sign({ Message }))).status, 200);
});

describe('a subscription', () => {
  const SubscribeURL = `https://${snsHost}/?Action=ConfirmSubscription&TopicArn=x&Token=abc`;
  const confirmation = (change: Record<string, string> = {}) => ({
    ...{ Type: 'SubscriptionConfirmation', Message: 'You have chosen', Token: 'abc', SubscribeURL },
    ...change,
  });

  test('is confirmed when all is checked', async () => {
    assert.equal((await post(ses.sign(confirmation()))).status, 200);
    assert.ok(asked.includes(`${snsHost}/?Action=ConfirmSubscription&TopicArn=x&Token=abc`));
  });

  for (const [what, given] of [
    ['of another topic', ses.sign(confirmation({ TopicArn: 'arn:aws:sns:us-east-1:123456789012:other' }))],
    ['of another account', ses.sign(confirmation({ TopicArn: 'arn:aws:sns:us-east-1:999999999999:mail' }))],
    ['signed with another key', ses.sign(confirmation(), { key: ses.otherKey })],
    ['of yesterday', ses.sign(confirmation({ Timestamp: new Date(Date.now() - 86_460_000).toISOString() }))],
    ['with a URL elsewhere', ses.sign(confirmation({ SubscribeURL: 'https://evil.example/' }))],
    [
      'with a URL over http',
      ses.sign(confirmation({ SubscribeURL: `http://${snsHost}/?Action=ConfirmSubscription` })),
    ],
    [
      'with a URL of another region',
      ses.sign(confirmation({ SubscribeURL: 'https://sns.eu-west-1.amazonaws.com/' })),
    ],
  ] as const) {
    test(`${what} is refused, and nothing but a certificate is fetched`, async () => {
      await assertRefused(given);
      assert.deepEqual(
        asked.filter((url) => !url.endsWith('.pem')),
        [],
      );
    });
  }
});

describe('403, and nothing is stored:', () => {
  const Message = ses.received(['a@ses.example'], mail());
  const changed = (change: Record<string, unknown>): Call => {
    const given = ses.sign({ Message });
    return { ...given, body: JSON.stringify({ ...JSON.parse(String(given.body)), ...change }) };
  };
  const hoursAgo = (hours: number) => new Date(Date.now() - hours * 3_600_000).toISOString();

  for (const [what, given] of [
    ['another key', ses.sign({ Message }, { key: ses.otherKey })],
    ['another key, version 2', ses.sign({ Message }, { key: ses.otherKey, version: '2' })],
    ['no signature', changed({ Signature: undefined })],
    ['an empty signature', changed({ Signature: '' })],
    ['a version that does not exist', changed({ SignatureVersion: '3' })],
    ['a version that is a name of JavaScript', changed({ SignatureVersion: 'constructor' })],
    ['a type that is a name of JavaScript', changed({ Type: 'constructor' })],
    ['the other version', changed({ SignatureVersion: '2' })],
    ['a changed message', changed({ Message: ses.received(['b@ses.example'], mail()) })],
    ['a changed id', changed({ MessageId: 'other' })],
    ['a changed type', changed({ Type: 'UnsubscribeConfirmation' })],
    ['another topic', ses.sign({ Message, TopicArn: 'arn:aws:sns:us-east-1:123456789012:other' })],
    ['24 hours ago', ses.sign({ Message, Timestamp: hoursAgo(24.1) })],
    ['in two hours', ses.sign({ Message, Timestamp: hoursAgo(-2) })],
    ['a time that is none', ses.sign({ Message, Timestamp: 'now' })],
    ['the bare message of "raw message delivery"', { body: Message, headers: {} }],
    ['no JSON', { body: 'hello', headers: {} }],
    ['an empty body', { body: '', headers: {} }],
    ['a list', { body: '[]', headers: {} }],
    ['texts that are none', { body: '{"Type":1,"Message":[]}', headers: {} }],
  ] as [string, Call][]) {
    test(what, () => assertRefused(given));
  }

  const path = '/SimpleNotificationService-0123456789abcdef.pem';
  for (const SigningCertURL of [
    ...lookAlikes.map((name) => `https://${name}${path}`),
    `http://${snsHost}${path}`,
    `https://${snsHost}:8443${path}`,
    `https://${snsHost}@evil.example${path}`,
    `https://user@${snsHost}${path}`,
    `https://user:pw@${snsHost}${path}`,
    `https://evil.example/${snsHost}${path}`,
    `https://evil.example#@${snsHost}${path}`,
    `https://evil.example\\@${snsHost}${path}`,
    `https://xsns.us-east-1.amazonaws.com${path}`,
    `https://sns.us-east-1.amazonaws.com.cn${path}`,
    `https://sns.us-east-1.amazonaws.com.${path}`,
    `https://s3.us-east-1.amazonaws.com${path}`,
    `https://${snsHost}/other.pem`,
    `https://${snsHost}/../x${path}`,
    `https://${snsHost}/x${path}`,
    `https://${snsHost}${path}?Action=Publish`,
    `file://${snsHost}${path}`,
    path,
    '',
  ]) {
    test(`a certificate from ${SigningCertURL || 'nowhere'}`, async () => {
      await assertRefused(ses.sign({ Message, SigningCertURL }));
      assert.deepEqual(asked, []);
    });
  }
});

describe('503, so that Amazon tries again:', () => {
  for (const [what, given] of [
    ['the certificate is not there', { status: 404, body: '' }],
    ['the host redirects', { status: 302, body: snsCertificate }],
    ['what comes is no certificate', { status: 200, body: 'hello' }],
    ['what comes has no end', { status: 200, body: 'x'.repeat(100_000) }],
  ] as const) {
    test(what, async () => {
      const identity = await makeIdentity();
      const Message = ses.received([identity.value], mail());
      const signed = ses.sign({ Message, SigningCertURL: newCertificateUrl() });
      sns.answer = given;
      const refused = await post(signed);
      assertProblem(refused, 503, 'signer_unreachable');
      assert.ok(refused.headers.get('retry-after'));
      assert.equal(await countOf(identity), 0);
      sns.answer = { status: 200, body: snsCertificate };
      assert.equal((await post(signed)).status, 200, 'a failure is not kept');
      assert.equal(await countOf(identity), 1);
    });
  }

  test('the host is in the network of the operator', async () => {
    const strict = await startTestService(
      { ...settings, POSTHORN_ALLOW_TARGETS: '10.0.0.1', DATABASE_URL: service.databaseUrl },
      { providerServers },
    );
    const given = ses.sign({ Message: '{}', SigningCertURL: newCertificateUrl() });
    const url = `${strict.url}/hooks/${provider.inboundUrl.split('/hooks/')[1]}`;
    assertProblem(await post(given, url), 503, 'signer_unreachable');
    assert.deepEqual(asked, []);
    await strict.stop();
  });

  test('the certificate of the host is of another authority', async () => {
    const other = makeSelfSigned(snsHost, new Date()).cert;
    const strict = await startTestService(
      { ...settings, DATABASE_URL: service.databaseUrl },
      { providerServers: { snsPort: port, ca: other } },
    );
    const given = ses.sign({ Message: '{}', SigningCertURL: newCertificateUrl() });
    const url = `${strict.url}/hooks/${provider.inboundUrl.split('/hooks/')[1]}`;
    assertProblem(await post(given, url), 503, 'signer_unreachable');
    assert.deepEqual(asked, []);
    await strict.stop();
  });
});

test('the host of SNS is that of the region, with a domain of its own in China', () => {
  const at = (text: string, region: string) => readSnsUrl(text, region)?.host ?? null;
  assert.equal(at('https://sns.eu-west-1.amazonaws.com/', 'eu-west-1'), 'sns.eu-west-1.amazonaws.com');
  assert.equal(at('https://SNS.EU-west-1.amazonaws.com:443/', 'eu-west-1'), 'sns.eu-west-1.amazonaws.com');
  assert.equal(
    at('https://sns.cn-north-1.amazonaws.com.cn/', 'cn-north-1'),
    'sns.cn-north-1.amazonaws.com.cn',
  );
  assert.equal(at('https://sns.cn-north-1.amazonaws.com/', 'cn-north-1'), null);
  assert.equal(
    at('https://sns.us-gov-west-1.amazonaws.com/', 'us-gov-west-1'),
    'sns.us-gov-west-1.amazonaws.com',
  );
});
