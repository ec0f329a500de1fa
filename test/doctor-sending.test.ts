/** `posthorn doctor --sending`, with a DNS server and mail servers of the test's own. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, beforeEach, test } from 'node:test';
import { checkMtaSts } from '../src/cli/host-checks.ts';
import { readConfig } from '../src/config.ts';
import { makeDnsClient } from '../src/net/dns.ts';
import { makeEgress } from '../src/net/egress.ts';
import { reverseName } from '../src/net/ip-addresses.ts';
import { makeMtaSts } from '../src/net/mta-sts.ts';
import { makeSelfSigned } from '../src/net/self-signed.ts';
import { makeFolder, posthorn } from './programs.ts';
import { mailHost, startProving, withoutLoop } from './proving.ts';
import { answer, startReceiver } from './receiver.ts';
import { startSink } from './smtp-sink.ts';

const { service, dns, add, publish, verify, record } = await startProving(withoutLoop);
const sink = await startSink();
const ownAddress = '203.0.113.5';
const folder = makeFolder();
after(() => folder.remove());
const settings = {
  DATABASE_URL: service.databaseUrl,
  POSTHORN_SECRET_KEY: randomBytes(32).toString('base64'),
  POSTHORN_DNS_SERVERS: dns.address,
  POSTHORN_MAIL_HOST: mailHost,
  POSTHORN_OUTBOUND: 'direct',
  POSTHORN_MX_PORT: String(sink.port),
  ...writeCertificate(mailHost),
};
const identity = await add('shop.example');
await publish('shop.example', [identity]);
await verify(identity);
const dkim = await record(identity, 'dkim');

/** Everything is right, but for the certificate, which no authority signed. */
beforeEach(() => {
  dns.reset();
  sink.behave('connect', '220 sink.example ESMTP');
  sink.behave('EHLO', '250 sink.example');
  dns.answer('receiver.example', { MX: ['10 mx.receiver.example'] });
  dns.answer('mx.receiver.example', { A: ['127.0.0.1'] });
  dns.answer(mailHost, { A: [ownAddress], TXT: [`v=spf1 a:${mailHost} -all`] });
  dns.answer('5.113.0.203.in-addr.arpa', { PTR: [mailHost] });
  dns.answer(dkim.name, { TXT: [dkim.value] });
  dns.answer('_dmarc.shop.example', { TXT: ['v=DMARC1; p=reject'] });
});

function writeCertificate(host: string): Record<string, string> {
  const { cert, key } = makeSelfSigned(host, new Date());
  const [certFile, keyFile] = [`${host}.cert`, `${host}.key`].map((name) => path.join(folder.path, name));
  writeFileSync(certFile as string, cert);
  writeFileSync(keyFile as string, key);
  return { POSTHORN_TLS_CERT: certFile as string, POSTHORN_TLS_KEY: keyFile as string };
}

interface Finding {
  check: string;
  level: string;
  detail: string;
  remedy?: string;
}

async function doctor(more: Record<string, string> = {}, ...args: string[]) {
  const command = ['doctor', '--sending', '--to', 'receiver.example', '--json', ...args];
  const { code, output } = await posthorn(command, { ...settings, ...more });
  const findings: Finding[] = JSON.parse(output);
  const levels = Object.fromEntries(findings.map(({ check, level }) => [check, level]));
  const find = (check: string) => findings.filter((one) => one.check === check).at(-1) as Finding;
  return { code, findings, levels, find };
}

const port = `port ${sink.port}`;

test('direct: finds everything right, and sends no mail', async () => {
  const { code, levels, findings } = await doctor();
  assert.deepEqual(
    levels,
    {
      ...{
        configuration: 'ok',
        transport: 'ok',
        [port]: 'ok',
        'HELO name': 'ok',
        'reverse DNS': 'ok',
        SPF: 'ok',
      },
      ...{ bounces: 'ok', DKIM: 'ok', DMARC: 'ok', certificate: 'warn', 'MTA-STS': 'ok' },
    },
    JSON.stringify(findings),
  );
  assert.equal(code, 0);
  assert.equal(sink.mails.length, 0);
  assert.ok(sink.commands.includes(`EHLO ${mailHost}`));
  assert.ok(!sink.commands.some((line) => /^(MAIL|RCPT|DATA)/.test(line)));
});

