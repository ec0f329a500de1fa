/** Several DNS servers: what one fails at the next is asked, for mail and for webhooks alike. */
import assert from 'node:assert/strict';
import { after, beforeEach, describe, test } from 'node:test';
import { makeEgress } from '../src/net/egress.ts';
import { makeResolver } from '../src/net/resolver.ts';
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

/** What each of the two makes of the servers. */
const askers: [string, (dnsServers: string[]) => (name: string) => Promise<string[]>][] = [
  [
    'mail',
    (dnsServers) => {
      const resolver = makeResolver({ dnsServers, keepMs: 0 });
      return async (name) => (await resolver.resolve(name, 'A', never)).flat();
    },
  ],
  [
    'webhooks',
    (dnsServers) => {
      const egress = makeEgress({ allowTargets: [], dnsServers });
      return async (name) => {
        const resolution = await egress.resolve(name);
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
