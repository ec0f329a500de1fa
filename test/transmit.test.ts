import assert from 'node:assert/strict';
import net from 'node:net';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { makeSelfSigned } from '../src/net/self-signed.ts';
import type { OutgoingMail } from '../src/sending/outgoing-mail.ts';
import { type Reply, ReplyReader } from '../src/sending/replies.ts';
import {
  type ClientParts,
  makeTlsContexts,
  openConnection,
  type Server,
  type SmtpConnection,
  standardTimeouts,
} from '../src/sending/transmit.ts';
import type { Phase, SendErrorCode, TryReply } from '../src/sending/try-reply.ts';
import { startDeafServer } from './deaf-server.ts';
import { waitFor } from './harness.ts';
import { startTestMx } from './smtp-client.ts';
import { hang, hangUp, type Sink, type Step, startSink } from './smtp-sink.ts';

const own = makeSelfSigned('mx.dest.example', new Date());
const other = makeSelfSigned('other.example', new Date());
const contexts = makeTlsContexts(own.cert + other.cert);
const never = new AbortController().signal;
const message = 'From: ada@example.com\r\nSubject: x\r\n\r\nHello\r\n.\r\n..\r\n.x\r\n';

function makeParts(change: Partial<ClientParts> = {}): ClientParts {
  return {
    resolve: async () => ({ ok: true, addresses: [{ address: '127.0.0.1', family: 4 }] }),
    heloName: 'us.example',
    contexts,
    timeouts: standardTimeouts,
    ...change,
  };
}

function serverOf(sink: { port: number }, change: Partial<Server> = {}): Server {
  const standard = { isImplicitTls: false, security: 'opportunistic', login: null } as const;
  return { host: 'mx.dest.example', port: sink.port, ...standard, ...change };
}

function makeMail(change: Partial<OutgoingMail> & { raw?: string } = {}): OutgoingMail {
  const { raw = message, ...rest } = change;
  const bytes = Buffer.from(raw, 'latin1');
  return {
    ...{ messageId: 'm', ownerId: 'a', signature: '' },
    ...{ mailFrom: 'bounces@us.example', rcptTo: 'bob@dest.example' },
    ...{ content: [bytes], size: bytes.length, eightBit: false, smtpUtf8: false, mayEnd: () => true },
    ...rest,
  };
}

async function open(
  sink: { port: number },
  change: Partial<Server> = {},
  parts: Partial<ClientParts> = {},
): Promise<SmtpConnection> {
  const opened = await openConnection(serverOf(sink, change), makeParts(parts), never);
  assert.ok('connection' in opened, JSON.stringify(opened));
  return opened.connection;
}

/** Opens and sends; whatever ends it. */
async function send(
  sink: { port: number },
  mail: OutgoingMail = makeMail(),
  change: Partial<Server> = {},
  parts: Partial<ClientParts> = {},
  signal = never,
): Promise<TryReply> {
  const opened = await openConnection(serverOf(sink, change), makeParts(parts), signal);
  return 'failure' in opened ? opened.failure : opened.connection.send(mail, signal);
}

function assertFailed(reply: TryReply, error: SendErrorCode, phase: Phase, uncertain = false): void {
  const { kind, response } = reply;
  assert.deepEqual(
    { kind, error: reply.error, phase: reply.phase, uncertain: reply.uncertain, response },
    { kind: 'failed', error, phase, uncertain, response: null },
    JSON.stringify(reply),
  );
  assert.ok(reply.detail);
}

test('a message is accepted', async () => {
  const sink = await startSink();
  const reply = await send(sink, makeMail({ signature: 'DKIM-Signature: v=1;\r\n b=x\r\n' }));
  assert.deepEqual(reply, {
    kind: 'accepted',
    phase: 'end-of-data',
    response: { code: 250, enhanced: '2.0.0', text: 'Taken' },
    error: null,
    detail: null,
    uncertain: false,
    host: 'mx.dest.example',
    address: '127.0.0.1',
    tls: null,
  });
  const size = message.length + 'DKIM-Signature: v=1;\r\n b=x\r\n'.length;
  assert.deepEqual(sink.commands, [
    'EHLO us.example',
    `MAIL FROM:<bounces@us.example> SIZE=${size}`,
    'RCPT TO:<bob@dest.example>',
    'DATA',
  ]);
  assert.equal(sink.mails[0]?.raw, `DKIM-Signature: v=1;\r\n b=x\r\n${message}`);
});

