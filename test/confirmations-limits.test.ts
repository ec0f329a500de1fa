/** How many confirmation mails can be asked for, also at once and over several processes; and what capture logs. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { open, press } from './confirming.ts';
import { type Answer, assertProblem, callUrl, startTestService, type TestUser, waitFor } from './harness.ts';
import { newDomain } from './proving.ts';

const settings = { POSTHORN_CONFIRMATION_LIMIT: '6', POSTHORN_ROLES: 'api,send' };
const service = await startTestService(settings);
const second = await startTestService({ ...settings, DATABASE_URL: service.databaseUrl });
const { call, sql } = service;

async function add(value: string, as: TestUser) {
  const { status, body, text } = await call('POST', '/identities', { as, body: { value } });
  assert.equal(status, 201, text);
  return body as { id: string; value: string };
}

/** In turn by each process. */
let asked = 0;
const verify = ({ id }: { id: string }, as: TestUser) =>
  (asked++ % 2 ? second : service).call('POST', `/identities/${id}/verify`, { as });

async function pass(hours: number): Promise<void> {
  await sql`update confirmations set created_at = created_at - ${hours} * interval '1 hour'`;
}

function count(answers: readonly Answer[]) {
  for (const answer of answers) {
    if (answer.status === 200) continue;
    assertProblem(answer, 429, 'rate_limited');
    const seconds = Number(answer.headers.get('retry-after'));
    assert.ok(seconds >= 1 && seconds <= 86_400, String(seconds));
  }
  return answers.filter(({ status }) => status === 200).length;
}

