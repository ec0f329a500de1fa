/**
 * Look-ups at the domain's own servers. `system` stands for the system's resolver, which tells who they are; the others are the
 * name servers, at public addresses that lead to ports of this machine.
 */
import assert from 'node:assert/strict';
import { after, beforeEach, describe, test } from 'node:test';
import { makeLookup } from '../src/identities/lookup.ts';
import { type Answer, startDns } from './dns.ts';

const [system, first, second, elsewhere] = await Promise.all([
  startDns(),
  startDns(),
  startDns(),
  startDns(),
]);
const all = [system, first, second, elsewhere];
after(() => Promise.all(all.map((server) => server.close())));

const places: Record<string, string> = {
  '8.8.1.1': first.address,
  '8.8.2.2': second.address,
  '8.8.3.3': elsewhere.address,
  '2606:4700::1': first.address,
  '2606:4700::3': elsewhere.address,
};
const asked: string[] = [];
function serverAt(address: string): string | null {
  asked.push(address);
  return places[address] ?? null;
}

const lookup = makeLookup({ dnsServers: null, resolvers: [system.address], serverAt });
const never = new AbortController().signal;
const name = '_posthorn.example.com';

beforeEach(() => {
  for (const server of all) server.reset();
  asked.length = 0;
  system.answerType('example.com', 'NS', { NS: ['ns1.host.example', 'ns2.host.example'] });
  system.answer('ns1.host.example', { A: ['8.8.1.1'] });
  system.answer('ns2.host.example', { A: ['8.8.2.2'] });
  for (const server of [first, second]) server.answerType('example.com', 'SOA', { SOA: ['7'] });
});

async function look(question = name, looking = lookup) {
  const answers = await looking.ask([{ name: question, type: 'TXT' }], never);
  return answers.get(`TXT ${question}`);
}

function reasonOf(answer: Awaited<ReturnType<typeof look>>): string {
  assert.ok(answer?.kind === 'unknown', JSON.stringify(answer));
  return answer.reason;
}

test("the domain's own server answers, whatever the system's resolver remembers", async () => {
  system.answerType(name, 'TXT', { TXT: ['old'] });
  first.answer(name, { TXT: ['new'] });
  assert.deepEqual(await look(), { kind: 'records', values: ['new'] });
  assert.equal(system.count(name, 'TXT'), 0);
});

test('a change is seen by the next look', async () => {
  assert.deepEqual(await look(), { kind: 'none', why: 'no_such_name' });
  first.answer(name, { TXT: ['here'] });
  assert.deepEqual(await look(), { kind: 'records', values: ['here'] });
  first.answer(name, {});
  assert.deepEqual(await look(), { kind: 'none', why: 'no_such_record' });
});

test('the walk up is made once for all names of a look', async () => {
  const questions = ['_posthorn.example.com', 'example.com', '_dmarc.example.com', 'a.b.example.com'];
  await lookup.ask(
    questions.map((question) => ({ name: question, type: 'TXT' as const })),
    never,
  );
  assert.equal(system.count('example.com', 'NS'), 1);
  assert.equal(system.count('ns1.host.example', 'A'), 1);
  assert.equal(first.count('example.com', 'SOA'), 1);
});

test('a part of the domain with servers of its own is asked of those', async () => {
  system.answer(name, { NS: ['ns.elsewhere.example'] });
  system.answer('ns.elsewhere.example', { A: ['8.8.3.3'] });
  elsewhere.answer(name, { SOA: ['1'], TXT: ['there'] });
  first.answer(name, { TXT: ['here'] });
  assert.deepEqual(await look(), { kind: 'records', values: ['there'] });
});

test('a server with an IPv6 address alone is asked there', async () => {
  system.answer('ns1.host.example', { AAAA: ['2606:4700::1'] });
  system.answer('ns2.host.example', 'NXDOMAIN');
  first.answer(name, { TXT: ['here'] });
  assert.deepEqual(await look(), { kind: 'records', values: ['here'] });
});

