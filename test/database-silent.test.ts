/** The network to PostgreSQL falls silent: nothing is closed, nothing is answered. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import net, { type AddressInfo } from 'node:net';
import { after, test } from 'node:test';
import { connect, isUnavailable } from '../src/db/client.ts';
import { makeDatabase } from './harness.ts';

const database = await makeDatabase();
after(() => database.drop());

/** Passes bytes on until it is told to drop what comes on the connections it has by then. */
async function startNetwork(target: URL) {
  const pairs: [net.Socket, net.Socket][] = [];
  const server = net.createServer((client) => {
    const upstream = net.connect(Number(target.port), target.hostname);
    pairs.push([client, upstream]);
    for (const socket of [client, upstream]) socket.on('error', () => {});
    client.pipe(upstream).pipe(client);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const url = new URL(target);
  url.host = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    url: url.href,
    fallSilent() {
      for (const [client, upstream] of pairs.splice(0)) {
        client.unpipe(upstream).resume();
        upstream.unpipe(client).resume();
        upstream.destroy();
      }
    },
    close: () => server.close(),
  };
}

test('a question that nobody answers ends, and the next one takes another way', async (t) => {
  const network = await startNetwork(new URL(database.url));
  const sql = connect(network.url, { max: 1, applicationName: 'silence', statementTimeoutMs: 600 });
  t.after(async () => {
    await sql.end({ timeout: 0 });
    network.close();
  });
  await sql`select 1`;
  network.fallSilent();
  await assert.rejects(sql`select 2`, (error) => isUnavailable(error));
  assert.deepEqual([...(await sql`select 3 as n`)], [{ n: 3 }]);
});

test('what has a statement timeout of its own is not cut by it, and neither is a connection at rest', async (t) => {
  const sql = connect(database.url, { max: 1, applicationName: 'patience', statementTimeoutMs: 300 });
  t.after(() => sql.end({ timeout: 0 }));
  const [before] = await sql`select pg_backend_pid() as pid`;
  await sql.begin(async (sql) => {
    await sql`set local statement_timeout = 0`;
    await sql`select pg_sleep(1)`.simple();
  });
  const [after] = await sql`select pg_backend_pid() as pid`;
  assert.equal(after?.pid, before?.pid);
  await assert.rejects(sql`select pg_sleep(1)`, { code: '57014' });
});
