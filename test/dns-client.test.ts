/** The DNS client: several servers in turn, memory, and who stops waiting. Its first half is asked by way of egress as well. */
import assert from 'node:assert/strict';
import dgram from 'node:dgram';
import { once } from 'node:events';
import { after, beforeEach, describe, test } from 'node:test';
import { type DnsClient, makeDnsClient, type RecordType } from '../src/net/dns.ts';
import { makeEgress } from '../src/net/egress.ts';
import { type Answer, startDns } from './dns.ts';

const [first, second] = await Promise.all([startDns(), startDns()]);
const gone = await startDns();
await gone.close();
after(() => Promise.all([first.close(), second.close()]));
beforeEach(() => {
  first.reset();
  second.reset();
});

const dnsServers = [first.address, second.address];
const never = new AbortController().signal;

/** The addresses of a name, or what went wrong. */
const askers: [string, (dnsServers: string[]) => (name: string) => Promise<string[]>][] = [
  [
    'the client',
    (dnsServers) => {
      const dns = makeDnsClient({ dnsServers });
      return async (name) => {
        const answer = await dns.resolve(name, 'A', never);
        if (answer.kind !== 'records') throw new Error(JSON.stringify(answer));
        return answer.values;
      };
    },
  ],
  [
    'egress',
    (dnsServers) => {
      const egress = makeEgress({ allowTargets: [], dnsServers });
      return async (name) => {
        const resolution = await egress.resolve(name, 60_000);
        if (!resolution.ok) throw new Error(resolution.reason);
        return resolution.addresses.map(({ address }) => address);
      };
    },
  ],
];

for (const [whose, open] of askers) {
  describe(whose, () => {
    for (const failing of ['SERVFAIL', 'REFUSED', 'NOTIMP', 'DROP'] as Answer[]) {
      test(`the first says ${failing}: the second is asked, and from then on it is the first`, async () => {
        first.answerAll(failing);
        second.answer('a.example', { A: ['8.8.8.8'] });
        const ask = open(dnsServers);
        assert.deepEqual(await ask('a.example'), ['8.8.8.8']);
        const count = first.count('a.example', 'A');
        assert.ok(count >= 1);
        assert.deepEqual(await ask('a.example'), ['8.8.8.8']);
        assert.equal(first.count('a.example', 'A'), count);
      });
    }

    test('nobody is there at the first', async () => {
      second.answer('a.example', { A: ['8.8.8.8'] });
      assert.deepEqual(await open([gone.address, second.address])('a.example'), ['8.8.8.8']);
    });

    for (const none of ['NXDOMAIN', {}] as Answer[]) {
      test(`${JSON.stringify(none)} is an answer: the second is not asked`, async () => {
        first.answer('a.example', none);
        second.answer('a.example', { A: ['8.8.8.8'] });
        await assert.rejects(open(dnsServers)('a.example'));
        assert.equal(second.count('a.example'), 0);
      });
    }

    test('all fail: each is asked once, and the failure is told', async () => {
      first.answerAll('REFUSED');
      second.answerAll('SERVFAIL');
      await assert.rejects(open(dnsServers)('a.example'), /SERVFAIL/);
      assert.deepEqual([first.count('a.example', 'A'), second.count('a.example', 'A')], [1, 1]);
    });

    test('what got lost on the way to all is asked again', async () => {
      first.answer('a.example', 'DROP');
      second.answerType('a.example', 'A', 'DROP', { A: ['8.8.8.8'] });
      second.answerType('a.example', 'AAAA', {});
      assert.deepEqual(await open(dnsServers)('a.example'), ['8.8.8.8']);
    });
  });
}

const none = { kind: 'none', why: 'no_such_name' };
const late = { kind: 'unknown', reason: 'DNS did not answer in time' };
const hello = { kind: 'records', values: ['hello'] };