describe('several servers', () => {
  test('the freshest is believed: the others may not have the change yet', async () => {
    for (const [one, other] of [
      ['7', '8'],
      ['4294967290', '3'],
    ] as const) {
      first.answerType('example.com', 'SOA', { SOA: [one] });
      second.answerType('example.com', 'SOA', { SOA: [other] });
      second.answer(name, { TXT: ['new'] });
      assert.deepEqual(await look(), { kind: 'records', values: ['new'] });
    }
  });

  for (const failing of ['DROP', 'SERVFAIL', 'REFUSED', 'REFERRAL', 'NOTAUTH', 'NXDOMAIN'] as const) {
    test(`one that says ${failing} leaves it to the other`, async () => {
      first.answer('example.com', failing);
      first.answerType('example.com', 'SOA', failing);
      first.answer(name, failing);
      second.answer(name, { TXT: ['here'] });
      assert.deepEqual(await look(), { kind: 'records', values: ['here'] });
    });
  }

  test('one that has the zone and then fails leaves it to the other', async () => {
    for (const failing of ['SERVFAIL', 'REFUSED'] as const) {
      first.answer(name, failing);
      second.answer(name, { TXT: ['here'] });
      assert.deepEqual(await look(), { kind: 'records', values: ['here'] });
    }
  });

  test('of many, a few are asked', async () => {
    const names = Array.from({ length: 13 }, (_, index) => `ns${index}.many.example`);
    system.answerType('example.com', 'NS', { NS: names });
    for (const one of names) system.answer(one, { A: ['8.8.1.1'] });
    assert.deepEqual(await look(), { kind: 'none', why: 'no_such_name' });
    assert.equal(asked.length, 4);
    assert.equal(first.count('example.com', 'SOA'), 1);
  });
});

