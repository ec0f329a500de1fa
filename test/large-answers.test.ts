/** Answers are bounded by bytes, not only by items: pages, what strangers write in lists, `meta`, attempts. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { newId } from '../src/lib/ids.ts';
import { packContent, unpackContent } from '../src/store/content.ts';
import { collectPage, maxPageBytes, type PageRequest } from '../src/store/page.ts';
import { assertProblem, startTestService, type TestUser } from './harness.ts';

const service = await startTestService({ POSTHORN_ROLES: 'api', POSTHORN_MAX_WEBHOOKS: '5000' });
const { sql, call } = service;
/** Escaping makes the JSON a little longer than the values. */
const largestPage = maxPageBytes * 1.3;

/** Follows the links from page to page. */
async function readAll(path: string, as: TestUser) {
  const pages: { bytes: number; ids: string[] }[] = [];
  for (let next: string | undefined = path; next; ) {
    const { status, text, body, headers } = await call('GET', next, { as });
    assert.equal(status, 200, text);
    pages.push({ bytes: Buffer.byteLength(text), ids: body.map(({ id }: { id: string }) => id) });
    next = /^<([^>]+)>/.exec(headers.get('link') ?? '')?.[1];
  }
  return { pages, ids: pages.flatMap((page) => page.ids) };
}

async function addIdentities(owner: TestUser, count: number, metaBytes: number): Promise<string[]> {
  const rows = await sql<{ id: string }[]>`
    insert into identities (id, owner_id, kind, public_id, value, value_key, meta, created_at)
    select gen_random_uuid(), ${owner.userId}, 'email', gen_random_uuid()::text, n || '@x.example', n || '@x.example',
      ${JSON.stringify({ a: 'x'.repeat(metaBytes - 8) })}::text::json, now() - n * interval '1 second'
    from generate_series(1, ${count}::int) n
    returning id`;
  return rows.map(({ id }) => id);
}

async function sendMail(owner: TestUser, raw: string, value = `a@${newId()}.example`): Promise<string> {
  await call('POST', '/identities', { as: owner, body: { value } });
  const headers = { 'content-type': 'message/rfc822' };
  const taken = await call('POST', `/inbound?recipient=${value}`, { as: owner, body: raw, headers });
  assert.equal(taken.status, 202, taken.text);
  return taken.body.messageIds[0];
}

describe('a page', () => {
  test('of identities ends at about 1 MiB, and the cursor goes on to every other', async () => {
    const owner = await service.makeUser();
    const made = await addIdentities(owner, 300, 16_000);
    const { pages, ids } = await readAll('/identities', owner);
    assert.deepEqual(ids, made);
    for (const { bytes } of pages) assert.ok(bytes <= largestPage, `${bytes} bytes`);
    for (const { bytes } of pages.slice(0, -1)) assert.ok(bytes >= maxPageBytes * 0.9, `${bytes} bytes`);
  });

  test('has at least one item, however large it is', async () => {
    const owner = await service.makeUser();
    const made = await addIdentities(owner, 3, 2 * maxPageBytes);
    const { pages, ids } = await readAll('/identities?limit=2', owner);
    assert.deepEqual(ids, made);
    assert.equal(pages.length, 3);
  });

  test('of webhooks ends there too', async () => {
    const owner = await service.makeUser();
    const made = await sql<{ id: string }[]>`
      insert into webhooks (id, owner_id, url, events, secret, created_at)
      select gen_random_uuid(), ${owner.userId}, 'https://example.com/' || repeat('x', 2000), '{message.received}', '',
        now() - n * interval '1 second'
      from generate_series(1, 900) n
      returning id`;
    const { pages, ids } = await readAll('/webhooks', owner);
    assert.deepEqual(
      ids,
      [...made].map(({ id }) => id),
    );
    assert.ok(pages.length > 1);
    for (const { bytes } of pages) assert.ok(bytes <= largestPage, `${bytes} bytes`);
  });

  test('of messages ends there too', async () => {
    const owner = await service.makeUser();
    const to = Array.from({ length: 50 }, (_, n) => `${'n'.repeat(900)}${n} <a${n}@x.example>`).join(
      ',\r\n ',
    );
    const sent: string[] = [];
    for (let n = 0; n < 9; n += 1)
      sent.unshift(await sendMail(owner, `Subject: ${n}\r\nTo: ${to}\r\nCc: ${to}\r\nBcc: ${to}\r\n\r\n`));
    const { pages, ids } = await readAll('/messages?limit=200', owner);
    assert.deepEqual(ids, sent);
    assert.ok(pages.length > 1);
    for (const { bytes } of pages) assert.ok(bytes <= largestPage, `${bytes} bytes`);
  });

  test('is read in steps, and little beyond its end', async () => {
    const stored = Array.from({ length: 1000 }, (_, n) => ({
      id: newId(),
      position: String(n),
      text: 'x'.repeat(10_000),
    }));
    let read = 0;
    const readStep = async ({ limit, after }: PageRequest) => {
      const start = after ? Number(after.at) + 1 : 0;
      const rows = stored.slice(start, start + limit);
      read += rows.length;
      return rows;
    };
    const { rows, next } = await collectPage({ limit: 1000, after: null }, readStep, 8);
    assert.equal(rows.length, Math.floor(maxPageBytes / 10_000) - 1);
    assert.deepEqual(next, { at: String(rows.length - 1), id: rows.at(-1)?.id });
    assert.ok(read <= rows.length + 8, `${read} rows`);
  });
});

