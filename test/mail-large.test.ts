/** Large and hostile messages: examined in a worker, so that they delay nothing, and always stored. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import type { Transferable, Worker } from 'node:worker_threads';
import { startDns } from './dns.ts';
import { startTestService } from './harness.ts';
import { startReceiver } from './receiver.ts';
import { connectSmtp, type SmtpReply, toWire } from './smtp-client.ts';

/** The workers that the service started, in order. A test can make a worker die of a job (`isDeadly`) or act when it gets one (`onJob`). */
const workers: Worker[] = [];
let isDeadly = (_job: string) => false;
let onJob = () => {};
const watchWorker = (worker: Worker) => {
  workers.push(worker);
  const post = worker.postMessage.bind(worker);
  worker.postMessage = (job, transferred) => {
    onJob();
    const inspected = inspect(job);
    // Before the job: a worker that is quick could end it first.
    if (isDeadly(inspected)) void worker.terminate();
    post(job, transferred as Transferable[]);
  };
};
process.on('worker', watchWorker);
after(() => process.off('worker', watchWorker));

/** The kind of the job and the start of its message. */
function inspect({ kind = '', given = {} }: { kind?: string; given?: { raw?: Uint8Array } }): string {
  return `${kind} ${Buffer.from(given.raw?.subarray(0, 100) ?? '').toString('latin1')}`;
}

const dns = await startDns();
const service = await startTestService({ POSTHORN_DNS_SERVERS: dns.address });
const { call } = service;
const receiver = await startReceiver();
after(async () => {
  await receiver.close();
  await dns.close();
});
await call('POST', '/identities', { body: { value: 'big@large.example' } });
await service.makeWebhook(receiver.url());

/** Sends the whole message; `taken` resolves with the reply. */
async function begin(
  raw: Buffer | string,
  from = 'ada@sender.example',
): Promise<{ taken: Promise<SmtpReply> }> {
  const client = await connectSmtp(service.smtpPort);
  assert.equal((await client.envelope(from, 'big@large.example')).status, 250);
  assert.equal((await client.command('DATA')).status, 354);
  await client.send(toWire(raw));
  return { taken: client.reply().finally(() => client.close()) };
}

/** Returns the id of the message. */
async function send(raw: Buffer | string, from?: string): Promise<string> {
  const { taken } = await begin(raw, from);
  return readId(await taken);
}

function readId(reply: SmtpReply): string {
  assert.equal(reply.status, 250, reply.full);
  return reply.lines[0]?.split(' ').at(-1) ?? '';
}

const find = async (id: string) => {
  const answer = await call('GET', `/messages/${id}`);
  assert.equal(answer.status, 200, answer.text);
  return answer.body;
};

async function assertKept(id: string, raw: Buffer): Promise<void> {
  const authorization = `Bearer ${service.user.apiKey}`;
  const response = await fetch(`${service.url}/messages/${id}/raw`, { headers: { authorization } });
  assert.ok(Buffer.from(await response.arrayBuffer()).equals(raw), 'byte for byte');
}

/** With a base64 attachment, which takes long to examine. */
function makeLarge(bytes: number, subject = 'large'): Buffer {
  const line = `${Buffer.alloc(57, 'posthorn').toString('base64')}\r\n`;
  return Buffer.from(
    `Subject: ${subject}\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nThe text\r\n--b\r\n` +
      'Content-Disposition: attachment; filename=a.bin\r\nContent-Transfer-Encoding: base64\r\n\r\n' +
      `${line.repeat(Math.ceil(bytes / line.length))}--b--\r\n`,
  );
}

