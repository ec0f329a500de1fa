/** Owners race for one domain from many processes: never do two hold it, whatever stands in DNS, and no call fails. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import fc from 'fast-check';
import { connect, transaction } from '../src/db/client.ts';
import { makeLookup } from '../src/identities/lookup.ts';
import { checkDomain, makeVerifyParts, type VerifyParts } from '../src/identities/verify.ts';
import { newId } from '../src/lib/ids.ts';
import { makeLog } from '../src/lib/log.ts';
import { makeSealer } from '../src/lib/secrets.ts';
import { createIdentity } from '../src/store/identities.ts';
import { type DomainIdentity, findDomainIdentity, lockDomain } from '../src/store/verification.ts';
import { startTestService, type TestUser } from './harness.ts';
import { newDomain, startProving, withoutLoop } from './proving.ts';

const proving = await startProving(withoutLoop);
const { service, dns } = proving;
const { sql } = service;
const beside = await startTestService({
  ...withoutLoop,
  DATABASE_URL: service.databaseUrl,
  POSTHORN_DNS_SERVERS: dns.address,
});
after(() => beside.stop());
const owners: TestUser[] = [service.user];
while (owners.length < 5) owners.push(await service.makeUser());

/** Each as a process of its own would have them. */
const processes: VerifyParts[] = Array.from({ length: 3 }, () => {
  const pool = connect(service.databaseUrl, { max: 4, applicationName: 'posthorn race test' });
  after(() => pool.end());
  return makeVerifyParts({
    sql: pool,
    sealer: makeSealer([randomBytes(32)]),
    lookup: makeLookup({ dnsServers: [dns.address], serverAt: () => null }),
    mailHost: 'mx.posthorn.example',
    log: makeLog({ level: 'fatal', json: true }),
  });
});

/** A claim without the wait for a key, and an address beside it. */
async function addClaimant(domain: string, { userId: ownerId }: TestUser): Promise<DomainIdentity> {
  const common = { domain, incomingDomain: false, providerId: null, smtpAccountId: null, meta: '{}' };
  const id = newId();
  const dkimKey = { selector: 'test', publicKey: 'none', privateKey: Buffer.from('none') };
  const proof = {
    token: randomBytes(12).toString('hex'),
    dnsRecords: 'null',
    dkimKey,
    firstCheckSeconds: 1e6,
  };
  await createIdentity(sql, ownerId, {
    ...common,
    id,
    kind: 'domain',
    value: domain,
    valueKey: domain,
    proof,
  });
  const address = `a@${domain}`;
  await createIdentity(sql, ownerId, {
    ...common,
    ...{ id: newId(), kind: 'email', value: address, valueKey: address, proof: null },
  });
  return (await findDomainIdentity(sql, ownerId, id)) ?? assert.fail();
}

interface Standing {
  owner: string;
  kind: string;
  status: string;
}

async function findOwner(domain: string): Promise<string | undefined> {
  const rows = await sql<Standing[]>`
    select owner_id as owner, kind, status from identities where domain = ${domain} or value_key = ${domain}`;
  const verified = rows.filter(({ kind, status }) => kind === 'domain' && status === 'verified');
  assert.ok(verified.length <= 1, `${verified.length} identities are verified for ${domain}`);
  for (const { owner, kind, status } of rows) {
    const domainOf = rows.find((row) => row.owner === owner && row.kind === 'domain');
    if (kind === 'email') assert.equal(status, domainOf?.status, 'an address stands as its domain does');
  }
  return verified[0]?.owner;
}

const manners = ['stands', 'absent', 'damaged'] as const;
const step = (count: number) =>
  fc.record({
    /** How each holder's token stands. */
    tokens: fc.array(fc.constantFrom(...manners), { minLength: count, maxLength: count }),
    outage: fc.boolean(),
    /** Who checks, at once, in which process. */
    checks: fc.array(
      fc.record({
        owner: fc.nat({ max: count - 1 }),
        process: fc.nat({ max: processes.length - 1 }),
        asked: fc.boolean(),
      }),
      { minLength: 1, maxLength: 8 },
    ),
  });

function write(claimants: readonly DomainIdentity[], tokens: readonly (typeof manners)[number][]): string[] {
  return claimants.flatMap(({ token }, n) => {
    const value = `posthorn-verification=${token}`;
    if (tokens[n] === 'absent') return [];
    return [tokens[n] === 'stands' ? value : `"${value.toUpperCase()}"`];
  });
}

const never = new AbortController().signal;

