/**
 * What older versions stored is served as before, during and after its change to the new form; the change goes on after a stop,
 * and ends.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import { zstdDecompressSync } from 'node:zlib';
import { makeLinks } from '../src/contract/links.ts';
import { completeData } from '../src/contract/payload.ts';
import { connect } from '../src/db/client.ts';
import { changeOverBatch, isChangingOver } from '../src/store/change-over.ts';
import { unpackContent } from '../src/store/content.ts';
import { lockPurge } from '../src/store/purge.ts';
import { startTestService, waitFor } from './harness.ts';
import { startReceiver } from './receiver.ts';
import { deliveryKey, startTestDelivery } from './test-delivery.ts';

const settings = { POSTHORN_ROLES: 'api', POSTHORN_SECRET_KEY: deliveryKey };
const service = await startTestService(settings);
const { sql, call } = service;
const receiver = await startReceiver();
after(() => receiver.close());
const links = makeLinks([randomBytes(32)], () => 'https://posthorn.example');

await service.makeWebhook(receiver.url());
const addresses = ['ada@old.example', 'bea@old.example'];
for (const value of addresses)
  assert.equal((await call('POST', '/identities', { body: { value } })).status, 201);

async function arrive(raw: Buffer, to = addresses.slice(0, 1)): Promise<string[]> {
  const headers = { 'content-type': 'message/rfc822' };
  const query = to.map((address) => `recipient=${address}`).join('&');
  const taken = await call('POST', `/inbound?${query}`, { body: raw, headers });
  assert.equal(taken.status, 202, taken.text);
  return taken.body.messageIds;
}

function write(body: string | Buffer, header = ''): Buffer {
  return Buffer.concat([Buffer.from(`Subject: old\r\n${header}\r\n`), Buffer.from(body)]);
}

const parted = 'MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n';
const attach = (bytes: string) =>
  `--b\r\n\r\n"é"\r\n--b\r\nContent-Disposition: attachment\r\n\r\n${bytes}\r\n--b--\r\n`;

/** As migrations up to 0011 had it: the message in the data of its event, and all raw bytes in rows of their own. */
async function storeAsBefore(): Promise<number> {
  const messages = await sql`
    select messages.id, raw_id, messages.owner_id, size, encode(content, 'base64') as content, events.id as event_id
    from messages join events on events.message_id = messages.id`;
  for (const { id, raw_id, owner_id, size, content, event_id } of messages) {
    const { raw, data } = unpackContent({ content, size, hasRaw: raw_id === null });
    const rawId = raw_id ?? id;
    if (raw)
      await sql`insert into raw_chunks (raw_id, n, owner_id, bytes) values (${rawId}, 0, ${owner_id}, ${raw})`;
    await sql`update messages set content = null, event_id = ${event_id}, raw_id = ${rawId} where id = ${id}`;
    await sql`
      update events set data = ${data}::text::json, inline_raw_id = case when is_inline then ${rawId}::uuid end,
        is_inline = false, xact = '0'
      where id = ${event_id}`;
  }
  for (const { raw_id, n, bytes } of await sql`select raw_id, n, bytes from raw_chunks where is_compressed`) {
    await sql`
      update raw_chunks set bytes = ${zstdDecompressSync(bytes)}, is_compressed = false where raw_id = ${raw_id} and n = ${n}`;
  }
  await sql`
    insert into change_over (position, until)
    select '00000000-0000-0000-0000-000000000000', id from messages order by id desc limit 1`;
  return messages.length;
}