describe('every server is asked', () => {
  async function lookEverywhere(question = name, looking = lookup) {
    const said = await looking.askEveryServer({ name: question, type: 'TXT' }, never);
    return said.map((one) => (one.kind === 'records' ? one.values.join() : one.kind)).sort();
  }

  test('and each says what it has, the stale ones too', async () => {
    second.answerType('example.com', 'SOA', { SOA: ['6'] });
    first.answer(name, { TXT: ['new'] });
    second.answer(name, { TXT: ['old'] });
    assert.deepEqual(await lookEverywhere(), ['new', 'old']);
    second.answer(name, {});
    assert.deepEqual(await lookEverywhere(), ['new', 'none']);
  });

  for (const failing of ['DROP', 'SERVFAIL', 'REFUSED'] as const) {
    test(`one that says ${failing} is left out`, async () => {
      first.answer(name, { TXT: ['here'] });
      second.answer(name, failing);
      assert.deepEqual(await lookEverywhere(), ['here']);
      first.answer(name, failing);
      assert.deepEqual(await lookEverywhere(), []);
    });
  }

  test('one whose answer got lost is asked again', async () => {
    first.answer(name, { TXT: ['new'] });
    second.answer(name, 'DROP', { TXT: ['old'] });
    assert.deepEqual(await lookEverywhere(), ['new', 'old']);
  });

  test('up to thirteen', async () => {
    const names = Array.from({ length: 13 }, (_, index) => `ns${index}.many.example`);
    system.answerType('example.com', 'NS', { NS: names });
    for (const one of names.slice(0, 12)) system.answer(one, { A: ['8.8.1.1'] });
    system.answer('ns12.many.example', { A: ['8.8.2.2'] });
    first.answer(name, { TXT: ['new'] });
    second.answer(name, { TXT: ['old'] });
    assert.deepEqual(await lookEverywhere(), ['new', 'old']);
  });

  test('at all its addresses: behind each there may be another', async () => {
    system.answer('ns1.host.example', { A: ['8.8.1.1', '8.8.2.2'], AAAA: ['2606:4700::3'] });
    system.answer('ns2.host.example', 'NXDOMAIN');
    elsewhere.answerType('example.com', 'SOA', { SOA: ['6'] });
    first.answer(name, { TXT: ['new'] });
    second.answer(name, { TXT: ['old'] });
    elsewhere.answer(name, { TXT: ['older'] });
    assert.deepEqual(await lookEverywhere(), ['new', 'old', 'older']);
    // The ordinary look is content with one.
    asked.length = 0;
    await look();
    assert.deepEqual(asked, ['8.8.1.1']);
  });

  test('to the end where they are many, and no further than that', async () => {
    const servers = await Promise.all(Array.from({ length: 13 * 8 }, () => startDns()));
    after(() => Promise.all(servers.map((server) => server.close())));
    for (const server of servers) server.answerType('example.com', 'SOA', { SOA: ['7'] });
    const names = Array.from({ length: 14 }, (_, index) => `ns${index}.many.example`);
    system.answerType('example.com', 'NS', { NS: names });
    const addressesOf = (n: number) => Array.from({ length: 9 }, (_, index) => `9.9.${n}.${index}`);
    for (const [n, one] of names.entries()) system.answer(one, { A: addressesOf(n) });
    const located = new Set<string>();
    const many = makeLookup({
      ...{ dnsServers: null, resolvers: [system.address] },
      serverAt(address) {
        located.add(address);
        return servers[located.size - 1]?.address ?? null;
      },
    });
    const said = await lookEverywhere(name, many);
    assert.equal(located.size, 13 * 8);
    assert.deepEqual(
      said,
      servers.map(() => 'none'),
    );
  });

  test('also where an alias leads, which may differ', async () => {
    system.answerType('other.example', 'NS', { NS: ['ns.elsewhere.example'] });
    system.answer('ns.elsewhere.example', { A: ['8.8.3.3'] });
    elsewhere.answerType('other.example', 'SOA', { SOA: ['1'] });
    elsewhere.answer('_posthorn.other.example', { TXT: ['there'] });
    first.answer(name, { CNAME: ['_posthorn.other.example'] });
    second.answer(name, { TXT: ['here'] });
    assert.deepEqual(await lookEverywhere(), ['here', 'there']);
    elsewhere.answerType('other.example', 'SOA', 'REFUSED');
    assert.deepEqual(await lookEverywhere(), ['here', 'unknown']);
    second.answer(name, { CNAME: [name] });
    first.answer(name, { CNAME: [name] });
    assert.deepEqual(await lookEverywhere(), ['unknown']);
  });

  test('where not all could be asked nothing is said', async () => {
    const bounded = makeLookup({ dnsServers: null, resolvers: [system.address], serverAt, maxQuestions: 7 });
    for (const server of [first, second]) server.answer(name, { TXT: ['here'] });
    assert.deepEqual(await lookEverywhere(name, bounded), []);
  });

  test("the operator's servers likewise", async () => {
    const set = makeLookup({ dnsServers: [first.address, second.address, elsewhere.address], serverAt });
    first.answer(name, { TXT: ['new'] });
    second.answer(name, { TXT: ['old'] });
    elsewhere.answer(name, 'SERVFAIL');
    assert.deepEqual(await lookEverywhere(name, set), ['new', 'old']);
  });
});

describe('a lame delegation is unknown', () => {
  const lame: [Answer, RegExp][] = [
    ['REFUSED', /REFUSED/],
    ['SERVFAIL', /SERVFAIL/],
    ['REFERRAL', /do not have the zone/],
    ['NOTAUTH', /cannot be read/],
    ['NXDOMAIN', /do not have the zone/],
    [{}, /do not have the zone/],
    ['DROP', /in time/],
  ];
  for (const [answer, reason] of lame) {
    test(`servers that say ${typeof answer === 'string' ? answer : 'nothing of the zone'}`, async () => {
      for (const server of [first, second]) {
        server.answer(name, answer);
        server.answerType('example.com', 'SOA', answer);
      }
      const told = reasonOf(await look());
      assert.match(told, /^no name server of example\.com answered for this zone/);
      assert.match(told, reason);
    });
  }

  test('servers whose names lead nowhere', async () => {
    for (const server of ['ns1.host.example', 'ns2.host.example']) system.answer(server, 'NXDOMAIN');
    assert.match(reasonOf(await look()), /could not be resolved/);
  });

  test("the system's resolver fails", async () => {
    system.answerType(name, 'NS', 'SERVFAIL');
    assert.match(reasonOf(await look()), /SERVFAIL/);
  });

  test('a domain that the resolver knows no servers of', async () => {
    system.answerType('example.com', 'NS', {});
    assert.equal(reasonOf(await look()), 'DNS has no name servers for example.com');
  });
});

