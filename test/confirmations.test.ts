/** An address is confirmed by a link in a mail: the mail, the page, and how long each is good. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { open, press, startConfirming } from './confirming.ts';
import { assertProblem, callUrl, waitFor } from './harness.ts';
import { mailHost } from './proving.ts';

const confirming = await startConfirming({ POSTHORN_SEND_SCHEDULE: '3600' });
const { service, sink, dns, add, verify, find, publish, statusAfterCheck, age } = confirming;
const { newAddress, mailsTo, askForLink, statusOf, addConfirmed, passHours, makeDestination } = confirming;
const { call, sql } = service;

// biome-ignore lint/suspicious/noExplicitAny: tests read any field of a response.
type Shown = any;

test('POST verify sends a mail; its page has one button; only the button confirms, and once', async () => {
  const address = newAddress();
  const identity = await add(address);
  const link = await askForLink(identity);
  assert.equal(await statusOf(identity), 'pending');
  for (const filter of ['status=pending', 'status=pending&kind=email', `value=${address}&status=pending`]) {
    const { body } = await call('GET', `/identities?${filter}`);
    assert.deepEqual(
      body.filter(({ id }: { id: string }) => id === identity.id).map(({ status }: Shown) => status),
      ['pending'],
      filter,
    );
  }
  const unverified = await call('GET', '/identities?status=unverified');
  assert.ok(!unverified.body.some(({ id }: { id: string }) => id === identity.id));

  // A scanner opens the link, as often as it likes.
  for (const method of ['HEAD', 'GET', 'GET']) assert.equal((await callUrl(method, link, {})).status, 200);
  assert.equal(await statusOf(identity), 'pending');

  const page = await open(link);
  assert.match(page.headers.get('content-type') ?? '', /^text\/html/);
  assert.match(page.text, /<form method="post"><button/);
  assert.equal(page.text.match(/<(button|input|a)\b/g)?.length, 1);
  assert.ok(page.text.includes(address));
  assert.doesNotMatch(page.text, /<script|https?:/);
  const policy = page.headers.get('content-security-policy') ?? '';
  assert.match(policy, /default-src 'none'.*style-src 'sha256-.*form-action 'self'.*frame-ancestors 'none'/);
  assert.doesNotMatch(policy, /unsafe/);
  assert.equal(page.headers.get('cache-control'), 'no-store');
  assert.equal(page.headers.get('referrer-policy'), 'no-referrer');

  const pressed = await press(link);
  assert.equal(pressed.status, 200, pressed.text);
  assert.match(pressed.text, /confirmed/);
  assert.equal(await statusOf(identity), 'verified');
  for (const again of [await open(link), await press(link)]) {
    assert.equal(again.status, 404);
    assert.match(again.text, /ask for a new link/i);
    assert.ok(!again.text.includes(address));
  }
  const asked = await verify(identity);
  assert.deepEqual([asked.status, asked.body.status], [200, 'verified']);
  assert.equal(mailsTo(address).length, 1, 'a verified address needs no mail');
  assert.deepEqual(await confirming.sendIn(address), [identity.id]);
});

test('the mail is the operator’s: fixed text, no names, not among the messages and events of the owner', async () => {
  const owner = await service.makeUser();
  const address = newAddress("o'brien+{x}=1&2%_`|~!#$*?^");
  const identity = await add(address, { meta: { text: 'SECRET of the user' } }, owner);
  const link = await askForLink(identity, owner);
  const [mail] = mailsTo(address);
  assert.ok(mail);
  assert.match(mail.mail, /^MAIL FROM:<bounces\+[a-z2-7]{48}@mx\.posthorn\.example>/);
  const [head = ''] = mail.raw.split('\r\n\r\n');
  const fields = head.replaceAll(/\r\n[ \t]+/g, ' ').split('\r\n');
  const named = (name: string) => fields.filter((field) => field.toLowerCase().startsWith(`${name}:`));
  assert.deepEqual(named('from'), [`From: posthorn@${mailHost}`]);
  assert.deepEqual(named('to'), [`To: ${address}`]);
  assert.deepEqual(named('auto-submitted'), ['Auto-Submitted: auto-generated']);
  assert.deepEqual(named('subject'), ['Subject: Confirm this email address']);
  assert.equal(named('message-id').length + named('date').length, 2);
  assert.doesNotMatch(mail.raw, /SECRET|users\.example/);
  for (const path of ['/messages', '/events', '/suppressions', '/deliveries'])
    assert.deepEqual((await call('GET', path, { as: owner })).body, [], path);

  const { text } = await open(link);
  assert.ok(text.includes('o&#39;brien+{x}=1&#38;2%_`|~!#$*?^@'), text);
  assert.equal((await press(link)).status, 200);
});

test('an address that would add a header field, a recipient or HTML is refused before any mail', async () => {
  for (const value of [
    'ada\r\nBcc: eve@evil.example',
    'ada>,<eve',
    '"a b"',
    'a<b>',
    'ada, eve',
    'ada\u2028x',
  ]) {
    const made = await call('POST', '/identities', { body: { value: `${value}@dest.example` } });
    assertProblem(made, 400, 'invalid_body');
  }
});

test('neither the token nor its path is stored or logged', async () => {
  const identity = await add(newAddress());
  const link = await askForLink(identity);
  await open(link);
  await press(link);
  await press(`${link}00`);
  const token = link.slice(link.lastIndexOf('/') + 1);
  assert.match(token, /^[0-9a-f]{40}$/);
  assert.ok(!JSON.stringify(service.logged).includes(token));
  const rows = await sql`
    select to_jsonb(confirmations)::text as text from confirmations
    union all select to_jsonb(send_queue)::text from send_queue`;
  assert.ok(rows.length > 0 && !rows.some(({ text }) => text.includes(token)));
});

test('the link expires after 24 hours, and the address is unverified again', async () => {
  const identity = await add(newAddress());
  const link = await askForLink(identity);
  await passHours(24, identity);
  assert.equal(await statusOf(identity), 'unverified');
  const pending = await call('GET', '/identities?status=pending');
  assert.ok(!pending.body.some(({ id }: Shown) => id === identity.id));
  for (const answer of [await open(link), await press(link)]) assert.equal(answer.status, 404);
  assert.equal(await statusOf(identity), 'unverified');
  assert.equal((await press(await askForLink(identity))).status, 200);
  assert.equal(await statusOf(identity), 'verified');
});

test('a new link does not replace the old one; when one is used, the others stop working', async () => {
  const identity = await add(newAddress());
  const [first, second] = [await askForLink(identity), await askForLink(identity)];
  assert.notEqual(first, second);
  assert.equal((await open(second)).status, 200);
  assert.equal((await press(first)).status, 200);
  assert.equal((await press(second)).status, 404);
});

test('tokens that are unknown or malformed get the same page, and other methods a 405', async () => {
  for (const token of ['0'.repeat(40), 'x', '%00', `${'0'.repeat(40)}%3Cscript%3E`, 'A'.repeat(190)]) {
    for (const send of [open, press]) {
      const answer = await send(`${service.url}/confirm/${token}`);
      assert.equal(answer.status, 404, answer.text);
      assert.doesNotMatch(answer.text, /<script/);
    }
  }
  assertProblem(
    await callUrl('PUT', `${service.url}/confirm/${'0'.repeat(40)}`, {}),
    405,
    'method_not_allowed',
  );
});

test('the link of a deleted identity does not work', async () => {
  const identity = await add(newAddress());
  const link = await askForLink(identity);
  assert.equal((await call('DELETE', `/identities/${identity.id}`)).status, 204);
  assert.equal((await press(link)).status, 404);
});

test('a mail that is put off is tried again, until the link has expired', async () => {
  const address = newAddress();
  const identity = await add(address);
  sink.behave('RCPT', '451 4.7.1 Later', '451 4.7.1 Later', '250 2.1.5 Ok');
  const due = async () => {
    const rows = await sql`
      update send_queue set next_attempt_at = now()
      from confirmations
      where confirmations.id = send_queue.message_id and identity_id = ${identity.id} and not ready
      returning tries`;
    return rows[0];
  };
  assert.equal((await verify(identity)).status, 200);
  assert.deepEqual(await waitFor('the first try', due), { tries: 1 });
  await waitFor('the end of the schedule', async () => {
    const rows = await sql`
      select from send_queue join confirmations on confirmations.id = send_queue.message_id where identity_id = ${identity.id}`;
    return rows.length === 0;
  });
  assert.equal(mailsTo(address).length, 0, 'the schedule has one retry');
  sink.behave('RCPT', '451 4.7.1 Later', '250 2.1.5 Ok');
  assert.equal((await verify(identity)).status, 200);
  await waitFor('the second mail', due);
  const mail = await waitFor('mail', () => mailsTo(address)[0]);
  assert.ok(mail);

  sink.behave('RCPT', '451 4.7.1 Later', '250 2.1.5 Ok');
  assert.equal((await verify(identity)).status, 200);
  await waitFor('the third mail', async () => {
    const rows = await sql`
      select from send_queue join confirmations on confirmations.id = send_queue.message_id
      where identity_id = ${identity.id} and not ready`;
    return rows.length > 0;
  });
  await passHours(24, identity);
  await due();
  await waitFor('the queue', async () => (await sql`select from send_queue`).length === 0);
  assert.equal(mailsTo(address).length, 1);
});

test('with an Idempotency-Key one mail is sent', async () => {
  const address = newAddress();
  const { id } = await add(address);
  const headers = { 'idempotency-key': `key-${id}` };
  const answers = [];
  for (let n = 0; n < 3; n += 1) answers.push(await call('POST', `/identities/${id}/verify`, { headers }));
  for (const { status, body } of answers) assert.deepEqual([status, body.status], [200, 'pending']);
  const rows = await sql`select from confirmations where identity_id = ${id}`;
  assert.equal(rows.length, 1);
});

test('under an own domain that is not verified it is checked with the domain, and then asked by mail', async () => {
  const address = newAddress();
  const domain = address.slice(4);
  const own = await add(domain);
  const identity = await add(address);
  const link = await askForLink(identity);
  assert.equal((await press(link)).status, 200);
  assert.deepEqual([await statusOf(identity), await statusOf(own)], ['verified', 'unverified']);

  // Whatever becomes of the own domain.
  await publish(domain, [own]);
  assert.equal(await statusAfterCheck(own), 'verified');
  assert.equal(await statusOf(identity), 'verified');
  dns.answer(`_posthorn.${domain}`, 'NXDOMAIN');
  await statusAfterCheck(own);
  await age(own, 73);
  assert.equal(await statusAfterCheck(own), 'failed');
  assert.equal(await statusOf(identity), 'verified');
  assert.equal((await call('DELETE', `/identities/${own.id}`)).status, 204);
  assert.equal(await statusOf(identity), 'verified');
  assert.equal((await find(identity)).domain_identity_id, null);
  assert.deepEqual(await confirming.sendIn(address), [identity.id]);
});

test('a confirmed address sends, without a signature', async () => {
  const identity = await addConfirmed(newAddress());
  const to = newAddress('bob');
  const { id } = await confirming.send({ identityId: identity.id, to });
  assert.equal((await confirming.findEnded(id)).sending.status, 'delivered');
  assert.doesNotMatch(mailsTo(to)[0]?.raw ?? '', /DKIM-Signature/);
});

test('a local part beyond ASCII: the server must take SMTPUTF8', async () => {
  const domain = newAddress().slice(4);
  makeDestination(domain);
  const identity = await add(`дора@${domain}`);
  assert.equal((await verify(identity)).status, 200);
  await waitFor('the queue', async () => (await sql`select from send_queue`).length === 0);
  assert.equal(await statusOf(identity), 'pending');
});
