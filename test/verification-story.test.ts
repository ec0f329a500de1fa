/** The life of a domain, from its first day to its next owner, with no call but those that a user makes. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { waitFor } from './harness.ts';
import { mailHost, newDomain, startProving } from './proving.ts';
import { startReceiver } from './receiver.ts';

const proving = await startProving();
const { service, dns, find, record, pass, send } = proving;
const receiver = await startReceiver();
after(() => receiver.close());

const hour = 3_600_000;

test('a domain is added, proven, lost and won by another, and its mail goes with it', async () => {
  const domain = newDomain();
  const address = `sales@${domain}`;
  const webhook = await service.makeWebhook(receiver.url());
  const mine = await proving.add(domain, { incoming_domain: true });
  assert.equal(mine.status, 'unverified');

  // What must stand in DNS is shown at once.
  const { body: shown } = await service.call('GET', `/identities/${mine.id}/dns`);
  assert.deepEqual(
    shown.map(({ type, name, purpose, required, status, checkedAt }: Record<string, unknown>) => [
      ...[type, name, purpose, required, status, checkedAt],
    ]),
    [
      ['TXT', `_posthorn.${domain}`, 'ownership', true, 'unknown', null],
      ['MX', domain, 'mx', true, 'unknown', null],
      ['TXT', domain, 'spf', false, 'unknown', null],
      ['TXT', shown[3].name, 'dkim', false, 'unknown', null],
      ['TXT', `_dmarc.${domain}`, 'dmarc', false, 'unknown', null],
    ],
  );
  assert.equal(await send(address), '550 5.1.1');

  // One by one: the MX, and the loop has seen something; then what was missing.
  dns.answerType(domain, 'MX', { MX: [`10 ${mailHost}`] });
  await waitFor('the first check by itself', async () => (await find(mine)).status === 'pending');
  assert.equal((await record(mine, 'mx')).status, 'valid');
  assert.equal((await record(mine, 'ownership')).status, 'missing');
  assert.equal(await send(address), '550 5.1.1', 'an MX proves nothing');

  dns.answerType(domain, 'TXT', { TXT: [shown[2].value] });
  dns.answer(shown[3].name, { TXT: [shown[3].value] });
  dns.answer(`_dmarc.${domain}`, { TXT: [shown[4].value] });
  dns.answer(`_posthorn.${domain}`, { TXT: [shown[0].value] });
  assert.equal((await pass(mine, 0)).status, 'verified');
  const { body: verified } = await service.call('GET', `/identities/${mine.id}/dns`);
  for (const { purpose, status } of verified) assert.equal(status, 'valid', purpose);

  // Mail comes in and is announced.
  assert.deepEqual(await send(address, 'first'), [mine.id]);
  const [request] = await receiver.received(1);
  const announced = JSON.parse(request?.body.toString() ?? '');
  assert.equal(announced.event, 'message.received');
  assert.equal(announced.data.message.identity.id, mine.id);
  assert.ok(webhook.secret);

  // A day without DNS takes nothing away.
  for (const outage of ['SERVFAIL', 'DROP', 'REFUSED', 'SERVFAIL'] as const) {
    dns.answerAll(outage);
    const { status, dns_records } = await pass(mine, 6);
    assert.equal(status, 'verified', outage);
    assert.match(dns_records, /"purpose":"ownership","required":true,"status":"unknown"/);
    assert.doesNotMatch(dns_records, /graceUntil/);
  }
  dns.answerAll(null);
  assert.deepEqual(await send(address), [mine.id]);
  assert.equal((await pass(mine, 6)).status, 'verified');
  assert.equal((await record(mine, 'ownership')).status, 'valid');

  // The proof is removed: a grace, which an outage does not end, and then it is lost.
  dns.answer(`_posthorn.${domain}`, 'NXDOMAIN');
  assert.equal((await pass(mine, 6)).status, 'verified');
  const gone = await record(mine, 'ownership');
  assert.equal(gone.status, 'missing');
  const leftMs = Date.parse(gone.graceUntil ?? '') - Date.now();
  assert.ok(Math.abs(leftMs - 72 * hour) < hour, gone.graceUntil);
  assert.match(
    gone.note ?? '',
    /The ownership record must be valid by \S+Z, or this identity becomes failed\.$/,
  );
  assert.deepEqual(await send(address), [mine.id]);
  assert.equal((await pass(mine, 71)).status, 'verified');
  assert.ok(Date.parse((await record(mine, 'ownership')).graceUntil ?? '') - Date.now() < 2 * hour);
  dns.answerAll('SERVFAIL');
  assert.equal((await pass(mine, 2)).status, 'verified', 'the end, too, has to be seen');
  dns.answerAll(null);
  assert.equal((await pass(mine, 0)).status, 'failed');
  assert.match((await record(mine, 'ownership')).note ?? '', /did not become valid again within 72 hours\.$/);
  assert.equal(await send(address), '550 5.1.1');

  // Another proves that it is theirs.
  const other = await service.makeUser();
  const theirs = await proving.add(domain, { incoming_domain: true }, other);
  await proving.publish(domain, [theirs], { mx: true });
  assert.equal((await pass(theirs, 0)).status, 'verified');
  assert.deepEqual(await send(address), [theirs.id]);

  // And the first takes it back: from an owner this time, whose record is gone.
  await proving.publish(domain, [mine], { mx: true });
  assert.equal((await pass(mine, 24)).status, 'failed', 'not by one check');
  assert.match((await record(mine, 'ownership')).note ?? '', /becomes yours if a check after/);
  assert.deepEqual(await send(address), [theirs.id]);
  assert.equal((await pass(mine, 1 / 60)).status, 'verified');
  assert.deepEqual(await send(address), [mine.id]);
  assert.equal((await find(theirs)).status, 'failed');

  const changes = service.logged.filter(({ identityId, to }) => to && identityId === mine.id);
  assert.deepEqual(
    changes.map(({ from, to }) => `${from} → ${to}`),
    ['unverified → pending', 'pending → verified', 'verified → failed', 'failed → verified'],
  );
  for (const { msg, to, domain: name } of changes) {
    assert.match(String(msg), new RegExp(`^identity ${domain} is now ${to}: .+\\.$`));
    assert.equal(name, domain);
  }
  assert.deepEqual(
    service.logged.filter(({ level }) => ['error', 'fatal'].includes(String(level))),
    [],
  );
});