test('a domain that does not exist has no records', async () => {
  system.answerType('example.com', 'NS', 'NXDOMAIN');
  assert.deepEqual(await look(), { kind: 'none', why: 'no_such_name' });
  assert.deepEqual(asked, []);
  assert.equal(system.count('com'), 0);
});

describe('inside is never asked', () => {
  test('servers at addresses that are not public', async () => {
    system.answer('ns1.host.example', { A: ['10.0.0.1'] });
    system.answer('ns2.host.example', { AAAA: ['::1'] });
    const told = reasonOf(await look());
    assert.match(told, /example\.com have addresses that are not public; /);
    assert.match(told, /POSTHORN_DNS_SERVERS/);
    assert.deepEqual(asked.sort(), ['10.0.0.1', '::1']);
  });

  test('one of two', async () => {
    system.answer('ns1.host.example', { A: ['127.0.0.1'] });
    second.answer(name, { TXT: ['here'] });
    assert.deepEqual(await look(), { kind: 'records', values: ['here'] });
  });

  test("an alias to a name inside is not asked of the system's resolver", async () => {
    first.answer(name, { CNAME: ['secrets.internal'] });
    system.answerType('secrets.internal', 'TXT', { TXT: ['password'] });
    system.answerType('secrets.internal', 'NS', {});
    assert.equal((await look())?.kind, 'unknown');
    assert.equal(system.count('secrets.internal', 'TXT'), 0);
  });
});

describe('aliases', () => {
  beforeEach(() => {
    system.answerType('other.example', 'NS', { NS: ['ns.elsewhere.example'] });
    system.answer('ns.elsewhere.example', { A: ['8.8.3.3'] });
    elsewhere.answerType('other.example', 'SOA', { SOA: ['1'] });
  });

  test('lead to another zone and its servers', async () => {
    first.answer(name, { CNAME: ['_posthorn.other.example'] });
    elsewhere.answer('_posthorn.other.example', { TXT: ['there'] });
    assert.deepEqual(await look(), { kind: 'records', values: ['there'] });
  });

  test('to the top of another zone are not taken for a delegation', async () => {
    // So answers a resolver: it follows the alias and brings the other zone's servers.
    system.answer(name, { CNAME: ['other.example'], NS: ['ns.elsewhere.example'] });
    elsewhere.answer(name, 'REFUSED');
    first.answer(name, { CNAME: ['other.example'] });
    elsewhere.answerType('other.example', 'TXT', { TXT: ['there'] });
    assert.deepEqual(await look(), { kind: 'records', values: ['there'] });
  });

  test('to a zone that cannot be asked are unknown', async () => {
    first.answer(name, { CNAME: ['_posthorn.other.example'] });
    elsewhere.answerType('other.example', 'SOA', 'REFUSED');
    assert.match(reasonOf(await look()), /no name server of other\.example/);
  });

  test('over ever new zones end', async () => {
    const bounded = makeLookup({ dnsServers: null, resolvers: [system.address], serverAt, maxQuestions: 20 });
    for (let index = 0; index < 9; index += 1) {
      const zone = `z${index}.example`;
      system.answerType(zone, 'NS', { NS: ['ns.elsewhere.example'] });
      elsewhere.answer(zone, { CNAME: [`z${index + 1}.example`] });
      elsewhere.answerType(zone, 'SOA', { SOA: ['1'] });
    }
    first.answer(name, { CNAME: ['z0.example'] });
    assert.match(reasonOf(await look(name, bounded)), /too many questions/);
  });
});

test('servers that never answer cost no more than the deadline', async () => {
  for (const server of [first, second]) server.answer(name, 'DROP');
  const hasty = makeLookup({ dnsServers: null, resolvers: [system.address], serverAt, deadlineMs: 500 });
  assert.match(reasonOf(await look(name, hasty)), /in time/);
  assert.equal(first.count(name, 'TXT') + second.count(name, 'TXT'), 1, 'no second question is asked');
});
