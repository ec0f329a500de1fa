import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import nodemailer from 'nodemailer';
import { connectSmtp, faultsOf, openSmtp, type SmtpClient, startTestMx, toWire } from './smtp-client.ts';

const message = toWire('Subject: x\r\n\r\nHello\r\n');

/** Sends each line and expects the beginning of each reply. */
async function dialogue(client: SmtpClient, lines: [string, string][]): Promise<void> {
  for (const [line, expected] of lines) {
    const { full } = await client.command(line);
    assert.ok(full.startsWith(expected), `${line} → ${full}, expected ${expected}`);
  }
}

test('greeting and EHLO show the host name and the extensions, and nothing else', async () => {
  const mx = await startTestMx();
  const client = await openSmtp(mx.port);
  assert.equal((await client.reply()).full, '220 mx.example ESMTP');
  const { full } = await client.command('EHLO client.example');
  assert.deepEqual(full.split('\r\n'), [
    '250-mx.example',
    '250-PIPELINING',
    '250-SIZE 26214400',
    '250-8BITMIME',
    '250-SMTPUTF8',
    '250-STARTTLS',
    '250 ENHANCEDSTATUSCODES',
  ]);
  assert.equal((await client.command('HELO client.example')).full, '250 mx.example');
});

test('a message: accept gets what the client sent, and the 250 has the id', async () => {
  const mx = await startTestMx();
  const client = await connectSmtp(mx.port);
  await dialogue(client, [
    ['EHLO Client.Example', '250-mx.example'],
    ['MAIL FROM:<Ann@There.example> SIZE=100 BODY=8BITMIME', '250 2.1.0 '],
    ['RCPT TO:<Bob+tag@Here.example>', '250 2.1.5 '],
    ['rcpt to: <carol@here.example>', '250 2.1.5 '],
  ]);
  assert.equal((await client.data(message)).full, '250 2.0.0 Accepted as msg_1');
  assert.deepEqual(mx.mails, [
    {
      raw: Buffer.from('Subject: x\r\n\r\nHello\r\n'),
      mailFrom: 'Ann@There.example',
      recipients: [
        { address: 'Bob+tag@Here.example', route: 'to Bob+tag@Here.example' },
        { address: 'carol@here.example', route: 'to carol@here.example' },
      ],
      remoteIp: '127.0.0.1',
      helo: 'Client.Example',
      tls: null,
      smtpUtf8: false,
    },
  ]);
  assert.deepEqual(mx.counts.messages, [250]);
  assert.deepEqual(mx.counts.recipients, [250, 250]);
  assert.equal((await client.command('QUIT')).full, '221 2.0.0 mx.example Goodbye');
  await client.ended();
});

test('nodemailer, with TLS, two messages on one connection', async () => {
  const mx = await startTestMx();
  const transport = nodemailer.createTransport({
    host: '127.0.0.1',
    port: mx.port,
    pool: true,
    maxConnections: 1,
    requireTLS: true,
    tls: { rejectUnauthorized: false },
  });
  for (const subject of ['one', 'two']) {
    const info = await transport.sendMail({
      from: 'ann@there.example',
      to: 'bob@here.example, jürgen@here.example',
      subject,
      text: '.\n..dots\n.',
    });
    assert.match(info.response, /^250 2\.0\.0 Accepted as msg_/);
  }
  transport.close();
  assert.equal(mx.mails[1]?.mailFrom, 'ann@there.example');
  assert.deepEqual(
    mx.mails[1]?.recipients.map(({ address }) => address),
    ['bob@here.example', 'jürgen@here.example'],
  );
  assert.equal(mx.mails[1]?.tls?.version, 'TLSv1.3');
  assert.match(mx.mails[1]?.raw.toString() ?? '', /\r\nSubject: two\r\n[\s\S]*\r\n\.\r\n\.\.dots\r\n\.\r\n$/);
});

