/** What the API says of proof: POST verify and its limit, GET dns and dns.zone, new DKIM keys. */
import assert from 'node:assert/strict';
import { createPublicKey, randomBytes, randomUUID } from 'node:crypto';
import { describe, test } from 'node:test';
import type { DnsRecord } from '../src/contract/identity.ts';
import type { Identity } from '../src/store/identities.ts';
import { type Answer, assertProblem, startTestService } from './harness.ts';
import { mailHost, newDomain, startProving, withoutLoop } from './proving.ts';

const proving = await startProving(withoutLoop);
const { service, dns, add, publish, verify, statusAfterCheck } = proving;
const { call, sql } = service;

async function recordsOf({ id }: Identity): Promise<DnsRecord[]> {
  const answer = await call('GET', `/identities/${id}/dns`);
  assert.equal(answer.status, 200, answer.text);
  return answer.body;
}

describe('POST verify', () => {
  test('answers the identity after the check', async () => {
    const domain = newDomain();
    const made = await add(domain);
    await publish(domain, [made]);
    const answer = await verify(made);
    assert.equal(answer.status, 200, answer.text);
    assert.deepEqual(Object.keys(answer.body), Object.keys(made));
    assert.equal(answer.body.status, 'verified');
    assert.deepEqual(answer.body, (await call('GET', `/identities/${made.id}`)).body);
  });

  test('ten at once, then 429 with Retry-After, and one more every 5 s', async () => {
    const made = await add(newDomain());
    const startedAt = performance.now();
    /** On a slow machine the test itself takes longer than 5 s. */
    const assertAllowed = (count: number, expected: number) => {
      const most = expected + Math.ceil((performance.now() - startedAt) / 5000);
      assert.ok(count >= expected && count <= most, `${count} checks, not ${expected} to ${most}`);
    };
    const burst = await Promise.all(Array.from({ length: 25 }, () => verify(made)));
    const counts = Object.groupBy(burst, ({ status }) => status);
    assertAllowed(counts[200]?.length ?? 0, 10);
    assert.equal((counts[200]?.length ?? 0) + (counts[429]?.length ?? 0), 25);
    const limited = counts[429]?.at(-1) as Answer;
    assert.match(assertProblem(limited, 429, 'rate_limited').detail, /checked too often\. Retry in \d s/);
    const wait = Number(limited.headers.get('retry-after'));
    assert.ok(wait >= 1 && wait <= 5, String(wait));

    const goBy = (seconds: number) => sql`
      update identities set check_allowance_at = check_allowance_at - ${seconds} * interval '1 second'
      where id = ${made.id}`;
    const countAllowed = async () => {
      let count = 0;
      while ((await verify(made)).status === 200) count += 1;
      return count;
    };
    await goBy(wait);
    assertAllowed(await countAllowed(), 1);
    await goBy(10);
    assertAllowed(await countAllowed(), 2);
    await goBy(86_400);
    const again = await Promise.all(Array.from({ length: 15 }, () => verify(made)));
    // Never more than ten, however long nobody asked.
    assertAllowed(again.filter(({ status }) => status === 200).length, 10);
  });

  test('the limit is of each identity', async () => {
    const [one, other] = [await add(newDomain()), await add(newDomain())];
    await sql`update identities set check_allowance = 0, check_allowance_at = now() where id = ${one.id}`;
    assert.equal((await verify(one)).status, 429);
    assert.equal((await verify(other)).status, 200);
  });

  test('starts a failed one again', async () => {
    const domain = newDomain();
    const made = await add(domain);
    await sql`
      update identities set status = 'failed', next_check_at = null, standing_since = now() - interval '30 days'
      where id = ${made.id}`;
    assert.equal(await statusAfterCheck(made), 'unverified');
    const [row] = await sql<{ wait: number }[]>`
      select extract(epoch from next_check_at - now())::float8 as wait from identities where id = ${made.id}`;
    assert.ok(row && row.wait > 5 && row.wait < 12, `checked again in ${row?.wait} s`);
    await publish(domain, [made]);
    assert.equal(await statusAfterCheck(made), 'verified');
  });

  test('while DNS is away finds nothing out, and says so', async (t) => {
    t.after(() => dns.answerAll(null));
    const [fresh, failed] = [await add(newDomain()), await add(newDomain())];
    await sql`update identities set status = 'failed' where id = ${failed.id}`;
    dns.answerAll('SERVFAIL');
    for (const one of [fresh, failed]) {
      assert.equal(await statusAfterCheck(one), 'unverified');
      const [row] = await sql`select standing_reason as reason from identities where id = ${one.id}`;
      assert.match(row?.reason, /^The ownership, SPF, and DKIM records could not be looked up\.$/);
    }
  });

  test('while DNS is away goes on telling of a grace', async (t) => {
    t.after(() => dns.answerAll(null));
    const domain = newDomain();
    const made = await add(domain);
    await publish(domain, [made]);
    await verify(made);
    await publish(domain, []);
    await verify(made);
    const [before] = await recordsOf(made);
    assert.ok(before?.graceUntil);
    dns.answerAll('SERVFAIL');
    await verify(made);
    const [during] = await recordsOf(made);
    assert.deepEqual([during?.status, during?.graceUntil], ['unknown', before.graceUntil]);
    assert.match(during?.note ?? '', /The grace period continues\.$/);
  });
});

