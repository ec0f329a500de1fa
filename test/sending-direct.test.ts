/** Sending to the recipient's own mail server: a DNS server, a mail server, and what the owner is shown. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { makeAuthenticate } from '../src/mailauth/authenticate.ts';
import { startDirectMail } from './direct-mail.ts';
import { assertProblem, waitFor } from './harness.ts';
import { mailHost, newDomain } from './proving.ts';

const direct = await startDirectMail({ POSTHORN_SEND_SCHEDULE: '3600,7200' });
const { service, sink, dns, makeSender, makeDestination, passWait } = direct;
const { send, findEnded, findRecipient, attempts, events } = direct;
const { call } = service;
const sender = newDomain();
const identityId = await makeSender(sender, { dkim: true });
const from = `ada@${sender}`;

function newDestination(): string {
  const domain = newDomain();
  makeDestination(domain);
  return domain;
}

const received = (domain: string) => sink.mails.filter(({ rcpt }) => rcpt.includes(`@${domain}>`));

/** The sink replies to RCPT by the local part of the recipient. */
function replyBy(table: Record<string, string>): void {
  sink.behave('RCPT', ({ say }) => {
    const line = sink.commands.findLast((command) => command.startsWith('RCPT')) ?? '';
    const [, name = ''] = /<([^@]+)@/.exec(line) ?? [];
    say(table[name] ?? '250 2.1.5 Ok');
  });
}

async function dkimOf(raw: string) {
  const authenticate = makeAuthenticate({
    dnsServers: [dns.address],
    mailHost: 'mx.example.net',
    deadlineMs: 60_000,
  });
  const origin = { mailFrom: null, remoteIp: null, helo: null };
  const { dkim } = await authenticate(Buffer.from(raw, 'latin1'), origin);
  return dkim.map(({ result, domain, selector, aligned }) => ({ result, domain, selector, aligned }));
}