describe('the bytes that arrive are the bytes that were stored', () => {
  const units = fc.constantFrom('.', '..', '\r\n', '\r\n.', '\r\n.\r\n', 'a', ' ', '\0', '\xff', 'From: x');
  const text = fc.array(units, { maxLength: 60 }).map((parts) => `${parts.join('')}\r\n`);

  async function check(port: number, read: () => string | undefined): Promise<void> {
    const connection = await open({ port });
    await fc.assert(
      fc.asyncProperty(text, fc.array(fc.nat(300), { maxLength: 5 }), async (raw, cuts) => {
        const bytes = Buffer.from(raw, 'latin1');
        const edges = [0, ...cuts.map((cut) => Math.min(cut, bytes.length)).sort((a, b) => a - b)];
        const content = edges.map((from, n) => bytes.subarray(from, edges[n + 1] ?? bytes.length));
        const reply = await connection.send(
          makeMail({ rcptTo: 'a@here.example', content, size: raw.length }),
          never,
        );
        assert.equal(reply.kind, 'accepted', JSON.stringify(reply));
        assert.equal(read(), raw);
      }),
      { numRuns: 150 },
    );
    connection.quit();
  }

  test('at a server on a raw socket', async () => {
    const sink = await startSink();
    await check(sink.port, () => sink.mails.at(-1)?.raw);
  });

  test('at our own server', async () => {
    const mx = await startTestMx();
    await check(mx.port, () => mx.mails.at(-1)?.raw.toString('latin1'));
  });

  test('a message of 6 MB that is read slowly, in pieces', async () => {
    const sink = await startSink();
    const piece = Buffer.from('.some text\r\n'.repeat(50_000));
    async function* read() {
      for (let n = 0; n < 10; n++) yield piece;
    }
    const reply = await send(sink, makeMail({ content: read(), size: 10 * piece.length }));
    assert.equal(reply.kind, 'accepted');
    assert.ok(sink.mails[0]?.raw === piece.toString().repeat(10));
  });

  test('a missing final CRLF is added', async () => {
    const sink = await startSink();
    await send(sink, makeMail({ raw: 'a: b\r\n\r\nx' }));
    assert.equal(sink.mails[0]?.raw, 'a: b\r\n\r\nx\r\n');
  });

  for (const [title, raw] of [
    ['a bare LF', 'a: b\r\n\r\nx\n.\r\n'],
    ['a bare CR', 'a: b\r\n\r\nx\r.\r\n'],
    ['a CR at the end', 'a: b\r\n\r\nx\r'],
    ['LF at the start', '\na: b\r\n\r\n'],
  ] as const) {
    test(`${title} is not sent, because a careless server could take it for the end`, async () => {
      const sink = await startSink();
      assertFailed(await send(sink, makeMail({ raw })), 'message_malformed', 'data');
      assert.deepEqual(sink.mails, []);
    });
  }

  test('a CR and its LF may come in two pieces; a CR alone may not', async () => {
    const sink = await startSink();
    const pieces = (...texts: string[]) => texts.map((part) => Buffer.from(part));
    const good = makeMail({ content: pieces('a: b\r', '\n\r\n', '.', 'x\r', '\n.\r\n'), size: 15 });
    assert.equal((await send(sink, good)).kind, 'accepted');
    assert.equal(sink.mails[0]?.raw, 'a: b\r\n\r\n.x\r\n.\r\n');
    const bad = makeMail({ content: pieces('a: b\r', '.\r\n'), size: 8 });
    assertFailed(await send(sink, bad), 'message_malformed', 'data');
  });

  test('a message that cannot be read to its end is not accepted half', async () => {
    const sink = await startSink();
    async function* read() {
      yield Buffer.from(message);
      throw new Error('the database is away');
    }
    const reply = await send(sink, makeMail({ content: read() }));
    assertFailed(reply, 'message_unreadable', 'data');
    assert.match(reply.detail ?? '', /database is away/);
    await waitFor('the end of the connection', () => sink.openConnections() === 0);
    assert.deepEqual(sink.mails, []);
  });
});