test("another owner's, a missing and a malformed id are not found, on every route", async () => {
  const made = await add(newDomain());
  const stranger = await service.makeUser();
  for (const [method, what] of [
    ['POST', 'verify'],
    ['GET', 'dns'],
    ['GET', 'dns.zone'],
    ['POST', 'dkim/rotate'],
  ] as const) {
    for (const id of [made.id, randomUUID(), 'nonsense'])
      assertProblem(await call(method, `/identities/${id}/${what}`, { as: stranger }), 404, 'not_found');
    assert.equal((await call(method, `/identities/${made.id}/${what}`, { as: null })).status, 401);
  }
  const [row] = await sql`select check_allowance from identities where id = ${made.id}`;
  assert.equal(row?.check_allowance, 10, 'a stranger does not use up what the owner may ask');
});

test('GET dns says what a record is for, also of records that an older version stored', async () => {
  const made = await add(newDomain(), { incoming_domain: true });
  const records = await recordsOf(made);
  const older = JSON.stringify(records.map(({ usedFor, ...rest }) => rest));
  await sql`update identities set dns_records = ${older}::text::json where id = ${made.id}`;
  assert.deepEqual(await recordsOf(made), records);
  assert.deepEqual(
    records.map(({ purpose, usedFor }) => `${purpose}: ${usedFor.join(', ')}`),
    ['ownership: sending, receiving', 'mx: receiving', 'spf: sending', 'dkim: sending', 'dmarc: sending'],
  );
});

test('GET dns is what dns_records has as text', async () => {
  const domain = newDomain();
  const made = await add(domain, { incoming_domain: true });
  assert.deepEqual(await recordsOf(made), JSON.parse(made.dns_records));
  const { body } = await verify(made);
  const records = await recordsOf(made);
  assert.deepEqual(records, JSON.parse(body.dns_records));
  assert.deepEqual(
    records.map(({ purpose, status, priority }) => [purpose, status, priority]),
    [
      ['ownership', 'missing', undefined],
      ['mx', 'missing', 10],
      ['spf', 'missing', undefined],
      ['dkim', 'missing', undefined],
      ['dmarc', 'missing', undefined],
    ],
  );
  for (const { note, checkedAt } of records) assert.ok(note && checkedAt);
});