describe('limits', () => {
  test('one owner and address: 3 an hour and 5 a day, all at once', async () => {
    const owner = await service.makeUser();
    const identity = await add(`ada@${newDomain()}`, owner);
    const burst = () => Promise.all(Array.from({ length: 8 }, () => verify(identity, owner)));
    const first = await burst();
    assert.equal(count(first), 3);
    const refused = first.find(({ status }) => status === 429);
    assert.ok(Number(refused?.headers.get('retry-after')) <= 3600);
    await pass(1);
    assert.equal(count(await burst()), 2);
    await pass(1);
    const late = await burst();
    assert.equal(count(late), 0);
    assert.ok(Number(late[0]?.headers.get('retry-after')) > 3600);
    await pass(22);
    assert.equal(count(await burst()), 3);
  });

  test('deleting an identity and creating it again does not reset the limits', async () => {
    const owner = await service.makeUser();
    const value = `ada@${newDomain()}`;
    for (let n = 0; n < 3; n += 1) {
      const identity = await add(value, owner);
      assert.equal((await verify(identity, owner)).status, 200);
      await call('DELETE', `/identities/${identity.id}`, { as: owner });
    }
    assert.equal(count([await verify(await add(value.toUpperCase(), owner), owner)]), 0);
  });

  test('one address: 10 a day over all owners, all at once', async () => {
    const value = `ada@${newDomain()}`;
    const owners = await Promise.all(Array.from({ length: 5 }, () => service.makeUser()));
    const identities = await Promise.all(owners.map((owner) => add(value, owner)));
    const all = await Promise.all(
      owners.flatMap((owner, n) => [1, 2, 3].map(() => verify(identities[n] as { id: string }, owner))),
    );
    assert.equal(count(all), 10);
    await pass(24);
    assert.equal(count([await verify(identities[0] as { id: string }, owners[0] as TestUser)]), 1);
  });

  test('addresses of one mailbox count together, whatever their tag', async () => {
    const domain = newDomain();
    const owners = await Promise.all(Array.from({ length: 5 }, () => service.makeUser()));
    const ask = async (owner: TestUser, tag: string) =>
      verify(await add(`Ada+${tag}@${domain}`, owner), owner);
    const all = await Promise.all(
      owners.flatMap((owner, n) => ['x', 'y', 'z', 'z+z'].map((tag) => ask(owner, `${n}${tag}`))),
    );
    assert.equal(count(all), 10, 'of one mailbox');
    const [owner] = owners as [TestUser];
    assert.equal(count([await verify(await add(`ada@${domain}`, owner), owner)]), 0, 'also without a tag');
  });

  test('a link confirms its own address, not the mailbox, and the other links of the address are used up', async () => {
    const owner = await service.makeUser();
    const domain = newDomain();
    const [tagged, plain] = [await add(`ada+x@${domain}`, owner), await add(`ada@${domain}`, owner)];
    for (const identity of [tagged, tagged, plain]) assert.equal((await verify(identity, owner)).status, 200);
    const links = await waitFor('three links', () => {
      const found = [...service.logged, ...second.logged].filter(({ identityId, link }) =>
        link ? identityId === tagged.id || identityId === plain.id : false,
      );
      return found.length === 3 ? found.filter(({ identityId }) => identityId === tagged.id) : null;
    });
    const [first, other] = links.map(({ link }) => String(link)) as [string, string];
    assert.equal((await press(first)).status, 200);
    assert.equal((await press(other)).status, 404);
    const statusOf = async ({ id }: { id: string }) =>
      (await call('GET', `/identities/${id}`, { as: owner })).body.status;
    assert.deepEqual([await statusOf(tagged), await statusOf(plain)], ['verified', 'pending']);
  });

  test('one owner: POSTHORN_CONFIRMATION_LIMIT addresses a day, all at once', async () => {
    const owner = await service.makeUser();
    const identities = await Promise.all(Array.from({ length: 10 }, () => add(`ada@${newDomain()}`, owner)));
    const answers = await Promise.all(identities.map((identity) => verify(identity, owner)));
    assert.equal(count(answers), 6);
    const known = identities.filter((_, n) => answers[n]?.status === 200);
    assert.equal(count([await verify(known[0] as { id: string }, owner)]), 1, 'no new address');
    const other = await service.makeUser();
    assert.equal(count([await verify(await add(`ada@${newDomain()}`, other), other)]), 1);
  });

  test('a refused request changes nothing', async () => {
    const owner = await service.makeUser();
    const identity = await add(`ada@${newDomain()}`, owner);
    for (let n = 0; n < 3; n += 1) await verify(identity, owner);
    await sql`update identities set pending_until = null where id = ${identity.id}`;
    assert.equal(count([await verify(identity, owner)]), 0);
    assert.equal((await call('GET', `/identities/${identity.id}`, { as: owner })).body.status, 'unverified');
    assert.equal((await sql`select from confirmations where identity_id = ${identity.id}`).length, 3);
  });
});

test('what is older than a day is deleted', async () => {
  const owner = await service.makeUser();
  const identity = await add(`ada@${newDomain()}`, owner);
  assert.equal((await verify(identity, owner)).status, 200);
  assert.ok((await sql`select from confirmations`).length > 0);
  await pass(25);
  await waitFor('the purge', async () => (await sql`select from confirmations`).length === 0);
});

test('in capture the link is logged, and it works', async () => {
  const owner = await service.makeUser();
  const identity = await add(`ada@${newDomain()}`, owner);
  assert.equal((await verify(identity, owner)).status, 200);
  const link = await waitFor('the line', () => {
    const lines = [...service.logged, ...second.logged];
    return lines.find(({ identityId, link }) => identityId === identity.id && link)?.link;
  });
  assert.equal((await open(String(link))).status, 200);
  assert.equal((await press(String(link))).status, 200);
  assert.equal((await call('GET', `/identities/${identity.id}`, { as: owner })).body.status, 'verified');
});

test('the page is limited for each client', async () => {
  const url = `${second.url}/confirm/${'0'.repeat(40)}`;
  // More than twice the limit: also if a minute ends meanwhile, one minute has too many.
  const answers = await Promise.all(Array.from({ length: 300 }, () => callUrl('GET', url, {})));
  const limited = answers.filter(({ status }) => status === 429);
  assert.ok(limited.length > 0 && limited.length < 300, String(limited.length));
  for (const answer of limited) assertProblem(answer, 429, 'rate_limited');
});