describe('what DNS says of a name', () => {
  const dns = makeDnsClient({ dnsServers: [first.address] });

  test('records, in the form of their type', async () => {
    first.answer('a.example', {
      ...{ A: ['8.8.8.8'], AAAA: ['2606:4700::1'], NS: ['ns.example'], MX: ['10 mx.example', '0 .'] },
      ...{ SOA: ['7'], TXT: ['x'.repeat(300), 'y'] },
    });
    first.answer('b.example', { CNAME: ['c.example'] });
    const ask = (type: RecordType, name = 'a.example') => dns.resolve(name, type, never);
    const records = (...values: unknown[]) => ({ kind: 'records', values });
    assert.deepEqual(await ask('A'), records('8.8.8.8'));
    assert.deepEqual(await ask('AAAA'), records('2606:4700::1'));
    assert.deepEqual(await ask('NS'), records('ns.example'));
    assert.deepEqual(await ask('SOA'), records(7));
    assert.deepEqual(await ask('TXT'), records('x'.repeat(300), 'y'));
    assert.deepEqual(await ask('CNAME', 'b.example'), records('c.example'));
    assert.deepEqual(
      await ask('MX'),
      records({ priority: 10, exchange: 'mx.example' }, { priority: 0, exchange: '' }),
    );
  });

  test('that there is none, and why', async () => {
    const whyNone = async (name: string) => {
      const answer = await dns.resolve(name, 'TXT', never);
      return answer.kind === 'none' ? answer.why : answer;
    };
    first.answer('empty.example', {});
    first.answer('alias.example', { CNAME: ['gone.example'] });
    assert.equal(await whyNone('gone.example'), 'no_such_name');
    assert.equal(await whyNone('empty.example'), 'no_such_record');
    assert.equal(await whyNone('alias.example'), 'no_such_record');
    const asked = first.questions.length;
    const tooLong = `${'a'.repeat(63)}.`.repeat(4);
    const impossible = [
      ...['a..example', 'a+b..example', `${'a'.repeat(64)}.example`, `${'+'.repeat(64)}.example`],
      ...[tooLong, `+${tooLong}`, 'a\0.example', 'a+\0.example', 'ä.example', '+..', ''],
    ];
    for (const name of impossible) assert.equal(await whyNone(name), 'impossible_name', JSON.stringify(name));
    assert.equal(first.questions.length, asked);
  });

  for (const [answer, reason] of [
    ['SERVFAIL', /SERVFAIL/],
    ['REFUSED', /REFUSED/],
    ['NOTIMP', /does not support this question/],
  ] as const) {
    test(`${answer} is no answer, in words`, async () => {
      first.answer('a.example', answer);
      const said = await dns.resolve('a.example', 'TXT', never);
      assert.match(said.kind === 'unknown' ? said.reason : said.kind, reason);
    });
  }
});

