/** `GET /identities`: filters, pages and the Link header. The paging is every list's. */
import assert from 'node:assert/strict';
import { request } from 'node:http';
import { test } from 'node:test';
import { only, type Sql } from '../src/db/client.ts';
import { newId } from '../src/lib/ids.ts';
import { listIdentities } from '../src/store/identities.ts';
import { identityStatuses } from '../src/store/verification.ts';
import { type Answer, assertProblem, callUrl, startTestService, type TestUser } from './harness.ts';
import { insertRows } from './insert.ts';

const service = await startTestService();
const { call, sql } = service;

interface Listed {
  id: string;
  value: string;
  created_at: string;
}

async function make(as: TestUser, value: string): Promise<Listed> {
  const answer = await call('POST', '/identities', { as, body: { value } });
  assert.equal(answer.status, 201, answer.text);
  return answer.body;
}

/** A user with that many domains, and their values, newest first. */
async function makeOwner(count: number): Promise<{ owner: TestUser; values: string[] }> {
  const owner = await service.makeUser();
  const values: string[] = [];
  for (let i = 0; i < count; i++) values.unshift((await make(owner, `d${i}.example`)).value);
  return { owner, values };
}

async function list(owner: TestUser, query: string): Promise<string[]> {
  const answer = await call('GET', `/identities${query}`, { as: owner });
  assert.equal(answer.status, 200, answer.text);
  return answer.body.map((identity: Listed) => identity.value);
}

function nextOf(answer: Answer): string | null {
  const link = answer.headers.get('link');
  if (link === null) return null;
  const form = /^<([^>]+)>; rel="next"$/.exec(link);
  assert.ok(form?.[1], link);
  return form[1];
}

/** Follows Link from page to page; `between` runs after each. */
async function readPages(owner: TestUser, first: string, between: () => Promise<void> = async () => {}) {
  const pages: string[][] = [];
  for (let next: string | null = first; next !== null; ) {
    const answer = await call('GET', next, { as: owner });
    assert.equal(answer.status, 200, answer.text);
    pages.push(answer.body.map((identity: Listed) => identity.value));
    assert.ok(pages.length < 100, 'the pages do not end');
    next = nextOf(answer);
    await between();
  }
  return pages;
}

test('a list is a bare array, newest first, and empty when there is nothing', async () => {
  const { owner, values } = await makeOwner(3);
  assert.deepEqual(await list(owner, ''), values);
  const nobody = await service.makeUser();
  assert.equal((await call('GET', '/identities', { as: nobody })).text, '[]');
});

test('kind, status and value filter, alone and together', async () => {
  const owner = await service.makeUser();
  const domain = await make(owner, 'f.example');
  await make(owner, 'Ada@f.example');
  await sql`update identities set status = 'pending' where id = ${domain.id}`;
  for (const [query, expected] of [
    ['?kind=email', ['Ada@f.example']],
    ['?kind=domain', ['f.example']],
    ['?status=pending', ['f.example']],
    ['?status=unverified', ['Ada@f.example']],
    ['?status=verified', []],
    ['?value=f.example', ['f.example']],
    ['?value=aDA%40F.example.', ['Ada@f.example']],
    ['?value=g.example', []],
    ['?kind=email&status=pending', []],
    ['?kind=domain&status=pending&value=F.EXAMPLE', ['f.example']],
  ] as const) {
    assert.deepEqual(await list(owner, query), expected, query);
  }
});

for (const [query, pointer, code] of [
  ['?kind=mail', '/kind', 'unknown_value'],
  ['?kind=', '/kind', 'unknown_value'],
  ['?kind=email&kind=domain', '/kind', 'wrong_type'],
  ['?status=Verified', '/status', 'unknown_value'],
  ['?value=', '/value', 'invalid_value'],
  ['?value=a%20b', '/value', 'invalid_value'],
  ['?limit=0', '/limit', 'out_of_range'],
  ['?limit=1001', '/limit', 'out_of_range'],
  ['?limit=-1', '/limit', 'out_of_range'],
  ['?limit=1.5', '/limit', 'wrong_type'],
  ['?limit=ten', '/limit', 'wrong_type'],
  ['?limit=', '/limit', 'wrong_type'],
  ['?offset=10', '/offset', 'unknown_field'],
] as const) {
  test(`GET /identities${query} is refused at ${pointer}`, async () => {
    const { errors } = assertProblem(await call('GET', `/identities${query}`), 400, 'invalid_query');
    assert.ok(
      errors?.some((error) => error.pointer === pointer && error.code === code),
      JSON.stringify(errors),
    );
    assert.deepEqual([...new Set(errors?.map((error) => error.pointer))], [pointer]);
  });
}