describe('what strangers write', () => {
  const long = 'é'.repeat(3000);
  const many = (make: (n: number) => string) => Array.from({ length: 120 }, (_, n) => make(n));
  const raw = [
    `From: "${long}" <from@x.example>`,
    `To: ${many((n) => `a${n}@x.example`).join(',\r\n ')}`,
    `Subject: ${long}`,
    `References: ${many((n) => `<${n}@x.example>`).join('\r\n ')}`,
    `Message-ID: <${'m'.repeat(5000)}@x.example>`,
    'Content-Type: multipart/mixed; boundary=b',
    '',
    ...many((n) => `--b\r\nContent-Disposition: attachment; filename="${'f'.repeat(2000)}${n}"\r\n\r\n${n}`),
    '--b--\r\n',
  ].join('\r\n');

  test('is cut in lists to 1 KiB a value and 50 values a field, and whole in the message', async () => {
    const owner = await service.makeUser();
    const id = await sendMail(owner, raw);
    const whole = (await call('GET', `/messages/${id}`, { as: owner })).body;
    assert.equal(whole.to.length, 120);
    assert.equal(whole.attachments.length, 120);
    assert.ok(Buffer.byteLength(whole.from.name) > 1024);
    const [listed] = (await call('GET', '/messages', { as: owner })).body;
    for (const field of ['to', 'references', 'attachments']) assert.ok(listed[field].length <= 50, field);
    assert.equal(listed.to.length, 50);
    assert.deepEqual(listed.to, whole.to.slice(0, 50));
    assert.equal(listed.from.name, 'é'.repeat(512), 'bytes of UTF-8, and no half character');
    assert.equal(listed.attachments[49].id, whole.attachments[49].id);
    const assertShort = (value: unknown): void => {
      if (typeof value === 'string') assert.ok(Buffer.byteLength(value) <= 1024, value);
      else if (typeof value === 'object' && value) Object.values(value).forEach(assertShort);
    };
    assertShort(listed);
  });

  test('is cut as well in messages that an older version stored whole', async () => {
    const owner = await service.makeUser();
    const id = await sendMail(owner, raw);
    const to = JSON.stringify(Array.from({ length: 70 }, () => ({ name: long, address: null })));
    await sql`update messages set summary = jsonb_set(summary::jsonb, '{to}', ${to}::text::jsonb)::json where id = ${id}`;
    const [listed] = (await call('GET', '/messages', { as: owner })).body;
    assert.equal(listed.to.length, 50);
    assert.equal(listed.to[0].name, 'é'.repeat(512));
  });
});