describe('pipelining', () => {
  test('the whole envelope is sent at once where the server offers it', async () => {
    const sink = await startSink();
    // No reply to MAIL and RCPT until DATA has come.
    sink.behave('MAIL', hang);
    sink.behave('RCPT', hang);
    sink.behave('DATA', '250 2.1.0 Ok\r\n250 2.1.5 Ok\r\n354 Go ahead');
    assert.equal((await send(sink)).kind, 'accepted');
  });

  test('commands come one by one where the server does not offer it', async () => {
    const sink = await startSink({ extensions: [] });
    let early = '';
    for (const step of ['MAIL', 'RCPT', 'DATA'] as const) {
      sink.behave(step, ({ unread, say }) => {
        early += unread;
        say(step === 'DATA' ? '451 4.3.0 Not now' : '250 Ok');
      });
    }
    const reply = await send(sink);
    assert.deepEqual([reply.kind, reply.phase], ['refused', 'data']);
    assert.equal(early, '');
    assert.equal(sink.commands[1], 'MAIL FROM:<bounces@us.example>');
  });

  test('354 without a recipient: no message is sent, and the connection is closed', async () => {
    const sink = await startSink();
    sink.behave('RCPT', '550 5.1.1 No such user');
    const connection = await open(sink);
    const reply = await connection.send(makeMail(), never);
    assert.equal(reply.response?.enhanced, '5.1.1');
    assert.equal(reply.phase, 'rcpt');
    assert.equal(connection.isUsable, false);
    assert.deepEqual(sink.mails, []);
  });
});

describe('one connection, several transactions', () => {
  for (const extensions of [['PIPELINING'], []]) {
    test(`a recipient that is put off does not disturb the next (${extensions[0] ?? 'one by one'})`, async () => {
      const sink = await startSink({ extensions });
      sink.behave('RCPT', '451 4.7.1 Greylisted', '250 Ok');
      sink.behave('DATA', ...(extensions.length > 0 ? ['503 5.5.1 No recipient'] : []), '354 Go ahead');
      const connection = await open(sink);
      const first = await connection.send(makeMail(), never);
      assert.deepEqual([first.kind, first.phase], ['refused', 'rcpt']);
      assert.deepEqual(first.response, { code: 451, enhanced: '4.7.1', text: 'Greylisted' });
      assert.equal(connection.isUsable, true);
      const second = await connection.send(makeMail({ rcptTo: 'eve@dest.example' }), never);
      assert.equal(second.kind, 'accepted', JSON.stringify(second));
      assert.equal(sink.commands.filter((line) => line === 'RSET').length, 1);
      assert.equal(sink.connections(), 1);
      const third = await connection.send(makeMail(), never);
      assert.equal(third.kind, 'accepted');
      assert.equal(sink.commands.filter((line) => line === 'RSET').length, 1);
    });
  }

  test('a message that is refused after its end does not disturb the next', async () => {
    const sink = await startSink();
    sink.behave('.', '554 5.7.1 Spam', '250 Ok');
    const connection = await open(sink);
    const first = await connection.send(makeMail(), never);
    assert.deepEqual([first.kind, first.phase, first.uncertain], ['refused', 'end-of-data', false]);
    assert.equal((await connection.send(makeMail(), never)).kind, 'accepted');
  });
});

const steps: [Step, Phase][] = [
  ['connect', 'greeting'],
  ['EHLO', 'ehlo'],
  ['AUTH', 'auth'],
  ['MAIL', 'mail'],
  ['RCPT', 'rcpt'],
  ['DATA', 'data'],
  ['.', 'end-of-data'],
];
const login = { user: 'ada', password: 'secret' };

/** In the clear, with and without pipelining. */
async function startBoth(run: (sink: Sink) => Promise<void>): Promise<void> {
  for (const extensions of [['AUTH PLAIN', 'PIPELINING'], ['AUTH PLAIN']]) {
    await run(await startSink({ extensions }));
  }
}

