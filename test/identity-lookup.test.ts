/** Look-ups where the operator's servers answer everything (POSTHORN_DNS_SERVERS), down to the decided records. */
import assert from 'node:assert/strict';
import { after, beforeEach, describe, test } from 'node:test';
import type { DnsRecord } from '../src/contract/identity.ts';
import { makeDkimKey } from '../src/identities/dkim.ts';
import { makeLookup } from '../src/identities/lookup.ts';
import { type DomainSetup, decideRecords, questionsFor } from '../src/identities/records.ts';
import { type Answer, startDns } from './dns.ts';

// An hour: whatever kept an answer would be found out.
const dns = await startDns({ ttl: 3600 });
after(() => dns.close());
beforeEach(() => dns.reset());

const serverAt = () => assert.fail('only the servers that are set are asked');
const lookup = makeLookup({ dnsServers: [dns.address], serverAt });
const never = new AbortController().signal;
const key = await makeDkimKey(new Date('2026-11-15T12:00:00Z'));
const setup: DomainSetup = {
  domain: 'example.com',
  token: 'Tok3n',
  incomingDomain: true,
  mailHost: 'mx.posthorn.example',
  dkimKeys: [key],
};
const dkimName = `${key.selector}._domainkey.example.com`;
const ownership = 'posthorn-verification=Tok3n';
const dkim = `v=DKIM1; k=rsa; p=${key.publicKey}`;
const spf = 'v=spf1 a:mx.posthorn.example ~all';

const names = {
  ownership: '_posthorn.example.com',
  mx: 'example.com',
  spf: 'example.com',
  dkim: dkimName,
  dmarc: '_dmarc.example.com',
};
const good: Record<DnsRecord['purpose'], Answer> = {
  ownership: { TXT: [ownership] },
  mx: { MX: ['10 mx.posthorn.example'] },
  spf: { TXT: [spf] },
  dkim: { TXT: [dkim] },
  dmarc: { TXT: ['v=DMARC1; p=none'] },
};
const purposes = Object.keys(good) as DnsRecord['purpose'][];

function publish(purpose: DnsRecord['purpose'], ...answers: [Answer, ...Answer[]]): void {
  dns.answerType(names[purpose], purpose === 'mx' ? 'MX' : 'TXT', ...answers);
}

async function check(looking = lookup): Promise<DnsRecord[]> {
  return decideRecords(setup, await looking.ask(questionsFor(setup), never), new Date());
}

async function checkOne(purpose: DnsRecord['purpose'], looking = lookup): Promise<DnsRecord> {
  const record = (await check(looking)).find((one) => one.purpose === purpose);
  assert.ok(record);
  return record;
}

test('all of them stand', async () => {
  for (const purpose of purposes) publish(purpose, good[purpose]);
  const records = await check();
  assert.deepEqual(
    records.map(({ status }) => status),
    purposes.map(() => 'valid'),
  );
  assert.deepEqual(records[1]?.found, ['10 mx.posthorn.example']);
});

for (const purpose of purposes) {
  describe(purpose, () => {
    const wrong = purpose === 'mx' ? { MX: ['10 mx.other.example'] } : { TXT: ['v=spf1 something else'] };
    const cases: [string, Answer, DnsRecord['status']][] = [
      ['a name that does not exist', 'NXDOMAIN', 'missing'],
      ['a name without such records', {}, 'missing'],
      ['a wrong record', wrong, 'mismatch'],
      ['SERVFAIL', 'SERVFAIL', 'unknown'],
      ['REFUSED', 'REFUSED', 'unknown'],
      ['NOTIMP', 'NOTIMP', 'unknown'],
    ];
    for (const [title, answer, status] of cases) {
      test(`${title} is ${status}`, async () => {
        publish(purpose, answer);
        assert.equal((await checkOne(purpose)).status, status);
      });
    }

    test('one that comes while the service runs is seen by the next look, and so is its end', async () => {
      const seen = [];
      for (const answer of ['NXDOMAIN', good[purpose], wrong, good[purpose], {}] as const) {
        publish(purpose, answer);
        seen.push((await checkOne(purpose)).status);
      }
      assert.deepEqual(seen, ['missing', 'valid', 'mismatch', 'valid', 'missing']);
    });

    test('an alias is followed, by the server or by us', async () => {
      publish(purpose, { CNAME: ['alias.example.net'], ...(good[purpose] as object) });
      assert.equal((await checkOne(purpose)).status, 'valid');
      dns.reset();
      dns.answer(names[purpose], { CNAME: ['Alias.Example.NET'] });
      dns.answer('alias.example.net', { CNAME: ['end.example.org'] });
      dns.answer('end.example.org', good[purpose]);
      assert.equal((await checkOne(purpose)).status, 'valid');
    });
  });
}

test('an alias that leads to nothing is none', async () => {
  dns.answer(names.ownership, { CNAME: ['gone.example.net'] });
  assert.equal((await checkOne('ownership')).status, 'missing');
});

