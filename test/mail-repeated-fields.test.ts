/** Header fields that a message may have once: what is shown is what was signed, or the signature does not count. */
import assert from 'node:assert/strict';
import { createHash, sign as signBytes } from 'node:crypto';
import { beforeEach, describe, test } from 'node:test';
import fc from 'fast-check';
import { sealMessage } from 'mailauth/lib/arc/index.js';
import { splitMessage } from '../src/mailauth/dkim.ts';
import { parseMessage } from '../src/mime/parse.ts';
import { readStructure } from '../src/mime/structure.ts';
import { check, checkWithReasons, dns, publish, rsa } from './signing.ts';

beforeEach(() => dns.reset());

/** Each field of the signed message, and what an attacker adds. */
const fields: Record<string, [signed: string, added: string]> = {
  Date: ['Tue, 01 Jul 2025 10:00:00 +0000', 'Wed, 02 Jul 2025 10:00:00 +0000'],
  From: ['Ada <ada@example.com>', 'Eve <eve@example.com>'],
  Sender: ['ada@example.com', 'eve@example.com'],
  'Reply-To': ['ada@example.com', 'eve@forger.example'],
  To: ['bob@example.net', 'carol@example.net'],
  Cc: ['dan@example.net', 'erin@example.net'],
  Bcc: ['fred@example.net', 'gina@example.net'],
  'Message-ID': ['<1@example.com>', '<2@example.com>'],
  'In-Reply-To': ['<0@example.com>', '<3@example.com>'],
  References: ['<0@example.com>', '<3@example.com>'],
  Subject: ['Lunch', 'Pay this invoice'],
  'MIME-Version': ['1.0', '2.0'],
  'Content-Type': ['text/plain', 'text/html'],
  'Content-Transfer-Encoding': ['7bit', 'base64'],
};
const names = Object.keys(fields);
const header = names.map((name) => `${name}: ${fields[name]?.[0]}`);
const body = 'At noon?\r\n';

/** `covered`: the names of `h=`. A name that is listed more often than it occurs is oversigned. */
function signCovering(covered: readonly string[], lines: readonly string[] = header): string {
  const left = [...lines];
  const text = covered.flatMap((name) => {
    const at = left.findLastIndex((line) => line.toLowerCase().startsWith(`${name.toLowerCase()}:`));
    return at === -1 ? [] : left.splice(at, 1);
  });
  const hash = createHash('sha256').update(body).digest('base64');
  const h = covered.join(':');
  const field = `DKIM-Signature: v=1; a=rsa-sha256; d=example.com; s=s1; h=${h}; bh=${hash}; b=`;
  const value = signBytes('sha256', Buffer.from([...text, field].join('\r\n')), rsa.privateKey);
  return `${field}${value.toString('base64')}\r\n${lines.join('\r\n')}\r\n\r\n${body}`;
}

beforeEach(() => {
  publish(rsa.publicKey);
  dns.answer('_dmarc.example.com', { TXT: ['v=DMARC1; p=reject'] });
});

async function checkOne(raw: string) {
  const { dkim, dmarc } = await checkWithReasons(raw);
  assert.equal(dkim.length, 1);
  return { ...dkim[0], dmarc: dmarc.result };
}

test('the genuine message passes', async () => {
  const { result, reason, dmarc } = await checkOne(signCovering(names));
  assert.deepEqual([result, reason, dmarc], ['pass', null, 'pass']);
});

