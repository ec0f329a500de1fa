import assert from 'node:assert/strict';
import { once } from 'node:events';
import { chownSync, mkdtempSync, renameSync, rmSync, symlinkSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test } from 'node:test';
import { OperatorError } from '../src/lib/operator-error.ts';
import type { RefusedMail } from '../src/receiving/mail-log.ts';
import { waitFor } from './harness.ts';
import { connectSmtp, faultsOf, openSmtp, type SmtpClient, startTestMx, toWire } from './smtp-client.ts';

const message = toWire('Subject: x\r\n\r\nHello\r\n');

/** Repeats a chunk until so many bytes are sent or the server closes the connection. */
async function flood(client: SmtpClient, piece: Buffer, bytes: number): Promise<number> {
  let sent = 0;
  while (sent < bytes && !client.isOver && client.error === null) {
    sent += piece.length;
    if (client.socket.write(piece)) continue;
    const over = new AbortController();
    const { signal } = over;
    const changes = ['drain', 'close'].map((event) => once(client.socket, event, { signal }));
    await Promise.race(changes).catch(() => {});
    over.abort();
    await Promise.allSettled(changes);
  }
  return sent;
}

function makeMemoryWatch(): { growth(): number; stop(): void } {
  const before = process.memoryUsage().rss;
  let most = before;
  const timer = setInterval(() => {
    most = Math.max(most, process.memoryUsage().rss);
  }, 10);
  return { growth: () => most - before, stop: () => clearInterval(timer) };
}

describe('size', () => {
  const limits = { maxMessageBytes: 100_000 };
  const oversized = (bytes: number) => toWire(`${'x'.repeat(bytes - 2)}\r\n`);

  test('a message over the limit is read to its end and refused, and the next is accepted', async () => {
    const mx = await startTestMx({ limits });
    const client = await connectSmtp(mx.port);
    await client.envelope('a@there.example', 'b@here.example');
    assert.match((await client.data(oversized(100_001))).full, /^552 5\.3\.4 .*100000 bytes/);
    await client.envelope('a@there.example', 'b@here.example');
    assert.equal((await client.data(oversized(100_000))).status, 250);
    assert.equal(mx.mails.length, 1);
    assert.equal(mx.mails[0]?.raw.length, 100_000);
    assert.deepEqual(mx.counts.messages, [552, 250]);
  });

  test('at twice the limit the client gets a reply and is disconnected', async () => {
    const mx = await startTestMx({ limits });
    const client = await connectSmtp(mx.port);
    await client.envelope('a@there.example', 'b@here.example');
    await client.command('DATA');
    await client.send(Buffer.alloc(200_010, 'x'));
    assert.match((await client.reply()).full, /^552 5\.3\.4 /);
    await client.ended();
    assert.equal(mx.mails.length, 0);
  });

  test('100 MB in one line, as a command and as data: disconnected early, memory does not grow', async () => {
    const mx = await startTestMx({ limits: { maxMessageBytes: 5_000_000 } });
    const piece = Buffer.alloc(65_536, 'x');
    const watch = makeMemoryWatch();
    const talker = await connectSmtp(mx.port);
    assert.ok((await flood(talker, piece, 100_000_000)) < 100_000_000);
    const sender = await connectSmtp(mx.port);
    await sender.envelope('a@there.example', 'b@here.example');
    await sender.command('DATA');
    assert.ok((await flood(sender, piece, 100_000_000)) < 100_000_000);
    watch.stop();
    assert.ok(watch.growth() < 80_000_000, `${watch.growth()}`);
    assert.equal(mx.mails.length, 0);
  });

  test('above the limit for files a large message is deferred, and later messages are accepted again', async () => {
    const files = { inMemoryBytes: 10_000, maxBytesUnderWay: 20_000, maxSpoolBytes: 200_000 };
    const mx = await startTestMx({ limits: { ...limits, ...files } });
    const clients = await Promise.all([1, 2, 3].map(() => startMessage(mx.port, 90_000)));
    const answers = [];
    for (const client of clients) {
      await client.send('\r\n.\r\n');
      answers.push((await client.reply()).full);
    }
    assert.equal(answers.filter((answer) => answer.startsWith('250 ')).length, 2);
    assert.equal(answers.filter((answer) => answer.startsWith('452 4.3.1 ')).length, 1);
    const [client] = clients as [SmtpClient];
    for (let n = 0; n < 5; n += 1) {
      await client.envelope('a@there.example', 'b@here.example');
      assert.equal((await client.data(oversized(99_000))).status, 250);
    }
  });
});