describe('commands', () => {
  const cases: [string, string][] = [
    ['NOOP', '250 2.0.0 '],
    ['noop with words', '250 2.0.0 '],
    ['RSET', '250 2.0.0 '],
    ['RSET now', '501 5.5.4 '],
    ['VRFY bob@here.example', '252 2.0.0 '],
    ['VRFY', '501 5.5.4 '],
    ['EXPN list', '502 5.5.1 '],
    ['HELP', '214 2.0.0 '],
    ['AUTH PLAIN AGFubgBzZWNyZXQ=', '502 5.5.1 '],
    ['BDAT 10 LAST', '502 5.5.1 '],
    ['ETRN here.example', '502 5.5.1 '],
    ['TURN', '502 5.5.1 '],
    ['SEND FROM:<a@b.example>', '502 5.5.1 '],
    ['WIZ please', '500 5.5.2 '],
    ['SHELL', '500 5.5.2 '],
    ['KILL', '500 5.5.2 '],
    ['DEBUG', '500 5.5.2 '],
    ['XCLIENT ADDR=1.2.3.4', '500 5.5.2 '],
    ['LHLO x', '500 5.5.2 '],
    ['', '500 5.5.2 '],
    ['constructor', '500 5.5.2 '],
    ['EHLO', '501 '],
    [`EHLO ${'x'.repeat(256)}`, '501 '],
    ['HELO', '501 '],
    ['DATA', '503 5.5.1 '],
    ['DATA now', '501 5.5.4 '],
    ['STARTTLS now', '501 5.5.4 '],
    ['NOOP \x00', '500 5.5.2 '],
    ['NOOP a\rNOOP b', '500 5.5.2 '],
    ['QUIT', '221 2.0.0 '],
  ];
  for (const [line, expected] of cases) {
    test(`${JSON.stringify(line)} → ${expected.trim()}`, async () => {
      const mx = await startTestMx();
      await dialogue(await connectSmtp(mx.port), [[line, expected]]);
    });
  }

  test('bytes that are not UTF-8 are refused', async () => {
    const client = await connectSmtp((await startTestMx()).port);
    await client.send(Buffer.from('NOOP \xff\r\n', 'latin1'));
    assert.equal((await client.reply()).status, 500);
  });

  test('a command may end in a bare line feed', async () => {
    const client = await connectSmtp((await startTestMx()).port);
    await client.send('NOOP\nNOOP\r\n');
    assert.deepEqual(
      (await client.replies(2)).map(({ status }) => status),
      [250, 250],
    );
  });

  test('HTTP is refused and disconnected', async () => {
    const client = await connectSmtp((await startTestMx()).port);
    await client.send('POST / HTTP/1.1\r\nHost: x\r\n\r\nEHLO x\r\nMAIL FROM:<a@b.example>\r\n');
    assert.match((await client.reply()).full, /^554 5\.5\.1 /);
    await client.ended();
    assert.equal(client.unread, '');
  });

  test('commands out of order are refused; RSET, EHLO and a message start again', async () => {
    const client = await connectSmtp((await startTestMx()).port);
    await dialogue(client, [
      ['MAIL FROM:<a@there.example>', '503 5.5.1 '],
      ['RCPT TO:<b@here.example>', '503 5.5.1 '],
      ['EHLO x', '250'],
      ['RCPT TO:<b@here.example>', '503 5.5.1 '],
      ['MAIL FROM:<a@there.example>', '250 '],
      ['MAIL FROM:<a@there.example>', '503 5.5.1 '],
      ['DATA', '554 5.5.1 '],
      ['RCPT TO:<b@elsewhere.example>', '550 5.1.1 There is no b@elsewhere.example here'],
      ['DATA', '554 5.5.1 '],
      ['RSET', '250 '],
      ['RCPT TO:<b@here.example>', '503 5.5.1 '],
      ['MAIL FROM:<a@there.example>', '250 '],
      ['EHLO x', '250'],
      ['DATA', '503 5.5.1 '],
    ]);
    await client.envelope('a@there.example', 'b@here.example');
    assert.equal((await client.data(message)).status, 250);
    await dialogue(client, [['DATA', '503 5.5.1 ']]);
  });
});

