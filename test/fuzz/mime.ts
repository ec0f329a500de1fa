/**
 * Random mail, from the grammar of mail or from damaged fixtures. Parsing and authentication end in bounded time and never throw,
 * the result matches the interface, and DMARC passes only for a domain that signed. Some messages go through the whole service,
 * which returns them byte for byte.
 */
import assert from 'node:assert/strict';
import { generateKeyPairSync, randomUUID } from 'node:crypto';
import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { Ajv } from 'ajv';
import { dkimSign } from 'mailauth/lib/dkim/sign.js';
import { Message } from '../../src/contract/message.ts';
import { type Authentication, type MailOrigin, makeAuthenticate } from '../../src/mailauth/authenticate.ts';
import { type ParsedMessage, parseMessage } from '../../src/mime/parse.ts';
import { composeMessage } from '../../src/receiving/compose.ts';
import type { Answer, DnsServer } from '../dns.ts';
import type { TestUser } from '../harness.ts';
import { checkMessage, checkStrings } from '../mail-invariants.ts';
import { makeMessage } from './mime-maker.ts';
import { domains, tokens } from './mime-words.ts';
import { mutate } from './mutate.ts';
import type { Random } from './random.ts';
import { expect, type FuzzedService, startFuzzedService } from './service.ts';
import type { Case, Fuzzed, Target } from './target.ts';

const folder = path.join(import.meta.dirname, '../fixtures/mail');
const fixtures = globSync('*.eml', { cwd: folder })
  .sort()
  .map((name) => readFileSync(path.join(folder, name)));

const maxBytes = 256 * 1024;
/** Of most, so that there are many. */
const usualBytes = 16 * 1024;
/** A hundred times what is usual. */
const maxCpuMicroseconds = 10_000_000;
const deadlineMs = 250;

/** Whose signatures can be good. */
const signer = 'signer.example';
const key = generateKeyPairSync('rsa', { modulusLength: 1024 });

const results = {
  spf: ['pass', 'fail', 'softfail', 'neutral', 'none', 'temperror', 'permerror'],
  dkim: ['pass', 'fail', 'neutral', 'policy', 'temperror', 'permerror'],
  dmarc: ['pass', 'fail', 'none', 'temperror', 'permerror'],
  policy: ['none', 'quarantine', 'reject', null],
  arc: ['pass', 'fail', 'none', 'temperror'],
};
const validateMessage = new Ajv({ strict: false, allErrors: true, validateFormats: false }).compile(Message);

export const mime: Target = {
  about: 'messages of any bytes are parsed and authenticated',
  async open(settings) {
    const service = await startFuzzedService({ ...settings, POSTHORN_ROLES: 'api' });
    const user = await service.makeUser();
    const body = { value: 'any@fuzz.example' };
    expect(await service.call('POST', '/identities', { as: user, body }), 201);
    const run = async (one: Case) => {
      const outcome = await examine(one, service.dns);
      if (one.number % 100 === 0) await sendThrough(service, user, makeAny(one.random));
      service.assertNoErrors();
      return [outcome];
    };
    return { lanes: 1, run, close: () => service.stop() } satisfies Fuzzed;
  },
};

async function examine({ random, keep }: Case, dns: DnsServer): Promise<string> {
  dns.reset();
  const isSigned = random.chance(0.2);
  const raw = isSigned ? await makeSigned(random) : makeAny(random);
  keep('message.eml', raw);
  publishAtRandom(random, dns);
  publishKey(dns);
  const envelope = isSigned ? { mailFrom: null, remoteIp: null, helo: null } : makeEnvelope(random);
  keep('envelope.json', JSON.stringify(envelope));

  await checkMessage(raw);
  const parsed = await parseMessage(raw);
  const authentication = await authenticate(raw, envelope, dns);
  checkAuthentication(authentication);
  checkComposed(raw, parsed, authentication);
  if (isSigned) checkAuthor(parsed, authentication);
  return describe(parsed, authentication);
}

function makeAny(random: Random): Buffer {
  if (random.chance(0.05)) return random.bytes(random.size(2000));
  if (random.chance(0.05)) return Buffer.from(random.some(60, () => random.pick(tokens)).join(''), 'latin1');
  const whole = random.chance(0.5) ? makeMessage(random) : random.pick(fixtures);
  if (random.chance(0.3)) return whole.subarray(0, maxBytes);
  return mutate(random, whole, { dictionary: tokens, others: fixtures, most: limit(random) });
}

function limit(random: Random): number {
  return random.chance(0.05) ? maxBytes : usualBytes;
}

/** By which another than the author might be shown, or judged. */
const forgeries = [
  'From: eve@c.example\r\n',
  'from : Eve <eve@c.example>\r\n',
  'From:\r\n eve@c.example\r\n',
  'From\0: eve@c.example\r\n',
  'From: eve@c.example\n',
  'From: eve@c.example\r',
  'Subject: x\r\n\r\nFrom: eve@c.example\r\n',
  '\r\n',
  ' x\r\n',
  'Sender: eve@c.example\r\n',
  'DKIM-Signature: v=1; a=rsa-sha256; d=c.example; s=s1; h=from; bh=x; b=x\r\n',
  ' <eve@c.example>',
  'eve@c.example, ',
];