/** Sends a part of a message, and waits until the server has read it. */
async function startMessage(port: number, bytes: number, localAddress = '127.0.0.1'): Promise<SmtpClient> {
  const client = await connectSmtp(port, { localAddress });
  await client.envelope('a@there.example', 'b@here.example');
  await client.command('DATA');
  await client.send(Buffer.alloc(bytes, 'x'));
  // When another client has its reply, the server has read these bytes too.
  await (await connectSmtp(port)).command('NOOP');
  return client;
}

describe('clients that go silent inside a message', () => {
  const addresses = ['127.0.0.2', '127.0.0.3', '127.0.0.4', '127.0.0.5'];
  const large = toWire(`Subject: large\r\n\r\n${'x'.repeat(90_000)}\r\n`);
  const limits = { maxMessageBytes: 100_000, maxBytesUnderWay: 100_000, inMemoryBytes: 10_000 };

  async function send(port: number, wire: Buffer): Promise<number> {
    const client = await connectSmtp(port);
    await client.envelope('a@there.example', 'b@here.example');
    return (await client.data(wire)).status;
  }

  test('take no memory from others: 23 of them from 4 addresses, and large mail is accepted', async () => {
    const mx = await startTestMx({ limits: { ...limits, maxSpoolBytes: 10_000_000 } });
    for (let n = 0; n < 23; n += 1) await startMessage(mx.port, 90_000, addresses[n % 4]);
    assert.equal(await send(mx.port, large), 250);
    assert.equal(await send(mx.port, message), 250);
  });

  test('are closed, the slowest first, when the files are full', async () => {
    const files = { maxSpoolBytes: 200_000, slowAfterMs: 0, dataPortionBytes: 1_000_000 };
    const refused = new Map<string, string[]>();
    const openMailLog = (remoteIp: string) => ({
      refused: ({ reason }: RefusedMail) => refused.set(remoteIp, [...(refused.get(remoteIp) ?? []), reason]),
      end: () => {},
    });
    const mx = await startTestMx({ openMailLog, limits: { ...limits, ...files } });
    const first = await startMessage(mx.port, 90_000, addresses[0]);
    const second = await startMessage(mx.port, 90_000, addresses[1]);
    // Not at once: a message that is just being written to its file is not closed.
    await waitFor('room for a large message', async () => (await send(mx.port, large)) === 250);
    // 452 if the server had not read all of it before the second came.
    await first.send('\r\n.\r\n');
    const { full, status } = await first.reply();
    assert.match(full, /^(421 4\.3\.2 mx\.example Too slow|452 4\.3\.1 )/);
    assert.deepEqual(refused.get(addresses[0] ?? ''), status === 421 ? ['too_slow'] : ['too_many_messages']);
    await second.send('\r\n.\r\n');
    assert.equal((await second.reply()).status, 250);
  });

  test('do not stop small mail, though neither memory nor files have room', async () => {
    const mx = await startTestMx({ limits: { ...limits, maxSpoolBytes: 200_000 } });
    for (const address of addresses) await startMessage(mx.port, 90_000, address);
    assert.equal(await send(mx.port, large), 452);
    assert.equal(await send(mx.port, message), 250);
  });
});

test('a client that leaves while its large message waits for memory is not waited for', async () => {
  const mx = await startTestMx({ limits: { maxBytesUnderWay: 100_000, inMemoryBytes: 10_000 } });
  const [accepting, release] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  let accepted = 0;
  mx.accept = async () => {
    accepted += 1;
    accepting.resolve();
    await release.promise;
    return { accepted: true, id: 'msg_1' };
  };
  const first = await startMessage(mx.port, 90_000);
  await first.send('\r\n.\r\n');
  await accepting.promise;
  const second = await startMessage(mx.port, 90_000);
  await second.send('\r\n.\r\n');
  const { open } = mx.counts;
  second.socket.resetAndDestroy();
  await waitFor('the end of the connection', () => mx.counts.open < open);
  release.resolve();
  assert.equal((await first.reply()).status, 250);
  assert.equal(accepted, 1);
});