describe('a name that c-ares refuses to ask', () => {
  const [dns, both] = [[first.address], dnsServers].map((dnsServers) =>
    makeDnsClient({ dnsServers, roundsMs: [200, 5000] }),
  ) as [DnsClient, DnsClient];
  const name = 'a+b=c:d/e\\f%g@h i."_".example';

  test('records, in the form of their type', async () => {
    first.answer(name, {
      ...{ A: ['8.8.8.8', '8.8.4.4'], AAAA: ['2606:4700::1'], NS: ['ns.example'], PTR: ['host.example'] },
      ...{ MX: ['10 mx.example', '0 .'], SOA: ['7'], TXT: ['x'.repeat(300), '', 'é'] },
    });
    const values: [RecordType, unknown[]][] = [
      ['A', ['8.8.8.8', '8.8.4.4']],
      ['AAAA', ['2606:4700::1']],
      ['NS', ['ns.example']],
      ['PTR', ['host.example']],
      [
        'MX',
        [
          { priority: 10, exchange: 'mx.example' },
          { priority: 0, exchange: '' },
        ],
      ],
      ['SOA', [7]],
      ['TXT', ['x'.repeat(300), '', 'é']],
    ];
    for (const [type, records] of values)
      assert.deepEqual(
        await dns.resolve(`${name}.`, type, never),
        { kind: 'records', values: records },
        type,
      );
    first.answer('b+.example', { CNAME: ['c.example'], TXT: ['hello'] });
    assert.deepEqual(await dns.resolve('b+.example', 'CNAME', never), {
      kind: 'records',
      values: ['c.example'],
    });
    assert.deepEqual(await dns.resolve('b+.example', 'TXT', never), hello);
    assert.deepEqual(await dns.resolve('b+.example', 'MX', never), { kind: 'none', why: 'no_such_record' });
  });

  test('an answer that does not fit into UDP comes by TCP', async () => {
    const values = Array.from({ length: 200 }, (_, n) => `${n}${'x'.repeat(200)}`);
    first.answer(name, { TXT: values });
    assert.deepEqual(await dns.resolve(name, 'TXT', never), { kind: 'records', values });
    // Once by UDP and once by TCP; on a slow machine UDP is asked again.
    assert.ok(first.count(name) >= 2);
  });

  test('that there is none, and why', async () => {
    assert.deepEqual(await dns.resolve(name, 'TXT', never), none);
    first.answer(name, {});
    assert.deepEqual(await dns.resolve(name, 'TXT', never), { kind: 'none', why: 'no_such_record' });
  });

  for (const failing of ['SERVFAIL', 'REFUSED', 'NOTIMP', 'DROP'] as const) {
    test(`the first says ${failing}: the second is asked`, async () => {
      first.answerAll(failing);
      second.answer(name, { TXT: ['hello'] });
      assert.deepEqual(await both.resolve(name, 'TXT', never), hello);
    });
  }

  test('nobody is there, or nobody answers', async () => {
    const nobody = makeDnsClient({ dnsServers: [gone.address], roundsMs: [200] });
    const said = await nobody.resolve(name, 'TXT', never);
    assert.match(said.kind === 'unknown' ? said.reason : said.kind, /no DNS server could be reached/);
    first.answer(name, 'DROP');
    const silent = makeDnsClient({ dnsServers: [first.address], roundsMs: [50] });
    assert.deepEqual(await silent.resolve(name, 'TXT', never), late);
  });

  test('who stops waiting cancels the question', async () => {
    const patient = makeDnsClient({ dnsServers: [first.address], roundsMs: [600_000] });
    const controller = new AbortController();
    first.answer(name, 'DROP');
    const question = patient.resolve(name, 'TXT', controller.signal);
    controller.abort();
    assert.deepEqual(await question, late);
  });

  test('answers that were not asked for, and answers that cannot be read', async () => {
    const forger = dgram.createSocket('udp4');
    after(() => forger.close());
    let forge: (question: Buffer) => Buffer[] = () => [];
    forger.on('message', (question, peer) => {
      for (const answer of forge(question)) forger.send(answer, peer.port, peer.address);
    });
    forger.bind(0, '127.0.0.1');
    await once(forger, 'listening');
    const asking = makeDnsClient({ dnsServers: [`127.0.0.1:${forger.address().port}`], roundsMs: [2000] });
    /** The question as an answer with a record whose data is `data`. */
    const answerWith = (question: Buffer, data: Buffer): Buffer => {
      const answer = Buffer.concat([
        question,
        Buffer.from([0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 0, 0, data.length]),
        data,
      ]);
      answer.writeUInt16BE(0x8180, 2);
      answer.writeUInt16BE(1, 6);
      return answer;
    };
    const other = (question: Buffer, at: number) => {
      const changed = answerWith(question, Buffer.from('\x05wrong'));
      changed[at] = (changed[at] ?? 0) ^ 1;
      return changed;
    };
    forge = (question) => [
      ...[other(question, 1), other(question, 14), Buffer.alloc(3), question],
      answerWith(question, Buffer.from('\x05hello')),
    ];
    assert.deepEqual(await asking.resolve(name, 'TXT', never), hello);

    const unreadable: ((question: Buffer) => Buffer)[] = [
      (question) => answerWith(question, Buffer.from('\x09short')),
      (question) => answerWith(question, Buffer.from('\x05hello')).subarray(0, -3),
      // A name that points to itself.
      (question) =>
        Buffer.concat([
          answerWith(question, Buffer.alloc(0)).subarray(0, question.length),
          Buffer.from([0xc0, question.length]),
        ]),
    ];
    for (const make of unreadable) {
      forge = (question) => [make(question)];
      const said = await asking.resolve(name, 'TXT', never);
      assert.match(said.kind === 'unknown' ? said.reason : said.kind, /cannot be read/);
    }
  });
});

