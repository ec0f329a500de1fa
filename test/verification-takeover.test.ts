/** One rightful owner: who gets a domain that another holds, and who does not. Nothing is checked but when asked. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import type { Identity } from '../src/store/identities.ts';
import { startDns } from './dns.ts';
import { startTestService, type TestUser } from './harness.ts';
import { mailHost, newDomain, startProving, withoutLoop } from './proving.ts';

const proving = await startProving(withoutLoop);
const { service, dns, add, find, record, publish, statusAfterCheck, statusOnceConfirmed, age, send } =
  proving;
const { user: owner, sql } = service;
const claimant = await service.makeUser();

interface Contest {
  domain: string;
  theirs: Identity;
  mine: Identity;
}

/** One holds it verified, another claims it. */
async function contest(more: Record<string, unknown> = { incoming_domain: true }): Promise<Contest> {
  const domain = newDomain();
  const theirs = await add(domain, more, owner);
  await publish(domain, [theirs], { mx: true });
  assert.equal(await statusAfterCheck(theirs, owner), 'verified');
  return { domain, theirs, mine: await add(domain, more, claimant) };
}

async function standings({ theirs, mine }: Contest): Promise<[string, string]> {
  return [(await find(theirs)).status, (await find(mine)).status];
}

test("while the holder's token stands the claimant is pending, and told what to do", async () => {
  const one = await contest();
  await publish(one.domain, [one.theirs, one.mine], { mx: true });
  assert.equal(await statusAfterCheck(one.mine, claimant), 'pending');
  assert.deepEqual(await standings(one), ['verified', 'pending']);
  const { note, status } = await record(one.mine, 'ownership');
  assert.equal(status, 'valid');
  assert.match(
    note ?? '',
    /Another user is verified for this domain\. To take the domain over, remove the ownership record of that user/,
  );
  assert.deepEqual(await send(`a@${one.domain}`), [one.theirs.id]);
});

test("what could not be seen of the holder's token never counts as gone", async () => {
  const one = await contest();
  const { value } = await record(one.theirs, 'ownership');
  const { value: own } = await record(one.mine, 'ownership');
  for (const damaged of [value.toUpperCase(), `"${value}"`, `${value} `.slice(22), `x${value}`]) {
    dns.answer(`_posthorn.${one.domain}`, { TXT: [own, damaged] });
    assert.equal(await statusAfterCheck(one.mine, claimant), 'pending', damaged);
    assert.equal((await find(one.theirs)).status, 'verified', damaged);
  }
  for (const outage of ['SERVFAIL', 'REFUSED', 'NOTAUTH'] as const) {
    dns.answer(`_posthorn.${one.domain}`, outage);
    assert.notEqual(await statusAfterCheck(one.mine, claimant), 'verified', outage);
    assert.equal((await find(one.theirs)).status, 'verified', outage);
  }
  assert.deepEqual(await send(`a@${one.domain}`), [one.theirs.id]);
});

test('an MX alone proves nothing, nor does a token that is not the own', async () => {
  const domain = newDomain();
  const first = await add(domain, { incoming_domain: true }, owner);
  const second = await add(domain, { incoming_domain: true }, claimant);
  dns.answerType(domain, 'MX', { MX: [`10 ${mailHost}`] });
  assert.equal(await statusAfterCheck(second, claimant), 'pending');
  await publish(domain, [first], { mx: true });
  assert.equal(await statusAfterCheck(second, claimant), 'pending');
  assert.match((await record(second, 'ownership')).note ?? '', /token of another identity/);
  assert.equal(await send(`a@${domain}`), '550 5.1.1');
});

test("a claimant without the own token takes nothing, though the owner's is gone", async () => {
  const one = await contest();
  await publish(one.domain, [], { mx: true });
  assert.equal(await statusAfterCheck(one.mine, claimant), 'pending', 'the MX stands');
  assert.equal((await find(one.theirs)).status, 'verified');
});

test('a claimant whose MX is missing takes nothing yet', async () => {
  const one = await contest();
  await publish(one.domain, [one.mine]);
  assert.equal(await statusAfterCheck(one.mine, claimant), 'pending');
  assert.deepEqual(await standings(one), ['verified', 'pending']);
});