describe('MAIL', () => {
  const cases: [string, string][] = [
    ['FROM:<>', '250 2.1.0 '],
    ['FROM: <a@there.example>', '250 2.1.0 '],
    ['from:<a@there.example> body=7bit', '250 2.1.0 '],
    ['FROM:<@relay.example,@other.example:a@there.example>', '250 2.1.0 '],
    ['FROM:<a..b.@docomo.example>', '250 2.1.0 '],
    ['FROM:<"a b>c"@there.example>', '250 2.1.0 '],
    ['FROM:<a@[192.0.2.1]>', '250 2.1.0 '],
    ['FROM:<a@[IPv6:2001:db8::1]>', '250 2.1.0 '],
    ["FROM:<!#$%&'*+-/=?^_`{|}~@there.example>", '250 2.1.0 '],
    ['FROM:<jürgen@there.example> SMTPUTF8', '250 2.1.0 '],
    ['FROM:<a@bücher.example> SMTPUTF8', '250 2.1.0 '],
    ['FROM:<jürgen@there.example>', '553 5.6.7 '],
    ['FROM:<a@there.example> SIZE=26214400', '250 2.1.0 '],
    ['FROM:<a@there.example> SIZE=26214401', '552 5.3.4 The message is too big; the limit is 26214400 bytes'],
    ['FROM:<a@there.example> SIZE=99999999999999999999', '552 5.3.4 '],
    ['FROM:<a@there.example> SIZE=-1', '501 5.5.4 '],
    ['FROM:<a@there.example> SIZE', '501 5.5.4 '],
    ['FROM:<a@there.example> SIZE=1 SIZE=1', '501 5.5.4 '],
    ['FROM:<a@there.example> BODY=BINARYMIME', '501 5.5.4 '],
    ['FROM:<a@there.example> SMTPUTF8=1', '501 5.5.4 '],
    ['FROM:<a@there.example> RET=FULL', '555 5.5.4 '],
    ['FROM:<a@there.example> AUTH=<>', '555 5.5.4 '],
    ['FROM:<a@there.example> REQUIRETLS', '555 5.5.4 '],
    ['FROM:<a@there.example> =', '501 5.5.4 '],
    ['FROM:a@there.example', '501 5.1.7 '],
    ['FROM:<a@there.example', '501 5.1.7 '],
    ['FROM:<a>', '501 5.1.7 '],
    ['FROM:<a@b@c.example>', '501 5.1.7 '],
    ['FROM:<a b@there.example>', '501 5.1.7 '],
    ['FROM:<a@there..example>', '501 5.1.7 '],
    ['FROM:<a@[300.0.2.1]>', '501 5.1.7 '],
    ['FROM:<a@[192.0.2.1>', '501 5.1.7 '],
    [`FROM:<${'a'.repeat(310)}@there.example>`, '501 5.1.7 '],
    ['FROM:<a@there.example>x', '501 5.1.7 '],
    ['TO:<a@there.example>', '501 5.5.4 '],
    ['', '501 5.5.4 '],
  ];
  for (const [argument, expected] of cases) {
    test(`${argument} → ${expected.slice(0, 9).trim()}`, async () => {
      const client = await connectSmtp((await startTestMx()).port);
      await dialogue(client, [
        ['EHLO x', '250'],
        [`MAIL ${argument}`, expected],
      ]);
    });
  }
});

