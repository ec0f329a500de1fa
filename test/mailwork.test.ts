/** Large messages in worker threads: same results as small ones, a broken one affects no other, and DNS waits are bounded. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { generateKeyPairSync } from 'node:crypto';
import { once } from 'node:events';
import { after, beforeEach, describe, test } from 'node:test';
import { promisify } from 'node:util';
import { dkimSign } from 'mailauth/lib/dkim/sign.js';
import { makeLog } from '../src/lib/log.ts';
import type { MailOrigin } from '../src/mailauth/authenticate.ts';
import { type MailWork, makeMailWork } from '../src/mailwork/mailwork.ts';
import { startDns } from './dns.ts';
import { compose, failed, returnedMessage, simple } from './report-messages.ts';

const dns = await startDns();
after(() => dns.close());
beforeEach(() => {
  dns.reset();
  dns.answer('_dmarc.example.com', { TXT: ['v=DMARC1; p=reject'] });
  dns.answer('example.com', { TXT: ['v=spf1 -all'] });
});

const log = makeLog({ level: 'silent', json: true });
const smtp: MailOrigin = { mailFrom: 'ada@example.com', remoteIp: '192.0.2.7', helo: 'mail.example.com' };
const examineUrl = new URL('../src/mailwork/mailwork.ts', import.meta.url).href;
const reject = {
  ...{ result: 'fail', policy: 'reject', aligned: false },
  reason: 'Neither SPF nor DKIM authenticates example.com.',
};
const line = `${'x'.repeat(70)}\r\n`;
const signature = 'DKIM-Signature: v=1; a=rsa-sha256; d=example.com; s=s1; h=from; bh=AA; b=AA\r\n';

async function withMailWork(
  work: (mailWork: MailWork) => Promise<void>,
  options: { threads?: number; timeoutMs?: number; waitMs?: number; idleMs?: number } = {},
): Promise<void> {
  const mailWork = makeMailWork({ dnsServers: [dns.address], mailHost: 'mx.example.net', log, ...options });
  try {
    await work(mailWork);
  } finally {
    await mailWork.stop();
  }
}

const two = { threads: 2 };

/** With two attachments, and large enough for the worker. */
function largeMail(subject: string, bytes = 300 * 1024): string {
  return [
    'From: Ada <ada@example.com>',
    `Subject: ${subject}`,
    'Content-Type: multipart/mixed; boundary=b',
    '',
    '--b',
    '',
    `Text of ${subject}`,
    '--b',
    'Content-Type: application/octet-stream; name=small.bin',
    '',
    'small',
    '--b',
    'Content-Type: application/octet-stream; name=large.bin',
    '',
    line.repeat(Math.ceil(bytes / line.length)),
    '--b--',
    '',
  ].join('\r\n');
}