describe('the phase in which a try ended', () => {
  for (const [step, phase] of steps) {
    for (const code of [421, 450, 554]) {
      test(`${code} at ${phase}`, () =>
        startBoth(async (sink) => {
          sink.behave(step, `${code} ${String(code)[0]}.3.2 Not now`);
          const reply = await send(sink, makeMail(), { login });
          assert.deepEqual([reply.kind, reply.phase, reply.uncertain], ['refused', phase, false]);
          assert.equal(reply.response?.code, code);
          assert.equal(reply.error, null);
        }));
    }

    test(`421 and the end of the connection at ${phase}`, () =>
      startBoth(async (sink) => {
        sink.behave(step, ({ socket }) => socket.end('421 4.3.2 Going down\r\n'));
        const reply = await send(sink, makeMail(), { login });
        assert.deepEqual([reply.kind, reply.phase, reply.response?.code], ['refused', phase, 421]);
      }));

    test(`the connection dies at ${phase}`, () =>
      startBoth(async (sink) => {
        sink.behave(step, hangUp);
        const reply = await send(sink, makeMail(), { login });
        assertFailed(reply, 'connection_lost', phase, phase === 'end-of-data');
      }));

    test(`no reply at ${phase}`, async () => {
      const sink = await startSink({ extensions: ['AUTH PLAIN'] });
      sink.behave(step, hang);
      // Only the step that hangs has a short limit: on a slow machine another step must not meet it.
      const isLimited = ['EHLO', 'AUTH', 'MAIL', 'RCPT'].map((command) => command === step);
      const timeouts = {
        ...standardTimeouts,
        ...(step === 'connect' && { greetingMs: 200 }),
        ...(step === 'DATA' && { dataMs: 200 }),
        ...(step === '.' && { endOfDataMs: 200 }),
      };
      Object.defineProperty(timeouts, 'commandMs', { get: () => (isLimited.shift() ? 200 : 300_000) });
      const reply = await send(sink, makeMail(), { login }, { timeouts });
      assertFailed(reply, 'reply_timeout', phase, phase === 'end-of-data');
    });

    test(`text that is not a reply at ${phase}`, () =>
      startBoth(async (sink) => {
        sink.behave(step, 'hello\r\n250 Ok');
        const reply = await send(sink, makeMail(), { login });
        assertFailed(reply, 'invalid_reply', phase, phase === 'end-of-data');
      }));

    test(`the signal at ${phase}`, async () => {
      const sink = await startSink({ extensions: ['AUTH PLAIN'] });
      const stop = new AbortController();
      sink.behave(step, () => stop.abort());
      const reply = await send(sink, makeMail(), { login }, {}, stop.signal);
      // The server may know of the connection before we do.
      const seen = step === 'connect' ? reply.phase : phase;
      assertFailed(reply, 'stopped', seen, phase === 'end-of-data');
    });
  }

  test('a signal that was aborted before: no connection', async () => {
    const sink = await startSink();
    assertFailed(await send(sink, makeMail(), {}, {}, AbortSignal.abort()), 'stopped', 'connect');
    assert.equal(sink.connections(), 0);
  });

  test('nothing listens', async () => {
    const sink = await startSink();
    await sink.close();
    assertFailed(await send(sink), 'connect_failed', 'connect');
  });

  test('a server that does not know EHLO gets HELO', async () => {
    const sink = await startSink();
    sink.behave('EHLO', '502 5.5.2 What?');
    assert.equal((await send(sink)).kind, 'accepted');
    assert.deepEqual(sink.commands.slice(0, 3), [
      'EHLO us.example',
      'HELO us.example',
      'MAIL FROM:<bounces@us.example>',
    ]);
  });
});

