/** The property of every PATCH: it changes what is supplied, as supplied, and nothing else. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { newId } from '../src/lib/ids.ts';
import { anyCharacter } from './any-character.ts';
import { startTestService } from './harness.ts';
import { insertProvider } from './insert.ts';

// Without the loop that looks at DNS: it would change what is shown in between.
const service = await startTestService({ POSTHORN_ROLES: 'api' });
const { call, sql, user } = service;

const providers = [await insertProvider(sql, user.userId), await insertProvider(sql, user.userId)];
const smtpAccounts = [newId(), newId()];
for (const id of smtpAccounts) {
  await sql`insert into smtp_accounts (id, owner_id, label) values (${id}, ${user.userId}, 'm.example')`;
}

/** What JSON carries unchanged: any string but half of a surrogate pair, any number but -0. */
const meta = fc.dictionary(
  fc.string({ unit: anyCharacter, maxLength: 20 }),
  fc.jsonValue({ stringUnit: 'binary', maxDepth: 3 }).map((value) => JSON.parse(JSON.stringify(value))),
  { maxKeys: 5 },
);
/** Each may be supplied or left out, independently of the others. */
const changes = fc.record(
  {
    incoming_domain: fc.boolean(),
    provider_id: fc.constantFrom(null, ...providers),
    smtp_account_id: fc.constantFrom(null, ...smtpAccounts),
    meta: fc.oneof(
      meta,
      meta.map((value) => JSON.stringify(value, null, 1)),
    ),
  },
  { requiredKeys: [] },
);

/** How a supplied value is shown. */
function shown(supplied: Record<string, unknown>): Record<string, unknown> {
  if (!('meta' in supplied)) return supplied;
  const value = typeof supplied.meta === 'string' ? JSON.parse(supplied.meta) : supplied.meta;
  return { ...supplied, meta: JSON.stringify(value) };
}

/** The whole row as text, without what is supplied: also what no answer shows stays as it is. */
async function readRow(id: string, without: string[]): Promise<string> {
  const [row] = await sql<Record<string, string>[]>`
    select (to_jsonb(bare) - ${[...without, 'updated_at']}::text[])::text as row,
      ${without.includes('meta') ? null : sql`meta::text`} as meta
    from identities
    cross join lateral (
      select id, owner_id, kind, public_id, value, value_key, domain, incoming_domain, domain_identity_id, dns_records,
        provider_id, smtp_account_id, status, created_at
    ) bare
    where identities.id = ${id}`;
  assert.ok(row);
  return `${row.row} ${row.meta}`;
}

let made = 0;

test('PATCH changes only what is supplied', async () => {
  await fc.assert(
    fc.asyncProperty(
      changes,
      fc.boolean(),
      fc.array(changes, { minLength: 1, maxLength: 3 }),
      async (given, isEmail, patches) => {
        made += 1;
        const value = isEmail ? `a@d${made}.example` : `d${made}.example`;
        const created = await call('POST', '/identities', { body: { value, ...given } });
        assert.equal(created.status, 201, created.text);
        const bystander = await call('POST', '/identities', {
          body: { value: `by@d${made}.example` },
        });

        let before = created.body;
        for (const supplied of patches) {
          const fields = Object.keys(supplied);
          const rowBefore = await readRow(before.id, fields);
          const answer = await call('PATCH', `/identities/${before.id}`, { body: supplied });
          assert.equal(answer.status, 200, answer.text);

          const { updated_at } = answer.body;
          assert.deepEqual(answer.body, { ...before, ...shown(supplied), updated_at });
          assert.deepEqual(Object.keys(answer.body), Object.keys(before));
          if (fields.length > 0) assert.ok(updated_at > before.updated_at);
          else assert.equal(updated_at, before.updated_at);

          assert.equal(await readRow(before.id, fields), rowBefore);
          assert.deepEqual((await call('GET', `/identities/${before.id}`)).body, answer.body);
          before = answer.body;
        }
        const after = await call('GET', `/identities/${bystander.body.id}`);
        assert.deepEqual(after.body, bystander.body);
      },
    ),
    { numRuns: 30 },
  );
});