test('GET dns.zone can be pasted: long values in chunks', async () => {
  const domain = newDomain();
  const made = await add(domain, { incoming_domain: true });
  const zone = await call('GET', `/identities/${made.id}/dns.zone`);
  assert.equal(zone.status, 200);
  assert.equal(zone.headers.get('content-type'), 'text/plain; charset=utf-8');
  const [ownership, , , dkim] = await recordsOf(made);
  assert.ok(zone.text.includes(`\n_posthorn.${domain}. 3600 IN TXT "${ownership?.value}"\n`));
  assert.ok(zone.text.includes(`\n${domain}. 3600 IN MX 10 ${mailHost}.\n`));
  const line = zone.text.split('\n').find((one) => one.startsWith(`${dkim?.name}.`)) ?? '';
  const chunks = [...line.matchAll(/"([^"]*)"/g)].map(([, chunk = '']) => chunk);
  assert.ok(chunks.length > 1 && chunks.every((chunk) => chunk.length <= 255));
  assert.equal(chunks.join(''), dkim?.value);
  const address = await add(`ada@${domain}`);
  assert.equal((await call('GET', `/identities/${address.id}/dns.zone`)).status, 200);
});

describe('DKIM keys', () => {
  async function dkimOf(identity: Identity): Promise<DnsRecord[]> {
    return (await recordsOf(identity)).filter(({ purpose }) => purpose === 'dkim');
  }
  function rotate({ id }: Identity, headers: Record<string, string> = {}) {
    return call('POST', `/identities/${id}/dkim/rotate`, { headers });
  }

  async function passMinute({ id }: Identity): Promise<void> {
    await sql`update dkim_keys set created_at = created_at - interval '1 minute' where identity_id = ${id}`;
  }

  test('2048 bits of RSA, of each identity its own, and sealed at rest', async () => {
    const [one, other] = [await add(newDomain()), await add(newDomain())];
    const [[first], [second]] = [await dkimOf(one), await dkimOf(other)];
    assert.ok(first && second && first.value !== second.value);
    const der = Buffer.from(/p=(.+)$/.exec(first.value)?.[1] ?? '', 'base64');
    const key = createPublicKey({ key: der, format: 'der', type: 'spki' });
    assert.equal(key.asymmetricKeyType, 'rsa');
    assert.equal(key.asymmetricKeyDetails?.modulusLength, 2048);
    const rows = await sql<{ private_key: Buffer }[]>`select private_key from dkim_keys`;
    assert.ok(rows.length >= 2);
    for (const { private_key: sealed } of rows) {
      assert.doesNotMatch(sealed.toString('latin1'), /PRIVATE KEY|BEGIN|MII/);
      assert.ok(sealed.length > 1000);
    }
    const dump = await sql`select row_to_json(identities)::text as text from identities`;
    assert.ok(dump.every(({ text }) => !/PRIVATE KEY/.test(text)));
  });

  test('after a rotation old and new stand side by side until the new one is seen', async () => {
    const domain = newDomain();
    const made = await add(domain);
    const [old] = await dkimOf(made);
    assert.ok(old);
    dns.answer(old.name, { TXT: [old.value] });
    await publish(domain, [made]);
    await verify(made);
    const answer = await rotate(made);
    assert.equal(answer.status, 200, answer.text);
    assert.equal(answer.body.id, made.id);
    assert.notEqual(answer.body.updated_at, made.updated_at);

    const [before, next] = await dkimOf(made);
    assert.ok(before && next);
    assert.equal(before.name, old.name);
    assert.deepEqual([before.status, next.status, next.checkedAt], ['valid', 'unknown', null]);
    const [ownership] = await recordsOf(made);
    assert.equal(ownership?.status, 'valid', 'what was seen of the rest stays');

    assert.equal(await statusAfterCheck(made), 'verified');
    const waiting = await dkimOf(made);
    assert.deepEqual(
      waiting.map(({ name, status }) => [name, status]),
      [
        [old.name, 'valid'],
        [next.name, 'missing'],
      ],
    );
    assert.match(
      waiting[0]?.note ?? '',
      /Keep this record until a check has found the new key ph\d{8}-\w{6}/,
    );

    dns.answer(next.name, { TXT: [next.value] });
    await verify(made);
    const after = await dkimOf(made);
    assert.deepEqual(
      after.map(({ name, status, note }) => [name, status, note]),
      [[next.name, 'valid', undefined]],
    );
    const rows = await sql`select selector from dkim_keys where identity_id = ${made.id}`;
    assert.deepEqual(
      rows.map(({ selector }) => `${selector}._domainkey.${domain}`),
      [next.name],
    );
  });

  test('rotated again before it was seen, the new one is replaced: never more than two', async () => {
    const made = await add(newDomain());
    const [first] = await dkimOf(made);
    for (let n = 0; n < 3; n += 1) {
      assert.equal((await rotate(made)).status, 200);
      await passMinute(made);
    }
    const both = await dkimOf(made);
    assert.equal(both.length, 2);
    assert.equal(both[0]?.name, first?.name);
    const atOnce = await Promise.all(Array.from({ length: 4 }, () => rotate(made)));
    assert.deepEqual(atOnce.map(({ status }) => status).sort(), [200, 429, 429, 429]);
    assert.equal((await dkimOf(made)).length, 2);
  });

  test('one that was not seen yet is replaced after a minute, and not before', async () => {
    const made = await add(newDomain());
    assert.equal((await rotate(made)).status, 200, 'the first at any time');
    const records = await dkimOf(made);
    const limited = await rotate(made);
    assert.match(assertProblem(limited, 429, 'rate_limited').detail, /Publish that key\. Retry in \d+ s/);
    const wait = Number(limited.headers.get('retry-after'));
    assert.ok(wait > 30 && wait <= 60, String(wait));
    assert.deepEqual(await dkimOf(made), records);
    await passMinute(made);
    assert.equal((await rotate(made)).status, 200);
    // Once it is seen, the next may be made at any time.
    for (const { name, value } of await dkimOf(made)) dns.answer(name, { TXT: [value] });
    assert.equal((await verify(made)).status, 200);
    assert.equal((await dkimOf(made)).length, 1);
    assert.equal((await rotate(made)).status, 200);
  });

  test("the operator's key has to open them, or the service does not start", async () => {
    await add(newDomain());
    const stored = { ...withoutLoop, DATABASE_URL: service.databaseUrl };
    const POSTHORN_SECRET_KEY = randomBytes(32).toString('base64');
    await assert.rejects(
      startTestService({ ...stored, POSTHORN_SECRET_KEY }),
      /Add the key that was used before/,
    );
  });

  test('with an Idempotency-Key it is rotated once', async () => {
    const made = await add(newDomain());
    const key = { 'idempotency-key': randomUUID() };
    const [one, other] = [await rotate(made, key), await rotate(made, key)];
    assert.equal(one.status, 200);
    assert.equal(other.text, one.text);
  });

  test('rotations and checks at once fail no call', async () => {
    const domain = newDomain();
    const made = await add(domain);
    await publish(domain, [made]);
    for (let round = 0; round < 5; round += 1) {
      for (const { name, value } of await dkimOf(made)) dns.answer(name, { TXT: [value] });
      await sql`update identities set check_allowance = 10, check_allowance_at = now() where id = ${made.id}`;
      const answers = await Promise.all([
        verify(made),
        rotate(made),
        verify(made),
        rotate(made),
        verify(made),
      ]);
      for (const { status, text } of [answers[0], answers[2], answers[4]]) assert.equal(status, 200, text);
      const rotations = [answers[1].status, answers[3].status];
      assert.ok(rotations.includes(200), 'one at least');
      for (const status of rotations) assert.ok(status === 200 || status === 429, String(status));
      await passMinute(made);
    }
    const count = (await dkimOf(made)).length;
    assert.ok(count === 1 || count === 2, String(count));
  });

  test('go with the identity', async () => {
    const made = await add(newDomain());
    assert.equal((await call('DELETE', `/identities/${made.id}`)).status, 204);
    assert.equal((await sql`select from dkim_keys where identity_id = ${made.id}`).length, 0);
  });
});