test('a message that cannot be written to a file gets 452, and the next small one is accepted', async () => {
  const spoolFolder = mkdtempSync(path.join(tmpdir(), 'posthorn-spool-'));
  const mx = await startTestMx({ spoolFolder, limits: { inMemoryBytes: 10_000 } });
  rmSync(spoolFolder, { recursive: true });
  const client = await connectSmtp(mx.port);
  await client.envelope('a@there.example', 'b@here.example');
  assert.match((await client.data(toWire('x'.repeat(100_000)))).full, /^452 4\.3\.1 /);
  await client.envelope('a@there.example', 'b@here.example');
  assert.equal((await client.data(message)).status, 250);
  assert.equal(faultsOf(mx).length, 1);
});

test('the server does not start without a folder for files, and says what to do', async () => {
  const starting = startTestMx({ spoolFolder: '/dev/null/spool' });
  await assert.rejects(starting, (error) => error instanceof OperatorError && /TMPDIR/.test(error.message));
});

test('root writes through no link in a folder of another user', {
  skip: process.getuid?.() !== 0,
}, async () => {
  const folder = mkdtempSync(path.join(tmpdir(), 'posthorn-spool-'));
  chownSync(folder, 65_534, 65_534);
  const [link, real] = [path.join(folder, 'link'), path.join(folder, 'real')];
  symlinkSync(tmpdir(), link);
  await assert.rejects(startTestMx({ spoolFolder: link }), OperatorError);
  const mx = await startTestMx({ spoolFolder: real, limits: { inMemoryBytes: 10_000 } });
  renameSync(real, path.join(folder, 'moved'));
  symlinkSync('/dev/null', real);
  const client = await connectSmtp(mx.port);
  await client.envelope('a@there.example', 'b@here.example');
  assert.equal((await client.data(toWire('x'.repeat(100_000)))).status, 250);
  rmSync(folder, { recursive: true });
});

test('too many RCPT commands: 421, also if each recipient is deferred', async () => {
  const mx = await startTestMx({ limits: { maxRecipients: 2 } });
  mx.route = async () => ({ accepted: false, refusal: { status: 450, enhanced: '4.2.1', text: 'Later' } });
  const client = await connectSmtp(mx.port);
  await client.envelope('a@there.example', 'b@here.example');
  for (let n = 1; n < 20; n += 1)
    assert.equal((await client.command('RCPT TO:<b@here.example>')).status, 450);
  assert.equal((await client.command('RCPT TO:<b@here.example>')).status, 421);
  await client.ended();
});

test('recipients over the limit: 452, and the message goes to the others', async () => {
  const mx = await startTestMx({ limits: { maxRecipients: 2 } });
  const client = await connectSmtp(mx.port);
  const last = await client.envelope('a@there.example', 'b@here.example', 'c@here.example', 'd@here.example');
  assert.match(last.full, /^452 4\.5\.3 /);
  assert.equal((await client.command('RCPT TO:<b@here.example>')).status, 250);
  assert.equal((await client.data(message)).status, 250);
  assert.equal(mx.mails[0]?.recipients.length, 2);
});

describe('lines', () => {
  const limits = { maxLineBytes: 100 };

  test('a command line of exactly the limit is read, a longer one is refused, at any chunk boundaries', async () => {
    const client = await connectSmtp((await startTestMx({ limits })).port);
    assert.equal((await client.command(`NOOP ${'x'.repeat(93)}`)).status, 250);
    assert.match((await client.command(`NOOP ${'x'.repeat(94)}`)).full, /^500 5\.5\.2 /);
    for (let n = 0; n < 30; n += 1) await client.send('x'.repeat(20));
    await client.send('\r\n');
    assert.match((await client.reply()).full, /^500 5\.5\.2 /);
    assert.equal((await client.command('NOOP')).status, 250);
  });

  test('an endless line closes the connection', async () => {
    const client = await connectSmtp((await startTestMx({ limits })).port);
    await client.send('x'.repeat(3201));
    assert.match((await client.reply()).full, /^500 5\.5\.2 /);
    await client.ended();
  });
});

