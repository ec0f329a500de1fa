/** Who gets an event: over random owners, identities and webhooks, exactly those that a model of our own expects. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import fc from 'fast-check';
import { eventNames } from '../src/contract/event-types.ts';
import { connect } from '../src/db/client.ts';
import { newId } from '../src/lib/ids.ts';
import { recordEvent } from '../src/store/events.ts';
import { createIdentity } from '../src/store/identities.ts';
import { createReplay, runReplayBatch } from '../src/store/replays.ts';
import { ensureUser } from '../src/store/users.ts';
import { createWebhook } from '../src/store/webhooks.ts';
import { makeDatabase } from './harness.ts';

const database = await makeDatabase();
const sql = connect(database.url, { max: 2, applicationName: 'posthorn fan-out test' });
after(async () => {
  await sql.end();
  await database.drop();
});

interface World {
  owners: number;
  /** Each by the number of its owner. */
  identities: number[];
  webhooks: {
    owner: number;
    /** The number of an identity of the same owner; null: not restricted. */
    identity: number | null;
    events: string[];
    enabled: boolean;
    deleted: boolean;
  }[];
  events: { owner: number; identity: number | null; event: string }[];
}

const name = fc.constantFrom(...eventNames);
const worlds: fc.Arbitrary<World> = fc
  .record({
    owners: fc.integer({ min: 1, max: 4 }),
    identities: fc.array(fc.nat(), { maxLength: 6 }),
    webhooks: fc.array(
      fc.record({
        owner: fc.nat(),
        identity: fc.option(fc.nat()),
        events: fc.uniqueArray(name, { minLength: 1 }),
        enabled: fc.boolean(),
        deleted: fc.boolean().map((one) => one),
      }),
      { maxLength: 8 },
    ),
    events: fc.array(fc.record({ owner: fc.nat(), identity: fc.option(fc.nat()), event: name }), {
      minLength: 1,
      maxLength: 8,
    }),
  })
  .map(({ owners, identities, webhooks, events }) => {
    const belonging = identities.map((number) => number % owners);
    /** One of the owner's own identities, where it has any. */
    const own = (owner: number, number: number | null) => {
      const mine = [...belonging.keys()].filter((index) => belonging[index] === owner);
      return number === null ? null : (mine[number % Math.max(mine.length, 1)] ?? null);
    };
    const place = <T extends { owner: number; identity: number | null }>(one: T): T => {
      const owner = one.owner % owners;
      return { ...one, owner, identity: own(owner, one.identity) };
    };
    return { owners, identities: belonging, webhooks: webhooks.map(place), events: events.map(place) };
  });

/** What the contract says, in so many words. */
function isExpected(webhook: World['webhooks'][number], event: World['events'][number]): boolean {
  if (webhook.owner !== event.owner || !webhook.enabled || webhook.deleted) return false;
  if (webhook.identity !== null && webhook.identity !== event.identity) return false;
  return webhook.events.includes(event.event);
}

/** The world in the database; ids in the order of the lists. */
async function build(world: World) {
  const suffix = randomBytes(6).toString('hex');
  const owners: string[] = [];
  for (let index = 0; index < world.owners; index++) {
    owners.push((await ensureUser(sql, `o${index}-${suffix}@users.example`)).user.userId);
  }
  const identities: string[] = [];
  for (const [index, owner] of world.identities.entries()) {
    const value = `i${index}@${suffix}.example`;
    const made = await createIdentity(sql, owners[owner] ?? '', {
      ...{ kind: 'email', value, valueKey: value, domain: `${suffix}.example`, incomingDomain: false },
      ...{ id: newId(), proof: null, providerId: null, smtpAccountId: null, meta: '{}' },
    });
    identities.push(made?.id ?? '');
  }
  const identityOf = (number: number | null) => (number === null ? null : (identities[number] ?? ''));
  const webhooks: string[] = [];
  for (const { owner, identity, events, enabled, deleted } of world.webhooks) {
    const given = { url: 'https://example.com/', description: null, sealedSecret: randomBytes(8) };
    const id = newId();
    const webhook = { ...given, id, identityId: identityOf(identity), events, enabled };
    await createWebhook(sql, owners[owner] ?? '', webhook, 1000);
    if (deleted) await sql`update webhooks set deleted_at = now() where id = ${id}`;
    webhooks.push(id);
  }
  return { owners, identities, webhooks, identityOf };
}

test('deliveries are made for exactly the webhooks that listen; a replay adds none that did not', async () => {
  let reached = 0;
  const property = fc.asyncProperty(worlds, async (world) => {
    const { owners, webhooks, identityOf } = await build(world);
    const expected: string[] = [];
    for (const event of world.events) {
      const { id, deliveries } = await recordEvent(sql, {
        ...{ ownerId: owners[event.owner] ?? '', event: event.event, data: '{}' },
        identityId: identityOf(event.identity),
      });
      const listening = webhooks.filter((_, index) => {
        const webhook = world.webhooks[index];
        return webhook && isExpected(webhook, event);
      });
      assert.equal(deliveries, listening.length);
      expected.push(...listening.map((webhook) => `${id} ${webhook}`));
    }
    const made = async () => {
      const rows = await sql`
        select event_id, webhook_id, owner_id from deliveries where webhook_id = any (${webhooks}::uuid[])`;
      for (const row of rows) {
        const owner = world.webhooks[webhooks.indexOf(row.webhook_id)]?.owner ?? -1;
        assert.equal(row.owner_id, owners[owner]);
      }
      return rows.map((row) => `${row.event_id} ${row.webhook_id}`).sort();
    };
    assert.deepEqual(await made(), expected.sort());
    reached += expected.length;

    // Everything again, by way of replays: the same pairs.
    for (const [index, webhook] of world.webhooks.entries()) {
      const given = { webhookId: webhooks[index] ?? '', since: '2020-01-01T00:00:00Z', until: null };
      await createReplay(sql, owners[webhook.owner] ?? '', { ...given, status: 'all' });
    }
    while (await runReplayBatch(sql));
    assert.deepEqual(await made(), expected);
  });
  await fc.assert(property, { numRuns: 60 });
  assert.ok(reached > 20, 'the worlds are not empty ones');
});