describe('a message that the servers take', () => {
  test('one transaction for each recipient, each with its own bounce address; sent, then delivered', async () => {
    const domain = newDestination();
    const to = [`a@${domain}`, `b@${domain}`];
    const { id } = await send({ identityId, from, to, bcc: `hidden@${domain}` });
    const message = await findEnded(id);
    assert.equal(message.sending.status, 'delivered');
    assert.equal(message.sending.transport, 'direct');
    const mails = received(domain);
    const recipients = mails.map(({ rcpt }) => /<([^@]+)@/.exec(rcpt)?.[1]).sort();
    assert.deepEqual(recipients, ['a', 'b', 'hidden']);
    const senders = mails.map(
      ({ mail }) => /^MAIL FROM:<(.+)@mx\.posthorn\.example>/.exec(mail)?.[1] ?? mail,
    );
    for (const local of senders) assert.match(local, /^bounces\+[a-z2-7]{48}$/);
    assert.equal(new Set(senders).size, 3);
    assert.ok(senders.every((local) => local.length <= 64));
    for (const { raw } of mails) assert.doesNotMatch(raw, /^bcc:|hidden@/im);
    const happened = await events(id);
    for (const address of message.envelope.rcptTo) {
      const own = happened.filter(({ data }) => data.recipient.address === address);
      assert.deepEqual(
        own.map(({ event }) => event),
        ['message.sent', 'message.delivered'],
      );
      assert.deepEqual(
        own.map(({ data }) => data.recipient.status),
        ['sent', 'delivered'],
      );
      for (const { data } of own) {
        assert.deepEqual(data.recipient.response, { code: 250, enhanced: '2.0.0', text: 'Taken' });
        assert.equal(data.recipient.host, 'mx.sink.example');
        assert.equal(data.recipient.bounce, null);
      }
    }
    assert.equal(happened.at(-1)?.data.message.sending.status, 'delivered');
    const transactions = await service.sql`
      select from events where message_id = ${id}
      group by data -> 'recipient' ->> 'address' having count(distinct xact) > 1`;
    assert.equal(transactions.count, 0, 'one reply makes both events in one transaction');
    const listed = await attempts(id);
    assert.deepEqual(listed.flatMap(({ recipients }) => recipients).sort(), [...to, `hidden@${domain}`]);
    const [{ id: _, startedAt, durationMs, recipients: __, ...attempt }] = listed;
    assert.ok(Date.parse(startedAt) > 0 && durationMs >= 0);
    assert.deepEqual(attempt, {
      host: 'mx.sink.example',
      address: '127.0.0.1',
      tls: null,
      response: { code: 250, enhanced: '2.0.0', text: 'Taken' },
      error: null,
    });
  });

  test('is signed by the domain, and otherwise as stored', async () => {
    const domain = newDestination();
    const address = await direct.add(`grace@${sender}`);
    assert.equal(address.status, 'verified');
    const { id } = await send({
      identityId: address.id,
      to: `a@${domain}`,
      text: '.\n..\nGrüße\n'.repeat(50),
    });
    await findEnded(id);
    const [mail] = received(domain);
    assert.ok(mail);
    const { name } = await direct.record({ id: identityId }, 'dkim');
    const [selector] = name.split('.');
    assert.deepEqual(await dkimOf(mail.raw), [{ result: 'pass', domain: sender, selector, aligned: true }]);
    const stored = await call('GET', `/messages/${id}/raw`);
    const unsigned = mail.raw.replace(/^DKIM-Signature:.*\r\n(?:[ \t].*\r\n)*/, '');
    assert.equal(unsigned, Buffer.from(stored.text).toString('latin1'));
    assert.doesNotMatch(stored.text, /DKIM-Signature/);
  });

  test('is not signed while the key does not stand in DNS, and then with the newest that does', async () => {
    const own = newDomain();
    const id = await makeSender(own);
    const [first, second] = [newDestination(), newDestination()];
    const plain = { identityId: id, from: `ada@${own}` };
    await findEnded((await send({ ...plain, to: `a@${first}` })).id);
    assert.deepEqual(await dkimOf(received(first)[0]?.raw ?? ''), []);

    const rotating = newDomain();
    const other = await makeSender(rotating, { dkim: true });
    const later = {
      identityId: other,
      from: `ada@${rotating}`,
      sendAt: new Date(Date.now() + 3_600_000).toISOString(),
    };
    const waiting = await send({ ...later, to: `a@${second}` });
    const rotated = await call('POST', `/identities/${other}/dkim/rotate`);
    assert.ok(rotated.status < 300, rotated.text);
    await direct.publishDkim(other);
    const records = JSON.parse((await direct.find({ id: other })).dns_records) as {
      purpose: string;
      name: string;
    }[];
    const names = records.filter(({ purpose }) => purpose === 'dkim').map(({ name }) => name.split('.')[0]);
    assert.equal(names.length, 2);
    await passWait(waiting.id);
    await findEnded(waiting.id);
    const [signature] = await dkimOf(received(second)[0]?.raw ?? '');
    assert.equal(signature?.result, 'pass');
    const [newest] = await service.sql`
      select selector from dkim_keys where identity_id = ${other} order by created_at desc limit 1`;
    assert.equal(signature?.selector, newest?.selector);
  });

  test('is not signed with a key that DNS no longer has while DNS does not answer for the next one', async () => {
    const [own, destination] = [newDomain(), newDestination()];
    const id = await makeSender(own, { dkim: true });
    const [old] = (await listDkimNames(id)) as [string];
    const rotated = await call('POST', `/identities/${id}/dkim/rotate`);
    assert.ok(rotated.status < 300, rotated.text);
    const [next] = (await listDkimNames(id)).filter((name) => name !== old) as [string];
    direct.dns.answer(old, 'NXDOMAIN');
    direct.dns.answer(next, 'SERVFAIL');
    await findEnded((await send({ identityId: id, from: `ada@${own}`, to: `a@${destination}` })).id);
    const signed = received(destination)[0]?.raw.match(/^DKIM-Signature:.*?\bs=([^;\s]+)/s)?.[1];
    // No check has seen the next one in DNS.
    assert.equal(signed, undefined);
  });

  test('is signed with the key that the last check saw while DNS does not answer', async () => {
    const [own, destination] = [newDomain(), newDestination()];
    const id = await makeSender(own, { dkim: true });
    const [name] = (await listDkimNames(id)) as [string];
    direct.dns.answer(name, 'SERVFAIL');
    await findEnded((await send({ identityId: id, from: `ada@${own}`, to: `a@${destination}` })).id);
    const signed = received(destination)[0]?.raw.match(/^DKIM-Signature:.*?\bs=([^;\s]+)/s)?.[1];
    assert.equal(signed, name.split('.')[0]);
  });
});

