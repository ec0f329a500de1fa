/** Threads of the IMAP client that die or hang: their connections fail, which is no failure of a server, and the next ones work. */
import assert from 'node:assert/strict';
import { mock, test } from 'node:test';
import { ImapConnection } from '../src/mailboxes/imap-connection.ts';
import { ServerFailure, ThreadFailure } from '../src/mailboxes/imap-failure.ts';
import type { OpenOptions } from '../src/mailboxes/imap-messages.ts';
import type { ImapThreads } from '../src/mailboxes/imap-threads.ts';
import { openImap } from '../src/mailboxes/open-imap.ts';
import { makeEgress } from '../src/net/egress.ts';
import { describeServerError } from '../src/net/mail-server.ts';
import { waitFor } from './harness.ts';
import { type ImapServer, startImapServer } from './imap-server.ts';
import { makeImapThreads } from './imap-threads.ts';

const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers: null });
const pingMs = 5000;
const file = new URL('./fixtures/faulty-imap-thread.ts', import.meta.url);

async function open(threads: ImapThreads, { port, password }: ImapServer, ownerId: string) {
  const login = { password };
  const server = { host: '127.0.0.1', port, secure: false, username: 'ada', login };
  const opened = await openImap(ownerId, server, login, { egress, threads, production: false });
  return 'client' in opened ? opened.client : assert.fail(opened.error.message);
}

/** How the thread's end comes about while it does what it was asked for. `other` has a connection on another thread. */
const faults: Record<string, (other: ImapConnection) => Promise<void>> = {
  Huge: async () => {},
  // Six pings are not answered, and the seventh is not sent.
  Endless: async (other) => {
    for (let ping = 0; ping <= 6; ping += 1) {
      mock.timers.tick(pingMs);
      await other.ask('examine', ['INBOX']);
    }
  },
};

for (const [path, endThread] of Object.entries(faults)) {
  test(`a thread whose work is ${path.toLowerCase()}: its connections fail, and others go on`, async () => {
    mock.timers.enable({ apis: ['setInterval'] });
    const server = await startImapServer();
    const threads = makeImapThreads({ heapMb: 32, pingMs, file, count: 2 });
    const bad = await open(threads, server, 'bad');
    const other = await open(threads, server, 'other');
    const beside = await open(threads, server, 'beside');
    const ends: string[] = [];
    const describe = (error: Error) =>
      error instanceof ThreadFailure ? (error.wasBusy ? 'busy' : 'not busy') : 'failure of the server';
    for (const [name, client] of Object.entries({ bad, other, beside }))
      client.listen({ news() {}, closed: (error) => ends.push(`${name}: ${describe(error)}`) });
    const failing = assert.rejects(bad.ask('readState', [path]), ThreadFailure);
    await endThread(other);
    await failing;
    // The third owner shares the thread of the first. The second has the other thread.
    assert.deepEqual(ends, ['bad: busy', 'beside: not busy']);
    await assert.rejects(beside.ask('examine', ['INBOX']), ThreadFailure);
    assert.equal((await other.ask('examine', ['INBOX'])).total, 0);
    const again = await open(threads, server, 'bad');
    assert.equal((await again.ask('examine', ['INBOX'])).total, 0);
    await threads.stop();
    await waitFor('the end of the connections', () => server.sessions() === 0);
    mock.timers.reset();
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

test('a long line costs as much as many responses, and the turn of its owner rests', async () => {
  const server = await startImapServer();
  const { mails } = server.folders.get('INBOX') ?? assert.fail();
  const [date, raw] = [new Date(), Buffer.alloc(0)];
  for (let n = 0; n < 5000; n += 1) mails.push({ uid: 4_000_000_000 + n, date, raw });
  const threads = makeImapThreads({ count: 1 });
  const client = await open(threads, server, 'owner');
  const foreign = await open(threads, server, 'another');
  await client.ask('examine', ['INBOX']);
  {
    using _turn = await client.takeTurn(8);
    assert.equal((await client.ask('search', [{ uid: '1:*' }])).length, 5000);
  }
  const order: string[] = [];
  const own = client.takeTurn(8).then(() => order.push('the same owner'));
  await foreign.takeTurn(8).then(() => order.push('another owner'));
  await own;
  assert.deepEqual(order, ['another owner', 'the same owner']);
});

/** The connection of a thread that says only what the test says for it. */
function connectTo(sent: string[]): { connection: ImapConnection; released: () => number } {
  let released = 0;
  const release = () => {
    released += 1;
  };
  const turn = { release, shrinkTo() {}, charge() {}, [Symbol.dispose]: release };
  const connection = new ImapConnection(1, {
    send: ({ kind }) => sent.push(kind),
    takeTurn: async () => turn,
    onLeft() {},
  });
  return { connection, released: () => released };
}

const options: OpenOptions = {
  ...{ host: '127.0.0.1', port: 143, secure: false, username: 'ada', login: { password: 'x' } },
  ...{ addresses: [], isVerified: false, ca: undefined, maxMessageBytes: 0 },
  timeouts: { connectMs: 1, greetingMs: 1, silenceMs: 1, loginMs: 1 },
};

test('a connection that is closed before it is opened is not opened in the thread', async () => {
  const sent: string[] = [];
  const { connection } = connectTo(sent);
  await connection.takeTurn(1);
  connection.close();
  await assert.rejects(connection.open(options), ServerFailure);
  connection.startIdle();
  assert.deepEqual(sent, []);
});

test('the turn of a connection that was closed ends when the thread is done with it', async () => {
  const sent: string[] = [];
  const { connection, released } = connectTo(sent);
  {
    using _turn = await connection.takeTurn(1);
    const opening = assert.rejects(connection.open(options), ServerFailure);
    connection.close();
    await opening;
  }
  assert.deepEqual(sent, ['open', 'close']);
  await new Promise(setImmediate);
  assert.equal(released(), 0);
  const failure = {
    error: describeServerError('connection_failed'),
    isRefusal: false,
    isFolderRefused: false,
  };
  connection.note({ kind: 'closed', id: 1, costMs: 0, failure });
  await new Promise(setImmediate);
  assert.equal(released(), 1);
});