describe("the own token stands and the owner's is gone", () => {
  test('the claimant is verified, the former failed with the reason, addresses and mail follow at once', async () => {
    const one = await contest();
    const address = `Sales@${one.domain}`;
    const former = await add(address, {}, owner);
    const own = await add(address, {}, claimant);
    assert.deepEqual([former.status, own.status], ['verified', 'unverified']);
    assert.deepEqual(await send(address), [former.id]);
    assert.deepEqual(await send(`other@${one.domain}`), [one.theirs.id]);

    await publish(one.domain, [one.mine], { mx: true });
    assert.equal(await statusOnceConfirmed(one.mine, claimant), 'verified');
    assert.deepEqual(await standings(one), ['failed', 'verified']);
    assert.deepEqual(await send(address), [own.id]);
    assert.deepEqual(await send(`other@${one.domain}`), [one.mine.id]);
    assert.deepEqual([(await find(former)).status, (await find(own)).status], ['failed', 'verified']);
    const { note, status } = await record(one.theirs, 'ownership');
    assert.equal(status, 'mismatch', 'the own token stands in its place');
    assert.match(note ?? '', /Another user took over the domain/);

    // In one transaction: both rows were written by the same.
    const rows = await sql`
      select distinct xmin::text from identities where id = any (${[one.theirs.id, one.mine.id]}::uuid[])`;
    assert.equal(rows.length, 1);
    const told = service.logged.filter(
      ({ to, identityId }) => to === 'failed' && identityId === one.theirs.id,
    );
    assert.equal(told.length, 1);
    assert.equal(told[0]?.ownerId, owner.userId);
    assert.match(String(told[0]?.msg), /Another user took over the domain/);
  });

  test('a message under way goes to the new owner', async () => {
    const one = await contest();
    assert.deepEqual(await send(`a@${one.domain}`), [one.theirs.id], 'remembered for a second');
    await publish(one.domain, [one.mine], { mx: true });
    await statusOnceConfirmed(one.mine, claimant);
    assert.deepEqual(await send(`a@${one.domain}`), [one.mine.id]);
  });

  test('the former holder may win it back the same way, and does not by asking', async () => {
    const one = await contest();
    await publish(one.domain, [one.mine], { mx: true });
    await statusOnceConfirmed(one.mine, claimant);
    assert.equal(await statusAfterCheck(one.theirs, owner), 'pending', 'begins anew; the MX stands');
    assert.deepEqual(await standings(one), ['pending', 'verified']);
    await publish(one.domain, [one.theirs], { mx: true });
    assert.equal(await statusOnceConfirmed(one.theirs, owner), 'verified');
    assert.deepEqual(await standings(one), ['verified', 'failed']);
  });

  test('an owner in grace is taken over before the grace ends', async () => {
    const one = await contest();
    await publish(one.domain, [], { mx: true });
    assert.equal(await statusAfterCheck(one.theirs, owner), 'verified');
    assert.ok((await record(one.theirs, 'ownership')).graceUntil);
    await publish(one.domain, [one.mine], { mx: true });
    assert.equal(await statusOnceConfirmed(one.mine, claimant), 'verified');
    assert.deepEqual(await standings(one), ['failed', 'verified']);
    assert.equal((await record(one.theirs, 'ownership')).graceUntil, undefined);
  });

  test('not by one check: it waits for a second, at least a minute later, and says so', async () => {
    const one = await contest();
    await publish(one.domain, [one.mine], { mx: true });
    for (let n = 0; n < 3; n += 1) assert.equal(await statusAfterCheck(one.mine, claimant), 'pending');
    const { status, note } = await record(one.mine, 'ownership');
    assert.equal(status, 'valid');
    const [, from = ''] =
      /becomes yours if a check after (\S+) finds the same on every/.exec(note ?? '') ?? [];
    const [row] = await sql<{ since: Date; wait: number }[]>`
      select takeover_since as since, extract(epoch from next_check_at - takeover_since)::float8 as wait
      from identities where id = ${one.mine.id}`;
    assert.ok(row);
    assert.equal(Date.parse(from) - row.since.getTime(), 60_000, 'from the first check on');
    assert.ok(row.wait > 60 && row.wait < 75, `made by itself, ${row.wait} s after the first`);
    assert.deepEqual(await standings(one), ['verified', 'pending']);
    assert.deepEqual(await send(`a@${one.domain}`), [one.theirs.id]);
    await age(one.mine, 1 / 60);
    assert.equal(await statusAfterCheck(one.mine, claimant), 'verified');
  });

  test('what stands in between is believed: the minute begins anew', async () => {
    const one = await contest();
    const begin = async () => {
      await publish(one.domain, [one.mine], { mx: true });
      assert.equal(await statusAfterCheck(one.mine, claimant), 'pending');
      await age(one.mine, 1 / 60);
    };
    const goBack: [string, () => Promise<unknown>][] = [
      ["the holder's token is back", () => publish(one.domain, [one.theirs, one.mine], { mx: true })],
      ['the own is gone', () => publish(one.domain, [], { mx: true })],
      ['nothing can be seen', async () => dns.answer(`_posthorn.${one.domain}`, 'SERVFAIL')],
    ];
    for (const [what, change] of goBack) {
      await sql`update identities set check_allowance = 10 where id = ${one.mine.id}`;
      await begin();
      await change();
      assert.notEqual(await statusAfterCheck(one.mine, claimant), 'verified', what);
      await publish(one.domain, [one.mine], { mx: true });
      assert.notEqual(await statusAfterCheck(one.mine, claimant), 'verified', what);
    }
    // So does the owner's own check, when it finds the token.
    await begin();
    await publish(one.domain, [one.theirs], { mx: true });
    assert.equal(await statusAfterCheck(one.theirs, owner), 'verified');
    await publish(one.domain, [one.mine], { mx: true });
    assert.notEqual(await statusAfterCheck(one.mine, claimant), 'verified');
    assert.equal((await find(one.theirs)).status, 'verified');
  });

  test('an owner who came since is another owner: the minute begins anew', async () => {
    const one = await contest();
    const third = await service.makeUser();
    const late = await add(one.domain, { incoming_domain: true }, third);
    await publish(one.domain, [one.mine, late], { mx: true });
    assert.equal(await statusAfterCheck(one.mine, claimant), 'pending');
    assert.equal(await statusOnceConfirmed(late, third), 'verified');
    await publish(one.domain, [one.mine], { mx: true });
    await age(one.mine, 1);
    assert.equal(await statusAfterCheck(one.mine, claimant), 'pending');
    assert.equal((await find(late)).status, 'verified');
    await age(one.mine, 1 / 60);
    assert.equal(await statusAfterCheck(one.mine, claimant), 'verified');
  });
});

