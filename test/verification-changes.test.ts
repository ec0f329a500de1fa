/** What moves `updated_at` and what does not, and what brings an identity's next check forward. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { describe, test } from 'node:test';
import { makeLookup } from '../src/identities/lookup.ts';
import {
  checkDomain,
  makeVerifyParts,
  startVerification,
  type VerifyParts,
} from '../src/identities/verify.ts';
import { makeLog } from '../src/lib/log.ts';
import { makeSealer } from '../src/lib/secrets.ts';
import type { Identity } from '../src/store/identities.ts';
import { findDomainIdentity } from '../src/store/verification.ts';
import { waitFor } from './harness.ts';
import { mailHost, newDomain, startProving, withoutLoop } from './proving.ts';

const proving = await startProving(withoutLoop);
const { service, dns, add, find, record, publish, statusAfterCheck, verify, age } = proving;
const { call, sql } = service;

const lookup = makeLookup({ dnsServers: [dns.address], serverAt: () => null });
const parts = makeVerifyParts({
  ...{ sql, lookup, mailHost, sealer: makeSealer([randomBytes(32)]) },
  log: makeLog({ level: 'fatal', json: true }),
});

async function secondsToNextCheck({ id }: Identity): Promise<number | null> {
  const [row] = await sql<{ wait: number | null }[]>`
    select extract(epoch from next_check_at - now())::float8 as wait from identities where id = ${id}`;
  return row?.wait ?? null;
}

async function updatedAt(identity: { id: string }): Promise<string> {
  return (await find(identity)).updated_at;
}

describe('updated_at', () => {
  test('moves when the status or a record changes, and not by a check that changes nothing', async () => {
    const domain = newDomain();
    const made = await add(domain);
    const address = await add(`a@${domain}`);
    const moves = async (what: string, wanted: { domain: boolean; address: boolean }) => {
      const before = [await updatedAt(made), await updatedAt(address)];
      const { checkedAt } = await record(made, 'ownership');
      await sql`update identities set check_allowance = 10 where id = ${made.id}`;
      assert.equal((await verify(made)).status, 200);
      const after = [await updatedAt(made), await updatedAt(address)];
      assert.notEqual((await record(made, 'ownership')).checkedAt, checkedAt, what);
      assert.equal(before[0] !== after[0], wanted.domain, what);
      assert.equal(before[1] !== after[1], wanted.address, what);
    };
    await moves('the first check: what was not known is missing', { domain: true, address: false });
    await moves('the same', { domain: false, address: false });
    dns.answer(domain, { TXT: ['v=spf1 -all', 'v=spf1 mx -all', 'b', 'a'] });
    await moves('another record found', { domain: true, address: false });
    dns.answer(domain, { TXT: ['a', 'v=spf1 mx -all', 'b', 'v=spf1 -all'] });
    await moves('the same in another order', { domain: false, address: false });
    await publish(domain, [made]);
    await moves('verified', { domain: true, address: true });
    await moves('verified, again', { domain: false, address: false });
    dns.answerAll('SERVFAIL');
    await moves('an outage shows in the records', { domain: true, address: false });
    await moves('and goes on', { domain: false, address: false });
    dns.answerAll(null);
    await moves('and is over', { domain: true, address: false });
    await publish(domain, []);
    await moves('a grace begins', { domain: true, address: false });
    await moves('and goes on', { domain: false, address: false });
    await age(made, 73);
    await moves('failed', { domain: true, address: true });
  });

  test('of the former holder moves in a takeover, and every change is logged with its reason', async () => {
    const domain = newDomain();
    const other = await service.makeUser();
    const [one, two] = [await add(domain), await add(domain, {}, other)];
    await publish(domain, [one]);
    await verify(one);
    const before = await updatedAt(one);
    await publish(domain, [two]);
    assert.equal(await statusAfterCheck(two, other), 'pending');
    assert.equal(await updatedAt(one), before);
    const waiting = await updatedAt(two);
    await verify(two, other);
    assert.equal(await updatedAt(two), waiting, 'the same, still');
    await age(two, 1 / 60);
    assert.equal(await statusAfterCheck(two, other), 'verified');
    assert.notEqual(await updatedAt(one), before);
    const told = service.logged.filter((line) => line.domain === domain && line.to);
    assert.deepEqual(
      told.map(({ identityId, from, to, msg }) => [
        ...[identityId, from, to],
        String(msg)
          .replace(/^.*?: /, '')
          .replace(/\S+Z/, 'then'),
      ]),
      [
        [one.id, 'unverified', 'verified', 'All required records are valid.'],
        [
          ...[two.id, 'unverified', 'pending'],
          'Another user is verified for this domain, but the ownership record of that user was removed. The domain becomes yours if a check after then finds the same on every name server that answers. That check runs by itself.',
        ],
        [
          ...[one.id, 'verified', 'failed'],
          'Another user took over the domain: the ownership record of that user is published, and the ownership record of this identity was removed. To take the domain back, publish this record and remove the other one.',
        ],
        [two.id, 'pending', 'verified', 'All required records are valid.'],
      ],
    );
  });
});

describe('the next check', () => {
  test('follows at once when incoming_domain is changed, and brings the MX in or takes it out', async () => {
    const domain = newDomain();
    const made = await add(domain);
    await publish(domain, [made]);
    assert.equal(await statusAfterCheck(made), 'verified');
    assert.ok(Number(await secondsToNextCheck(made)) > 5 * 3600);
    await call('PATCH', `/identities/${made.id}`, { body: { meta: { a: 1 } } });
    assert.ok(Number(await secondsToNextCheck(made)) > 5 * 3600, 'nothing else is wanted');

    await call('PATCH', `/identities/${made.id}`, { body: { incoming_domain: true } });
    assert.ok(Number(await secondsToNextCheck(made)) <= 0);
    const loop = startVerification(parts);
    await waitFor('a check', async () => Number(await secondsToNextCheck(made)) > 180);
    const mx = await record(made, 'mx');
    assert.deepEqual([mx.status, mx.required], ['missing', true]);
    assert.ok(mx.graceUntil, 'verified, and in grace until the MX stands');
    assert.equal((await find(made)).status, 'verified');

    await call('PATCH', `/identities/${made.id}`, { body: { incoming_domain: false } });
    await waitFor('the MX to go', async () => !(await find(made)).dns_records.includes('"mx"'));
    assert.doesNotMatch((await find(made)).dns_records, /graceUntil/);
    await loop.stop();
  });

  test('of claimants follows at once when a verified domain is deleted', async () => {
    const domain = newDomain();
    const other = await service.makeUser();
    const [owner, claimant, givenUp] = [
      await add(domain),
      await add(domain, {}, other),
      await add(domain, {}, await service.makeUser()),
    ];
    await publish(domain, [owner, claimant]);
    await verify(owner);
    assert.equal(await statusAfterCheck(claimant, other), 'pending');
    await sql`update identities set next_check_at = now() + interval '6 hours' where id = ${claimant.id}`;
    await sql`update identities set next_check_at = null where id = ${givenUp.id}`;
    assert.equal((await call('DELETE', `/identities/${owner.id}`)).status, 204);
    assert.ok(Number(await secondsToNextCheck(claimant)) <= 0);
    assert.ok(Number(await secondsToNextCheck(givenUp)) <= 0, 'also one that was given up');
    const loop = startVerification(parts);
    await waitFor('the claimant to have it', async () => (await find(claimant)).status === 'verified');
    await loop.stop();
  });

  test("of claimants follows at once when the owner's ownership record goes missing, once", async () => {
    const domain = newDomain();
    const other = await service.makeUser();
    const [owner, claimant] = [await add(domain), await add(domain, {}, other)];
    await publish(domain, [owner]);
    await verify(owner);
    const later = () =>
      sql`update identities set next_check_at = now() + interval '6 hours' where id = ${claimant.id}`;
    await later();
    await publish(domain, []);
    await verify(owner);
    assert.ok((await record(owner, 'ownership')).graceUntil);
    assert.ok(Number(await secondsToNextCheck(claimant)) <= 0);
    await later();
    await verify(owner);
    assert.ok(Number(await secondsToNextCheck(claimant)) > 0, 'the grace goes on');
  });

  test('of claimants does not when one that was not verified is deleted', async () => {
    const domain = newDomain();
    const other = await service.makeUser();
    const [one, claimant] = [await add(domain), await add(domain, {}, other)];
    await call('DELETE', `/identities/${one.id}`);
    assert.ok(Number(await secondsToNextCheck(claimant)) > 0);
  });
});

/** Says what it is told, when the test is ready. */
function slowly(change: () => Promise<unknown>): VerifyParts {
  const ask: typeof lookup.ask = async (questions, signal) => {
    const answers = await lookup.ask(questions, signal);
    await change();
    return answers;
  };
  return { ...parts, lookup: { ...lookup, ask } };
}
async function checkWhile(made: Identity, change: () => Promise<unknown>, signal?: AbortSignal) {
  const identity = await findDomainIdentity(sql, made.owner_id, made.id);
  assert.ok(identity);
  const options = { requested: false, signal: signal ?? new AbortController().signal };
  await checkDomain(slowly(change), identity, options);
}