describe('the message is under way', () => {
  const large = makeMail({ raw: `a: b\r\n\r\n${'x'.repeat(70)}\r\n`.repeat(200_000) });

  test('the connection dies before the final dot: the server cannot have it', async () => {
    const sink = await startSink();
    sink.behave('body', hangUp);
    assertFailed(await send(sink, large), 'connection_lost', 'data');
  });

  test('the server stops reading', async () => {
    const sink = await startSink();
    sink.behave('body', ({ socket }) => socket.pause());
    const timeouts = { ...standardTimeouts, blockMs: 200 };
    assertFailed(await send(sink, large, {}, { timeouts }), 'reply_timeout', 'data');
  });

  test('the server reads slowly: a little now and then gains no time', async () => {
    const sink = await startSink();
    sink.behave('body', ({ socket }) => {
      socket.pause().on('data', () => socket.pause());
      const timer = setInterval(() => socket.resume(), 5);
      socket.on('close', () => clearInterval(timer));
    });
    const content = Array(40).fill(Buffer.from(`${'x'.repeat(70)}\r\n`.repeat(14_000)));
    const timeouts = { ...standardTimeouts, blockMs: 3000, blockBytes: 2 ** 30 };
    const reply = await send(sink, makeMail({ content, size: 1 }), {}, { timeouts });
    assertFailed(reply, 'reply_timeout', 'data');
  });

  test('the server refuses it before its end, and stops reading', async () => {
    const sink = await startSink();
    sink.behave('body', ({ socket, say }) => {
      say('552 5.3.4 Too much');
      socket.pause();
    });
    const reply = await send(sink, large);
    assert.deepEqual([reply.kind, reply.phase, reply.response?.code], ['refused', 'data', 552]);
  });

  test('the server accepts it before its end: that is no acceptance', async () => {
    const sink = await startSink();
    sink.behave('body', ({ socket, say }) => {
      say('250 2.0.0 Taken');
      socket.pause();
    });
    assertFailed(await send(sink, large), 'invalid_reply', 'data');
  });

  test('the signal ends it', async () => {
    const sink = await startSink();
    const stop = new AbortController();
    sink.behave('body', ({ socket }) => {
      socket.pause();
      stop.abort();
    });
    assertFailed(await send(sink, large, {}, {}, stop.signal), 'stopped', 'data');
  });
});

describe('replies', () => {
  test('any bytes, in any pieces, give the same replies', () => {
    const units = fc.constantFrom('250', '-', ' ', '\r\n', '\n', '\r', '5.1.1', 'x', '550 ', '\0', '\xff');
    const bytes = fc.array(units, { maxLength: 40 }).map((parts) => Buffer.from(parts.join(''), 'latin1'));
    const read = (chunks: Buffer[]) => {
      const reader = new ReplyReader();
      const found: (Reply | null)[] = [];
      for (const chunk of chunks) if (!found.includes(null)) found.push(...reader.push(chunk));
      return found;
    };
    fc.assert(
      fc.property(bytes, fc.nat(80), (all, cut) => {
        assert.deepEqual(read([all.subarray(0, cut), all.subarray(cut)]), read([all]));
      }),
      { numRuns: 500 },
    );
  });

  test('several lines, with an enhanced code in each', async () => {
    const sink = await startSink();
    sink.behave('RCPT', '550-5.7.1 Blocked\r\n550-5.7.1 by policy;\r\n550 5.7.1 see https://example.com');
    const { response } = await send(sink);
    assert.deepEqual(response, {
      code: 550,
      enhanced: '5.7.1',
      text: 'Blocked\nby policy;\nsee https://example.com',
    });
  });

  test('an enhanced code of another class is text', async () => {
    const sink = await startSink();
    sink.behave('RCPT', '550 4.2.2 Full');
    assert.deepEqual((await send(sink)).response, { code: 550, enhanced: null, text: '4.2.2 Full' });
  });

  test('control characters and bytes that are not UTF-8 do no harm', async () => {
    const sink = await startSink();
    sink.behave('RCPT', '550 5.1.1 a\0b\x1b[2J\xff');
    assert.deepEqual((await send(sink)).response, { code: 550, enhanced: '5.1.1', text: 'a b [2J\ufffd' });
  });

  test('a reply without text, and one that comes byte by byte', async () => {
    const sink = await startSink();
    sink.behave('MAIL', '250');
    sink.behave('.', ({ socket }) => {
      for (const byte of '250 2.0.0 Taken\r\n') socket.write(byte);
    });
    assert.equal((await send(sink)).response?.text, 'Taken');
  });

  const line = 'x'.repeat(900);
  const long: [string, string][] = [
    ['one line', `250 2.0.0 ${'x'.repeat(1_000_000)}`],
    ['many lines', `${`250-2.0.0 ${line}\r\n`.repeat(1100)}250 2.0.0 End`],
  ];
  for (const [title, reply] of long) {
    test(`a reply of 1 MB in ${title} is read, its beginning is kept, and the connection stays`, async () => {
      const sink = await startSink();
      sink.behave('.', reply, '250 Ok');
      const connection = await open(sink);
      const first = await connection.send(makeMail(), never);
      assert.equal(first.kind, 'accepted');
      assert.ok((first.response?.text.length ?? 0) <= 4000);
      assert.equal((await connection.send(makeMail(), never)).kind, 'accepted');
    });
  }

  for (const [title, part] of [
    ['line', 'x'.repeat(65_536)],
    ['reply', `250-${line}\r\n`.repeat(60)],
  ] as const) {
    test(`an endless ${title}: its code counts, and the connection is closed`, async () => {
      const sink = await startSink();
      sink.behave('.', ({ socket }) => {
        const pour = () => {
          while (!socket.destroyed && socket.write(part));
        };
        socket.on('drain', pour).write('250-');
        pour();
      });
      const connection = await open(sink);
      assert.equal((await connection.send(makeMail(), never)).kind, 'accepted');
      assert.equal(connection.isUsable, false);
      await waitFor('the end of the connection', () => sink.openConnections() === 0);
    });
  }

  test('a second reply that nobody asked for makes the connection unusable', async () => {
    const sink = await startSink();
    sink.behave('.', '250 Ok\r\n250 Ok');
    const connection = await open(sink);
    assert.equal((await connection.send(makeMail(), never)).kind, 'accepted');
    assert.equal(connection.isUsable, false);
  });

  test('a reply that fits no command', async () => {
    const sink = await startSink({ extensions: [] });
    sink.behave('MAIL', '354 What?');
    const reply = await send(sink);
    assert.deepEqual([reply.kind, reply.error, reply.phase], ['failed', 'invalid_reply', 'mail']);
  });
});

