/** Requests without an API key are counted by the network of the client. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { connect } from '../src/db/client.ts';
import { makeFairQueries } from '../src/http/fair-queries.ts';
import { clientNetwork } from '../src/net/client-network.ts';
import { makeDatabase } from './harness.ts';

describe('an IPv6 /64 is one client', () => {
  test('each address belongs to its network', () => {
    assert.equal(clientNetwork('192.0.2.1'), '192.0.2.1');
    assert.equal(clientNetwork('2001:db8:1:2::1'), clientNetwork('2001:db8:1:2:3:4:5:6'));
    assert.notEqual(clientNetwork('2001:db8:1:2::1'), clientNetwork('2001:db8:1:3::1'));
    assert.equal(clientNetwork('2001:db8::1'), '2001:db8:0:0');
    assert.equal(clientNetwork('fe80::1%eth0'), 'fe80:0:0:0');
    assert.equal(clientNetwork('::1'), '0:0:0:0');
  });

  test('an IPv4 client of a dual-stack listener is its IPv4 address', () => {
    assert.equal(clientNetwork('::ffff:192.0.2.1'), '192.0.2.1');
    assert.equal(clientNetwork('::FFFF:192.0.2.1'), '192.0.2.1');
  });

  test('its queries wait for each other, and those of another network do not', async () => {
    const database = await makeDatabase();
    const pool = connect(database.url, { max: 10, applicationName: 'posthorn test' });
    after(async () => {
      await pool.end({ timeoutMs: 1000 });
      await database.drop();
    });
    const { sql, run } = makeFairQueries(pool);
    const done: string[] = [];
    // Async functions: a query runs when somebody waits for it.
    const lock = (ip: string) =>
      run({ ownerId: '', ip, reply: null }, async () => {
        await sql`select pg_advisory_xact_lock_shared(1)`;
      });
    const ask = (ip: string) =>
      run({ ownerId: '', ip, reply: null }, async () => {
        await sql`select 1`;
        done.push(ip);
      });
    let waiting: Promise<unknown>[] = [];
    await pool.begin(async (holder) => {
      await holder`select pg_advisory_xact_lock(1)`;
      // As many as one client may have in flight. Each has another address of the same network.
      const locked = [1, 2, 3, 4, 5].map((n) => lock(`2001:db8:1:2::${n}`));
      waiting = [...locked, ask('2001:db8:1:2:a:b:c:d')];
      for (const ip of ['2001:db8:1:3::1', '192.0.2.1', '::ffff:192.0.2.2']) await ask(ip);
      assert.deepEqual(done, ['2001:db8:1:3::1', '192.0.2.1', '::ffff:192.0.2.2']);
    });
    await Promise.all(waiting);
    assert.equal(done.at(-1), '2001:db8:1:2:a:b:c:d');
  });
});