describe('a check that is under way', () => {
  test('while incoming_domain is turned on does not prove it without the MX, and is followed by another', async () => {
    const domain = newDomain();
    const made = await add(domain);
    await publish(domain, [made]);
    await checkWhile(made, () =>
      call('PATCH', `/identities/${made.id}`, { body: { incoming_domain: true } }),
    );
    assert.equal((await find(made)).status, 'pending');
    assert.deepEqual(
      [(await record(made, 'mx')).status, (await record(made, 'mx')).checkedAt],
      ['unknown', null],
    );
    assert.ok(Number(await secondsToNextCheck(made)) <= 0);
  });

  test('while the DKIM key is rotated keeps the new one in sight, and is followed by another', async () => {
    const domain = newDomain();
    const made = await add(domain);
    await publish(domain, [made]);
    await checkWhile(made, () => call('POST', `/identities/${made.id}/dkim/rotate`));
    assert.equal((await find(made)).status, 'verified');
    assert.equal((await find(made)).dns_records.match(/"purpose":"dkim"/g)?.length, 2);
    assert.ok(Number(await secondsToNextCheck(made)) <= 0);
  });

  test('when the service stops, or the caller goes, changes nothing', async () => {
    const domain = newDomain();
    const made = await add(domain);
    await publish(domain, [made]);
    await verify(made);
    const before = await find(made);
    const stopping = new AbortController();
    dns.answer(`_posthorn.${domain}`, 'NXDOMAIN');
    await checkWhile(made, async () => stopping.abort(), stopping.signal);
    assert.deepEqual(await find(made), before);
  });

  test('of an identity that is deleted meanwhile ends in silence', async () => {
    const made = await add(newDomain());
    await checkWhile(made, () => call('DELETE', `/identities/${made.id}`));
    assert.equal((await call('GET', `/identities/${made.id}`)).status, 404);
  });
});

