/** Thousands of identities of one owner are due at once: the rate is kept, the others' turn comes, nothing piles up. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { afterEach, test } from 'node:test';
import { newId } from '../src/lib/ids.ts';
import type { Identity } from '../src/store/identities.ts';
import type { TestUser } from './harness.ts';
import { waitFor } from './harness.ts';
import { readHeap } from './memory.ts';
import { newDomain, startProving } from './proving.ts';

const proving = await startProving();
const { service, dns, add, find, publish } = proving;
const { sql } = service;

/** Domains that nobody has, with a key each so that none is made; all due now. */
async function addMany({ userId }: TestUser, count: number): Promise<void> {
  const many = Array.from({ length: count }, () => ({
    id: newId(),
    name: `${randomBytes(6).toString('hex')}.example`,
  }));
  await sql`
    with made as (
      insert into identities (id, owner_id, kind, public_id, value, value_key, next_check_at)
      select id, ${userId}, 'domain', left(md5(name), 10), name, name, now() - random() * interval '1 hour'
      from unnest(${many.map(({ id }) => id)}::uuid[], ${many.map(({ name }) => name)}::text[]) as many (id, name)
      returning id
    )
    insert into dkim_keys (owner_id, identity_id, selector, public_key, private_key)
    select ${userId}, id, 'test', 'none', '' from made`;
}

/** The domains that were checked, in the order in which each was first. */
function checks(): string[] {
  const ownership = dns.questions.filter(({ name, type }) => type === 'TXT' && name.startsWith('_posthorn.'));
  return [...new Set(ownership.map(({ name }) => name.slice('_posthorn.'.length)))];
}

/** Makes an identity due, and gives how many others were checked before it was. */
async function countAhead(identity: Identity): Promise<number> {
  await sql`update identities set next_check_at = now() where id = ${identity.id}`;
  const before = checks().length;
  await waitFor('its turn', async () => (await find(identity)).status === 'verified');
  return checks().indexOf(identity.value) - before;
}

/** A batch that is under way when it becomes due, the one that it is in, and as many again. */
const soon = 80;

afterEach(async () => {
  await sql`update identities set next_check_at = null`;
  dns.reset();
});

test('the rate is kept, another owner is not kept waiting, memory stays as it was', async (t) => {
  const other = await service.makeUser();
  const single = await add(newDomain(), {}, other);
  await publish(single.value, [single]);
  await addMany(service.user, 5000);
  await sql`analyze identities`;
  await waitFor('the first checks', () => checks().length > 20);
  const heapBefore = readHeap();
  assert.ok((await countAhead(single)) < soon);

  // A timer in the same process is late when the loop is: both wait 50 ms at least.
  let ticks = 0;
  const began = checks().length;
  const timer = setInterval(() => {
    ticks += 1;
  }, 50);
  await waitFor('sixty ticks', () => ticks >= 60);
  clearInterval(timer);
  const made = checks().length - began;
  t.diagnostic(`${made} checks in ${ticks} times 50 ms`);
  assert.ok(made > 0 && made < 1.5 * ticks, `${made} checks in ${ticks} times 50 ms`);
  const grown = readHeap() - heapBefore;
  t.diagnostic(`memory grew by ${(grown / 2 ** 20).toFixed(1)} MiB`);
  assert.ok(grown < 32 * 2 ** 20);
});

test('domains whose servers do not answer hold up neither the others nor each other', async () => {
  const other = await service.makeUser();
  const single = await add(newDomain(), {}, other);
  dns.answerUnknown('DROP');
  for (const { name } of JSON.parse(single.dns_records)) dns.answer(name, 'NXDOMAIN');
  await publish(single.value, [single]);
  await addMany(service.user, 1000);
  await waitFor('the first checks', () => checks().length > 40);
  assert.ok((await countAhead(single)) < soon);
  const before = checks().length;
  await waitFor('more checks', () => checks().length >= before + 20);
});

test('of many owners with many each, who comes last has a turn too', async () => {
  const hogs = await Promise.all(Array.from({ length: 30 }, () => service.makeUser()));
  const last = await service.makeUser();
  const single = await add(newDomain(), {}, last);
  await publish(single.value, [single]);
  for (const hog of hogs) await addMany(hog, 50);
  assert.ok((await countAhead(single)) < soon + hogs.length);
});