describe('while a message of 14 MB is examined', () => {
  test('small requests and small messages are answered', async () => {
    const large = makeLarge(14_000_000);
    // Starts the worker first, so that the test covers its work and not its start.
    await send(makeLarge(300_000));
    const [worker] = workers;
    assert.ok(worker, 'large messages are examined in a worker');
    const order: string[] = [];
    const asked = new Promise<void>((resolve) => {
      onJob = resolve;
    });
    worker.on('message', () => order.push('examined'));
    const { taken } = await begin(large);
    const big = taken.then((reply) => {
      order.push('large taken');
      return reply;
    });
    await asked;
    await call('GET', '/me').then(({ status }) => order.push(`api ${status}`));
    await send('Subject: small\r\n\r\n').then(() => order.push('small taken'));
    await call('GET', '/messages?limit=1').then(({ status }) => order.push(`api ${status}`));
    const id = readId(await big);
    assert.equal(order.pop(), 'large taken');
    assert.equal(order.pop(), 'examined', 'and all the others before that');
    assert.deepEqual(
      order.filter((step) => step !== 'examined'),
      ['api 200', 'small taken', 'api 200'],
    );
    const { attachments, text, truncated } = await find(id);
    assert.deepEqual([attachments.length, text, truncated], [1, 'The text', []]);
    await assertKept(id, large);
  });

  test('extracting its attachment does not delay others', async () => {
    const id = await send(makeLarge(14_000_000, 'attached'));
    const { attachments } = await find(id);
    const order: string[] = [];
    const big = call('GET', `/messages/${id}/attachments/0`).then((answer) => {
      order.push('attachment');
      return answer;
    });
    await call('GET', '/me').then(() => order.push('api'));
    assert.equal((await big).text.length, attachments[0].size);
    assert.deepEqual(order, ['api', 'attachment']);
  });

  test('several such messages at once are all accepted', async () => {
    const before = workers.length;
    const raws = Array.from({ length: 6 }, (_, n) => makeLarge(1_000_000, `of six ${n}`));
    const ids = await Promise.all(raws.map((raw) => send(raw)));
    for (const [n, id] of ids.entries()) {
      const { subject, attachments } = await find(id);
      assert.deepEqual([subject, attachments.length], [`of six ${n}`, 1]);
    }
    assert.ok(workers.length <= before + 1, 'by one worker');
  });
});

describe('a worker that dies', () => {
  async function dyingOf(subject: string, work: () => Promise<void>): Promise<void> {
    isDeadly = (job) => job.includes(`Subject: ${subject}`);
    try {
      await work();
    } finally {
      isDeadly = () => false;
    }
  }

  test('of a message: the message is accepted and announced with its header, and the log says so', async () => {
    const raw = makeLarge(400_000, 'deadly one');
    await dyingOf('deadly one', async () => {
      const id = await send(raw);
      await assertKept(id, raw);
      const { subject, truncated, attachments, text, headers } = await find(id);
      assert.equal(subject, 'deadly one');
      assert.equal(headers.length, 2);
      assert.ok(truncated.includes('body'), String(truncated));
      assert.deepEqual([attachments, text], [[], null]);
      const [request] = await receiver.received(1, ({ body }) => body.includes(id));
      assert.equal(JSON.parse(request?.body.toString() ?? '').data.message.subject, 'deadly one');
    });
    const errors = service.logged.filter(({ level }) => level === 'error');
    assert.match(String(errors.at(-1)?.msg), /could not be examined/);
  });

  test('is replaced for the next message', async () => {
    const { attachments, truncated } = await find(await send(makeLarge(400_000, 'next')));
    assert.deepEqual([attachments.length, truncated], [1, []]);
    assert.ok(workers.length > 1);
  });

  test('while it is idle is replaced too', async () => {
    await (workers.at(-1) as Worker).terminate();
    const before = workers.length;
    const { attachments } = await find(await send(makeLarge(400_000, 'after idle')));
    assert.equal(attachments.length, 1);
    assert.ok(workers.length > before);
  });

  test('of one message does not affect the others', async () => {
    await dyingOf('deadly too', async () => {
      const subjects = ['beside 1', 'beside 2', 'deadly too', 'beside 3', 'beside 4'];
      const ids = await Promise.all(subjects.map((subject) => send(makeLarge(2_000_000, subject))));
      for (const [n, id] of ids.entries()) {
        const { subject, attachments, truncated } = await find(id);
        const isWhole = subject !== 'deadly too';
        assert.equal(subject, subjects[n]);
        assert.deepEqual(
          [attachments.length, truncated.length === 0],
          isWhole ? [1, true] : [0, false],
          subject,
        );
      }
    });
  });

  test('of the extraction of an attachment: that request fails, the next one works', async () => {
    const id = await send(makeLarge(400_000, 'deadly attachment'));
    await dyingOf('deadly attachment', async () => {
      const failed = await call('GET', `/messages/${id}/attachments/0`);
      assert.equal(failed.status, 413, failed.text.slice(0, 100));
      assert.doesNotMatch(failed.text, /thread|worker|terminate/i);
    });
    assert.equal((await call('GET', `/messages/${id}/attachments/0`)).status, 200);
  });
});