describe('errors', () => {
  test('too many refusals: 421, and the connection is closed', async () => {
    const client = await connectSmtp((await startTestMx({ limits: { maxErrors: 3 } })).port);
    await client.send('WIZ\r\nWIZ\r\nWIZ\r\nNOOP\r\n');
    const replies = await client.replies(3);
    assert.match(replies[2]?.full ?? '', /^421 4\.7\.0 mx\.example /);
    await client.ended();
    assert.equal(client.unread, '');
  });

  test('unknown recipients count as errors, and an accepted message resets the count', async () => {
    const client = await connectSmtp((await startTestMx({ limits: { maxErrors: 3 } })).port);
    for (let n = 0; n < 3; n += 1) {
      await client.envelope(
        'a@there.example',
        'x@elsewhere.example',
        'y@elsewhere.example',
        'b@here.example',
      );
      assert.equal((await client.data(message)).status, 250);
    }
    const all = ['x', 'y', 'z'].map((name) => `${name}@elsewhere.example`);
    assert.equal((await client.envelope('a@there.example', ...all)).status, 421);
    await client.ended();
  });

  test('more than a hundred commands without mail: 421, and the connection is closed', async () => {
    const client = await connectSmtp((await startTestMx()).port);
    client.socket.write('NOOP\r\n'.repeat(100_000));
    const replies = await client.replies(101);
    assert.deepEqual(
      replies.slice(99).map(({ status }) => status),
      [250, 421],
    );
    await client.ended();
  });

  test('mail that is deferred many times on one connection never gets 5xx', async () => {
    const mx = await startTestMx();
    mx.accept = async () => ({ accepted: false, refusal: { status: 451, enhanced: '4.3.0', text: 'Later' } });
    const client = await connectSmtp(mx.port);
    await client.command('EHLO there.example');
    const statuses = new Set<number>();
    for (let reset = await client.command('RSET'); ; reset = await client.command('RSET')) {
      statuses.add(reset.status);
      if (reset.status !== 250) break;
      await client.command('MAIL FROM:<a@there.example>');
      await client.command('RCPT TO:<b@here.example>');
      statuses.add((await client.data(message)).status);
    }
    assert.deepEqual(statuses, new Set([250, 451, 421]));
  });
});

