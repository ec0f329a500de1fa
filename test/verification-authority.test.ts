/**
 * One rightful owner where a domain's own name servers are asked, which need not agree: several of them, at public addresses
 * that lead to ports of this machine. Nothing is checked but when asked.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, beforeEach, test } from 'node:test';
import { makeLookup } from '../src/identities/lookup.ts';
import { checkDomain, makeVerifyParts } from '../src/identities/verify.ts';
import { makeLog } from '../src/lib/log.ts';
import { makeSealer } from '../src/lib/secrets.ts';
import type { Identity } from '../src/store/identities.ts';
import { findDomainIdentity } from '../src/store/verification.ts';
import { type DnsServer, startDns } from './dns.ts';
import { mailHost, newDomain, startProving, withoutLoop } from './proving.ts';

const { service, add, find, record, age } = await startProving(withoutLoop);
const { sql } = service;
const claimant = await service.makeUser();

const [system, ...servers] = await Promise.all(Array.from({ length: 4 }, () => startDns()));
const [first, second, third] = servers as [DnsServer, DnsServer, DnsServer];
assert.ok(system);
after(() => Promise.all([system, ...servers].map((server) => server.close())));

const parts = makeVerifyParts({
  ...{ sql, mailHost, sealer: makeSealer([randomBytes(32)]), log: makeLog({ level: 'fatal', json: true }) },
  lookup: makeLookup({
    ...{ dnsServers: null, resolvers: [system.address] },
    serverAt: (address) => servers[Number(address.split('.').at(-1))]?.address ?? null,
  }),
});

async function check({ owner_id, id }: Identity): Promise<string> {
  const identity = await findDomainIdentity(sql, owner_id, id);
  assert.ok(identity);
  await checkDomain(parts, identity, { requested: false, signal: new AbortController().signal });
  return (await find({ id })).status;
}

let domain: string;
let theirs: Identity;
let mine: Identity;

/** The tokens of these, and no others, on some of the servers. */
async function publish(owners: readonly Identity[], ...on: DnsServer[]): Promise<void> {
  const records = await Promise.all(owners.map((owner) => record(owner, 'ownership')));
  for (const server of on) server.answer(`_posthorn.${domain}`, { TXT: records.map(({ value }) => value) });
}

beforeEach(async () => {
  domain = newDomain();
  for (const server of [system, ...servers]) server.reset();
  const names = servers.map((_, n) => `ns${n}.host.example`);
  system.answerType(domain, 'NS', { NS: names });
  for (const [n, name] of names.entries()) system.answer(name, { A: [`8.8.8.${n}`] });
  for (const server of servers) server.answerType(domain, 'SOA', { SOA: ['7'] });
  theirs = await add(domain);
  mine = await add(domain, {}, claimant);
  await publish([theirs], ...servers);
  assert.equal(await check(theirs), 'verified');
});

test('a takeover: when the last of the servers agrees, and a minute later still does', async () => {
  const noteAfterCheck = async () => {
    assert.equal(await check(mine), 'pending');
    await age(mine, 1 / 60);
    return (await record(mine, 'ownership')).note ?? '';
  };
  // As a change spreads: the primary has it first, with a higher serial.
  for (const server of [first, second]) {
    server.answerType(domain, 'SOA', { SOA: ['8'] });
    await publish([mine], server);
    assert.match(
      await noteAfterCheck(),
      /remove the ownership record of that user, .* from every name server/,
    );
    assert.match(
      await noteAfterCheck(),
      /remove the ownership record of that user/,
      'however often it is checked',
    );
  }
  await publish([], third);
  assert.match(await noteAfterCheck(), /some name servers do not have your ownership record yet/);
  await publish([mine], third);
  assert.match(await noteAfterCheck(), /becomes yours if a check after/);
  assert.equal((await find(theirs)).status, 'verified');
  assert.equal(await check(mine), 'verified');
  assert.equal((await find(theirs)).status, 'failed');
});

test('one server in other hands, fresher than all, takes nothing: not at once, nor by way of a grace', async () => {
  first.answerType(domain, 'SOA', { SOA: ['99'] });
  await publish([mine], first);
  for (const hours of [0, 1, 73, 73]) {
    await age(theirs, hours);
    assert.equal(await check(theirs), 'verified');
    const { status, note, graceUntil } = await record(theirs, 'ownership');
    assert.deepEqual([status, graceUntil], ['unknown', undefined]);
    assert.match(note ?? '', /some name servers do not have this record; update those name servers\./);
    await age(mine, 1 / 60);
    assert.equal(await check(mine), 'pending');
  }
});

test("an owner's check that finds the token on one server stops a takeover", async () => {
  await publish([mine], ...servers);
  assert.equal(await check(mine), 'pending');
  await publish([theirs, mine], third);
  first.answerType(domain, 'SOA', { SOA: ['8'] });
  assert.equal(await check(theirs), 'verified');
  await publish([mine], third);
  await age(mine, 1 / 60);
  assert.equal(await check(mine), 'pending', 'the minute begins anew');
});

test('a grace that runs neither ends nor fails while one server has the token', async () => {
  await publish([], ...servers);
  assert.equal(await check(theirs), 'verified');
  const { graceUntil } = await record(theirs, 'ownership');
  assert.ok(graceUntil);
  first.answerType(domain, 'SOA', { SOA: ['8'] });
  await publish([theirs], third);
  assert.equal(await check(theirs), 'verified');
  assert.equal((await record(theirs, 'ownership')).graceUntil, graceUntil);
  await age(theirs, 73);
  assert.equal(await check(theirs), 'verified');
  await publish([], third);
  assert.equal(await check(theirs), 'failed');
});

test('every server is asked only by who has something to gain or to lose', async () => {
  const countAsked = async (who: Identity, standing: Identity[]) => {
    for (const server of servers) {
      server.reset();
      server.answerType(domain, 'SOA', { SOA: ['7'] });
    }
    await publish(standing, ...servers);
    await check(who);
    return servers.filter((server) => server.count(`_posthorn.${domain}`, 'TXT') > 0).length;
  };
  assert.equal(await countAsked(mine, [theirs]), 1, 'not by a claimant without a token');
  assert.equal(await countAsked(theirs, [theirs]), 1, 'not by an owner whose token is found');
  assert.equal(await countAsked(mine, [theirs, mine]), 3, 'by a claimant whose token is found');
  assert.equal(await countAsked(theirs, []), 3, 'by an owner whose token is gone');
});