test('one from before there were proofs gets its key and records by itself', async () => {
  const domain = newDomain();
  const made = await add(domain);
  await sql`delete from dkim_keys where identity_id = ${made.id}`;
  await sql`update identities set dns_records = 'null', next_check_at = now() where id = ${made.id}`;
  const loop = startVerification(parts);
  await waitFor('its records', async () => (await find(made)).dns_records.includes('"purpose":"dkim"'));
  await loop.stop();
  assert.equal((await sql`select from dkim_keys where identity_id = ${made.id}`).length, 1);
});

describe('a check that began before another ended', () => {
  /** One whose answers are there, but what comes of them waits for `goOn`; those that follow it do not. */
  async function beginSlowly({ owner_id, id }: Identity, requested = false) {
    const answered = Promise.withResolvers<void>();
    const held = Promise.withResolvers<void>();
    const ask: typeof lookup.ask = async (questions, signal) => {
      const answers = await lookup.ask(questions, signal);
      answered.resolve();
      await held.promise;
      return answers;
    };
    const identity = await findDomainIdentity(sql, owner_id, id);
    assert.ok(identity);
    const options = { requested, signal: new AbortController().signal };
    const checked = checkDomain({ ...parts, lookup: { ...lookup, ask } }, identity, options);
    await answered.promise;
    return {
      goOn: () => {
        held.resolve();
        return checked;
      },
    };
  }
  async function contest() {
    const domain = newDomain();
    const other = await service.makeUser();
    return { domain, other, owner: await add(domain), claimant: await add(domain, {}, other) };
  }

  test("overrules nothing when that one found the holder's token, and is made again", async () => {
    const { domain, owner, claimant } = await contest();
    await publish(domain, [claimant]);
    const late = await beginSlowly(claimant);
    await publish(domain, [owner]);
    assert.equal(await statusAfterCheck(owner), 'verified');
    await late.goOn();
    assert.equal((await find(owner)).status, 'verified');
    assert.equal((await find(claimant)).status, 'unverified');
    assert.ok(Number(await secondsToNextCheck(claimant)) <= 0);
  });

  test("counts when that one saw the holder's token gone as well: who asks often delays nobody", async () => {
    const { domain, other, owner, claimant } = await contest();
    await publish(domain, [owner]);
    assert.equal(await statusAfterCheck(owner), 'verified');
    await publish(domain, [claimant]);
    assert.equal(await statusAfterCheck(claimant, other), 'pending');
    await age(claimant, 1 / 60);
    const first = await beginSlowly(claimant);
    assert.equal(await statusAfterCheck(owner), 'verified');
    await first.goOn();
    assert.deepEqual([(await find(owner)).status, (await find(claimant)).status], ['failed', 'verified']);
  });

  test('is made again at once for who asked, so that one that failed begins anew', async () => {
    const made = await add(newDomain());
    await sql`update identities set status = 'failed', standing_since = now() - interval '1 day' where id = ${made.id}`;
    const late = await beginSlowly(made, true);
    await checkWhile(made, async () => {});
    assert.equal((await find(made)).status, 'failed');
    await late.goOn();
    assert.equal((await find(made)).status, 'unverified');
    const wait = Number(await secondsToNextCheck(made));
    assert.ok(wait > 5 && wait < 12, `checked again in ${wait} s`);
  });
});
