import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { DataReader } from '../src/smtp/data.ts';
import { makeRoom, read, split, withLineEnd } from './data-reading.ts';
import { readHeap } from './memory.ts';
import { connectSmtp, faultsOf, startTestMx, toWire } from './smtp-client.ts';

describe('reading a message', () => {
  test('the end is found at every chunk boundary', async () => {
    const wire = Buffer.from('a\r\n..b\r\n.\r\nMAIL');
    for (let one = 1; one < wire.length; one += 1) {
      for (let two = one; two < wire.length; two += 1) {
        const pieces = [wire.subarray(0, one), wire.subarray(one, two), wire.subarray(two)];
        const { raw, after } = await read(pieces.filter(({ length }) => length > 0));
        assert.equal(raw?.toString(), 'a\r\n.b\r\n');
        assert.equal(after?.toString(), 'MAIL');
      }
    }
  });

  test('the first dot of a line is dropped, unless the line is one dot (RFC 5321 §4.5.2)', async () => {
    const cases: [string, string][] = [
      ['.\r\n', ''],
      ['..\r\n.\r\n', '.\r\n'],
      ['.a\r\n.\r\n', 'a\r\n'],
      ['a\n..b\r\n.\r\n', 'a\n.b\r\n'],
      ['a\n...b\n.c\r\n.\r\n', 'a\n..b\n.c\r\n'],
      ['a\n..\r\n.\r\n', 'a\n.\r\n'],
      ['a\n.\r\nb\r\n.\r\n', 'a\n.\r\nb\r\n'],
      ['a\n..\n..\n.\n.\r\nb\r\n.\n\r\n.\r\n', 'a\n.\n.\n.\n.\r\nb\r\n\n\r\n'],
      ['a\r..b\r\n.\r\n', 'a\r..b\r\n'],
      ['\r\n.\r\n', '\r\n'],
      ['a\r\n.\r\r\n.\r\n', 'a\r\n\r\r\n'],
      ['a\r\r\n.\r\n', 'a\r\r\n'],
    ];
    for (const [wire, raw] of cases)
      for (const length of [wire.length, 1, 2, 3])
        assert.equal((await read(split(Buffer.from(wire), [length]))).raw?.toString(), raw);
  });

  test('only CRLF "." CRLF is the end, whatever line ends and dots come before, and the bytes after it are intact', async () => {
    const piece = fc.constantFrom(
      'a',
      '.',
      '..',
      '\n',
      '\r',
      '\r\n',
      '\n.',
      '\r\n.',
      '\n..',
      '\r.',
      '\n.\n',
      '\n.\r\n',
    );
    await fc.assert(
      fc.asyncProperty(
        fc.array(piece, { maxLength: 12 }),
        fc.integer({ min: 1, max: 5 }),
        async (pieces, length) => {
          const data = pieces.join('');
          const end = `\r\n${data}\r\n.\r\n`.indexOf('\r\n.\r\n');
          const wire = `${data}\r\n.\r\nMAIL`;
          const { raw, after } = await read(split(Buffer.from(wire), [length]));
          const lines = wire.slice(0, end).replace(/^\.|(?<=\r\n)\./g, '');
          const expected = lines.replace(/(?<=(?<!\r)\n)\.(?=\.)/g, '');
          assert.equal(after?.toString(), wire.slice(end + 3));
          assert.equal(raw?.toString(), expected);
        },
      ),
      { numRuns: 3000 },
    );
  });

  test('a message of exactly the limit is kept, one byte more is not, and the room is released', async () => {
    const raw = Buffer.alloc(50_000, 'x');
    raw.write('\r\n', 49_998);
    for (const inMemoryBytes of [100_000, 10_000]) {
      const kept = await read(split(toWire(raw), [1000]), { maxBytes: 50_000, inMemoryBytes });
      assert.deepEqual(kept.raw, raw);
      assert.equal(kept.reader.isRefused, false);
      assert.equal(kept.reader.isSpilled, inMemoryBytes < raw.length);
      assert.ok(kept.room.memory.used + kept.room.disk.used >= 50_000);
      // The memory may be transferred to a worker.
      const { buffer } = await kept.reader.load();
      structuredClone(buffer, { transfer: [buffer as ArrayBuffer] });
      kept.reader.release();
      assert.deepEqual([kept.room.memory.used, kept.room.disk.used], [0, 0]);

      const refused = await read(split(toWire(raw), [1000]), { maxBytes: 49_999, inMemoryBytes });
      assert.equal(refused.reader.isRefused, true);
      assert.equal(refused.reader.size, 50_000);
      assert.deepEqual([refused.room.memory.used, refused.room.disk.used], [0, 0]);
    }
  });

  test('a message is the same by way of a file, at any chunk sizes', async () => {
    const raw = Buffer.from('.\r\n..a\r\nb\n.\n\r\n'.repeat(500));
    for (const lengths of [[1], [2, 3], [7], [100], [5000]]) {
      const {
        raw: found,
        after,
        reader,
      } = await read([...split(toWire(raw), lengths), Buffer.from('NOOP')], { inMemoryBytes: 1000 });
      assert.ok(reader.isSpilled);
      assert.ok(found?.equals(raw));
      assert.equal(String(after), 'NOOP');
      reader.release();
    }
  });

  test('a client that leaves while its message is written to the file leaves nothing in use', async () => {
    const room = makeRoom({ inMemoryBytes: 1000 });
    for (let n = 0; n < 3; n += 1) {
      const reader = new DataReader(room);
      reader.push(Buffer.alloc(5000, 'x'));
      const spilling = reader.spill();
      reader.release();
      await spilling;
      assert.deepEqual([room.memory.used, room.disk.used], [0, 0]);
    }
  });

  test('25 MiB of dots take linear time, also byte by byte', { timeout: 120_000 }, async () => {
    const dots = Buffer.from('\r\n..'.repeat(6_553_600));
    const whole = Buffer.concat([dots, Buffer.from('\r\n.\r\n')]);
    const { raw, reader } = await read(split(whole, [65_536]), { maxBytes: 26_214_400 });
    reader.release();
    assert.equal(raw?.length, 3 * 6_553_600 + 2);
    assert.equal((await read(split(dots.subarray(0, 1_000_000), [1]))).reader.size, 750_000);
  });
});