async function listDkimNames(id: string): Promise<string[]> {
  const records = JSON.parse((await direct.find({ id })).dns_records) as { purpose: string; name: string }[];
  return records.filter(({ purpose }) => purpose === 'dkim').map(({ name }) => name);
}

describe('a message that is put off', () => {
  test('waits by the schedule, and is given up after its last wait', async () => {
    const domain = newDestination();
    replyBy({ busy: '451 4.7.1 Come back later' });
    const { id } = await send({ identityId, from, to: `busy@${domain}` });
    for (const [tries, wait] of [
      [1, 3600],
      [2, 7200],
    ] as const) {
      const recipient = await findRecipient(id, ({ attemptCount }) => attemptCount === tries);
      assert.equal(recipient.status, 'queued');
      assert.deepEqual(recipient.lastResponse, { code: 451, enhanced: '4.7.1', text: 'Come back later' });
      const seconds = (Date.parse(recipient.nextAttemptAt) - Date.parse(recipient.updatedAt)) / 1000;
      assert.ok(seconds >= wait * 0.89 && seconds <= wait * 1.11, `${seconds}`);
      assert.deepEqual(await events(id), []);
      await passWait(id);
    }
    const message = await findEnded(id);
    assert.equal(message.sending.status, 'bounced');
    const [event, ...others] = await events(id);
    assert.deepEqual(others, []);
    assert.equal(event?.event, 'message.bounced');
    assert.deepEqual(event?.data.recipient.bounce, { type: 'soft', source: 'expired' });
    assert.equal(event?.data.recipient.response.code, 451);
    const listed = await attempts(id);
    assert.deepEqual(
      listed.map(({ response }) => response.code),
      [451, 451, 451],
    );
    assert.deepEqual(
      [...listed].sort((a, b) => (a.id < b.id ? 1 : -1)),
      listed,
    );
    assert.deepEqual((await call('GET', `/suppressions?address=busy@${domain}`)).body, []);
  });

  test('also if no server can be reached', async () => {
    const domain = newDomain();
    dns.answer(domain, { MX: [`10 mx.${domain}`] });
    dns.answer(`mx.${domain}`, { A: ['127.0.0.2'] });
    const { id } = await send({ identityId, from, to: `a@${domain}` });
    const recipient = await findRecipient(id, ({ attemptCount }) => attemptCount === 1);
    assert.equal(recipient.status, 'queued');
    assert.equal(recipient.lastResponse, null);
    const [{ error, response, host }] = await attempts(id);
    assert.deepEqual(
      { error, response, host },
      { error: 'connect_failed', response: null, host: `mx.${domain}` },
    );
  });

  test('while its identity is not verified, and goes on when it is verified again', async () => {
    const domain = newDestination();
    const own = newDomain();
    const id = await makeSender(own);
    const sendAt = new Date(Date.now() + 3_600_000).toISOString();
    const waiting = await send({ identityId: id, from: `ada@${own}`, to: `a@${domain}`, sendAt });
    await service.sql`update identities set status = 'failed' where id = ${id}`;
    assertProblem(await direct.post({ identityId: id, from: `ada@${own}` }), 403, 'identity_not_verified');
    await passWait(waiting.id);
    const recipient = await findRecipient(waiting.id, ({ attemptCount }) => attemptCount === 1);
    assert.equal(recipient.status, 'queued');
    assert.deepEqual(received(domain), []);
    await service.sql`update identities set status = 'verified' where id = ${id}`;
    await passWait(waiting.id);
    assert.equal((await findEnded(waiting.id)).sending.status, 'delivered');
    assert.equal(received(domain).length, 1);
  });
});