test('direct: each problem is named, says what to do, and the exit code is 1', async () => {
  dns.answer(mailHost, { A: [ownAddress] });
  dns.answer('5.113.0.203.in-addr.arpa', { PTR: ['host-5.provider.example'] });
  dns.answer(dkim.name, { TXT: ['v=DKIM1; k=rsa; p=AAAA'] });
  dns.answer('_dmarc.shop.example', 'NXDOMAIN');
  dns.answer('bounces.example', { MX: ['10 mx.elsewhere.example'] });
  dns.answer('_mta-sts.bounces.example', { TXT: ['v=STSv1; id=1'] });
  const closed = await startSink();
  await closed.close();
  const { code, find } = await doctor({
    POSTHORN_MX_PORT: String(closed.port),
    POSTHORN_BOUNCE_DOMAIN: 'bounces.example',
    ...writeCertificate('other.example'),
  });
  assert.equal(code, 1);
  const expected: [string, string, RegExp, RegExp][] = [
    [`port ${closed.port}`, 'fail', /mx\.receiver\.example: ECONNREFUSED/, /block outgoing port .* relay/],
    [
      'reverse DNS',
      'fail',
      /host-5\.provider\.example, but that name does not lead/,
      /PTR\) to mx\.posthorn/,
    ],
    ['SPF', 'fail', /bounces\.example has no SPF record/, /"v=spf1 a:mx\.posthorn\.example -all"/],
    ['bounces', 'fail', /goes to mx\.elsewhere\.example/, /MX 10 mx\.posthorn\.example/],
    ['DKIM', 'fail', /shop\.example: The record contains another key/, /without a signature/],
    ['DMARC', 'warn', /shop\.example has no DMARC record/, /_dmarc\.shop\.example/],
    ['certificate', 'fail', /not for mx\.posthorn\.example/, /Get one for mx/],
    ['MTA-STS', 'fail', /cannot be fetched/, /https:\/\/mta-sts\.bounces\.example\/\.well-known/],
  ];
  for (const [check, level, detail, remedy] of expected) {
    const found = find(check);
    assert.equal(found.level, level, JSON.stringify(found));
    assert.match(found.detail, detail);
    assert.match(found.remedy ?? '', remedy);
  }
});

test('direct: what the address of outgoing mail decides', async () => {
  dns.answer('9.113.0.203.in-addr.arpa', { PTR: ['mail.provider.example'] });
  dns.answer('mail.provider.example', { A: ['203.0.113.9'] });
  const { code, find } = await doctor({}, '--address', '203.0.113.9');
  assert.equal(code, 1);
  assert.match(find('HELO name').detail, /203\.0\.113\.5, but mail leaves from 203\.0\.113\.9/);
  assert.match(find('reverse DNS').detail, /mail\.provider\.example, but Posthorn says .* mx\.posthorn/);
  assert.equal(find('reverse DNS').level, 'warn');
  assert.match(find('SPF').detail, /does not allow 203\.0\.113\.9 \(fail\)/);
  assert.match(find('SPF').remedy ?? '', /ip4:203\.0\.113\.9/);
  assert.equal((await posthorn(['doctor', '--sending', '--address', 'here'], settings)).code, 2);
});

test('direct: a server that refuses this machine is a problem, and its reply is shown', async () => {
  sink.behave('connect', '554 5.7.1 You are on a list');
  const { code, find } = await doctor();
  assert.equal(code, 1);
  assert.match(find(port).detail, /554 5\.7\.1 You are on a list|554 .*You are on a list/);
  assert.match(find(port).remedy ?? '', /blocklist/);
});

test('direct: without an answer of DNS a check is unknown, which is no failure', async () => {
  dns.answerAll('SERVFAIL');
  const { code, levels } = await doctor();
  for (const check of [port, 'HELO name', 'reverse DNS', 'bounces', 'DKIM', 'DMARC', 'MTA-STS']) {
    assert.equal(levels[check], 'unknown', check);
  }
  assert.equal(code, 0);
});

test('the mail host itself takes the reports: without an address the advice is not an MX record', async () => {
  dns.answer(mailHost, 'NXDOMAIN');
  const { find } = await doctor();
  assert.match(find('bounces').detail, /does not exist/);
  assert.match(find('bounces').remedy ?? '', /an A or AAAA record/);
  assert.match(find('HELO name').detail, /has no address in DNS/);
  assert.equal(find('reverse DNS').level, 'unknown');
});

test('a name is needed: without POSTHORN_MAIL_HOST the only advice about this host is to set it', async () => {
  const relay = { POSTHORN_OUTBOUND: 'relay', POSTHORN_RELAY_URL: `smtp://127.0.0.1:${sink.port}` };
  for (const way of [{}, relay]) {
    const { code, find, findings, levels } = await doctor({ POSTHORN_MAIL_HOST: '', ...way });
    assert.equal(code, 1);
    assert.match(find('HELO name').remedy ?? '', /Set POSTHORN_MAIL_HOST/);
    assert.doesNotMatch(JSON.stringify(findings), /localhost/);
    for (const check of ['reverse DNS', 'SPF', 'bounces', 'certificate', 'MTA-STS'])
      assert.equal(levels[check], undefined, check);
    assert.equal(levels.DKIM, 'ok', 'what does not depend on the name is checked');
  }
});

test('a DNS server that knows no name at all: the advice is to check DNS', async () => {
  dns.answerAll('NXDOMAIN');
  const { find } = await doctor();
  assert.equal(find(port).level, 'unknown');
  assert.match(find(port).detail, /^DNS does not find receiver\.example$/);
  assert.match(find(port).remedy ?? '', /Check that DNS works: run the checks without --sending/);
});

