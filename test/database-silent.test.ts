/** The network to PostgreSQL falls silent, or is cut at the worst moment: every question is answered, and by its own answer. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import net, { type AddressInfo } from 'node:net';
import { after, type TestContext, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import { connect, isUnavailable } from '../src/db/client.ts';
import { makeDatabase } from './harness.ts';

const database = await makeDatabase();
after(() => database.drop());

/** Passes bytes on, until it is told otherwise. */
async function startNetwork(t: TestContext) {
  const target = new URL(database.url);
  const pairs: [net.Socket, net.Socket][] = [];
  let cutAt = { question: '', answer: '' };
  const server = net.createServer((client) => {
    const upstream = net.connect(Number(target.port), target.hostname);
    pairs.push([client, upstream]);
    for (const socket of [client, upstream]) socket.on('error', () => {}).on('close', () => cut());
    const cut = () => [client, upstream].forEach((socket) => void socket.destroy());
    client.on('data', (bytes) => (has(bytes, cutAt.question) ? cut() : upstream.write(bytes)));
    upstream.on('data', (bytes) => client.write(bytes, () => has(bytes, cutAt.answer) && cut()));
  });
  const has = (bytes: Buffer, text: string) => {
    const found = text !== '' && bytes.includes(text);
    if (found) cutAt = { question: '', answer: '' };
    return found;
  };
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const host = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  t.after(() => server.close());
  return {
    url: (hosts: number) => database.url.replace(target.host, Array(hosts).fill(host).join(',')),
    /** The connections it has by now. New ones work. */
    fallSilent() {
      for (const [client, upstream] of pairs.splice(0)) {
        for (const socket of [client, upstream]) socket.removeAllListeners('data').resume();
        upstream.removeAllListeners('close').destroy();
      }
    },
    /** When a question or an answer with that in it comes along, once. */
    cutAt(text: Partial<typeof cutAt>) {
      cutAt = { ...cutAt, ...text };
    },
  };
}

function open(t: TestContext, url: string) {
  const sql = connect(url, { max: 1, applicationName: 'silence', statementTimeoutMs: 600 });
  t.after(() => sql.end({ timeoutMs: 0 }));
  return sql;
}

for (const hosts of [1, 2]) {
  for (const restMs of [0, 1500]) {
    test(`silence after ${restMs} ms of rest, ${hosts} hosts: the question ends, the next takes another way`, async (t) => {
      const network = await startNetwork(t);
      const sql = open(t, network.url(hosts));
      await sql`select 1`;
      // Longer than the watch waits: a connection at rest is not what it looks for.
      await delay(restMs);
      network.fallSilent();
      await assert.rejects(sql`select 2`, (error) => isUnavailable(error));
      assert.deepEqual([...(await sql`select 3 as n`)], [{ n: 3 }]);
    });
  }

  test(`cut at the first question, ${hosts} hosts`, { timeout: 120_000 }, async (t) => {
    const network = await startNetwork(t);
    const sql = open(t, network.url(hosts));
    network.cutAt({ question: 'the first' });
    await assert.rejects(sql`select 'the first'`, (error) => isUnavailable(error));
    assert.deepEqual([...(await sql`select 3 as n`)], [{ n: 3 }]);
  });

  test(`cut in the middle of an answer, ${hosts} hosts: nothing of it is in the next`, {
    timeout: 120_000,
  }, async (t) => {
    const network = await startNetwork(t);
    const sql = open(t, network.url(hosts));
    await sql`select 1`;
    network.cutAt({ answer: 'row 3 ' });
    const long = sql`select 'row ' || n || ' ' || repeat('x', 100000) from generate_series(1, 9) n`;
    await assert.rejects(long, (error) => isUnavailable(error));
    const next = await sql`select 3 as n`;
    assert.equal(next.length, 1);
    assert.deepEqual([...next], [{ n: 3 }]);
  });
}

test('what has a statement timeout of its own is not cut, and neither is a connection at rest', async (t) => {
  const sql = open(t, database.url);
  const [before] = await sql`select pg_backend_pid() as pid`;
  await sql.begin(async (sql) => {
    await sql`set local statement_timeout = 0`;
    await sql.script('select pg_sleep(1.5)');
  });
  const [after] = await sql`select pg_backend_pid() as pid`;
  assert.equal(after?.pid, before?.pid);
  await assert.rejects(sql`select pg_sleep(1.5)`, { code: '57014' });
});

test('a statement timeout in the URL, as PostgreSQL writes it', async (t) => {
  const sql = open(t, `${database.url}?statement_timeout=5s`);
  assert.deepEqual([...(await sql`show statement_timeout`)], [{ statement_timeout: '5s' }]);
});