test('an unknown query parameter is refused with the one that was meant, and all faults are told', async () => {
  const answer = await call('GET', '/identities?knid=email&limit=x');
  const { errors } = assertProblem(answer, 400, 'invalid_query');
  assert.deepEqual(errors?.map(({ pointer }) => pointer).sort(), ['/knid', '/limit']);
  assert.match(errors?.find(({ pointer }) => pointer === '/knid')?.message ?? '', /Did you mean "kind"\?/);
});

test('Link leads from page to page to the end, and the last page has none', async () => {
  const { owner, values } = await makeOwner(7);
  const inPages = (size: number) =>
    Array.from({ length: Math.ceil(7 / size) }, (_, i) => values.slice(i * size, (i + 1) * size));
  for (const size of [1, 3, 6, 7, 8, 1000]) {
    assert.deepEqual(await readPages(owner, `/identities?limit=${size}`), inPages(size), `limit ${size}`);
  }
  assert.deepEqual(await readPages(owner, '/identities'), [values]);
});

test('a page without a limit holds 1000, the most there is', async () => {
  const owner = await service.makeUser();
  const rows = Array.from({ length: 1001 }, (_, i) => ({
    id: newId(),
    owner_id: owner.userId,
    kind: 'domain',
    public_id: `many${i}`,
    value: `many${i}.example`,
    value_key: `many${i}.example`,
  }));
  await insertRows(sql, 'identities', rows);
  const pages = await readPages(owner, '/identities');
  assert.deepEqual(
    pages.map((page) => page.length),
    [1000, 1],
  );
  assert.equal(new Set(pages.flat()).size, 1001);
});

test('Link keeps the filters', async () => {
  const owner = await service.makeUser();
  for (const value of ['x.example', 'a@x.example', 'y.example', 'z.example']) await make(owner, value);
  assert.deepEqual(await readPages(owner, '/identities?kind=domain&limit=2&status=unverified'), [
    ['z.example', 'y.example'],
    ['x.example'],
  ]);
});

test('pages are stable while rows are inserted and deleted between them', async () => {
  const { owner, values } = await makeOwner(6);
  let extra = 0;
  const pages = await readPages(owner, '/identities?limit=2', async () => {
    extra += 1;
    await make(owner, `extra${extra}.example`);
    // What was shown already; the position of a page does not depend on its row being there.
    await sql`delete from identities where owner_id = ${owner.userId} and value = ${values[extra * 2 - 1] ?? ''}`;
  });
  assert.deepEqual(pages.flat(), values);
});

test('rows of the same microsecond are neither repeated nor lost', async () => {
  const { owner, values } = await makeOwner(7);
  await sql`update identities set created_at = '2026-01-31 12:00:00.123456+00' where owner_id = ${owner.userId}`;
  const pages = await readPages(owner, '/identities?limit=2');
  // UUIDv7 sorts by time, so the ties keep the order in which they were made.
  assert.deepEqual(pages.flat(), values);
});

test('rows a microsecond apart are neither repeated nor lost', async () => {
  const { owner, values } = await makeOwner(5);
  await sql`
    update identities set created_at = timestamptz '2026-01-31 12:00:00.999998+00'
      + substring(value from 2 for 1)::int * interval '1 microsecond'
    where owner_id = ${owner.userId}`;
  assert.deepEqual((await readPages(owner, '/identities?limit=1')).flat(), values);
});

const encode = (text: string) => Buffer.from(text).toString('base64url');
for (const [what, cursor] of [
  ['empty', ''],
  ['a word', 'next'],
  ['a page number', encode('2')],
  ['no id', encode('1769860800000000 x')],
  ['no time', encode(`soon ${newId()}`)],
  ['SQL', encode(`1 ${newId()}'; drop table users`)],
  ['a time out of range', encode(`99999999999999999999 ${newId()}`)],
  ['followed by other text', `1769860800000000_${newId()}_x`],
  ['followed by nothing but a separator', `1769860800000000_${newId()}_`],
  ['followed by other text, in the form before 0.3', encode(`1769860800000000 ${newId()} x`)],
  ['too long', 'A'.repeat(300)],
] as const) {
  test(`a cursor that is ${what} is refused`, async () => {
    const answer = await call('GET', `/identities?cursor=${cursor}`);
    const { errors } = assertProblem(answer, 400, 'invalid_query');
    assert.deepEqual([...new Set(errors?.map(({ pointer }) => pointer))], ['/cursor']);
  });
}

