/** An address stands as its owner's domain does, unless it was confirmed by mail (confirmations.test.ts). */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { assertProblem } from './harness.ts';
import { newDomain, startProving, withoutLoop } from './proving.ts';

const proving = await startProving(withoutLoop);
const { service, dns, add, find, publish, statusAfterCheck, send, age, verify } = proving;
const { call } = service;

async function statusOf(identity: { id: string }): Promise<string> {
  return (await find(identity)).status;
}

async function addVerified(domain: string) {
  const made = await add(domain);
  await publish(domain, [made]);
  assert.equal(await statusAfterCheck(made), 'verified');
  return made;
}

test('without a domain it is unverified, and has neither records nor keys', async () => {
  const address = await add(`ada@${newDomain()}`);
  assert.equal(await statusOf(address), 'unverified');
  assert.equal(address.dns_records, 'null');
  const shown = await call('GET', `/identities/${address.id}/dns`);
  assert.deepEqual([shown.status, shown.body], [200, []]);
  assertProblem(await call('POST', `/identities/${address.id}/dkim/rotate`), 409, 'domain_needed');
});

test("another owner's verified domain does not help", async () => {
  const domain = newDomain();
  await addVerified(domain);
  const other = await service.makeUser();
  const address = await add(`ada@${domain}`, {}, other);
  assert.deepEqual([address.status, address.domain_identity_id], ['unverified', null]);
  assert.equal((await verify(address, other)).body.status, 'pending');
  assert.equal(await statusOf(address), 'unverified');
});

test('made under a verified domain it is verified, and its mail comes in', async () => {
  const domain = newDomain();
  const { id } = await addVerified(domain);
  const address = await add(`Ada@${domain}`);
  assert.deepEqual([address.status, address.domain_identity_id], ['verified', id]);
  assert.deepEqual(await send(`ada@${domain}`), [address.id]);
});

test('made before its domain, it follows from then on: pending, verified, failed, verified', async () => {
  const domain = newDomain();
  const address = await add(`ada@${domain}`);
  const owner = await add(domain);
  assert.equal((await find(address)).domain_identity_id, owner.id);
  dns.answer(domain, { TXT: ['v=spf1 a:mx.posthorn.example -all'] });
  assert.equal(await statusAfterCheck(owner), 'pending');
  assert.equal(await statusOf(address), 'pending');
  await publish(domain, [owner]);
  assert.equal(await statusAfterCheck(owner), 'verified');
  assert.equal(await statusOf(address), 'verified');

  dns.answer(`_posthorn.${domain}`, 'NXDOMAIN');
  assert.equal(await statusAfterCheck(owner), 'verified');
  await age(owner, 73);
  assert.equal(await statusAfterCheck(owner), 'failed');
  assert.equal(await statusOf(address), 'failed');
  assert.equal(await send(`ada@${domain}`), '550 5.1.1');
  const late = await add(`late@${domain}`);
  assert.equal(late.status, 'failed', 'as the domain is');

  await publish(domain, [owner]);
  assert.equal(await statusAfterCheck(owner), 'verified');
  assert.deepEqual([await statusOf(address), await statusOf(late)], ['verified', 'verified']);
});

test('POST verify of an address checks its domain, uses the allowance of the domain, and returns the address', async () => {
  const domain = newDomain();
  const owner = await add(domain);
  const addresses = await Promise.all([add(`a@${domain}`), add(`b@${domain}`)]);
  await publish(domain, [owner]);
  const answer = await verify(addresses[0]);
  assert.equal(answer.status, 200, answer.text);
  assert.deepEqual([answer.body.id, answer.body.status], [addresses[0].id, 'verified']);
  assert.deepEqual(await Promise.all([owner, ...addresses].map(statusOf)), Array(3).fill('verified'));
  // Ten more at once for each, because the allowance of ten grows again with time: one of its own would serve all of the second's.
  const askTen = (address: (typeof addresses)[number]) =>
    Promise.all(Array.from({ length: 10 }, () => verify(address)));
  await askTen(addresses[0]);
  const refused = (await askTen(addresses[1])).filter(({ status }) => status !== 200);
  assert.ok(refused.length > 0);
  for (const one of refused) assertProblem(one, 429, 'rate_limited');
});

test('when the domain is deleted it loses what it had from it', async () => {
  const domain = newDomain();
  const owner = await addVerified(domain);
  const address = await add(`ada@${domain}`);
  assert.equal((await call('DELETE', `/identities/${owner.id}`)).status, 204);
  const left = await find(address);
  assert.deepEqual([left.status, left.domain_identity_id], ['unverified', null]);
  assert.equal(await send(`ada@${domain}`), '550 5.1.1');
  assert.equal((await verify(address)).body.status, 'pending');
});