describe('time', () => {
  test('a silent client gets 421 and is disconnected', async () => {
    const client = await connectSmtp((await startTestMx({ limits: { commandTimeoutMs: 50 } })).port);
    assert.match((await client.reply()).full, /^421 4\.4\.2 mx\.example /);
    await client.ended();
  });

  test('single bytes do not extend the timeout', async () => {
    const client = await connectSmtp((await startTestMx({ limits: { commandTimeoutMs: 100 } })).port);
    const drip = setInterval(() => client.socket.write('x'), 10);
    assert.match((await client.reply()).full, /^421 4\.4\.2 /);
    clearInterval(drip);
    await client.ended();
  });

  test('a message that stalls gets 421 and is disconnected', async () => {
    const mx = await startTestMx({ limits: { dataTimeoutMs: 1000 } });
    const client = await connectSmtp(mx.port);
    await client.envelope('a@there.example', 'b@here.example');
    await client.command('DATA');
    await client.send('Subject: half');
    assert.match((await client.reply()).full, /^421 4\.4\.2 /);
    await client.ended();
    assert.equal(mx.mails.length, 0);
  });

  test('a message slower than the slowest rate is cut, though bytes keep coming', async () => {
    const mx = await startTestMx({ limits: { dataTimeoutMs: 1000, dataPortionBytes: 1_000_000 } });
    const client = await connectSmtp(mx.port);
    await client.envelope('a@there.example', 'b@here.example');
    await client.command('DATA');
    const drip = setInterval(() => client.socket.write('x'), 10);
    assert.match((await client.reply()).full, /^421 4\.4\.2 /);
    clearInterval(drip);
    await client.ended();
  });

  test('a slow message may take longer than the time for a portion, but not longer than the message timeout', async () => {
    const times = { dataTimeoutMs: 1000, dataPortionBytes: 1, messageTimeoutMs: 4000 };
    const mx = await startTestMx({ limits: times });
    const client = await connectSmtp(mx.port);
    await client.envelope('a@there.example', 'b@here.example');
    await client.command('DATA');
    let drips = 0;
    const drip = setInterval(() => {
      client.socket.write('x');
      drips += 1;
    }, 50);
    assert.match((await client.reply()).full, /^421 4\.4\.2 /);
    clearInterval(drip);
    assert.ok(drips * 50 > 1000, `cut after ${drips} drips, as if it had stalled`);
  });

  test('the client does not time out while we are slow', async () => {
    const mx = await startTestMx({ limits: { commandTimeoutMs: 1000, dataTimeoutMs: 1000 } });
    mx.accept = () =>
      new Promise((resolve) => setTimeout(() => resolve({ accepted: true, id: 'msg_slow' }), 3000));
    const client = await connectSmtp(mx.port);
    await client.envelope('a@there.example', 'b@here.example');
    assert.equal((await client.data(message)).full, '250 2.0.0 Accepted as msg_slow');
    assert.match((await client.reply()).full, /^421 4\.4\.2 /);
  });

  test('a client that never reads its replies is not read for long, and memory does not grow', async () => {
    const mx = await startTestMx({ limits: { commandTimeoutMs: 2000, maxRecipients: 1 } });
    const client = await connectSmtp(mx.port);
    await client.envelope('a@there.example', 'b@here.example');
    client.socket.pause();
    const watch = makeMemoryWatch();
    await flood(client, Buffer.from('RCPT TO:<c@here.example>\r\n'.repeat(1000)), 50_000_000);
    watch.stop();
    assert.ok(watch.growth() < 80_000_000, `${watch.growth()}`);
    assert.equal((await (await connectSmtp(mx.port)).command('NOOP')).status, 250);
  });
});

test('commands behind an unanswered one are not read into memory', async () => {
  const mx = await startTestMx({ limits: { maxRecipients: 1000 } });
  const later = { accepted: false, refusal: { status: 451, enhanced: '4.3.0', text: 'Later' } } as const;
  let asked = 0;
  let hangs = () => {};
  const hanging = new Promise<void>((resolve) => {
    hangs = resolve;
  });
  mx.route = () => {
    asked += 1;
    // One reply in each turn of the event loop, so that the server could read more in between.
    if (asked <= 2000) return new Promise((resolve) => setImmediate(() => resolve(later)));
    hangs();
    return new Promise(() => {});
  };
  const client = await connectSmtp(mx.port);
  await client.command('EHLO x');
  await client.command('MAIL FROM:<a@there.example>');
  const flooding = flood(client, Buffer.from('RCPT TO:<b@here.example>\r\n'.repeat(2000)), 60_000_000);
  await hanging;
  // In this many turns the server would have read all commands.
  for (let n = 0; n < 2000; n += 1) await new Promise((resolve) => setImmediate(resolve));
  const taken = client.socket.bytesWritten - client.socket.writableLength;
  assert.ok(taken < 20_000_000, `${taken}`);
  client.close();
  await flooding;
});