describe('RCPT', () => {
  const cases: [string, string][] = [
    ['TO:<b@here.example>', '250 2.1.5 '],
    ['TO:<@relay.example:b@here.example>', '250 2.1.5 '],
    ['TO:<b@elsewhere.example>', '550 5.1.1 '],
    ['TO:<"b@elsewhere.example"@here.example>', '250 2.1.5 '],
    ['TO:<b%elsewhere.example@here.example>', '250 2.1.5 '],
    ['TO:<jürgen@here.example>', '553 5.6.7 '],
    ['TO:<>', '501 5.1.3 '],
    ['TO:<b>', '501 5.1.3 '],
    ['TO:b@here.example', '501 5.1.3 '],
    ['TO:<b@here.example> NOTIFY=NEVER', '555 5.5.4 '],
    ['TO:<b@here.example> ?', '501 5.5.4 '],
    ['FROM:<b@here.example>', '501 5.5.4 '],
  ];
  for (const [argument, expected] of cases) {
    test(`${argument} → ${expected.trim()}`, async () => {
      const client = await connectSmtp((await startTestMx()).port);
      await dialogue(client, [
        ['EHLO x', '250'],
        ['MAIL FROM:<a@there.example>', '250'],
        [`RCPT ${argument}`, expected],
      ]);
    });
  }

  test('a repeated recipient, in any case, is accepted once and routed once', async () => {
    const mx = await startTestMx();
    const client = await connectSmtp(mx.port);
    await client.envelope('a@there.example', 'Bob@here.example', 'bob@HERE.example', 'c@here.example');
    assert.equal((await client.data(message)).status, 250);
    assert.deepEqual(
      mx.mails[0]?.recipients.map(({ address }) => address),
      ['Bob@here.example', 'c@here.example'],
    );
    assert.deepEqual(mx.counts.recipients, [250, 250]);
  });

  test('postmaster without a domain gets our host name', async () => {
    const mx = await startTestMx();
    const client = await connectSmtp(mx.port);
    assert.equal((await client.envelope('', 'Postmaster')).status, 250);
    assert.equal((await client.data(message)).status, 250);
    assert.equal(mx.mails[0]?.recipients[0]?.address, 'Postmaster@mx.example');
    assert.equal(mx.mails[0]?.mailFrom, null);
  });

  test('addresses and SMTPUTF8 are passed on unchanged', async () => {
    const mx = await startTestMx();
    const client = await connectSmtp(mx.port);
    await dialogue(client, [
      ['EHLO x', '250'],
      ['MAIL FROM:<Jürgen@BÜCHER.example> SMTPUTF8', '250'],
      ['RCPT TO:<用户@here.example>', '250'],
    ]);
    await client.data(message);
    assert.equal(mx.mails[0]?.mailFrom, 'Jürgen@BÜCHER.example');
    assert.equal(mx.mails[0]?.recipients[0]?.address, '用户@here.example');
    assert.equal(mx.mails[0]?.smtpUtf8, true);
  });
});