describe('a message that is refused', () => {
  test('the type of the bounce, and who is suppressed', async () => {
    const domain = newDestination();
    const cases: Record<string, [string, string, boolean]> = {
      nobody: ['550 5.1.1 No such user', 'hard', true],
      nodomain: ['550 5.1.2 No such domain', 'hard', true],
      syntax: ['501 5.1.3 Bad address', 'hard', true],
      moved: ['551 5.1.6 Moved', 'hard', true],
      nullmx: ['556 5.1.10 Null MX', 'hard', true],
      closed: ['550 5.2.1 Mailbox disabled', 'hard', true],
      other: ['550 5.1.0 Address', 'hard', false],
      full: ['552 5.2.2 Full', 'soft', false],
      system: ['554 5.3.4 Too large', 'soft', false],
      route: ['554 5.4.4 No route', 'soft', false],
      spam: ['550 5.7.1 We do not like you', 'policy', false],
      content: ['554 5.6.0 Content', 'unknown', false],
      bare: ['550 No such user', 'unknown', false],
    };
    replyBy(Object.fromEntries(Object.entries(cases).map(([name, [reply]]) => [name, reply])));
    const { id } = await send({
      identityId,
      from,
      to: Object.keys(cases).map((name) => `${name}@${domain}`),
    });
    assert.equal((await findEnded(id)).sending.status, 'bounced');
    const happened = await events(id);
    const suppressed = (await call('GET', '/suppressions')).body as {
      address: string;
      reason: string;
      messageId: string;
    }[];
    const found = Object.fromEntries(
      happened.map(({ event, data: { recipient } }) => {
        assert.equal(event, 'message.bounced');
        assert.equal(recipient.bounce.source, 'smtp');
        const own = suppressed.find(({ address }) => address === recipient.address);
        if (own) assert.deepEqual([own.reason, own.messageId], ['bounce', id]);
        const { code, enhanced, text } = recipient.response;
        const reply = [code, enhanced, text].filter((word) => word !== null).join(' ');
        return [recipient.address.split('@')[0], [reply, recipient.bounce.type, own !== undefined]];
      }),
    );
    assert.deepEqual(found, cases);

    const again = await send({ identityId, from, to: [`nobody@${domain}`, `spam2@${domain}`] });
    assert.deepEqual(
      again.sending.recipients.map(({ status }: { status: string }) => status),
      ['suppressed', 'queued'],
    );
    const ended = await findEnded(again.id);
    assert.equal(ended.sending.status, 'mixed');
    const [bounced] = await events(again.id);
    assert.equal(bounced?.event, 'message.bounced');
    assert.equal(bounced?.data.recipient.status, 'suppressed');
    assert.deepEqual(bounced?.data.recipient.bounce, { type: 'unknown', source: 'suppression' });
    assert.equal(sink.commands.filter((line) => line.includes(`<nobody@${domain}>`)).length, 1);
  });

  test('a null MX, a domain that does not exist, and a server that must not be called', async () => {
    const [nullMx, missing, inside] = [newDomain(), newDomain(), newDomain()];
    dns.answer(nullMx, { MX: ['0 .'] });
    dns.answer(inside, { MX: [`10 mx.${inside}`] });
    dns.answer(`mx.${inside}`, { A: ['10.1.2.3'] });
    for (const [domain, type, error] of [
      [nullMx, 'hard', 'null_mx'],
      [missing, 'hard', 'no_such_domain'],
      [inside, 'soft', 'target_refused'],
    ] as const) {
      const { id } = await send({ identityId, from, to: `a@${domain}` });
      assert.equal((await findEnded(id)).sending.status, 'bounced');
      const [event] = await events(id);
      assert.deepEqual(event?.data.recipient.bounce, { type, source: 'smtp' });
      const [attempt] = await attempts(id);
      assert.equal(attempt.error, error);
    }
  });

  test('an unverified identity cannot send, as JSON and as finished message', async () => {
    const { id, value } = await direct.add(newDomain());
    const body = { identityId: id, from: `a@${value}` };
    assertProblem(await direct.post(body), 403, 'identity_not_verified');
    const raw = await call('POST', `/messages?identity_id=${id}`, {
      body: `From: a@${value}\r\nTo: b@c.example\r\n\r\nx`,
      headers: { 'content-type': 'message/rfc822' },
    });
    assertProblem(raw, 403, 'identity_not_verified');
  });
});

test('the mail host is the name in EHLO', async () => {
  await waitFor('a conversation', () => sink.commands.length > 0);
  for (const line of sink.commands.filter((command) => command.startsWith('EHLO')))
    assert.equal(line, `EHLO ${mailHost}`);
});