for (const name of names) {
  describe(`a second ${name}`, () => {
    const added = `${name}: ${fields[name]?.[1]}\r\n`;
    const signed = signCovering(names);
    const dmarcResult = name === 'From' ? 'permerror' : 'fail';

    for (const [place, raw] of [
      ['above the signature', `${added}${signed}`],
      ['below the signature', signed.replace('\r\nDate:', `\r\n${added}Date:`)],
      ['in other letters', `${added.toUpperCase()}${signed}`],
      ['with a blank before the colon', `${added.replace(':', ' \t:')}${signed}`],
    ] as const) {
      test(`${place}: the signature does not count`, async () => {
        const { result, reason, dmarc } = await checkOne(raw);
        assert.deepEqual([result, dmarc], ['policy', dmarcResult]);
        assert.match(reason ?? '', new RegExp(` ${name} 2 times .* covers 1`));
      });
    }

    test('under the signed one: the signature is wrong', async () => {
      const { result, reason, dmarc } = await checkOne(
        signed.replace(`\r\n\r\n${body}`, `\r\n${added}\r\n${body}`),
      );
      assert.deepEqual([result, dmarc], ['fail', dmarcResult]);
      assert.match(reason ?? '', /header/);
    });

    test('although it was oversigned: the signature is wrong', async () => {
      const { result, dmarc } = await checkOne(`${added}${signCovering([...names, name])}`);
      assert.deepEqual([result, dmarc], ['fail', dmarcResult]);
    });

    test('that the signer signed too: the signature is right', async () => {
      const twice = signCovering([...names, name], [`${name}: ${fields[name]?.[1]}`, ...header]);
      const { result, dmarc } = await checkOne(twice);
      assert.deepEqual([result, dmarc], ['pass', name === 'From' ? 'permerror' : 'pass']);
    });
  });
}

test('a field that is not signed and occurs once: signers choose what they sign', async () => {
  assert.equal((await checkOne(signCovering(['From']))).result, 'pass');
  // Twice, it is not known which one the signer saw.
  const twice = `Subject: Pay this invoice\r\n${signCovering(['From'])}`;
  const { result, reason } = await checkOne(twice);
  assert.equal(result, 'policy');
  assert.match(reason ?? '', / Subject 2 times .* covers 0/);
});

test('fields that may repeat change nothing', async () => {
  const raw = `Received: from a\r\nComments: x\r\nKeywords: x\r\nX-Any: x\r\n${signCovering(names)}`;
  const repeated = `Received: from b\r\nComments: y\r\nKeywords: y\r\nX-Any: y\r\n${raw}`;
  assert.equal((await checkOne(repeated)).result, 'pass');
});

test('ARC: a second Subject above a sealed message breaks the chain', async () => {
  publish(rsa.publicKey, { domain: 'list.example', selector: 'arc' });
  const message = `${header.join('\r\n')}\r\n\r\n${body}`;
  const seal = await sealMessage(message, {
    signingDomain: 'list.example',
    selector: 'arc',
    privateKey: rsa.privateKey.export({ type: 'pkcs8', format: 'pem' }) as string,
    authResults: 'list.example; spf=none',
    cv: 'none',
  });
  assert.equal((await check(`${seal}${message}`)).arc.result, 'pass');
  assert.equal((await check(`Subject: Pay this invoice\r\n${seal}${message}`)).arc.result, 'fail');
});

test('of any header, no field is shown that verification does not see, and the body begins at the same byte', async () => {
  const piece = fc.oneof(
    fc.constantFrom(...['Subject: a', 'From: a@b.example', 'To', ':', 'subject', 'x', '\0', 'é']),
    fc.constantFrom(
      ...['\r\n', '\n', '\r', '\r\r\n', '\n\r', ' ', '\t', '\r\n ', '\u00a0', '\f', '\v', '\ufeff'],
    ),
  );
  const raw = fc.array(piece, { maxLength: 30 }).map((pieces) => Buffer.from(pieces.join('')));
  const count = (list: readonly string[], name: string) => list.filter((one) => one === name).length;
  await fc.assert(
    fc.asyncProperty(raw, async (bytes) => {
      const message = splitMessage(bytes);
      const verified = message?.fields.map((field) => /^[^:]*/.exec(field)?.[0].trim().toLowerCase() ?? '');
      const shown = (await parseMessage(bytes)).headers.map(({ name }) => name.toLowerCase());
      if (shown.length === 0) return;
      for (const name of ['subject', 'from', 'to'])
        assert.ok(count(shown, name) <= count(verified ?? [], name), JSON.stringify(bytes.toString()));
      const { root } = readStructure(bytes);
      assert.equal(
        Math.max(0, bytes.length - root.bodyStart),
        message?.body.length,
        JSON.stringify(bytes.toString()),
      );
    }),
    { numRuns: 2000 },
  );
});
