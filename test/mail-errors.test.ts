/** Mail while a query fails: it is deferred, nothing is stored in part, and the next message is accepted. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { startDns } from './dns.ts';
import { startTestService } from './harness.ts';
import { countRows, large, makeIdentity, send, small, told } from './mail-in-trouble.ts';
import { connectSmtp } from './smtp-client.ts';

const dns = await startDns();
after(() => dns.close());
const service = await startTestService({ POSTHORN_DNS_SERVERS: dns.address });
await service.makeWebhook('http://127.0.0.1:9/');
const to = await makeIdentity(service);

describe('a query that fails', () => {
  /** PostgreSQL refuses rows of this table that meet the condition, with this code. */
  async function failing(
    table: string,
    when: string,
    code: string,
    work: () => Promise<void>,
  ): Promise<void> {
    const { sql } = service;
    await sql.script(`
      create function refuse() returns trigger language plpgsql as $$
        begin raise exception 'secret detail' using errcode = '${code}'; end $$;
      create trigger refuse before insert on ${table} for each row when (${when}) execute function refuse()`);
    try {
      await work();
    } finally {
      await sql.script(`drop trigger refuse on ${table}; drop function refuse()`);
    }
  }

  test('at RCPT: 451, a line in the log, and 250 once it works again', async () => {
    const { sql, smtpPort, logged } = service;
    await sql`alter table mailboxes rename to hidden`;
    const client = await connectSmtp(smtpPort);
    const refused = await client.envelope('ada@sender.example', to);
    assert.equal(told(refused), '451 4.3.0', refused.full);
    assert.doesNotMatch(refused.full, /relation|mailboxes|SQL/i);
    assert.ok(logged.some(({ level }) => level === 'error'));
    await sql`alter table hidden rename to mailboxes`;
    assert.equal((await client.command(`RCPT TO:<${to}>`)).status, 250, 'on the same connection');
    client.close();
  });

  for (const [name, table, when, code, expected] of [
    ['of the event', 'events', 'true', 'XX000', '451 4.3.0'],
    ['of the first piece of a large message', 'raw_chunks', 'new.n = 0', 'XX000', '451 4.3.0'],
    ['of the message', 'messages', 'true', 'XX000', '451 4.3.0'],
    ['of a delivery', 'delivery_queue', 'true', 'XX000', '451 4.3.0'],
    ['of the third piece of a large message', 'raw_chunks', 'new.n = 2', 'XX000', '451 4.3.0'],
    ['for want of room', 'messages', 'true', '53100', '452 4.3.1'],
    ['for want of room for a later piece', 'raw_chunks', 'new.n = 1', '53100', '452 4.3.1'],
    ['for a deadlock', 'events', 'true', '40P01', '451 4.3.0'],
  ] as const) {
    test(`${name} at the end of a message: ${expected}, nothing is stored, and the retry is stored`, async () => {
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

  test('for the second of three identities: the first gets nothing either', async () => {
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
