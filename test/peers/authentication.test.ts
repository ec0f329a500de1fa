/** Authentication results with records in a real name server, signatures by OpenDKIM and mail by Postfix. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { startMailroom } from './mailroom.ts';
import { startNameServer } from './name-server.ts';
import { startPostfix } from './postfix.ts';
import { startSigner } from './signer.ts';

const signer = await startSigner('signed.example', ['signed.example', 'borrowed.example']);
const dns = await startNameServer(
  'example',
  `
signed           TXT "v=spf1 ip4:127.0.0.1 -all"
_dmarc.signed    TXT "v=DMARC1; p=reject; adkim=s; aspf=s"
forged           TXT "v=spf1 -all"
_dmarc.forged    TXT "v=DMARC1; p=reject"
borrowed         TXT "v=spf1 include:nowhere.signed.example ~all"
nowhere.signed   TXT "v=spf1 ip4:192.0.2.0/24 -all"
_dmarc.borrowed  TXT "v=DMARC1; p=quarantine"
included         TXT "v=spf1 a:relay.example -all"
relay            A   127.0.0.1
_dmarc.included  TXT "v=DMARC1; p=none"
$ORIGIN signed.example.
${signer.record}
`,
);
const room = await startMailroom({ POSTHORN_DNS_SERVERS: dns.address });
const postfix = await startPostfix(room.service.smtpPort, {
  non_smtpd_milters: signer.socket,
  milter_default_action: 'tempfail',
  // On the way out, when it is signed already.
  smtp_body_checks: 'inline:{ { alter-me = REPLACE altered } }',
});
await room.addIdentity('sales@shop.example');

let sent = 0;

/** Sends a message from an author and returns its authentication result. */
async function send(author: string, { from = author, body = 'Hello,\n\n.  dots and  spaces \n\n\n' } = {}) {
  const subject = `verdict ${++sent}`;
  const message = `From: Ada <${author}>\nTo: sales@shop.example\nSubject: ${subject}\n\n${body}`;
  await postfix.send({ from, to: ['sales@shop.example'], message });
  const [{ message: got } = assert.fail()] = await room.announced(subject);
  return got;
}

const signature = { result: 'pass', domain: 'signed.example', selector: 'mail', aligned: true, reason: null };
const disowned = (domain: string) => `Neither SPF nor DKIM authenticates ${domain}.`;

test('mail from where its domain says, with its signature', async () => {
  const { authentication, mailbox } = await send('ada@signed.example');
  assert.deepEqual(authentication, {
    spf: { result: 'pass', domain: 'signed.example' },
    dkim: [signature],
    dmarc: { result: 'pass', policy: 'reject', aligned: true, reason: null },
    arc: { result: 'none' },
  });
  assert.equal(mailbox.kind, 'inbox');
});

test('mail that its domain disowns is spam', async () => {
  const { authentication, mailbox } = await send('ada@forged.example');
  assert.deepEqual(authentication, {
    spf: { result: 'fail', domain: 'forged.example' },
    dkim: [],
    dmarc: { result: 'fail', policy: 'reject', aligned: false, reason: disowned('forged.example') },
    arc: { result: 'none' },
  });
  assert.equal(mailbox.kind, 'spam');
});

test("another domain's signature and softfail do not speak for the author's", async () => {
  const { authentication, mailbox } = await send('ada@borrowed.example');
  assert.deepEqual(authentication, {
    spf: { result: 'softfail', domain: 'borrowed.example' },
    dkim: [{ ...signature, aligned: false }],
    dmarc: { result: 'fail', policy: 'quarantine', aligned: false, reason: disowned('borrowed.example') },
    arc: { result: 'none' },
  });
  assert.equal(mailbox.kind, 'spam');
});

test('a message altered after it was signed fails, and SPF of another domain does not help', async () => {
  const { authentication, mailbox } = await send('ada@signed.example', {
    from: 'bounces@included.example',
    body: 'alter-me\n',
  });
  assert.deepEqual(authentication, {
    spf: { result: 'pass', domain: 'included.example' },
    dkim: [{ ...signature, result: 'fail', reason: 'The body is not the one that was signed.' }],
    dmarc: { result: 'fail', policy: 'reject', aligned: false, reason: disowned('signed.example') },
    arc: { result: 'none' },
  });
  assert.equal(mailbox.kind, 'spam');
});

test('of a domain that says nothing, nothing is said', async () => {
  const { authentication, mailbox } = await send('ada@silent.example');
  assert.deepEqual(authentication, {
    spf: { result: 'none', domain: 'silent.example' },
    dkim: [],
    dmarc: { result: 'none', policy: null, aligned: null, reason: null },
    arc: { result: 'none' },
  });
  assert.equal(mailbox.kind, 'inbox');
});