describe('over a socket', () => {
  test('the bytes are unchanged: 8-bit, NUL, single dots, bare LF and CR, no headers at all', async () => {
    const mx = await startTestMx();
    const client = await connectSmtp(mx.port);
    const raws = [
      'Subject: x\r\n\r\nHello\r\n',
      '.\r\n..\r\n...\r\n.a\r\n',
      'bare\nlf\n.\nand\rcr\r.\r\r\n',
      '\xff\xfe\0\x01 8 bit\r\n',
      '',
      '\r\n',
      '\n',
    ];
    for (const raw of raws) {
      await client.envelope('a@there.example', 'b@here.example');
      assert.equal((await client.data(toWire(Buffer.from(raw, 'latin1')))).status, 250);
      assert.deepEqual(mx.mails.at(-1)?.raw, withLineEnd(Buffer.from(raw, 'latin1')));
    }
    assert.equal(mx.mails.length, raws.length);
  });

  test('25 MiB in one line', async () => {
    const mx = await startTestMx();
    const client = await connectSmtp(mx.port);
    const raw = Buffer.alloc(26_214_400, 'long line ');
    raw.write('\r\n', raw.length - 2);
    await client.envelope('a@there.example', 'b@here.example');
    assert.equal((await client.data(toWire(raw))).status, 250);
    assert.ok(mx.mails[0]?.raw.equals(raw));
  });

  test('pipelined messages, in one packet and byte by byte', async () => {
    const mx = await startTestMx();
    const one = 'MAIL FROM:<a@there.example>\r\nRCPT TO:<b@here.example>\r\nDATA\r\n';
    const dialogue = `EHLO x\r\n${one}one\r\n.\r\n${one}..\r\n.\r\n${one}.\r\nNOOP\r\nQUIT\r\n`;
    const expected = [250, 250, 250, 354, 250, 250, 250, 354, 250, 250, 250, 354, 250, 250, 221];
    for (const length of [dialogue.length, 1, 3, 7]) {
      mx.mails.length = 0;
      const client = await connectSmtp(mx.port);
      for (const piece of split(Buffer.from(dialogue), [length])) await client.send(piece);
      const statuses = (await client.replies(expected.length)).map(({ status }) => status);
      assert.deepEqual(statuses, expected);
      await client.ended();
      assert.deepEqual(
        mx.mails.map(({ raw }) => raw.toString()),
        ['one\r\n', '.\r\n', ''],
      );
    }
  });

  describe('smuggling: what only resembles the end of data is data', () => {
    const smuggled =
      'MAIL FROM:<evil@there.example>\r\nRCPT TO:<victim@here.example>\r\nDATA\r\nSubject: smuggled\r\n\r\n';
    const ends = [
      '\n.\n',
      '\n.\r\n',
      '\r.\r',
      '\r\n.\n',
      '\r\n.\r',
      '\n.\r',
      '\r.\r\n',
      '\r.\n',
      '\r\n\0.\r\n',
      '\r\r\n.\r\r\n',
    ];
    for (const end of ends) {
      test(JSON.stringify(end), async () => {
        const mx = await startTestMx();
        for (const length of [10_000, 1]) {
          mx.mails.length = 0;
          const client = await connectSmtp(mx.port);
          await client.envelope('a@there.example', 'b@here.example');
          await client.command('DATA');
          const wire = `Subject: seen\r\n\r\nx${end}${smuggled}y\r\n.\r\n`;
          for (const piece of split(Buffer.from(wire), [length])) await client.send(piece);
          assert.equal((await client.reply()).status, 250);
          assert.equal((await client.command('NOOP')).status, 250);
          assert.equal(client.unread, '');
          assert.equal(mx.mails.length, 1);
          // After CR LF a dot is dot-stuffing; everything else stays.
          const asRead = end.replace('\r\n.', '\r\n');
          assert.equal(mx.mails[0]?.raw.toString(), `Subject: seen\r\n\r\nx${asRead}${smuggled}y\r\n`);
        }
      });
    }
  });

  test('1,000 messages on one connection leave no memory in use', async () => {
    const mx = await startTestMx();
    const client = await connectSmtp(mx.port);
    await client.command('EHLO x');
    const wire = toWire(`Subject: x\r\n\r\n${'x'.repeat(20_000)}\r\n`);
    const send = async () => {
      await client.send('MAIL FROM:<a@there.example>\r\nRCPT TO:<b@here.example>\r\nDATA\r\n');
      await client.replies(3);
      await client.send(wire);
      assert.equal((await client.reply()).status, 250);
      mx.mails.length = 0;
      mx.counts.messages.length = 0;
      mx.counts.recipients.length = 0;
    };
    for (let n = 0; n < 100; n += 1) await send();
    const before = { heap: readHeap(), rss: process.memoryUsage().rss };
    for (let n = 0; n < 1000; n += 1) await send();
    const grown = { heap: readHeap() - before.heap, rss: process.memoryUsage().rss - before.rss };
    assert.ok(grown.heap < 5_000_000, `${grown.heap}`);
    assert.ok(grown.rss < 100_000_000, `${grown.rss}`);
    assert.deepEqual(faultsOf(mx), []);
  });
});
