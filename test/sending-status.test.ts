/** The status of a message that goes out follows from those of its recipients. PostgreSQL computes it. No service runs here. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { connect } from '../src/db/client.ts';
import { identifier } from '../src/db/sql.ts';
import { newId } from '../src/lib/ids.ts';
import { type RecipientStatus, recipientStatuses } from '../src/store/outgoing.ts';
import { makeDatabase } from './harness.ts';

const database = await makeDatabase();
const sql = connect(database.url, { max: 1, applicationName: 'posthorn test' });
after(async () => {
  await sql.end();
  await database.drop();
});

async function findStatus(of: readonly RecipientStatus[]): Promise<string> {
  const [{ status } = { status: '' }] = await sql<{ status: string }[]>`
    insert into outgoing (id, owner_id, identity_id, transport, eight_bit, smtp_utf8, summary_bytes, queued, sent, delivered,
      bounced, suppressed, cancelled)
    select ${newId()}, ${newId()}, ${newId()}, 'direct', false, false, 1, ${count('queued')}, ${count('sent')},
      ${count('delivered')}, ${count('bounced')}, ${count('suppressed')}, ${count('cancelled')}
    returning status`;
  return status;

  function count(wanted: RecipientStatus): number {
    return of.filter((one) => one === wanted).length;
  }
}

const cases: [string, RecipientStatus[]][] = [
  ['queued', ['queued']],
  ['queued', ['sent', 'bounced', 'queued']],
  ['queued', ['delivered', 'queued']],
  ['sent', ['sent', 'sent']],
  ['delivered', ['delivered', 'delivered']],
  ['bounced', ['bounced']],
  ['suppressed', ['suppressed', 'suppressed']],
  ['cancelled', ['cancelled']],
  ['sent', ['sent', 'delivered']],
  ['sent', ['delivered', 'sent', 'delivered']],
  ['mixed', ['sent', 'bounced']],
  ['mixed', ['delivered', 'suppressed']],
  ['mixed', ['bounced', 'suppressed']],
  ['mixed', ['sent', 'delivered', 'cancelled']],
];
for (const [status, of] of cases)
  test(`${of.join(', ')}: ${status}`, async () => assert.equal(await findStatus(of), status));

test('the statuses of recipients are those that the table counts', async () => {
  const columns = await sql<{ name: string }[]>`
    select column_name as name from information_schema.columns where table_name = 'outgoing' and data_type = 'smallint'`;
  assert.deepEqual(columns.map(({ name }) => name).sort(), [...recipientStatuses].sort());
  for (const status of recipientStatuses)
    await sql`select ${identifier(status)} from outgoing where ${identifier(status)} > 0`;
});
