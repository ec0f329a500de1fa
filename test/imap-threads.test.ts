/** Threads of the IMAP client that die or hang: their connections fail as those of a server do, and the next ones work. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ServerFailure } from '../src/mailboxes/imap-failure.ts';
import type { ImapThreadOptions, ImapThreads } from '../src/mailboxes/imap-threads.ts';
import { openImap } from '../src/mailboxes/open-imap.ts';
import { makeEgress } from '../src/net/egress.ts';
import { waitFor } from './harness.ts';
import { type ImapServer, startImapServer } from './imap-server.ts';
import { makeImapThreads } from './imap-threads.ts';

const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers: null });
const file = new URL('./fixtures/faulty-imap-thread.ts', import.meta.url);

async function open(threads: ImapThreads, { port, password }: ImapServer, ownerId: string) {
  const login = { password };
  const server = { host: '127.0.0.1', port, secure: false, username: 'ada', login };
  const opened = await openImap(ownerId, server, login, { egress, threads, production: false });
  return 'client' in opened ? opened.client : assert.fail(opened.error.message);
}

const faults: Record<string, { code: string; options: Partial<ImapThreadOptions> }> = {
  Huge: { code: 'connection_failed', options: { heapMb: 32 } },
  // Three seconds without a reaction.
  Endless: { code: 'timeout', options: { pingMs: 500 } },
};

for (const [path, { code, options }] of Object.entries(faults)) {
  test(`a thread whose work is ${path.toLowerCase()}: its connections fail, and others go on`, async () => {
    const server = await startImapServer();
    const threads = makeImapThreads({ ...options, file, count: 2 });
    const bad = await open(threads, server, 'bad');
    const other = await open(threads, server, 'other');
    const beside = await open(threads, server, 'beside');
    const ends: string[] = [];
    for (const [name, client] of Object.entries({ bad, other, beside }))
      client.listen({ news() {}, closed: ({ error }) => ends.push(`${name} ${error.code}`) });
    const hasFailed = (error: unknown) => error instanceof ServerFailure && error.error.code === code;
    await assert.rejects(bad.ask('readState', [path]), hasFailed);
    // The third owner shares the thread of the first. The second has the other thread.
    assert.deepEqual(ends, [`bad ${code}`, `beside ${code}`]);
    await assert.rejects(beside.ask('examine', ['INBOX']), hasFailed);
    assert.equal((await other.ask('examine', ['INBOX'])).total, 0);
    const again = await open(threads, server, 'bad');
    assert.equal((await again.ask('examine', ['INBOX'])).total, 0);
    await threads.stop();
    await waitFor('the end of the connections', () => server.sessions() === 0);
  });
}

test('a thread ends some time after its last connection, and the next connection starts another', async () => {
  const server = await startImapServer();
  const threads = makeImapThreads({ idleMs: 1 });
  for (const _time of [1, 2]) {
    const client = await open(threads, server, 'owner');
    client.close();
    await waitFor('the end of the thread', () => threads.count === 0);
  }
});

test('an owner has few long answers at the same time, and fewer from one server; other owners do not wait', async () => {
  const [one, two] = [await startImapServer(), await startImapServer()];
  const threads = makeImapThreads({ count: 1 });
  const client = await open(threads, one, 'owner');
  const elsewhere = await open(threads, two, 'owner');
  const foreign = await open(threads, one, 'another');
  const first = await client.takeTurn(8);
  let hasSecond = false;
  const second = client.takeTurn(1).then((turn) => {
    hasSecond = true;
    return turn;
  });
  await elsewhere.takeTurn(8);
  await foreign.takeTurn(8);
  assert.equal(hasSecond, false);
  first[Symbol.dispose]();
  (await second)[Symbol.dispose]();
  const waiting = elsewhere.takeTurn(1);
  elsewhere.close();
  await assert.rejects(
    waiting,
    ServerFailure,
    'whoever waits for a turn learns that the connection has ended',
  );
});

test('after a costly answer the turn of its owner rests, and other owners use the thread', async () => {
  const server = await startImapServer();
  const folder = server.folders.get('Archive') ?? assert.fail();
  for (let n = 0; n < 3000; n += 1) server.folders.set(`Archive/${n}`, folder);
  const threads = makeImapThreads({ count: 1 });
  const client = await open(threads, server, 'owner');
  const foreign = await open(threads, server, 'another');
  {
    using _turn = await client.takeTurn(8);
    await client.ask('listFolders', []);
  }
  const order: string[] = [];
  const own = client.takeTurn(8).then(() => order.push('the same owner'));
  await foreign.takeTurn(8).then(() => order.push('another owner'));
  await own;
  assert.deepEqual(order, ['another owner', 'the same owner']);
});
