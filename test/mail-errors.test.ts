/** What mail is told when a query fails: to try again later, with nothing half stored, and the next one is taken. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { startDns } from './dns.ts';
import { startTestService, type TestService } from './harness.ts';
import { connectSmtp, type SmtpReply, toWire } from './smtp-client.ts';

const dns = await startDns();
after(() => dns.close());
const tables = ['messages', 'events', 'deliveries', 'raw_chunks'];
const service = await startTestService({ POSTHORN_DNS_SERVERS: dns.address });
await service.makeWebhook('http://127.0.0.1:9/');
const to = await makeIdentity(service);

async function makeIdentity(at: TestService): Promise<string> {
  const value = `a${randomBytes(5).toString('hex')}@away.example`;
  const answer = await at.call('POST', '/identities', { body: { value } });
  assert.equal(answer.status, 201, answer.text);
  return value;
}

const told = ({ status, enhanced }: SmtpReply) => `${status} ${enhanced}`;

/** The reply to the end of the message; `meanwhile` happens after its recipients were accepted. */
async function send(
  at: TestService,
  to: string[],
  raw: string,
  meanwhile?: () => Promise<unknown>,
): Promise<SmtpReply> {
  const client = await connectSmtp(at.smtpPort);
  const routed = await client.envelope('ada@sender.example', ...to);
  assert.equal(routed.status, 250, routed.full);
  await meanwhile?.();
  const reply = await client.data(toWire(raw));
  client.close();
  return reply;
}

async function countRows(sql: TestService['sql']): Promise<Record<string, number>> {
  const counts: Record<string, number> = {};
  for (const table of tables) counts[table] = (await sql`select from ${sql(table)}`).count;
  return counts;
}

const small = 'Subject: away\r\nMessage-ID: <small@away.example>\r\n\r\nBody\r\n';
const large = `Subject: away\r\nMessage-ID: <large@away.example>\r\n\r\n${'x'.repeat(3_000_000)}\r\n`;

describe('a query that fails', () => {
  /** PostgreSQL refuses rows of this table from the condition on, with this code. */
  async function failing(
    table: string,
    when: string,
    code: string,
    work: () => Promise<void>,
  ): Promise<void> {
    const { sql } = service;
    await sql.unsafe(`
      create function refuse() returns trigger language plpgsql as $$
        begin raise exception 'secret detail' using errcode = '${code}'; end $$;
      create trigger refuse before insert on ${table} for each row when (${when}) execute function refuse()`);
    try {
      await work();
    } finally {
      await sql.unsafe(`drop trigger refuse on ${table}; drop function refuse()`);
    }
  }

  test('at RCPT: 451, a line in the log, and 250 once it works again', async () => {
    const { sql, smtpPort, logged } = service;
    await sql`alter table mailboxes rename to hidden`;
    const client = await connectSmtp(smtpPort);
    const refused = await client.envelope('ada@sender.example', to);
    assert.equal(told(refused), '451 4.3.0', refused.full);
    assert.doesNotMatch(refused.full, /relation|mailboxes|SQL/i);
    assert.ok(logged.some(({ level }) => level === 50));
    await sql`alter table hidden rename to mailboxes`;
    assert.equal((await client.command(`RCPT TO:<${to}>`)).status, 250, 'on the same connection');
    client.close();
  });

  for (const [name, table, when, code, expected] of [
    ['of the event', 'events', 'true', 'XX000', '451 4.3.0'],
    ['of the bytes', 'raw_chunks', 'true', 'XX000', '451 4.3.0'],
    ['of a delivery', 'deliveries', 'true', 'XX000', '451 4.3.0'],
    ['of the third piece of a large message', 'raw_chunks', 'new.n = 2', 'XX000', '451 4.3.0'],
    ['for want of room', 'messages', 'true', '53100', '452 4.3.1'],
    ['for want of room for a later piece', 'raw_chunks', 'new.n = 1', '53100', '452 4.3.1'],
    ['for a deadlock', 'events', 'true', '40P01', '451 4.3.0'],
  ] as const) {
    test(`${name} at the end of a message: ${expected}, nothing of it is stored, and the retry is`, async () => {
      const before = await countRows(service.sql);
      const raw = when.includes('new.n') ? large : small;
      await failing(table, when, code, async () => {
        const refused = await send(service, [to], raw.replace('Body', name));
        assert.equal(told(refused), expected, refused.full);
        assert.doesNotMatch(refused.full, /secret|refuse|XX000/);
        assert.deepEqual(await countRows(service.sql), before);
      });
      const other = await makeIdentity(service);
      assert.equal((await send(service, [other], raw)).status, 250);
      assert.equal((await countRows(service.sql)).messages, (before.messages ?? 0) + 1);
    });
  }

  test('for the second of three identities leaves the first without it too', async () => {
    const before = await countRows(service.sql);
    const all = [await makeIdentity(service), await makeIdentity(service), await makeIdentity(service)];
    const { id } = (await service.call('GET', `/identities?value=${all[1]}`)).body[0];
    await failing('messages', `new.identity_id = '${id}'`, 'XX000', async () => {
      assert.equal(told(await send(service, all, small)), '451 4.3.0');
    });
    assert.deepEqual(await countRows(service.sql), before);
    assert.equal((await send(service, all, small)).status, 250);
    assert.equal((await countRows(service.sql)).messages, (before.messages ?? 0) + 3);
  });
});