test('of several servers every one that answers has to agree', async () => {
  const beside = await startDns();
  const settings = { ...withoutLoop, DATABASE_URL: service.databaseUrl };
  const both = await startTestService({
    ...settings,
    POSTHORN_DNS_SERVERS: `${dns.address},${beside.address}`,
  });
  after(async () => {
    await both.stop();
    await beside.close();
  });
  const one = await contest({});
  await publish(one.domain, [one.mine]);
  const [own, other] = [await record(one.mine, 'ownership'), await record(one.theirs, 'ownership')];
  const name = `_posthorn.${one.domain}`;
  const noteAfterCheck = async () => {
    const answer = await both.call('POST', `/identities/${one.mine.id}/verify`, { as: claimant });
    assert.equal(answer.status, 200, answer.text);
    await age(one.mine, 1 / 60);
    return `${answer.body.status}: ${JSON.parse(answer.body.dns_records)[0].note}`;
  };
  for (const [texts, note] of [
    [[other.value], /^pending: .*remove the ownership record of that user/],
    [[own.value, other.value], /^pending: .*remove the ownership record of that user/],
    [[own.value, `"${other.value}"`], /^pending: .*could not be checked whether/],
    [['v=spf1 -all'], /^pending: .*some name servers do not have your ownership record yet/],
  ] as const) {
    beside.answer(name, { TXT: texts });
    assert.match(await noteAfterCheck(), note);
    assert.match(await noteAfterCheck(), note);
  }
  assert.equal((await find(one.theirs)).status, 'verified');
  beside.answer(name, 'SERVFAIL');
  assert.match(await noteAfterCheck(), /^pending: .*becomes yours if a check after/);
  beside.answer(name, { TXT: [own.value] });
  assert.match(await noteAfterCheck(), /^verified: /);
  assert.equal((await find(one.theirs)).status, 'failed');
});

describe('parents and their subdomains', () => {
  async function verified(value: string, as: TestUser): Promise<Identity> {
    const made = await add(value, { incoming_domain: true }, as);
    await publish(value, [made], { mx: true });
    assert.equal(await statusAfterCheck(made, as), 'verified');
    return made;
  }

  test("the parent's owner does not get a subdomain's mail", async () => {
    const parent = newDomain();
    const up = await verified(parent, owner);
    assert.equal(await send(`a@sub.${parent}`), '550 5.1.1', 'nobody has it');
    const down = await verified(`sub.${parent}`, claimant);
    assert.deepEqual(await send(`a@sub.${parent}`), [down.id]);
    assert.deepEqual(await send(`a@${parent}`), [up.id]);
    // Nor by an address of the subdomain, which has no proof of its own.
    const squat = await add(`a@sub.${parent}`, {}, owner);
    assert.deepEqual([squat.status, squat.domain_identity_id], ['unverified', null]);
    assert.deepEqual(await send(`a@sub.${parent}`), [down.id]);
  });

  test("the parent's token does not prove a subdomain", async () => {
    const parent = newDomain();
    const up = await verified(parent, owner);
    const down = await add(`sub.${parent}`, {}, owner);
    dns.answer(`_posthorn.${parent}`, { TXT: [(await record(up, 'ownership')).value] });
    assert.equal(await statusAfterCheck(down, owner), 'unverified');
  });

  test('an address that another holds verified keeps its mail when the domain is taken', async () => {
    const domain = newDomain();
    const address = await add(`a@${domain}`, {}, claimant);
    await sql`update identities set status = 'verified' where id = ${address.id}`;
    const all = await verified(domain, owner);
    assert.deepEqual(await send(`a@${domain}`), [address.id]);
    assert.deepEqual(await send(`b@${domain}`), [all.id]);
  });
});