describe('connections', () => {
  test('over the total limit: 421 and closed, and a new client is accepted when another leaves', async () => {
    const mx = await startTestMx({ limits: { maxConnections: 2 } });
    const first = await connectSmtp(mx.port);
    await connectSmtp(mx.port);
    const third = await openSmtp(mx.port);
    assert.match((await third.reply()).full, /^421 mx\.example Too many connections/);
    await third.ended();
    assert.equal(mx.counts.refused, 1);
    assert.equal(mx.counts.open, 2);
    await first.command('QUIT');
    await first.ended();
    await seen(() => mx.counts.open === 1);
    assert.equal((await (await connectSmtp(mx.port)).command('NOOP')).status, 250);
  });

  test('over the limit for one address: 421', async () => {
    const mx = await startTestMx({ limits: { maxConnectionsPerAddress: 2 } });
    await connectSmtp(mx.port);
    await connectSmtp(mx.port);
    assert.equal((await (await openSmtp(mx.port)).reply()).status, 421);
  });

  test('a dual-stack listener sees the IPv4 address of IPv4 clients, and counts IPv4 and IPv6 separately', async (t) => {
    const mx = await startTestMx({ host: '::', limits: { maxConnectionsPerAddress: 1 } }).catch(() => null);
    if (!mx) return t.skip('no IPv6 here');
    const client = await connectSmtp(mx.port);
    await client.envelope('a@there.example', 'b@here.example');
    await client.data(message);
    assert.equal(mx.mails[0]?.remoteIp, '127.0.0.1');
    await connectSmtp(mx.port, { host: '::1' });
    assert.equal((await (await openSmtp(mx.port, { host: '::1' })).reply()).status, 421);
  });

  test('a flood of connections leaves none open', async () => {
    const mx = await startTestMx({ limits: { maxConnections: 20 } });
    await Promise.all(
      Array.from({ length: 300 }, async (_, n) => {
        const client = await openSmtp(mx.port);
        if (n % 3 === 0) client.socket.resetAndDestroy();
        else if (n % 3 === 1) client.close();
        else client.socket.end('EHLO x\r\n');
        await client.ended();
      }),
    );
    await seen(() => mx.counts.open === 0);
    assert.equal((await (await connectSmtp(mx.port)).command('NOOP')).status, 250);
    assert.deepEqual(faultsOf(mx), []);
  });
});

describe('stop', () => {
  test('idle clients get 421, new connections are refused', async () => {
    const mx = await startTestMx();
    const client = await connectSmtp(mx.port);
    await client.command('EHLO x');
    const stopped = mx.stop();
    assert.match((await client.reply()).full, /^421 4\.3\.2 mx\.example Shutting down/);
    await client.ended();
    await stopped;
    await assert.rejects(openSmtp(mx.port), /ECONNREFUSED/);
    assert.equal(mx.counts.open, 0);
  });

  test('messages that are being sent or accepted get their 250 first', async () => {
    const mx = await startTestMx({ stopWithinMs: 10_000 });
    let commit = () => {};
    const acceptCalled = new Promise<void>((signalAccept) => {
      mx.accept = () =>
        new Promise((resolve) => {
          commit = () => resolve({ accepted: true, id: 'msg_last' });
          signalAccept();
        });
    });
    const client = await connectSmtp(mx.port);
    await client.envelope('a@there.example', 'b@here.example');
    await client.command('DATA');
    await client.send('Subject: x\r\n');
    const stopped = mx.stop();
    await client.send('\r\nHello\r\n.\r\nMAIL FROM:<a@there.example>\r\n');
    await acceptCalled;
    commit();
    assert.equal((await client.reply()).full, '250 2.0.0 Accepted as msg_last');
    assert.match((await client.reply()).full, /^421 4\.3\.2 /);
    await client.ended();
    await stopped;
  });

  test('connections that do not end in time are closed', async () => {
    const mx = await startTestMx({ stopWithinMs: 100 });
    mx.accept = () => new Promise(() => {});
    const accepting = await connectSmtp(mx.port);
    await accepting.envelope('a@there.example', 'b@here.example');
    await accepting.command('DATA');
    await accepting.send(message);
    const sending = await connectSmtp(mx.port);
    await sending.envelope('a@there.example', 'b@here.example');
    await sending.command('DATA');
    const shaking = await connectSmtp(mx.port);
    await shaking.command('STARTTLS');
    await mx.stop();
    await Promise.all([accepting, sending, shaking].map((client) => client.ended()));
    await mx.stop();
  });
});

test('a port in use: the error says what to do', async () => {
  const other = net.createServer().listen(0, '127.0.0.1');
  await once(other, 'listening');
  const { port } = other.address() as net.AddressInfo;
  await assert.rejects(startTestMx({ port }), (error: Error) => {
    assert.ok(error instanceof OperatorError);
    assert.match(error.message, new RegExp(`^Port ${port} on 127.0.0.1 is in use .* set POSTHORN_SMTP_PORT`));
    return true;
  });
  other.close();
});

/** Waits until the condition is true: the server's side of a connection ends a little after the client's. */
async function seen(isSo: () => boolean): Promise<void> {
  while (!isSo()) await new Promise((resolve) => setImmediate(resolve));
}