describe('meta', () => {
  const ofBytes = (bytes: number) => ({ a: 'x'.repeat(bytes - '{"a":""}'.length) });

  test('has at most 16 KiB as text: 400 with its pointer beyond', async () => {
    const create = (meta: unknown) =>
      call('POST', '/identities', { body: { value: `a@${newId()}.example`, meta } });
    const { body: identity, status } = await create(ofBytes(16_384));
    assert.equal(status, 201);
    assert.equal(Buffer.byteLength(identity.meta), 16_384);
    const patch = (meta: unknown) => call('PATCH', `/identities/${identity.id}`, { body: { meta } });
    assert.equal((await patch(JSON.stringify(ofBytes(16_384)))).status, 200);
    for (const meta of [ofBytes(16_385), JSON.stringify(ofBytes(16_385)), { a: 'é'.repeat(8200) }]) {
      for (const answer of [await create(meta), await patch(meta)]) {
        const { errors } = assertProblem(answer, 400, 'invalid_body');
        assert.deepEqual(
          errors?.map(({ pointer, code }) => [pointer, code]),
          [['/meta', 'too_long']],
        );
      }
    }
  });

  test('that an older version took stays as it is, and other fields can be changed', async () => {
    const owner = await service.makeUser();
    const [id] = await addIdentities(owner, 1, 60_000);
    const patched = await call('PATCH', `/identities/${id}`, { as: owner, body: { provider_id: null } });
    assert.equal(patched.status, 200, patched.text);
    assert.equal(patched.body.meta.length, 60_000);
  });
});

test('a delivery shows its newest attempts, up to about 1 MiB', async () => {
  const { id: webhookId } = await service.makeWebhook('https://127.0.0.1:9/');
  const eventId = await service.makeEvent();
  const [{ id } = { id: '' }] = await sql<
    { id: string }[]
  >`select delivery_id(${eventId}, ${webhookId}) as id`;
  await sql`
    insert into earlier_attempts (delivery_id, id, owner_id, started_at, duration_ms, response_body)
    select ${id}, gen_random_uuid(), ${service.user.userId}, now() - n * interval '1 second', n, repeat('x', 16000)
    from generate_series(1, 100) n`;
  const { text, body } = await call('GET', `/deliveries/${id}`);
  assert.ok(Buffer.byteLength(text) <= largestPage);
  const shown = body.attempts.map(({ durationMs }: { durationMs: number }) => durationMs);
  assert.ok(shown.length > 50);
  assert.deepEqual(
    shown,
    Array.from({ length: shown.length }, (_, n) => shown.length - n),
    'oldest first',
  );
});

// To parse and write megabytes again would keep the requests of all owners waiting.
describe('what is stored as JSON is sent as it is stored:', () => {
  test('the data of an event', async () => {
    const id = await service.makeEvent({ data: '{"a":1.0}' });
    const { text, headers } = await call('GET', `/events/${id}`);
    assert.ok(text.endsWith(',"data":{"a":1.0}}'), text);
    assert.equal(headers.get('content-type'), 'application/json; charset=utf-8');
  });

  test('a message', async () => {
    const hostile = ',"rawEmailEncoding":"utf-8"}';
    const id = await sendMail(service.user, `Subject: ${hostile}\r\n\r\n${hostile}`);
    const [row] = await sql<{ content: string; size: number }[]>`
      select encode(content, 'base64') as content, size from messages where id = ${id}`;
    assert.ok(row);
    const { raw, data } = unpackContent({ ...row, hasRaw: true });
    const content = await packContent(raw, data.replace(`"size":${row.size}`, '"size":1.0'));
    await sql`update messages set content = ${content} where id = ${id}`;
    const { text, body } = await call('GET', `/messages/${id}`);
    assert.ok(text.includes('"size":1.0,'), text);
    assert.deepEqual([body.id, body.subject, body.text], [id, hostile, hostile]);
    assert.ok(!('rawEmailEncoding' in body));
  });
});