describe('what the server cannot take', () => {
  const refusals: [string, string[], Partial<OutgoingMail> & { raw?: string }, SendErrorCode][] = [
    ['a message above SIZE', ['SIZE 20'], {}, 'message_too_large'],
    ['8-bit text without 8BITMIME', ['SMTPUTF8'], { eightBit: true }, 'needs_8bitmime'],
    ['a UTF-8 header without SMTPUTF8', ['8BITMIME'], { smtpUtf8: true }, 'needs_smtputf8'],
    ['a UTF-8 address without SMTPUTF8', ['8BITMIME'], { rcptTo: 'jürgen@dest.example' }, 'needs_smtputf8'],
    [
      'a line break in an address',
      [],
      { rcptTo: 'a@b.example>\r\nRCPT TO:<eve@b.example' },
      'invalid_address',
    ],
    ['an angle bracket in an address', [], { mailFrom: 'a>b@us.example' }, 'invalid_address'],
    ['a space in an address', [], { rcptTo: 'a@b.example SIZE=1' }, 'invalid_address'],
  ];
  for (const [title, extensions, change, error] of refusals) {
    test(title, async () => {
      const sink = await startSink({ extensions });
      const connection = await open(sink);
      const reply = await connection.send(makeMail(change), never);
      assertFailed(reply, error, 'mail');
      assert.deepEqual(sink.commands, ['EHLO us.example']);
      assert.equal(connection.isUsable, true);
    });
  }

  test('what it can take is announced', async () => {
    const sink = await startSink({ extensions: ['SIZE', '8bitmime', 'SmtpUtf8'] });
    const rcptTo = 'jürgen@bücher.example';
    await send(sink, makeMail({ eightBit: true, rcptTo }));
    assert.deepEqual(sink.commands.slice(1, 3), [
      `MAIL FROM:<bounces@us.example> SIZE=${message.length} BODY=8BITMIME SMTPUTF8`,
      `RCPT TO:<${Buffer.from('jürgen').toString('latin1')}@xn--bcher-kva.example>`,
    ]);
  });

  test('a domain outside ASCII needs no SMTPUTF8', async () => {
    const sink = await startSink({ extensions: [] });
    assert.equal((await send(sink, makeMail({ rcptTo: 'ada@bücher.example' }))).kind, 'accepted');
    assert.equal(sink.commands[2], 'RCPT TO:<ada@xn--bcher-kva.example>');
  });
});