test('an alias that leads in a circle is unknown', async () => {
  dns.answer(names.ownership, { CNAME: ['a.example.net'] });
  dns.answer('a.example.net', { CNAME: [names.ownership] });
  const record = await checkOne('ownership');
  assert.equal(record.status, 'unknown');
  assert.match(record.note ?? '', /chain is a loop/);
});

test('an alias whose end cannot be asked is unknown', async () => {
  dns.answer(names.ownership, { CNAME: ['a.example.net'] });
  dns.answer('a.example.net', 'SERVFAIL');
  assert.equal((await checkOne('ownership')).status, 'unknown');
});

test('a record over 255 bytes comes in several strings and is joined', async () => {
  assert.ok(dkim.length > 255);
  publish('dkim', { TXT: [dkim] });
  assert.deepEqual((await checkOne('dkim')).found, [dkim]);
});

test('an answer over 512 bytes is asked for again over TCP', async () => {
  const others = Array.from({ length: 40 }, (_, index) => `something-verification=${'x'.repeat(60)}${index}`);
  publish('spf', { TXT: [...others, spf] });
  assert.equal((await checkOne('spf')).status, 'valid');
  assert.equal(dns.count('example.com', 'TXT'), 2);
});

test('two SPF records are a mismatch', async () => {
  publish('spf', { TXT: [spf, 'v=spf1 mx -all'] });
  const record = await checkOne('spf');
  assert.equal(record.status, 'mismatch');
  assert.match(record.note ?? '', /replace them with the single record/);
  assert.equal(record.found.length, 2);
});

test('the null MX is understood', async () => {
  publish('mx', { MX: ['0 .'] });
  const record = await checkOne('mx');
  assert.equal(record.status, 'mismatch');
  assert.deepEqual(record.found, ['0 .']);
  assert.match(record.note ?? '', /accepts no mail/);
});

test('an answer that got lost is asked for once more', async () => {
  publish('ownership', 'DROP', good.ownership);
  assert.equal((await checkOne('ownership')).status, 'valid');
});

test('a failing server leaves the question to the next', async (t) => {
  const other = await startDns();
  t.after(() => other.close());
  publish('ownership', 'SERVFAIL');
  other.answer(names.ownership, good.ownership);
  const both = makeLookup({ dnsServers: [dns.address, other.address], serverAt });
  assert.equal((await checkOne('ownership', both)).status, 'valid');
});

test('silence is unknown, and takes nothing else along', async () => {
  publish('ownership', 'DROP');
  publish('mx', good.mx);
  const [first, mx, ...rest] = await check();
  assert.equal(first?.status, 'unknown');
  assert.match(first?.note ?? '', /DNS did not answer in time/);
  assert.equal(mx?.status, 'valid');
  assert.ok(rest.every(({ status }) => status === 'missing'));
});

test('who stops waiting gets what is known', async () => {
  publish('ownership', 'DROP');
  const stopping = new AbortController();
  const looking = lookup.ask(questionsFor(setup), stopping.signal);
  stopping.abort();
  assert.equal((await looking).get('TXT _posthorn.example.com')?.kind, 'unknown');
  dns.reset();
  const answers = await lookup.ask(questionsFor(setup), stopping.signal);
  assert.ok([...answers.values()].every(({ kind }) => kind === 'unknown'));
  assert.equal(dns.count('example.com'), 0);
});

test('no more questions than are allowed', async () => {
  for (let index = 0; index < 9; index += 1)
    dns.answer(`a${index}.example`, { CNAME: [`a${index + 1}.example`] });
  dns.answer(names.ownership, { CNAME: ['a0.example'] });
  const bounded = makeLookup({ dnsServers: [dns.address], serverAt, maxQuestions: 4 });
  const answers = await bounded.ask([{ name: names.ownership, type: 'TXT' }], never);
  const answer = answers.get('TXT _posthorn.example.com');
  assert.ok(answer?.kind === 'unknown');
  assert.match(answer.reason, /too many questions/);
  assert.equal(dns.count('a2.example'), 0);
});

test('nothing listens: unknown', async () => {
  const gone = await startDns();
  await gone.close();
  const record = await checkOne(
    'ownership',
    makeLookup({ dnsServers: [gone.address], serverAt, deadlineMs: 1000 }),
  );
  assert.equal(record.status, 'unknown');
});

test('a name too long for DNS is unknown, and says so', async () => {
  const long = {
    ...setup,
    domain: `${'a'.repeat(60)}.${'b'.repeat(60)}.${'c'.repeat(60)}.${'d'.repeat(60)}.example`,
  };
  const [record] = decideRecords(long, await lookup.ask(questionsFor(long), never), new Date());
  assert.equal(record?.status, 'unknown');
  assert.match(record?.note ?? '', /too long for DNS/);
});