/** A message that its author signed, and then perhaps a forger's work. */
async function makeSigned(random: Random): Promise<Buffer> {
  const from = random.pick([
    `From: Ada <ada@${signer}>\r\n`,
    `From: ada@${signer}\r\n`,
    `from : <ada@b.${signer}>\r\n`,
  ]);
  const any = random.chance(0.7) ? makeMessage(random) : random.pick(fixtures);
  const rest = any.toString('latin1').replaceAll(/^from[ \t]*:/gim, 'X-From:');
  const signed = await sign(random, Buffer.from(`${from}${rest}`, 'latin1').subarray(0, maxBytes));
  if (random.chance(0.3)) return signed;
  const at = random.chance(0.6) ? 0 : signed.indexOf(from) + random.below(from.length + 1);
  const forgery = Buffer.from(random.pick(forgeries), 'latin1');
  const edited = Buffer.concat([signed.subarray(0, at), forgery, signed.subarray(at)]);
  return random.chance(0.7)
    ? edited
    : mutate(random, edited, {
        dictionary: [...tokens, ...forgeries],
        others: fixtures,
        most: limit(random),
      });
}

async function sign(random: Random, message: Buffer): Promise<Buffer> {
  const options = {
    canonicalization: random.pick(['relaxed/relaxed', 'simple/simple', 'relaxed/simple']),
    signatureData: [
      {
        signingDomain: signer,
        selector: 's1',
        privateKey: key.privateKey.export({ type: 'pkcs8', format: 'pem' }) as string,
        ...(random.chance(0.1) ? { maxBodyLength: random.below(50) } : {}),
      },
    ],
  } as unknown as Parameters<typeof dkimSign>[1];
  const { signatures } = await dkimSign(message, options);
  return Buffer.concat([Buffer.from(signatures), message]);
}

function publishKey(dns: DnsServer): void {
  const der = key.publicKey.export({ type: 'spki', format: 'der' }).toString('base64');
  dns.answer(`s1._domainkey.${signer}`, { TXT: [`v=DKIM1; k=rsa; p=${der}`] });
  dns.answer(`_dmarc.${signer}`, { TXT: ['v=DMARC1; p=reject'] });
}

function publishAtRandom(random: Random, dns: DnsServer): void {
  if (random.chance(0.3)) dns.answerUnknown(makeAnswer(random));
  for (const domain of domains) {
    for (const name of [domain, `_dmarc.${domain}`, `s1._domainkey.${domain}`, `s2._domainkey.${domain}`]) {
      if (random.chance(0.6)) dns.answer(name, makeAnswer(random));
    }
  }
}

function makeAnswer(random: Random): Answer {
  if (random.chance(0.002)) return 'DROP';
  if (random.chance(0.2)) return random.pick(['NXDOMAIN', 'SERVFAIL', 'REFUSED', 'NOTIMP']);
  const name = () =>
    random.pick([...domains, '_spf.a.example', '%{d}', '%{i}.%{h}', '%{x}', '%{S3r-}.x', '']);
  const mechanism = () =>
    random.pick([
      ...[
        '+all',
        '-all',
        '~all',
        '?all',
        'ip4:192.0.2.0/24',
        'ip4:x',
        'ip6:::/0',
        'ip4:0.0.0.0/99',
        'ptr',
        'a',
        'mx',
      ],
      ...[
        `a:${name()}`,
        `mx:${name()}//128`,
        `include:${name()}`,
        `exists:${name()}`,
        `redirect=${name()}`,
        `exp=${name()}`,
      ],
      ...['x=y', 'foo', '', '\u00e9', 'include:', 'a/33'],
    ]);
  const text = () =>
    random.pick<() => string>([
      () => `v=spf1 ${random.some(14, mechanism).join(' ')}`,
      () =>
        `v=DMARC1; ${random.some(5, () => random.pick(['p=none', 'p=reject', 'sp=x', 'adkim=s', 'aspf=r', 'pct=x', 'psd=y', 'np=none', 't=y', ''])).join('; ')}`,
      () =>
        `v=DKIM1; ${random.some(5, () => random.pick(['k=rsa', 'k=ed25519', 'p=', 'p=AAAA', 't=s:y', 'h=sha1', 's=x', 'n=', `p=${random.bytes(random.size(300)).toString('base64')}`])).join('; ')}`,
      () => random.bytes(random.size(600)).toString('latin1'),
      () => '',
    ])();
  const hosts = () => random.some(12, () => `${random.below(99)} ${random.pick(domains)}`);
  return {
    TXT: random.some(3, text),
    ...(random.chance(0.5) ? { A: random.some(4, () => `192.0.2.${random.below(256)}`) } : {}),
    ...(random.chance(0.3) ? { MX: hosts() } : {}),
    ...(random.chance(0.05) ? { CNAME: [random.pick(domains)] } : {}),
  };
}