describe('TLS', () => {
  test('STARTTLS is used where it is offered, with any certificate', async () => {
    const sink = await startSink({ tls: other });
    const reply = await send(sink);
    assert.equal(reply.kind, 'accepted');
    assert.equal(reply.tls?.version, 'TLSv1.3');
    assert.match(reply.tls?.cipher ?? '', /^TLS_/);
    assert.equal(sink.mails[0]?.isSecure, true);
    assert.deepEqual(sink.commands.slice(0, 3), ['EHLO us.example', 'STARTTLS', 'EHLO us.example']);
  });

  test('old TLS is better than none', async () => {
    const old = {
      ...other,
      minVersion: 'TLSv1',
      maxVersion: 'TLSv1',
      ciphers: 'DEFAULT@SECLEVEL=0',
    } as const;
    const sink = await startSink({ tls: old });
    assert.equal((await send(sink)).tls?.version, 'TLSv1');
  });

  test('the server gets the name of the host (SNI)', async () => {
    let asked = '';
    const SNICallback = (name: string, done: (error: null) => void) => {
      asked = name;
      done(null);
    };
    const sink = await startSink({ tls: { ...own, SNICallback } });
    await send(sink);
    assert.equal(asked, 'mx.dest.example');
  });

  test('verified: the certificate of the host', async () => {
    const sink = await startSink({ tls: own });
    const connection = await open(sink, { security: 'verified' });
    assert.equal(connection.isVerified, true);
    assert.equal((await connection.send(makeMail(), never)).kind, 'accepted');
  });

  test('TLS from the start', async () => {
    const sink = await startSink({ tls: own, isImplicitTls: true });
    const reply = await send(sink, makeMail(), { isImplicitTls: true, security: 'verified' });
    assert.equal(reply.kind, 'accepted');
    assert.deepEqual(sink.commands.slice(0, 2), [
      'EHLO us.example',
      `MAIL FROM:<bounces@us.example> SIZE=${message.length}`,
    ]);
  });

  const wrong: [string, { key: string; cert: string }, RegExp][] = [
    ['for another name', other, /altname|other\.example/i],
    ['of an unknown authority', makeSelfSigned('mx.dest.example', new Date()), /self.signed/i],
  ];
  for (const [title, certificate, detail] of wrong) {
    for (const isImplicitTls of [false, true]) {
      test(`verified: a certificate ${title} gets nothing${isImplicitTls ? ', TLS from the start' : ''}`, async () => {
        const sink = await startSink({ tls: certificate, isImplicitTls });
        const reply = await send(sink, makeMail(), { security: 'verified', isImplicitTls, login });
        assertFailed(reply, 'tls_failed', 'tls');
        assert.match(reply.detail ?? '', detail);
        assert.equal(sink.connections(), isImplicitTls ? 0 : 1);
        assert.ok(!sink.commands.some((line) => /MAIL|AUTH/.test(line)));
      });
    }
  }

  test('verified: a server without STARTTLS gets nothing', async () => {
    const sink = await startSink();
    assertFailed(await send(sink, makeMail(), { security: 'verified' }), 'tls_required', 'tls');
    assert.deepEqual(sink.commands, ['EHLO us.example']);
  });

  const broken: [string, (sink: Sink) => void][] = [
    ['is refused', (sink) => sink.behave('STARTTLS', '454 4.7.0 No certificate')],
    ['ends the connection', (sink) => sink.behave('STARTTLS', hangUp)],
    [
      'is followed by bytes that are not TLS',
      (sink) =>
        sink.behave('STARTTLS', ({ socket }) =>
          socket.write('220 Go\r\n', () => socket.write('garbage!'.repeat(9))),
        ),
    ],
  ];
  for (const [title, breakTls] of broken) {
    test(`STARTTLS that ${title}: the message goes without TLS, over a new connection`, async () => {
      const sink = await startSink({ tls: own });
      breakTls(sink);
      const reply = await send(sink);
      assert.equal(reply.kind, 'accepted', JSON.stringify(reply));
      assert.equal(reply.tls, null);
      assert.equal(sink.mails[0]?.connection, 2);
    });

    test(`STARTTLS that ${title}: nothing is sent where TLS must be verified`, async () => {
      const sink = await startSink({ tls: own });
      breakTls(sink);
      const reply = await send(sink, makeMail(), { security: 'verified' });
      assert.notEqual(reply.kind, 'accepted');
      assert.equal(reply.phase, 'tls');
      assert.deepEqual([sink.mails.length, sink.connections()], [0, 1]);
    });

    test(`STARTTLS that ${title}: a password never goes without TLS`, async () => {
      const sink = await startSink({ tls: own, extensions: ['AUTH PLAIN'] });
      breakTls(sink);
      const reply = await send(sink, makeMail(), { login });
      assert.equal(reply.phase, 'tls');
      assert.ok(!sink.commands.some((line) => line.startsWith('AUTH')));
    });
  }

  test('a handshake that hangs', async () => {
    const sink = await startSink({ tls: own });
    // It reads nothing more: a ClientHello is random bytes, and the sink would answer those that look like a line.
    sink.behave('STARTTLS', ({ say, socket }) => {
      socket.removeAllListeners('data').pause();
      say('220 Go');
    });
    const timeouts = { ...standardTimeouts, tlsMs: 200 };
    assertFailed(await send(sink, makeMail(), { security: 'verified' }, { timeouts }), 'tls_timeout', 'tls');
  });

  test('replies that came before the handshake are not read after it', async () => {
    const sink = await startSink({ tls: own });
    sink.behave('STARTTLS', '220 Go\r\n250-evil\r\n250 AUTH PLAIN');
    const reply = await send(sink, makeMail(), { security: 'verified', login });
    assertFailed(reply, 'tls_failed', 'tls');
  });
});