test("a cursor from another owner's list shows nothing of that owner's", async () => {
  const { owner } = await makeOwner(3);
  const { owner: stranger, values } = await makeOwner(1);
  const next = nextOf(await call('GET', '/identities?limit=1', { as: owner }));
  const answer = await call('GET', next ?? '', { as: stranger });
  assert.ok(answer.body.every((identity: Listed) => values.includes(identity.value)));
});

/** The Link and Location of a service, asked with a request line and a Host header of the test's choosing. */
function askRaw(url: string, as: TestUser, path: string, host: string): Promise<string | undefined> {
  const { port } = new URL(url);
  return new Promise((resolve, reject) => {
    const headers = {
      authorization: `Bearer ${as.apiKey}`,
      host,
      'x-forwarded-host': host,
      forwarded: `host=${host}`,
    };
    const asked = request({ host: 'localhost', port, path, headers }, (answer) => {
      answer.resume().on('end', () => resolve(answer.headers.link as string | undefined));
    });
    asked.on('error', reject).end();
  });
}

test('without a public URL, Link and Location are path-absolute, whatever the Host header says', async () => {
  const { owner } = await makeOwner(2);
  for (const path of ['/identities?limit=1', 'http://evil.example/identities?limit=1']) {
    const link = await askRaw(service.url, owner, path, 'evil.example');
    assert.match(link ?? '', /^<\/identities\?limit=1&cursor=[\w-]+>; rel="next"$/, path);
  }
  const { headers, body } = await call('POST', '/identities', { as: owner, body: { value: 'loc.example' } });
  assert.equal(headers.get('location'), `/identities/${body.id}`);
});

test('with a public URL and a base path, Link and Location are absolute under both', async () => {
  const prefixed = await startTestService({
    POSTHORN_PUBLIC_URL: 'https://mail.example/',
    POSTHORN_BASE_PATH: '/api/v2',
  });
  const base = 'https://mail.example/api/v2';
  for (const value of ['one.example', 'two.example']) {
    const { headers, body } = await prefixed.call('POST', '/identities', { body: { value } });
    assert.equal(headers.get('location'), `${base}/identities/${body.id}`);
  }
  const path = '/api/v2/identities?limit=1';
  for (const asked of [path, `http://evil.example${path}`]) {
    const link = await askRaw(prefixed.url, prefixed.user, asked, 'evil.example');
    const target =
      /^<(https:\/\/mail\.example\/api\/v2\/identities\?limit=1&cursor=[\w-]+)>; rel="next"$/.exec(
        link ?? '',
      );
    assert.ok(target?.[1], link);
    // What the proxy in front would pass on.
    const next = await callUrl('GET', target[1].replace(base, prefixed.url), { as: prefixed.user });
    assert.deepEqual(
      next.body.map((identity: Listed) => identity.value),
      ['one.example'],
    );
  }
});

test('a list reads the rows of its owner and none of the others, however many those are', async () => {
  const [owner, stranger] = [await service.makeUser(), await service.makeUser()];
  const { id: domainId } = await make(owner, 'many.example');
  await sql`
    insert into identities (id, owner_id, kind, public_id, value, value_key, domain_identity_id)
    select gen_random_uuid(), owner_id, 'email', left(md5(value), 10), value, value, domain_identity_id
    from (values (${owner.userId}::uuid, ${domainId}::uuid, 1000), (${stranger.userId}, null, 20000))
      as owners (owner_id, domain_identity_id, count),
      lateral (select n || '@' || owner_id as value from generate_series(1, count) n) made`;
  await sql`analyze identities`;
  const countReads = async (sql: Sql) =>
    only(
      await sql<{ scans: number; rows: number }[]>`
        select seq_scan::int as scans, idx_tup_fetch::int as rows
        from pg_stat_xact_user_tables where relname = 'identities'`,
    );
  for (const status of [undefined, ...identityStatuses]) {
    await sql.begin(async (sql) => {
      const before = await countReads(sql);
      await listIdentities(sql, owner.userId, { status }, { limit: 1000, after: null });
      const after = await countReads(sql);
      assert.equal(after.scans, before.scans, status);
      // Its own, the domain of each, for the filter and for the answer, and the next row of each group in every step.
      assert.ok(after.rows - before.rows <= 4 * 1001, `${status}: ${after.rows - before.rows} rows`);
    });
  }
});