/** Links have the time at which they expire. */
const withoutQueries = (text: string) => text.replaceAll(/\?[\w=&%-]+"/g, '"');

/** All that a user is shown of the messages, and what a webhook is sent. */
async function readAll(): Promise<Record<string, string>> {
  const shown: Record<string, string> = {};
  const read = async (path: string, headers: Record<string, string> = {}) => {
    const answer = await call('GET', path, { headers: { ...headers, 'x-request-id': 'same' } });
    const { status, text } = answer;
    const fields = ['etag', 'content-range', 'content-length'].map((name) => answer.headers.get(name));
    // The length of a page varies with its links.
    if (answer.body) fields.pop();
    shown[`${path} ${headers.range ?? ''}`] = withoutQueries(`${status} ${fields} ${text}`);
  };
  await read('/messages');
  await read('/events');
  for (const { id, event_id } of await sql`
    select messages.id, events.id as event_id from messages join events on events.message_id = messages.id`) {
    await read(`/messages/${id}`);
    await read(`/events/${event_id}`);
    await read(`/messages/${id}/raw`);
    for (const range of ['bytes=10-29', 'bytes=-5', 'bytes=1048570-1048590'])
      await read(`/messages/${id}/raw`, { range });
    await read(`/messages/${id}/attachments/0`);
  }
  // A new loop has no bodies in memory.
  const sent = receiver.requests.length;
  const deliveries = await sql<{ id: string }[]>`select id from deliveries`;
  for (const { id } of deliveries)
    assert.equal((await call('POST', `/deliveries/${id}/redeliver`)).status, 202);
  const loop = startTestDelivery(service.databaseUrl, {
    completeData: (stored) => completeData(stored, links, 0),
  });
  await receiver.received(sent + deliveries.length);
  await waitFor('the results', async () => (await sql`select from delivery_queue`).count === 0);
  await loop.stop();
  for (const { headers, body } of receiver.requests.slice(sent))
    shown[`POST ${headers['webhook-id']}`] = body.toString('latin1');
  return shown;
}

test('stored messages are served the same before, during and after their change', async () => {
  await arrive(write('Hello\r\n'));
  await arrive(write(Buffer.from([0xff, 0xfe, 0x00, 0x80, 0x0a])));
  await arrive(write(attach('abc'), parted), addresses);
  await arrive(write(attach('y'.repeat(2_500_000)), parted));
  const expected = await readAll();
  assert.equal(Object.keys(expected).filter((key) => key.startsWith('POST')).length, 5);

  assert.equal(await storeAsBefore(), 5);
  assert.deepEqual(await readAll(), expected);

  const stopped = sql.begin(async (sql) => {
    assert.equal(await changeOverBatch(sql, 1), 1);
    throw new Error('the process was killed');
  });
  await assert.rejects(stopped, /killed/);
  for (let changed = 1; changed <= 3; changed += 1) {
    assert.equal(await changeOverBatch(sql, 1), changed);
    const { count } = await sql`select from messages where content is null`;
    assert.equal(count, 5 - changed);
    assert.deepEqual(await readAll(), expected);
  }

  // A new message, meanwhile; and another process, which goes on.
  const [late = ''] = await arrive(write('Late\r\n'));
  const other = await startTestService({ ...settings, DATABASE_URL: service.databaseUrl });
  await waitFor('the end of the change', async () => !(await isChangingOver(sql)));
  await other.stop();
  assert.equal(await changeOverBatch(sql, 1), null);
  const left = await sql`
    select from messages where content is null or event_id is not null
    union all select from raw_chunks where not is_compressed
    union all select from events where message_id is not null and (data is not null or inline_raw_id is not null)`;
  assert.equal(left.count, 0);
  assert.equal((await call('GET', `/messages/${late}/raw`)).text, write('Late\r\n').toString());
  const all = await readAll();
  for (const [key, value] of Object.entries(expected))
    if (key.trim() !== '/messages' && key.trim() !== '/events') assert.equal(all[key], value, key);
});

test('raw bytes count for the size of a batch', async () => {
  for (const byte of ['a', 'b']) await arrive(write(attach(byte.repeat(2_500_000)), parted));
  const count = await storeAsBefore();
  assert.equal(await changeOverBatch(sql), count - 1);
  assert.equal(await changeOverBatch(sql), count);
  assert.equal(await changeOverBatch(sql), null);
});

test('a batch waits while the purge deletes messages', async () => {
  await storeAsBefore();
  const watcher = connect(service.databaseUrl, { max: 1, applicationName: 'posthorn test' });
  let batch: Promise<number | null> | undefined;
  await sql.begin(async (purging) => {
    await lockPurge(purging);
    batch = changeOverBatch(sql, 1);
    await waitFor('the batch to wait', async () => {
      const waiting = await watcher`
        select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`;
      return waiting.count > 0;
    });
  });
  assert.equal(await batch, 1);
  await watcher.end();
});