const crlf = '\r\n';
const hostile: [string, () => string | Buffer][] = [
  ['100,000 headers', () => `${'X-A: b\r\n'.repeat(100_000)}\r\nBody\r\n`],
  ['one header of 5 MB', () => `Subject: ${'x'.repeat(5_000_000)}\r\n\r\nBody\r\n`],
  ['one header of 500,000 folded lines', () => `Subject: a\r\n${' b\r\n'.repeat(500_000)}\r\nBody\r\n`],
  ['100,000 recipients in To', () => `To: ${'a@b.example, '.repeat(100_000)}\r\n\r\n`],
  ['100,000 references', () => `References: ${'<a@b.example> '.repeat(100_000)}\r\n\r\n`],
  [
    '10,000 nested parts',
    () => {
      const levels = Array.from(
        { length: 10_000 },
        (_, n) => `Content-Type: multipart/mixed; boundary=b${n}\r\n\r\n--b${n}\r\n`,
      );
      return `${levels.join('')}\r\ndeep\r\n`;
    },
  ],
  [
    '100,000 parts',
    () => `Content-Type: multipart/mixed; boundary=b\r\n\r\n${'--b\r\n\r\nx\r\n'.repeat(100_000)}--b--\r\n`,
  ],
  ['20,000 messages in each other', () => `${'Content-Type: message/rfc822\r\n\r\n'.repeat(20_000)}x\r\n`],
  [
    'comments without end',
    () =>
      `From: ${'('.repeat(300_000)}\r\nTo: ${'"'.repeat(300_001)}\r\nDate: ${'('.repeat(300_000)}\r\n\r\n`,
  ],
  ['encoded words without end', () => `Subject: ${'=?utf-8?q?=C3?= '.repeat(50_000)}\r\n\r\n`],
  ['HTML of 2 MB of opened tags', () => `Content-Type: text/html\r\n\r\n${'<a<!--'.repeat(350_000)}\r\n`],
  [
    'base64 that is none',
    () => `Content-Transfer-Encoding: base64\r\nContent-Type: x/y\r\n\r\n${'=*'.repeat(500_000)}\r\n`,
  ],
  ['NULs alone', () => Buffer.concat([Buffer.alloc(600_000), Buffer.from(crlf)])],
  [
    'every byte 3,000 times',
    () =>
      Buffer.concat([
        ...Array.from({ length: 3000 }, () => Buffer.from(Array.from({ length: 256 }, (_, n) => n))),
        Buffer.from(crlf),
      ]),
  ],
  [
    'a charset that nobody knows',
    () => `Content-Type: text/plain; charset=${'x'.repeat(1000)}\r\n\r\n${'ü'.repeat(300_000)}\r\n`,
  ],
  [
    '10 signatures of DKIM over 1 MB',
    () =>
      `${'DKIM-Signature: v=1; a=rsa-sha256; d=x.example; s=s; h=from; bh=YQ==; b=YQ==\r\n'.repeat(10)}From: a@x.example\r\n\r\n${'x\r\n'.repeat(400_000)}`,
  ],
];

describe('a hostile message is accepted, stored byte for byte, and announced', () => {
  for (const [name, make] of hostile) {
    test(name, { timeout: 60_000 }, async () => {
      const raw = Buffer.from(make());
      const id = await send(raw);
      await assertKept(id, raw);
      const { size, attachments } = await find(id);
      assert.equal(size, raw.length);
      await receiver.received(1, ({ body }) => body.includes(id));
      for (const { id: n } of attachments.slice(0, 2)) {
        assert.equal((await call('GET', `/messages/${id}/attachments/${n}`)).status, 200);
      }
      assert.equal((await call('GET', '/messages?limit=1')).body[0].id, id);
    });
  }
});