test('DMARC of a parent domain counts', async () => {
  const sub = await add('eu.shop.example');
  await publish('eu.shop.example', [sub]);
  await verify(sub);
  const key = await record(sub, 'dkim');
  dns.answer(key.name, { TXT: [key.value] });
  const { find } = await doctor();
  assert.match(find('DMARC').detail, /2 domains with a DMARC record/);
  assert.match(find('DKIM').detail, /2 domains can be verified/);
  assert.equal((await service.call('DELETE', `/identities/${sub.id}`)).status, 204);
});

test('relay: the connection, TLS and the login are tried, and no mail is sent', async () => {
  const relay = await startSink({ extensions: ['AUTH PLAIN'] });
  const url = `smtp://ada:secret@127.0.0.1:${relay.port}`;
  const good = await doctor({ POSTHORN_OUTBOUND: 'relay', POSTHORN_RELAY_URL: url });
  assert.match(good.find('relay').detail, /127\.0\.0\.1 answers; no TLS; login as ada works/);
  assert.equal(good.levels['reverse DNS'], undefined);
  assert.equal(good.levels.SPF, 'unknown');
  assert.equal(good.code, 0);
  assert.equal(relay.mails.length, 0);

  relay.behave('AUTH', '535 5.7.8 Wrong password');
  const refused = await doctor({ POSTHORN_OUTBOUND: 'relay', POSTHORN_RELAY_URL: url });
  assert.equal(refused.code, 1);
  assert.match(refused.find('relay').detail, /535 .*Wrong password/);
  assert.match(refused.find('relay').remedy ?? '', /Check the user and password/);
  assert.ok(!JSON.stringify(refused.findings).includes('secret'));

  await relay.close();
  const away = await doctor({ POSTHORN_OUTBOUND: 'relay', POSTHORN_RELAY_URL: url });
  assert.match(away.find('relay').remedy ?? '', /Check the host and port/);
});

test('capture: says that nothing leaves; in production that is a warning', async () => {
  const capture = await posthorn(['doctor', '--sending'], { ...settings, POSTHORN_OUTBOUND: 'capture' });
  assert.equal(capture.code, 0);
  assert.match(capture.output, /✓ transport +capture: outgoing mail is captured and does not leave/);
  assert.match(capture.output, /Nothing is checked until POSTHORN_OUTBOUND is direct or relay/);
  const production = { NODE_ENV: 'production', POSTHORN_PUBLIC_URL: 'https://posthorn.example' };
  const { levels, code } = await doctor({ ...production, POSTHORN_OUTBOUND: 'capture' });
  assert.equal(levels.transport, 'warn');
  assert.equal(code, 0);
});

test('MTA-STS: the policy must allow this host, and with enforce the certificate must be valid', async () => {
  const policyHost = `mta-sts.${mailHost}`;
  const { cert, key } = makeSelfSigned(policyHost, new Date());
  const web = await startReceiver({ tls: { cert, key } });
  after(() => web.close());
  dns.answer(`_mta-sts.${mailHost}`, { TXT: ['v=STSv1; id=1'] });
  dns.answer(policyHost, { A: ['127.0.0.1'] });
  const withoutFiles = { POSTHORN_TLS_CERT: '', POSTHORN_TLS_KEY: '' };
  function check(more: Record<string, string>, mode: string, mx: string) {
    const policy = `version: STSv1\r\nmode: ${mode}\r\nmx: ${mx}\r\nmax_age: 60\r\n`;
    web.behave(answer(200, { 'content-type': 'text/plain' }, policy));
    const config = readConfig({ ...settings, ...more });
    const parts = { dns: makeDnsClient(config), egress: makeEgress(config), now: () => new Date() };
    const mtaSts = makeMtaSts({ ...parts, ca: cert, port: web.port });
    return checkMtaSts({ ...parts, config, mtaSts, signal: AbortSignal.timeout(60_000) });
  }
  assert.equal((await check({}, 'enforce', mailHost)).level, 'ok');
  assert.match((await check({}, 'testing', 'mx.other.example')).remedy ?? '', /mx: mx\.posthorn\.example/);
  assert.match((await check(withoutFiles, 'enforce', mailHost)).detail, /requires a valid certificate/);
  assert.equal((await check(withoutFiles, 'none', 'mx.other.example')).level, 'ok');
});

test('the name for reverse DNS, of IPv4 and IPv6', () => {
  assert.equal(reverseName('203.0.113.5'), '5.113.0.203.in-addr.arpa');
  const zeros = '0.'.repeat(16);
  assert.equal(reverseName('2001:db8::567:89ab'), `b.a.9.8.7.6.5.0.${zeros}8.b.d.0.1.0.0.2.ip6.arpa`);
});