test('a TXT record without any text is an empty text, also of a name that c-ares asks', async () => {
  const dns = makeDnsClient({ dnsServers: [first.address] });
  first.answer('a.example', { TXT: [null, 'hello'] });
  assert.deepEqual(await dns.resolve('a.example', 'TXT', never), { kind: 'records', values: ['', 'hello'] });
});

test('a budget is for all clients that share it: at its end none asks', async () => {
  const budget = { left: 3 };
  const clients = [first, second].map(({ address }) => makeDnsClient({ dnsServers: [address], budget }));
  const said = [];
  for (const name of ['a.example', 'b.example', 'c.example', 'd.example'])
    said.push((await clients[said.length % 2]?.resolve(name, 'TXT', never))?.kind);
  assert.deepEqual(said, ['none', 'none', 'none', 'unknown']);
  assert.equal(budget.left, 0);
  assert.deepEqual([first.questions.length, second.questions.length], [2, 1]);
});

describe('those who wait', () => {
  test('who stops waiting takes no answer from another who asked the same', async () => {
    const dns = makeDnsClient({ dnsServers: [first.address], keepMs: 60_000 });
    first.answer('example.com', 'DROP', { TXT: ['hello'] });
    const [hasty, patient, over] = [new AbortController(), new AbortController(), new AbortController()];
    const one = dns.resolve('example.com', 'TXT', hasty.signal);
    const other = dns.resolve('Example.com', 'TXT', patient.signal);
    hasty.abort();
    assert.deepEqual(await one, late);
    assert.deepEqual(await other, hello);
    assert.equal(first.count('example.com'), 2, 'lost, and asked again for all who wait');
    over.abort();
    assert.deepEqual(await dns.resolve('example.com', 'TXT', over.signal), hello);
    assert.deepEqual(await dns.resolve('example.net', 'TXT', over.signal), late);
    assert.equal(first.count('example.net'), 0);
  });

  test('when nobody waits any more, nothing is asked again', async () => {
    const dns = makeDnsClient({ dnsServers: [first.address] });
    first.answer('gone.example', 'DROP');
    first.answer('slow.example', 'DROP', { TXT: ['hello'] });
    const controller = new AbortController();
    const question = dns.resolve('gone.example', 'TXT', controller.signal);
    controller.abort();
    assert.deepEqual(await question, late);
    // Lost once as well, and later: by its second try the other's would have been seen.
    assert.deepEqual(await dns.resolve('slow.example', 'TXT', never), hello);
    assert.equal(first.count('slow.example'), 2);
    assert.ok(first.count('gone.example') <= 1);
  });
});

describe('memory', () => {
  test('there is none unless it is wanted', async () => {
    const dns = makeDnsClient({ dnsServers: [first.address] });
    first.answer('example.com', { TXT: ['hello'] });
    await dns.resolve('example.com', 'TXT', never);
    await dns.resolve('example.com', 'TXT', never);
    assert.equal(first.count('example.com'), 2);
  });

  test('it has a limit: the oldest is asked for again', async () => {
    const dns = makeDnsClient({ dnsServers: [first.address], keepMs: 600_000 });
    for (let count = 0; count < 2001; count += 1)
      assert.deepEqual(await dns.resolve(`n${count}.example`, 'TXT', never), none);
    await dns.resolve('n2000.example', 'TXT', never);
    await dns.resolve('n0.example', 'TXT', never);
    assert.deepEqual([first.count('n2000.example'), first.count('n0.example')], [1, 2]);
  });

  test('neither an outage nor a long answer is remembered', async () => {
    const dns = makeDnsClient({ dnsServers: [first.address], keepMs: 600_000 });
    first.answer('example.com', 'SERVFAIL', { TXT: ['hello'] });
    assert.equal((await dns.resolve('example.com', 'TXT', never)).kind, 'unknown');
    assert.deepEqual(await dns.resolve('example.com', 'TXT', never), hello);
    first.answer('long.example', { TXT: Array.from({ length: 50 }, () => 'x'.repeat(200)) });
    for (const count of [1, 2]) {
      assert.equal((await dns.resolve('long.example', 'TXT', never)).kind, 'records');
      // Each time over UDP, and then over TCP.
      assert.equal(first.count('long.example'), 2 * count);
    }
  });
});