describe('AUTH', () => {
  const plain = Buffer.from('\0ada\0secret').toString('base64');

  test('PLAIN', async () => {
    const sink = await startSink({ tls: own, extensions: ['AUTH LOGIN PLAIN'] });
    assert.equal((await send(sink, makeMail(), { security: 'verified', login })).kind, 'accepted');
    assert.ok(sink.commands.includes(`AUTH PLAIN ${plain}`));
  });

  test('LOGIN', async () => {
    const sink = await startSink({ extensions: ['AUTH=LOGIN'] });
    sink.behave('AUTH', '334 VXNlcm5hbWU6');
    sink.behave('text', '334 UGFzc3dvcmQ6', '235 2.7.0 Welcome');
    assert.equal((await send(sink, makeMail(), { login })).kind, 'accepted');
    assert.deepEqual(sink.commands.slice(1, 4), ['AUTH LOGIN', 'YWRh', 'c2VjcmV0']);
  });

  test('a wrong password', async () => {
    const sink = await startSink({ extensions: ['AUTH PLAIN'] });
    sink.behave('AUTH', '535 5.7.8 Wrong');
    const reply = await send(sink, makeMail(), { login });
    assert.deepEqual([reply.kind, reply.phase, reply.response?.code], ['refused', 'auth', 535]);
    assert.ok(!JSON.stringify(reply).includes('secret'));
  });

  test('a server without AUTH', async () => {
    const sink = await startSink({ extensions: ['AUTH GSSAPI'] });
    assertFailed(await send(sink, makeMail(), { login }), 'auth_unsupported', 'auth');
  });
});

describe('addresses', () => {
  const both = (...addresses: string[]): Partial<ClientParts> => ({
    resolve: async () => ({
      ok: true,
      addresses: addresses.map((address) => ({ address, family: net.isIPv6(address) ? 6 : 4 })),
    }),
  });

  test('IPv6', async () => {
    const sink = await startSink({ host: '::1' });
    assert.equal((await send(sink, makeMail(), {}, both('::1'))).address, '::1');
  });

  test('the next address after one where nothing listens', async () => {
    const sink = await startSink({ host: '::1' });
    const reply = await send(sink, makeMail(), {}, both('127.0.0.1', '::1'));
    assert.deepEqual([reply.kind, reply.address], ['accepted', '::1']);
  });

  const refused = { ok: false, reason: 'mx.dest.example …' } as const;
  for (const [code, isAbsent, error] of [
    ['dns_failed', false, 'dns_failed'],
    ['dns_failed', true, 'no_such_host'],
    ['target_refused', false, 'target_refused'],
  ] as const) {
    test(`${error} is a failure of connecting`, async () => {
      const sink = await startSink();
      const reply = await send(
        sink,
        makeMail(),
        {},
        { resolve: async () => ({ ...refused, code, isAbsent }) },
      );
      assertFailed(reply, error, 'connect');
      assert.equal(reply.address, null);
      assert.equal(sink.connections(), 0);
    });
  }

  test('a host that accepts no connection in time', async () => {
    const port = await startDeafServer();
    const timeouts = { ...standardTimeouts, connectMs: 200 };
    assertFailed(await send({ port }, makeMail(), {}, { timeouts }), 'connect_timeout', 'connect');
  });
});