test('addresses made while their domain is won and lost stand as it does in the end', async () => {
  for (let round = 0; round < 8; round += 1) {
    const domain = newDomain();
    const owner = await add(domain);
    await publish(domain, [owner]);
    const made = Promise.all(Array.from({ length: 10 }, (_, n) => add(`a${n}@${domain}`)));
    const [, addresses] = await Promise.all([verify(owner), made]);
    for (const address of addresses) assert.equal(await statusOf(address), 'verified');

    await age(owner, 0);
    dns.answer(`_posthorn.${domain}`, 'NXDOMAIN');
    await verify(owner);
    await age(owner, 73);
    const more = Promise.all(Array.from({ length: 10 }, (_, n) => add(`b${n}@${domain}`)));
    const [failed, others] = await Promise.all([verify(owner), more]);
    assert.equal(failed.body.status, 'failed');
    for (const address of [...addresses, ...others]) assert.equal(await statusOf(address), 'failed');
  }
});

test('a domain deleted while it is being checked leaves nothing behind that is verified, and fails no call', async () => {
  for (let round = 0; round < 10; round += 1) {
    const domain = newDomain();
    const rival = await service.makeUser();
    const owner = await addVerified(domain);
    const claim = await add(domain, {}, rival);
    const addresses = await Promise.all(Array.from({ length: 5 }, (_, n) => add(`a${n}@${domain}`)));
    await publish(domain, round % 2 === 0 ? [claim] : [owner, claim]);
    const answers = await Promise.all([
      verify(claim, rival),
      verify(owner),
      call('DELETE', `/identities/${owner.id}`),
      verify(claim, rival),
      verify(owner),
    ]);
    for (const { status, text } of answers) assert.ok([200, 204, 404].includes(status), `${status} ${text}`);
    for (const address of addresses) assert.equal(await statusOf(address), 'unverified');
    assert.equal(await statusAfterCheck(claim, rival), 'verified');
  }
});

test('every change of status is logged with its reason and moves updated_at, and nothing else does', async () => {
  const domain = newDomain();
  const owner = await add(domain);
  const address = await add(`Ada@${domain}`);
  const told: unknown[][] = [];
  const changes = async (what: () => Promise<unknown>) => {
    const [before, count] = [await find(address), service.logged.length];
    await what();
    const after = await find(address);
    const lines = service.logged.slice(count).filter((line) => line.identityId === address.id && line.to);
    assert.equal(lines.length, before.status === after.status ? 0 : 1);
    assert.equal(before.updated_at !== after.updated_at, lines.length > 0);
    for (const { from, to, ownerId, domain: name, msg } of lines) {
      assert.deepEqual([ownerId, name], [service.user.userId, domain]);
      told.push([from, to, msg]);
    }
  };
  await changes(() => verify(owner));
  dns.answer(domain, { TXT: ['v=spf1 a:mx.posthorn.example -all'] });
  await changes(() => verify(owner));
  await changes(() => verify(owner));
  await publish(domain, [owner]);
  await changes(() => verify(address));
  dns.answer(`_posthorn.${domain}`, 'NXDOMAIN');
  await changes(() => verify(owner));
  await age(owner, 73);
  await changes(() => verify(owner));
  await changes(() => call('DELETE', `/identities/${owner.id}`));
  const is = (status: string, reason: string) => `an address is now ${status}, like its domain: ${reason}`;
  assert.deepEqual(told, [
    ['unverified', 'pending', is('pending', 'Valid so far: SPF. Not all required records are valid yet.')],
    ['pending', 'verified', is('verified', 'All required records are valid.')],
    ['verified', 'failed', is('failed', 'The ownership record did not become valid again within 72 hours.')],
    ['failed', 'unverified', is('unverified', 'The domain identity was deleted.')],
  ]);
});

test('the change of very many is logged in one line', async () => {
  const domain = newDomain();
  const owner = await add(domain);
  await Promise.all(Array.from({ length: 21 }, (_, n) => add(`a${n}@${domain}`)));
  await publish(domain, [owner]);
  assert.equal(await statusAfterCheck(owner), 'verified');
  const lines = service.logged.filter((line) => line.domain === domain && line.to);
  assert.deepEqual(
    lines.map(({ msg, addresses }) => [msg, addresses]),
    [
      [`identity ${domain} is now verified: All required records are valid.`, undefined],
      [`21 addresses of ${domain} are now verified, like their domain: All required records are valid.`, 21],
    ],
  );
});