describe('the decisions of route and accept', () => {
  test('become the reply, on one line', async () => {
    const mx = await startTestMx();
    mx.route = async () => ({
      accepted: false,
      refusal: { status: 450, enhanced: '4.2.1', text: 'Not\r\n250 now' },
    });
    const client = await connectSmtp(mx.port);
    const refused = await client.envelope('a@there.example', 'b@here.example');
    assert.equal(refused.full, '450 4.2.1 Not 250 now');
    assert.equal((await client.command('NOOP')).status, 250);

    mx.route = async () => ({ accepted: true, route: 'x' });
    mx.accept = async () => ({
      accepted: false,
      refusal: { status: 452, enhanced: '4.3.1', text: 'No room' },
    });
    await client.envelope('a@there.example', 'b@here.example');
    assert.equal((await client.data(message)).full, '452 4.3.1 No room');
    assert.deepEqual(mx.counts.messages, [452]);
  });

  test('if they throw or reject: 451, an error in the log, and the session continues', async () => {
    const mx = await startTestMx();
    const { route, accept } = mx;
    const client = await connectSmtp(mx.port);
    const throwers = [
      () => {
        throw new Error('secret insides');
      },
      () => Promise.reject(new Error('secret insides')),
    ];
    for (const thrower of throwers) {
      mx.route = thrower;
      const refused = await client.envelope('a@there.example', 'b@here.example');
      assert.match(refused.full, /^451 4\.3\.0 (?!.*secret)/);
      mx.route = route;
      mx.accept = thrower;
      await client.envelope('a@there.example', 'b@here.example');
      assert.match((await client.data(message)).full, /^451 4\.3\.0 (?!.*secret)/);
      mx.accept = accept;
      await client.envelope('a@there.example', 'b@here.example');
      assert.equal((await client.data(message)).status, 250);
    }
    assert.equal(faultsOf(mx).length, 4);
    assert.match(JSON.stringify(mx.logged), /secret insides/);
  });

  test('the 250 waits for accept, and later commands wait for the 250', async () => {
    const mx = await startTestMx();
    let commit = () => {};
    const acceptCalled = new Promise<void>((signalAccept) => {
      mx.accept = () =>
        new Promise((resolve) => {
          commit = () => resolve({ accepted: true, id: 'msg_late' });
          signalAccept();
        });
    });
    const client = await connectSmtp(mx.port);
    await client.envelope('a@there.example', 'b@here.example');
    await client.command('DATA');
    await client.send(Buffer.concat([message, Buffer.from('NOOP\r\n')]));
    await acceptCalled;
    await client.send('QUIT\r\n');
    assert.equal(client.unread, '');
    commit();
    assert.deepEqual(
      (await client.replies(3)).map(({ full }) => full),
      ['250 2.0.0 Accepted as msg_late', '250 2.0.0 OK', '221 2.0.0 mx.example Goodbye'],
    );
  });

  for (const how of ['closes', 'resets'] as const) {
    test(`a client that ${how} during accept: accept finishes, and its result is logged`, async () => {
      const mx = await startTestMx();
      let commit = () => {};
      const acceptCalled = new Promise<void>((signalAccept) => {
        mx.accept = () =>
          new Promise((resolve) => {
            commit = () => resolve({ accepted: true, id: 'msg_unheard' });
            signalAccept();
          });
      });
      const client = await connectSmtp(mx.port);
      await client.envelope('a@there.example', 'b@here.example');
      await client.command('DATA');
      await client.send(message);
      await acceptCalled;
      if (how === 'resets') client.socket.resetAndDestroy();
      else client.close();
      await client.ended();
      // When a later client got its reply, the server has seen that this one is gone.
      await (await connectSmtp(mx.port)).command('NOOP');
      commit();
      await mx.stop();
      const line = mx.logged.find(({ msg }) => msg.includes('before the reply to its message was ready'));
      assert.equal(line?.status, 250);
      assert.equal(line?.answer, 'Accepted as msg_unheard');
      assert.equal(mx.counts.open, 0);
    });
  }
});

test('a client that closes its side after the last command still gets the replies', async () => {
  const mx = await startTestMx();
  const client = await openSmtp(mx.port, { allowHalfOpen: true });
  client.socket.end(
    `EHLO x\r\nMAIL FROM:<a@there.example>\r\nRCPT TO:<b@here.example>\r\nDATA\r\n${message.toString()}`,
  );
  const replies = await client.replies(6);
  assert.deepEqual(
    replies.map(({ status }) => status),
    [220, 250, 250, 250, 354, 250],
  );
  await client.ended();
});

test('a message without its end is not accepted', async () => {
  const mx = await startTestMx();
  const client = await connectSmtp(mx.port);
  await client.envelope('a@there.example', 'b@here.example');
  await client.command('DATA');
  client.socket.end('Subject: half\r\n\r\nx\r\n.\r');
  await client.ended();
  await mx.stop();
  assert.equal(mx.mails.length, 0);
  assert.equal(mx.counts.open, 0);
});

test('garbage does not crash the server and is never accepted as mail', async () => {
  const mx = await startTestMx();
  const garbage = [
    Buffer.from([0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x0a, 0x0d, 0x0a]),
    Buffer.alloc(5000, '\r'),
    Buffer.alloc(5000, '\n'),
    Buffer.alloc(5000, 0),
    Buffer.from('MAIL FROM:<\r\n'.repeat(500)),
    Buffer.from('EHLO x\r\n'.repeat(5000)),
    Buffer.from('DATA\r\n.\r\n'.repeat(500)),
  ];
  for (const bytes of garbage) {
    const client = await connectSmtp(mx.port);
    client.socket.end(bytes);
    await client.ended();
  }
  assert.equal(mx.mails.length, 0);
  assert.deepEqual(faultsOf(mx), []);
  await (await connectSmtp(mx.port)).command('NOOP');
});
