/** A check that is under way shows as `pending`, to who reads and to who filters, and leaves nothing behind when it ends. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import { makeLookup } from '../src/identities/lookup.ts';
import { makeVerifyParts, startVerification } from '../src/identities/verify.ts';
import { makeLog } from '../src/lib/log.ts';
import { makeSealer } from '../src/lib/secrets.ts';
import type { Identity } from '../src/store/identities.ts';
import { waitFor } from './harness.ts';
import { mailHost, newDomain, startProving, withoutLoop } from './proving.ts';

const proving = await startProving(withoutLoop);
const { service, dns, add, find, record, publish, verify, statusAfterCheck } = proving;
const { call, sql, user } = service;

const parts = makeVerifyParts({
  ...{ sql, mailHost, sealer: makeSealer([randomBytes(32)]), log: makeLog({ level: 'fatal', json: true }) },
  lookup: makeLookup({ dnsServers: [dns.address], serverAt: () => null }),
});

function startLoop() {
  const loop = startVerification(parts);
  after(() => loop.stop());
  return loop;
}

async function shown({ id }: Identity): Promise<string> {
  const { status, body, text } = await call('GET', `/identities/${id}`);
  assert.equal(status, 200, text);
  return body.status;
}

async function listed(status: string, value: string): Promise<string[]> {
  const { body } = await call('GET', `/identities?status=${status}&value=${encodeURIComponent(value)}`);
  return body.map((one: Identity) => one.status);
}

/** From here on, questions for its ownership record wait for an answer, which `publish` gives. */
async function holdUp(domain: string): Promise<{ asked: () => Promise<unknown> }> {
  const name = `_posthorn.${domain}`;
  dns.answer(name, 'DROP');
  const before = dns.count(name);
  return { asked: () => waitFor('the question', () => dns.count(name) > before) };
}

async function fail({ id }: Identity): Promise<void> {
  await sql`update identities set status = 'failed', next_check_at = null where id = ${id}`;
}

test('one that is not proven is pending while a check waits for DNS, and then what the check says', async () => {
  const domain = newDomain();
  const made = await add(domain);
  const address = await add(`Ada@${domain}`);
  const before = [await find(made), await find(address)];
  const { asked } = await holdUp(domain);
  const answer = verify(made);
  await asked();
  for (const one of [made, address]) {
    assert.equal(await shown(one), 'pending');
    assert.deepEqual(await listed('pending', one.value), ['pending']);
    assert.deepEqual(await listed('unverified', one.value), []);
  }
  assert.deepEqual(
    [await find(made), await find(address)].map(({ updated_at }) => updated_at),
    before.map(({ updated_at }) => updated_at),
  );
  // An address that is made meanwhile is as the others are, then and afterwards.
  const late = await add(`late@${domain}`);
  assert.equal(late.status, 'pending');
  const patched = await call('PATCH', `/identities/${made.id}`, { body: { meta: { a: 1 } } });
  assert.equal(patched.body.status, 'pending');

  await publish(domain, [made]);
  const { status } = (await answer).body;
  // On a slow machine the check gave up before the records were published.
  assert.equal(status === 'verified' ? status : (await verify(made)).body.status, 'verified');
  for (const one of [made, address, late]) {
    assert.equal(await shown(one), 'verified');
    assert.deepEqual(await listed('pending', one.value), []);
  }
});

test('a check that finds nothing leaves it unverified again', async () => {
  const domain = newDomain();
  const made = await add(domain);
  const { asked } = await holdUp(domain);
  const answer = verify(made);
  await asked();
  assert.equal(await shown(made), 'pending');
  await publish(domain, []);
  assert.equal((await answer).body.status, 'unverified');
  assert.equal(await shown(made), 'unverified');
  assert.deepEqual(await listed('unverified', domain), ['unverified']);
});

test('a failed one that a person starts again is pending until it is judged', async () => {
  const domain = newDomain();
  const made = await add(domain);
  await fail(made);
  const { asked } = await holdUp(domain);
  const answer = verify(made);
  await asked();
  assert.equal(await shown(made), 'pending');
  assert.deepEqual(await listed('failed', domain), []);
  await publish(domain, [made]);
  assert.equal((await answer).body.status, 'verified');
});

test('a verified one stays verified, and so does its mail', async () => {
  const domain = newDomain();
  const made = await add(domain, { incoming_domain: true });
  await publish(domain, [made], { mx: true });
  assert.equal(await statusAfterCheck(made), 'verified');
  const { asked } = await holdUp(domain);
  const answer = verify(made);
  await asked();
  assert.equal(await shown(made), 'verified');
  assert.deepEqual(await listed('verified', domain), ['verified']);
  assert.deepEqual(await proving.send(`a@${domain}`), [made.id]);
  await publish(domain, [made], { mx: true });
  assert.equal((await answer).body.status, 'verified');
});

test('a check by itself shows for an unverified one, and not for one that failed', async () => {
  const [fresh, failed] = [await add(newDomain()), await add(newDomain())];
  await fail(failed);
  const waits = [await holdUp(fresh.value), await holdUp(failed.value)];
  await sql`update identities set next_check_at = now() where id = any (${[fresh.id, failed.id]}::uuid[])`;
  const loop = startLoop();
  for (const { asked } of waits) await asked();
  assert.deepEqual([await shown(fresh), await shown(failed)], ['pending', 'failed']);
  for (const one of [fresh, failed]) await publish(one.value, []);
  await waitFor('both checks', async () =>
    (await Promise.all([fresh, failed].map((one) => record(one, 'ownership')))).every(
      ({ checkedAt }) => checkedAt,
    ),
  );
  await loop.stop();
  assert.deepEqual([await shown(fresh), await shown(failed)], ['unverified', 'failed']);
});

test('when the caller goes, or the service stops, it is what it was', async () => {
  const domain = newDomain();
  const made = await add(domain);
  const first = await holdUp(domain);
  const going = new AbortController();
  const given = fetch(`${service.url}/identities/${made.id}/verify`, {
    method: 'POST',
    headers: { authorization: `Bearer ${user.apiKey}` },
    signal: going.signal,
  });
  await first.asked();
  assert.equal(await shown(made), 'pending');
  going.abort();
  await assert.rejects(given);
  await waitFor('the check to be given up', async () => (await shown(made)) === 'unverified');

  const second = await holdUp(domain);
  await sql`update identities set next_check_at = now() where id = ${made.id}`;
  const loop = startLoop();
  await second.asked();
  assert.equal(await shown(made), 'pending');
  await loop.stop();
  assert.equal(await shown(made), 'unverified');
});

test('of a check that is lost with its process nothing shows after two minutes, whoever began it', async () => {
  const [asked, due] = [await add(newDomain()), await add(newDomain())];
  const waits = [await holdUp(asked.value), await holdUp(due.value)];
  const answer = verify(asked);
  await sql`update identities set next_check_at = now() where id = ${due.id}`;
  const loop = startLoop();
  for (const wait of waits) await wait.asked();
  for (const one of [asked, due]) {
    const [row] = await sql<{ left: number }[]>`
      select extract(epoch from pending_until - now())::float8 as left from identities where id = ${one.id}`;
    assert.ok(row && row.left > 100 && row.left <= 120, `pending for ${row?.left} s more`);
    assert.equal(await shown(one), 'pending');
    await sql`update identities set pending_until = pending_until - interval '2 minutes' where id = ${one.id}`;
    assert.equal(await shown(one), 'unverified');
    await publish(one.value, []);
  }
  assert.equal((await answer).status, 200);
  await loop.stop();
});