function makeEnvelope(random: Random): MailOrigin {
  const odd = [
    '',
    '@',
    'a@',
    '"a b"@a.example',
    'a@[1.2.3.4]',
    'a@\u00e9.example',
    `a@${'x'.repeat(250)}`,
    'a@a..example',
    '%{i}@a.example',
  ];
  return {
    mailFrom: random.pick([
      null,
      `ada@${random.pick(domains)}`,
      `ada@${random.pick(domains)}`,
      random.pick(odd),
    ]),
    remoteIp: random.pick(['192.0.2.7', '2001:db8::1', '::ffff:192.0.2.7', null]),
    helo: random.pick([
      random.pick(domains),
      'localhost',
      '[192.0.2.7]',
      '192.0.2.7',
      'x y',
      '\u00e9',
      'a..b',
      null,
    ]),
  };
}

async function authenticate(raw: Buffer, envelope: MailOrigin, dns: DnsServer): Promise<Authentication> {
  const ask = makeAuthenticate({ dnsServers: [dns.address], mailHost: 'mx.example', deadlineMs });
  const cpu = process.cpuUsage();
  const authentication = await ask(raw, envelope);
  const { user } = process.cpuUsage(cpu);
  assert.ok(user < maxCpuMicroseconds, `authentication took ${user} µs of the processor`);
  return authentication;
}

function checkAuthentication({ spf, dkim, dmarc, arc }: Authentication): void {
  assert.ok(results.spf.includes(spf.result), `spf=${spf.result}`);
  for (const { result } of dkim) assert.ok(results.dkim.includes(result), `dkim=${result}`);
  assert.ok(results.dmarc.includes(dmarc.result), `dmarc=${dmarc.result}`);
  assert.ok(results.policy.includes(dmarc.policy), `policy=${dmarc.policy}`);
  assert.ok(results.arc.includes(arc.result), `arc=${arc.result}`);
}

/** As it would be stored and told. */
function checkComposed(raw: Buffer, parsed: ParsedMessage, authentication: Authentication): void {
  const id = randomUUID();
  const names = {
    publicId: 'x',
    kind: 'email',
    value: 'any@fuzz.example',
    valueKey: 'any@fuzz.example',
  } as const;
  const message = composeMessage({
    ...{ id, threadId: id, source: 'smtp', receivedAt: new Date(), size: raw.length, tag: null },
    identity: { id, ownerId: id, inboxId: id, spamId: id, verified: true, ...names },
    envelope: { mailFrom: null, rcptTo: ['any@fuzz.example'], remoteIp: null, helo: null, tls: null },
    parsed,
    authentication,
  });
  assert.ok(validateMessage(message), JSON.stringify(validateMessage.errors));
  checkStrings(message);
  for (const { size } of parsed.attachments) assert.ok(size <= raw.length, 'larger than the message');
}

/** No SPF was asked for, and one domain alone can sign: a pass is for the author who is shown, and for that domain. */
function checkAuthor({ from }: ParsedMessage, { dmarc, dkim }: Authentication): void {
  const good = dkim.filter(({ result }) => result === 'pass');
  for (const { domain } of good)
    assert.equal(domain, signer, 'a signature of a domain without a key is good');
  if (dmarc.result !== 'pass') return;
  assert.ok(good.length > 0, 'DMARC passed without a good signature');
  assert.match(
    from?.address ?? '',
    /@(?:[^@]+\.)?signer\.example$/i,
    'DMARC passed for an author who did not sign',
  );
}

async function sendThrough(service: FuzzedService, user: TestUser, raw: Buffer): Promise<void> {
  if (raw.length === 0) return;
  const headers = { 'content-type': 'message/rfc822' };
  const sent = { as: user, body: new Uint8Array(raw), headers };
  const { messageIds } = expect(
    await service.call('POST', '/inbound?recipient=any@fuzz.example', sent),
    202,
  ).body;
  const [id] = messageIds;
  const back = await fetch(`${service.url}/messages/${id}/raw`, {
    headers: { authorization: `Bearer ${user.apiKey}` },
  });
  assert.ok(raw.equals(Buffer.from(await back.arrayBuffer())), 'the message came back otherwise');
  const message = expect(await service.call('GET', `/messages/${id}`, { as: user }), 200).body;
  assert.ok(validateMessage(message), JSON.stringify(validateMessage.errors));
  for (const { id: n, size } of message.attachments) {
    const attachment = await fetch(`${service.url}/messages/${id}/attachments/${n}`, {
      headers: { authorization: `Bearer ${user.apiKey}` },
    });
    assert.equal(attachment.status, 200);
    assert.equal((await attachment.arrayBuffer()).byteLength, size);
  }
}

function describe(parsed: ParsedMessage, { spf, dkim, dmarc, arc }: Authentication): string {
  const present = Object.entries(parsed)
    .filter(([, value]) => (Array.isArray(value) ? value.length > 0 : value !== null))
    .map(([name]) => name);
  const signatures = [...new Set(dkim.map(({ result }) => result))].sort();
  return [
    present.join(),
    parsed.truncated.join(),
    spf.result,
    signatures.join(),
    dmarc.result,
    arc.result,
  ].join(' ');
}