test('a large message gets the same results as a small one', () =>
  withMailWork(async (mailWork) => {
    const { privateKey, publicKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
    const key = publicKey.export({ type: 'spki', format: 'der' }).toString('base64');
    dns.answer('s1._domainkey.example.com', { TXT: [`v=DKIM1; k=rsa; p=${key}`] });
    for (const bytes of [1024, 300 * 1024]) {
      const message = largeMail('notes', bytes);
      const { signatures } = await dkimSign(message, {
        canonicalization: 'relaxed/relaxed',
        signatureData: [
          {
            signingDomain: 'example.com',
            selector: 's1',
            privateKey: privateKey.export({ type: 'pkcs8', format: 'pem' }) as string,
          },
        ],
      } as unknown as Parameters<typeof dkimSign>[1]);
      const { parsed, authentication } = await mailWork.examine(Buffer.from(signatures + message), smtp);
      assert.equal(parsed.text, 'Text of notes');
      assert.deepEqual(
        parsed.attachments.map(({ filename }) => filename),
        ['small.bin', 'large.bin'],
      );
      assert.deepEqual(parsed.truncated, []);
      assert.deepEqual(authentication, {
        spf: { result: 'fail', domain: 'example.com' },
        dkim: [{ result: 'pass', domain: 'example.com', selector: 's1', reason: null, aligned: true }],
        dmarc: { result: 'pass', policy: 'reject', aligned: true, reason: null },
        arc: { result: 'none' },
      });
    }
  }));

test('a large report is read as a small one', () =>
  withMailWork(async (mailWork) => {
    for (const bytes of [1024, 300 * 1024]) {
      const returned = `${returnedMessage}${line.repeat(Math.ceil(bytes / line.length))}`;
      const { parsed } = await mailWork.examine(compose(failed, { returned }), smtp);
      assert.deepEqual([parsed.report, parsed.truncated], [simple, []]);
      assert.deepEqual(parsed.returnedIds, ['<one@sender.example>']);
    }
  }));

test('an extracted attachment does not keep the whole message in memory', () =>
  withMailWork(async (mailWork) => {
    const extracted = await mailWork.extract(Buffer.from(largeMail('notes')), 0);
    assert.equal(Buffer.from(extracted?.content ?? '').toString(), 'small');
    assert.equal(extracted?.content.buffer.byteLength, 5);
    assert.equal(await mailWork.extract(Buffer.from(largeMail('notes')), 2), null);
  }));

for (const [name, gap, mostTimes] of [
  ['is moved and not copied, as decoded', '', 1.1],
  ['with much that is no data takes no more memory than its data', '-'.repeat(50), 1],
] as const) {
  test(`an extracted attachment in base64 ${name}`, () =>
    withMailWork(async (mailWork) => {
      const content = Buffer.alloc(300_000, 'any bytes ');
      const lines = content.toString('base64').replace(/.{76}/g, `$&${gap}\r\n`);
      const head = 'Content-Type: a/b; name=c\r\nContent-Transfer-Encoding: base64\r\n\r\n';
      const extracted = await mailWork.extract(Buffer.from(`${head}${lines}`), 0);
      assert.deepEqual(Buffer.from(extracted?.content ?? ''), content);
      const taken = extracted?.content.buffer.byteLength ?? 0;
      assert.ok(taken <= mostTimes * content.length, `${taken} bytes`);
    }));
}

test('the attachment of a message in the memory that small buffers share is extracted too', () =>
  withMailWork(async (mailWork) => {
    const words = '=?utf-8?q?a?= '.repeat(1500);
    const raw = Buffer.from(`X-Words: ${words}\r\nContent-Type: a/b; name=c\r\n\r\nsmall`);
    const pooled = Buffer.from(new ArrayBuffer(raw.length + 100), 50, raw.length);
    pooled.set(raw);
    const extracted = await mailWork.extract(pooled, 0);
    assert.equal(Buffer.from(extracted?.content ?? '').toString(), 'small');
    assert.equal(pooled.length, raw.length, 'the memory of others is not moved');
  }));

test('after a huge message the worker ends, because it holds its memory, and the next message starts another', () =>
  withMailWork(
    async (mailWork) => {
      const ended = once(process, 'worker').then(([worker]) => once(worker, 'exit'));
      await mailWork.examine(Buffer.from(largeMail('huge', 8 * 1024 * 1024)), smtp);
      await ended;
      const { parsed } = await mailWork.examine(Buffer.from(largeMail('notes')), smtp);
      assert.equal(parsed.attachments.length, 2);
    },
    { idleMs: 2 ** 31 - 1 },
  ));

describe('a small message that takes long to decode goes to a worker', () => {
  const mixed = 'From: ada@example.com\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n';
  const sections = Array.from({ length: 1500 }, (_, i) => ` name*${i}*=%E4;\r\n`).join('');
  const parts = '--b\r\nContent-Type: a/b; name="=?big5?q?a?= x"\r\n\r\n'.repeat(1500);
  for (const [title, raw] of [
    ['8-bit header lines', `From: \xe4 <ada@example.com>\r\n${'To:\xe4\r\n'.repeat(2000)}\r\nx`],
    ['encoded words', `${mixed}${parts}`],
    ['encoded parameters', `${mixed}--b\r\nContent-Type: a/b;\r\n${sections}\r\nx`],
  ] as const)
    test(title, () =>
      withMailWork(async (mailWork) => {
        let workers = 0;
        const count = () => void workers++;
        process.on('worker', count);
        const { parsed } = await mailWork.examine(Buffer.from(raw, 'latin1'), smtp);
        process.off('worker', count);
        assert.equal(parsed.from?.address, 'ada@example.com');
        assert.ok(workers > 0);
      }),
    );
});

describe('a message that breaks the worker', () => {
  test('is accepted with its header, and authenticated by it', () =>
    withMailWork(
      async (mailWork) => {
        const raw = Buffer.from(`${signature}${'X: y\r\n'.repeat(2000)}${largeMail('notes')}`);
        const { parsed, authentication } = await mailWork.examine(raw, smtp);
        assert.equal(parsed.subject, 'notes');
        assert.equal(parsed.from?.address, 'ada@example.com');
        assert.deepEqual([parsed.text, parsed.attachments], [null, []]);
        assert.deepEqual(parsed.truncated, ['headers', 'body']);
        assert.equal(authentication.spf.result, 'fail');
        assert.deepEqual(
          authentication.dkim.map(({ result }) => result),
          ['policy'],
        );
        assert.deepEqual(authentication.dmarc, reject);
      },
      { timeoutMs: 1 },
    ));

  test('is no report: only its header is certain', () =>
    withMailWork(
      async (mailWork) => {
        const returned = `${returnedMessage}${line.repeat(5000)}`;
        const { parsed } = await mailWork.examine(compose(failed, { returned }), smtp);
        assert.equal(parsed.subject, 'Report');
        assert.deepEqual([parsed.report, parsed.returnedIds], [null, []]);
        assert.deepEqual(parsed.truncated, ['body']);
      },
      { timeoutMs: 1 },
    ));

  test('and has a header longer than what is read: `truncated` says so, and no line is read in part', () =>
    withMailWork(
      async (mailWork) => {
        const header = `Subject: notes\r\nFrom: ada@example.com${'.uk'.repeat(40_000)}\r\n`;
        const { parsed, authentication } = await mailWork.examine(
          Buffer.from(`${header}${largeMail('more')}`),
          smtp,
        );
        assert.equal(parsed.subject, 'notes');
        assert.equal(parsed.from, null);
        assert.deepEqual([authentication.dmarc.result, authentication.dmarc.policy], ['permerror', 'reject']);
        assert.match(authentication.dmarc.reason ?? '', /too long/);
        assert.deepEqual(parsed.truncated, ['headers', 'body']);
      },
      { timeoutMs: 1 },
    ));

  test('a small message with a header of more than 32 KiB goes to the worker', () =>
    withMailWork(
      async (mailWork) => {
        const read = async (header: string) => {
          const { parsed } = await mailWork.examine(Buffer.from(`${header}\r\n\r\nbody`), smtp);
          return parsed.truncated;
        };
        assert.deepEqual(await read(`X: ${'y'.repeat(31 * 1024)}`), []);
        assert.deepEqual(await read(`X: ${'y'.repeat(33 * 1024)}`), ['body']);
      },
      { timeoutMs: 1 },
    ));
});

test('while DNS does not answer, many large messages wait at the same time', () =>
  withMailWork(async (mailWork) => {
    for (const name of ['example.com', '_dmarc.example.com', 's1._domainkey.example.com']) {
      dns.answer(name, 'DROP');
    }
    const examined = await Promise.all(
      Array.from({ length: 12 }, (_, i) =>
        mailWork.examine(Buffer.from(`${signature}${largeMail(`notes ${i}`)}`), smtp),
      ),
    );
    for (const { authentication } of examined) assert.equal(authentication.dmarc.result, 'temperror');
    assert.ok(dns.count('example.com', 'TXT') < examined.length, 'they share their DNS queries');
  }));

describe('what a user asked for and takes too long', () => {
  const mail = {
    ...{ from: { name: null, address: 'ada@example.com' }, to: [], cc: [], replyTo: [], headers: [] },
    ...{ subject: 'x', html: null, attachments: [], messageId: '<a@example.com>', date: new Date(0) },
    ...{ inReplyTo: null, references: [] },
  };
  const compose = (mailWork: MailWork, text: string, maxBytes = 2 ** 30) =>
    mailWork.compose({ ...mail, text }, 'a', { maxBytes, body: null });

  test('is told to its user, and is no failure of the service', () =>
    withMailWork(
      async (mailWork) => {
        const complex = { name: 'Problem', code: 'message_too_complex', status: 413 };
        await assert.rejects(compose(mailWork, line.repeat(5000)), complex);
        await assert.rejects(mailWork.extract(Buffer.from(largeMail('notes')), 0), complex);
        const { signal } = new AbortController();
        await assert.rejects(mailWork.readDraft(Buffer.from('{}'), 'a', signal), complex);
        await assert.rejects(mailWork.readHook(Buffer.alloc(300_000), 'application/json', 'a'), complex);
      },
      { timeoutMs: 1 },
    ));

  test('a message that cannot fit is refused before it is composed', () =>
    withMailWork(
      async (mailWork) => {
        const started = once(process, 'worker');
        const least = await compose(mailWork, line.repeat(5000), 1000);
        assert.deepEqual(least, { leastBytes: 5000 * line.length });
        await started;
      },
      { idleMs: 0 },
    ));
});

test('a job that does not get its turn in time is refused for now, not accepted with its header alone', async () => {
  await withMailWork(
    async (mailWork) => {
      const [first, second] = await Promise.allSettled(
        ['a', 'a'].map((owner) => mailWork.extract(Buffer.from(largeMail('notes')), 0, owner)),
      );
      assert.equal(first?.status, 'fulfilled');
      assert.ok(second?.status === 'rejected' && second.reason.code === 'overloaded');
    },
    { waitMs: 0, threads: 2 },
  );
});

test('a client that leaves while its attachment waits for the worker is not waited for', async () => {
  await withMailWork(async (mailWork) => {
    const running = mailWork.extract(Buffer.from(largeMail('notes')), 0, 'a');
    const leaving = new AbortController();
    const waiting = mailWork.extract(Buffer.from(largeMail('notes')), 0, 'a', leaving.signal);
    leaving.abort(new Error('gone'));
    await assert.rejects(waiting, /gone/);
    assert.ok(await running);
  }, two);
});

test('stop rejects running and waiting jobs, and leaves nothing running', async () => {
  const mailWork = makeMailWork({ dnsServers: [dns.address], mailHost: 'mx.example.net', log });
  const raw = Buffer.from(largeMail('notes'));
  const asked = Promise.allSettled([mailWork.extract(raw, 0), mailWork.extract(raw, 0)]);
  const examined = assert.rejects(mailWork.examine(raw, smtp), /stopping/);
  await mailWork.stop();
  for (const { status } of await asked) assert.equal(status, 'rejected');
  await examined;
  await assert.rejects(mailWork.extract(raw, 0), /stopping/);
});

test('a program that stopped its mailWork exits', async () => {
  const program = `
    const { makeMailWork } = await import(${JSON.stringify(examineUrl)});
    const mailWork = makeMailWork({ dnsServers: null, mailHost: 'mx', log: { error() {} } });
    const asked = mailWork.extract(Buffer.alloc(300_000), 0).catch(() => {});
    await mailWork.stop();
    await asked;`;
  await promisify(execFile)(process.execPath, ['--input-type=module', '-e', program], { timeout: 120_000 });
});