async function checkAlone(one: DomainIdentity | undefined): Promise<void> {
  const [parts] = processes;
  if (parts && one) await checkDomain(parts, one, { requested: false, signal: never });
}

for (const count of [2, 5]) {
  test(`${count} owners, whatever stands in DNS: at most one holds it, and only who has a right to`, async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step(count), { minLength: 1, maxLength: 5 }), async (steps) => {
        const domain = newDomain();
        const claimants = await Promise.all(
          owners.slice(0, count).map((owner) => addClaimant(domain, owner)),
        );
        for (const { tokens, outage, checks } of steps) {
          const before = await findOwner(domain);
          dns.answer(`_posthorn.${domain}`, outage ? 'SERVFAIL' : { TXT: write(claimants, tokens) });
          const checkAll = () =>
            Promise.all(
              checks.map(({ owner, process, asked }) => {
                const [parts, one] = [processes[process], claimants[owner]];
                return parts && one && checkDomain(parts, one, { requested: asked, signal: never });
              }),
            );
          // What was seen before belongs to another minute.
          await sql`update identities set takeover_since = null where value_key = ${domain}`;
          const passMinute = () => sql`
            update identities set takeover_since = takeover_since - interval '1 minute' where value_key = ${domain}`;
          await checkAll();
          if (before)
            assert.equal(await findOwner(domain), before, 'no check alone takes it from who has it');
          await passMinute();
          await checkAll();
          // Of checks at the same moment some come too late, and are made again.
          for (let n = 0; n < 2; n += 1) {
            for (const { owner } of checks) await checkAlone(claimants[owner]);
            await passMinute();
          }
          const holder = await findOwner(domain);
          const mannerOf = (ownerId: string) => tokens[claimants.findIndex((one) => one.ownerId === ownerId)];
          const provers = checks
            .filter(({ owner }) => !outage && tokens[owner] === 'stands')
            .map(({ owner }) => claimants[owner]?.ownerId);
          if (holder !== before) assert.ok(provers.includes(holder), 'it goes to who proves it, or stays');
          if (before && (outage || mannerOf(before) !== 'absent'))
            assert.equal(holder, before, 'a holder whose token is not seen to be gone keeps it');
          if (provers.length > 0) assert.ok(holder, 'who proves it has it, unless another does');
          if (provers.length > 0 && before && mannerOf(before) === 'absent')
            assert.notEqual(
              holder,
              before,
              'a holder whose token is gone does not keep it from who proves it',
            );
        }
      }),
      { numRuns: 12 },
    );
  });
}

test('DNS and minutes go by while many check: at most one holds it, and no check fails', async () => {
  let takeovers = 0;
  for (let round = 0; round < 4 || (takeovers < 3 && round < 50); round += 1) {
    const domain = newDomain();
    const claimants = await Promise.all(owners.map((owner) => addClaimant(domain, owner)));
    let over = false;
    let holder: string | undefined;
    const changing = (async () => {
      while (!over) {
        const tokens = claimants.map(() => manners[Math.floor(Math.random() * 2)] ?? 'absent');
        dns.answer(`_posthorn.${domain}`, { TXT: write(claimants, tokens) });
        await transaction(sql, async (sql) => {
          await lockDomain(sql, domain);
          await sql`
            update identities set takeover_since = takeover_since - interval '1 minute' where value_key = ${domain}`;
        });
        const next = await findOwner(domain);
        if (holder && next && next !== holder) takeovers += 1;
        holder = next ?? holder;
      }
    })();
    const checks = claimants.flatMap((one) =>
      processes.map(async (parts) => {
        for (let n = 0; n < 4; n += 1)
          await checkDomain(parts, one, { requested: n % 2 === 0, signal: never });
      }),
    );
    await Promise.all(checks).finally(() => {
      over = true;
    });
    await changing;
  }
  assert.ok(takeovers >= 3, `it was taken over ${takeovers} times, which races with little`);
});

test('over the API of two processes: nobody meets an error, and one has it', async () => {
  for (let round = 0; round < 3; round += 1) {
    const domain = newDomain();
    const made = await Promise.all(owners.map((owner) => proving.add(domain, {}, owner)));
    await proving.publish(domain, made);
    const answers = await Promise.all(
      made.flatMap(({ id }, n) =>
        [service, beside, service, beside].map(({ call }) =>
          call('POST', `/identities/${id}/verify`, { as: owners[n] ?? null }),
        ),
      ),
    );
    for (const { status, text } of answers) assert.equal(status, 200, text);
    assert.ok(await findOwner(domain));
  }
});
