/** Addresses that several owners claim: one of them has it, and the verified owner of the domain comes first. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { press, startConfirming } from './confirming.ts';
import { waitFor } from './harness.ts';

const confirming = await startConfirming();
const { service, add, find, publish, verify, statusAfterCheck, statusOnceConfirmed, sendIn } = confirming;
const { newAddress, askForLink, statusOf, addConfirmed } = confirming;
const { call, sql, user: anna } = service;
const ben = await service.makeUser();
const domainOf = (address: string) => address.slice(address.indexOf('@') + 1);

test('while another owner has the address, a confirmed one waits; it is verified when the other is deleted', async () => {
  const address = newAddress();
  const first = await addConfirmed(address, anna);
  const second = await add(address.replace('ada', 'ADA'), {}, ben);
  const third = await add(address, {}, await service.makeUser());
  const link = await askForLink(second, ben);
  const pressed = await press(link);
  assert.equal(pressed.status, 200);
  assert.equal(await statusOf(second, ben), 'pending');
  await confirming.passHours(25, second);
  assert.equal(await statusOf(second, ben), 'pending', 'it is confirmed, and waits as long as it must');
  const asked = await verify(second, ben);
  assert.deepEqual([asked.status, asked.body.status], [200, 'pending']);
  assert.deepEqual(await sendIn(address), [first.id]);

  assert.equal((await call('DELETE', `/identities/${first.id}`, { as: anna })).status, 204);
  assert.equal(await statusOf(second, ben), 'verified');
  assert.equal((await find(third)).status, 'unverified');
  assert.deepEqual(await sendIn(address), [second.id]);
  const lines = service.logged.filter(({ identityId, to }) => identityId === second.id && to);
  assert.deepEqual(
    lines.map(({ from, to }) => [from, to]),
    [
      ['unverified', 'pending'],
      ['pending', 'verified'],
    ],
  );
});

test('the page tells nobody that someone else has the address', async () => {
  const address = newAddress();
  const free = await press(await askForLink(await add(address, {}, anna), anna));
  const taken = await press(await askForLink(await add(address, {}, ben), ben));
  assert.deepEqual([free.status, free.text], [taken.status, taken.text]);
});

test('of several confirmations at the same moment exactly one is verified', async () => {
  for (let round = 0; round < 5; round += 1) {
    const address = newAddress();
    const owners = await Promise.all([anna, ben, service.makeUser(), service.makeUser()]);
    const claims = await Promise.all(owners.map((owner) => add(address, {}, owner)));
    const links: string[] = [];
    for (const [n, claim] of claims.entries()) links.push(await askForLink(claim, owners[n]));
    // Each button twice: a link works once.
    const answers = await Promise.all([...links, ...links].map(press));
    assert.deepEqual(answers.map(({ status }) => status).sort(), [200, 200, 200, 200, 404, 404, 404, 404]);
    const statuses = (await Promise.all(claims.map(find))).map(({ status }) => status);
    assert.deepEqual(statuses.sort(), ['pending', 'pending', 'pending', 'verified']);
  }
});

test('the former employee: when another owner proves the domain, the address is failed and gets no mail', async () => {
  const address = newAddress();
  const domain = domainOf(address);
  const kept = await addConfirmed(address, anna);
  const colleague = await service.makeUser();
  const waiting = await add(address, {}, colleague);
  assert.equal((await press(await askForLink(waiting, colleague))).status, 200);
  const elsewhere = await addConfirmed(newAddress(), anna);
  assert.deepEqual(await sendIn(address), [kept.id], 'its route is remembered');

  const company = await add(domain, { incoming_domain: true }, ben);
  const own = await add(address, {}, ben);
  await publish(domain, [company], { mx: true });
  assert.equal(await statusAfterCheck(company, ben), 'verified');
  assert.deepEqual([await statusOf(kept, anna), await statusOf(own, ben)], ['failed', 'verified']);
  assert.equal((await find(waiting)).status, 'failed');
  assert.equal(await statusOf(elsewhere, anna), 'verified');
  assert.deepEqual(await sendIn(address), [own.id]);
  const rows = await sql`
    select distinct xmin::text from identities where id = any (${[kept.id, waiting.id, company.id, own.id]}::uuid[])`;
  assert.equal(rows.length, 1, 'in one transaction');
  const told = service.logged.filter(({ identityId, to }) => identityId === kept.id && to === 'failed');
  assert.deepEqual(
    told.map(({ from, ownerId }) => [from, ownerId]),
    [['verified', anna.userId]],
  );

  // The mail is still read by the former employee, who presses the button once more.
  confirming.makeDestination(domain);
  const again = await askForLink(kept, anna);
  assert.equal((await press(again)).status, 409);
  assert.equal(await statusOf(kept, anna), 'pending');
  assert.deepEqual(await sendIn(address), [own.id]);

  // Nor does it help that the address of the company is deleted: its domain gets the mail.
  assert.equal((await call('DELETE', `/identities/${own.id}`, { as: ben })).status, 204);
  assert.deepEqual(await sendIn(address), [company.id]);

  // When the company has gone, the link is still good.
  assert.equal((await call('DELETE', `/identities/${company.id}`, { as: ben })).status, 204);
  assert.equal((await find(kept)).status, 'unverified');
  assert.equal((await press(again)).status, 200);
  assert.equal(await statusOf(kept, anna), 'verified');
});

test('a takeover of the domain fails what the former holder confirmed there', async () => {
  const address = newAddress();
  const domain = domainOf(address);
  const kept = await addConfirmed(address, anna);
  const theirs = await add(domain, {}, anna);
  await publish(domain, [theirs]);
  assert.equal(await statusAfterCheck(theirs, anna), 'verified');
  const mine = await add(domain, {}, ben);
  await publish(domain, [mine]);
  assert.equal(await statusOnceConfirmed(mine, ben), 'verified');
  assert.deepEqual([await statusOf(theirs, anna), await statusOf(kept, anna)], ['failed', 'failed']);
});

test('a confirmation and the proof of the domain at the same moment: the domain wins, whoever is first', async () => {
  for (let round = 0; round < 8; round += 1) {
    const address = newAddress();
    const domain = domainOf(address);
    const kept = await add(address, {}, anna);
    const company = await add(domain, {}, ben);
    const own = await add(address, {}, ben);
    const link = await askForLink(kept, anna);
    await publish(domain, [company]);
    const [pressed, proven] = await Promise.all([press(link), verify(company, ben)]);
    assert.ok([200, 409].includes(pressed.status), pressed.text);
    assert.equal(proven.body.status, 'verified');
    assert.equal((await find(own)).status, 'verified');
    assert.notEqual((await find(kept)).status, 'verified');
    assert.deepEqual(await sendIn(address), [own.id]);
  }
});

test('the holder is deleted while others confirm: in the end one owner is verified', async () => {
  for (let round = 0; round < 8; round += 1) {
    const address = newAddress();
    const holder = await addConfirmed(address, anna);
    const claim = await add(address, {}, ben);
    const link = await askForLink(claim, ben);
    const [gone, pressed] = await Promise.all([
      call('DELETE', `/identities/${holder.id}`, { as: anna }),
      press(link),
    ]);
    assert.deepEqual([gone.status, pressed.status], [204, 200]);
    await waitFor('the claim', async () => (await find(claim)).status === 'verified');
  }
});

test("nobody confirms with another owner's identity, and no one else sees the claim", async () => {
  const identity = await add(newAddress(), {}, anna);
  const refused = await verify(identity, ben);
  assert.equal(refused.status, 404);
});
