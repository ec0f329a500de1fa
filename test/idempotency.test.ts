/** Idempotency-Key on POST: an effect happens once, its first answer is told again, and both are kept or neither. */
import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import { text } from 'node:stream/consumers';
import { after, describe, test } from 'node:test';
import { connect } from '../src/db/client.ts';
import { makeApp } from '../src/http/fastify.ts';
import { actAndRespondOnce } from '../src/http/idempotency.ts';
import { makeSealer } from '../src/lib/secrets.ts';
import { purgeResponses } from '../src/store/idempotency.ts';
import {
  type Answer,
  assertProblem,
  makeTestLog,
  startTestService,
  type TestUser,
  waitFor,
} from './harness.ts';
import { startReceiver } from './receiver.ts';

const adminToken = randomBytes(20).toString('hex');
const service = await startTestService({ POSTHORN_ADMIN_TOKEN: adminToken });
const { sql } = service;
const receiver = await startReceiver();
after(() => receiver.close());

const domain = () => `i${randomBytes(6).toString('hex')}.example`;
const webhook = (user = service.user) => ({
  url: 'https://example.com/hooks',
  events: ['message.received'],
  ownerId: user.userId,
});

function post(path: string, key: string, body?: unknown, as: TestUser = service.user): Promise<Answer> {
  return service.call('POST', path, { as, body, headers: { 'idempotency-key': key } });
}

async function countIdentities(value: string): Promise<number> {
  return (await sql`select from identities where value = ${value}`).count;
}

describe('a replay', () => {
  test('tells the first answer again, status, body, Location and secret included', async () => {
    const key = randomUUID();
    const first = await post('/webhooks', key, webhook());
    const again = await post('/webhooks', key, webhook());
    assert.equal(first.status, 201);
    assert.equal(again.status, 201);
    assert.equal(again.text, first.text);
    assert.match(again.body.secret, /^whsec_/);
    assert.equal(again.headers.get('location'), first.headers.get('location'));
    assert.match(again.headers.get('location') ?? '', new RegExp(`/webhooks/${first.body.id}$`));
    assert.equal(again.headers.get('content-type'), first.headers.get('content-type'));
    assert.equal(first.headers.get('idempotent-replayed'), null);
    assert.equal(again.headers.get('idempotent-replayed'), 'true');
    for (const { headers } of [first, again]) assert.equal(headers.get('cache-control'), 'no-store');
    assert.equal((await sql`select from webhooks where owner_id = ${service.user.userId}`).count, 1);
  });

  test('is what it was, whatever happened to the resource since', async () => {
    const [key, body] = [randomUUID(), { value: domain() }];
    const first = await post('/identities', key, body);
    await service.call('DELETE', `/identities/${first.body.id}`);
    const again = await post('/identities', key, body);
    assert.equal(again.status, 201);
    assert.deepEqual(again.body, first.body);
    assert.equal(await countIdentities(body.value), 0);
  });

  test('gives one secret for a rotation that is sent twice', async () => {
    const { body: made } = await service.call('POST', '/webhooks', { body: webhook() });
    const key = randomUUID();
    const path = `/webhooks/${made.id}/secret/rotate`;
    const [first, again] = [await post(path, key), await post(path, key)];
    assert.equal(first.status, 200);
    assert.equal(again.text, first.text);
    assert.equal((await service.call('GET', `/webhooks/${made.id}/secret`)).body.secret, first.body.secret);
    const retired = await sql`select from retired_webhook_secrets where webhook_id = ${made.id}`;
    assert.equal(retired.count, 1);
  });

  test('gives one key to an operator who asks twice', async () => {
    const path = `/admin/users/${service.user.userId}/api-keys`;
    const headers = { authorization: `Bearer ${adminToken}`, 'idempotency-key': randomUUID() };
    const call = () => service.call('POST', path, { as: null, body: { name: 'once' }, headers });
    const [first, again] = [await call(), await call()];
    assert.match(first.body.apiKey, /^ph_/);
    assert.equal(again.text, first.text);
    assert.equal((await sql`select from api_keys where name = 'once'`).count, 1);
  });

  test('does not depend on spaces in the body, and does on what it says', async () => {
    const [key, value] = [randomUUID(), domain()];
    const first = await post('/identities', key, `{"value":"${value}"}`);
    assert.equal((await post('/identities', key, `{ "value" : "${value}" }`)).text, first.text);
    assertProblem(await post('/identities', key, { value: domain() }), 409, 'idempotency_mismatch');
    assertProblem(await post('/identities', key, { value, meta: {} }), 409, 'idempotency_mismatch');
    assert.equal(await countIdentities(value), 1);
  });
});

test('a host in the request line makes no difference, however long it is', async () => {
  const key = randomUUID();
  const first = await post('/api-keys', key, {});
  const headers = {
    authorization: `Bearer ${service.user.apiKey}`,
    'content-type': 'application/json',
    'idempotency-key': key,
  };
  const { port } = new URL(service.url);
  const path = `http://${randomBytes(4000).toString('hex')}/api-keys`;
  const sent = request({ host: '127.0.0.1', port, method: 'POST', path, headers }).end('{}');
  const [again] = (await once(sent, 'response')) as [IncomingMessage];
  assert.equal(again.statusCode, 201);
  assert.equal(again.headers['idempotent-replayed'], 'true');
  assert.equal(await text(again), first.text);
});

test('the same key of another owner, or for another route, is another key', async () => {
  const [key, body] = [randomUUID(), { value: domain() }];
  const other = await service.makeUser();
  const mine = await post('/identities', key, body);
  const theirs = await post('/identities', key, body, other);
  assert.equal(theirs.status, 201);
  assert.notEqual(theirs.body.id, mine.body.id);
  assert.equal(theirs.body.owner_id, other.userId);

  const hook = await post('/webhooks', key, webhook());
  assert.equal(hook.status, 201);
  const hooks = await Promise.all([1, 2].map(() => service.call('POST', '/webhooks', { body: webhook() })));
  const rotated = await Promise.all(hooks.map(({ body }) => post(`/webhooks/${body.id}/secret/rotate`, key)));
  assert.deepEqual(
    rotated.map(({ status }) => status),
    [200, 200],
  );
  assert.notEqual(rotated[0]?.body.secret, rotated[1]?.body.secret);
});

describe('while the first is under way', () => {
  test('the same key is 409, and the first is answered and kept all the same', async () => {
    const [key, value] = [randomUUID(), domain()];
    const blocker = connect(service.databaseUrl, { max: 1, applicationName: 'blocker' });
    let first: Promise<Answer> | undefined;
    await blocker.begin(async (blocking) => {
      // createIdentity takes this row's lock, so the first request stops right there.
      await blocking`select from users where id = ${service.user.userId} for update`;
      first = post('/identities', key, { value });
      await waitFor('the first request to hang on the lock', async () => {
        const waiting = await sql`
          select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()`;
        return waiting.count > 0;
      });
      assertProblem(await post('/identities', key, { value }), 409, 'idempotency_in_progress');
      assertProblem(await post('/identities', key, { value: domain() }), 409, 'idempotency_in_progress');
    });
    await blocker.end();
    const made = await first;
    assert.equal(made?.status, 201);
    const again = await post('/identities', key, { value });
    assert.equal(again.text, made?.text);
  });

  test('of a POST that calls a webhook, too, which is called once', async () => {
    const key = randomUUID();
    let answerNow = () => {};
    receiver.behaveAt('/slow-test', (_request, response) => {
      answerNow = () => response.writeHead(204).end();
    });
    const { id } = await service.makeWebhook(receiver.url('/slow-test'));
    const first = post(`/webhooks/${id}/test`, key);
    await receiver.received(1, ({ url }) => url === '/slow-test');
    assertProblem(await post(`/webhooks/${id}/test`, key), 409, 'idempotency_in_progress');
    answerNow();
    const made = await first;
    assert.equal(made.body.delivered, true);
    assert.equal((await post(`/webhooks/${id}/test`, key)).text, made.text);
    assert.equal(receiver.requests.filter(({ url }) => url === '/slow-test').length, 1);
  });

  test('of a POST whose body is optional: another body is another request', async () => {
    const key = randomUUID();
    const { id } = await service.makeWebhook(receiver.url('/optional-body'));
    const path = `/webhooks/${id}/test`;
    const first = await post(path, key, { event: 'message.received' });
    assert.equal(first.body.delivered, true);
    assert.equal((await post(path, key, { event: 'message.received' })).text, first.text);
    assertProblem(await post(path, key, {}), 409, 'idempotency_mismatch');
    assertProblem(await post(path, key), 409, 'idempotency_mismatch');
    assert.equal(receiver.requests.filter(({ url }) => url === '/optional-body').length, 1);
  });

  test('a mark that a dead process left counts for a minute', async () => {
    const key = randomUUID();
    const { id } = await service.makeWebhook(receiver.url('/after-death'));
    const path = `/webhooks/${id}/test`;
    await post(path, key);
    await sql`update idempotency_records set status = null, body = null where key = ${key}`;
    assertProblem(await post(path, key), 409, 'idempotency_in_progress');
    await sql`update idempotency_records set created_at = now() - interval '61 seconds' where key = ${key}`;
    assert.equal((await post(path, key)).body.delivered, true);
  });

  test('of twenty at once, one effect happens and every answer is that one or 409', async () => {
    const [key, value] = [randomUUID(), domain()];
    const answers = await Promise.all(Array.from({ length: 20 }, () => post('/identities', key, { value })));
    const made = answers.filter(({ status }) => status === 201);
    assert.equal(new Set(made.map(({ text }) => text)).size, 1);
    for (const answer of answers.filter(({ status }) => status !== 201)) {
      assertProblem(answer, 409, 'idempotency_in_progress');
    }
    assert.equal(await countIdentities(value), 1);
  });
});

describe('failures are not kept', () => {
  test('a refused body can be mended under the same key', async () => {
    const key = randomUUID();
    assertProblem(await post('/identities', key, { value: 'no domain' }), 400, 'invalid_body');
    assertProblem(
      await post('/webhooks', key, { ...webhook(), ownerId: randomUUID() }),
      403,
      'owner_mismatch',
    );
    assert.equal((await post('/identities', key, { value: domain() })).status, 201);
    assert.equal((await post('/webhooks', key, webhook())).status, 201);
  });

  test('a conflict is looked at again', async () => {
    const [key, value] = [randomUUID(), domain()];
    const { body: made } = await service.call('POST', '/identities', { body: { value } });
    assertProblem(await post('/identities', key, { value }), 409, 'identity_exists');
    await service.call('DELETE', `/identities/${made.id}`);
    assert.equal((await post('/identities', key, { value })).status, 201);
  });

  test('where the answer cannot be kept, nothing has happened', async () => {
    const [key, value] = [randomUUID(), domain()];
    await sql.script(`alter table idempotency_records add constraint never check (key <> '${key}')`);
    const failed = await post('/identities', key, { value });
    assertProblem(failed, 500, 'internal_error');
    assert.equal(await countIdentities(value), 0);
    await sql`alter table idempotency_records drop constraint never`;
    assert.equal((await post('/identities', key, { value })).status, 201);
    assert.equal(await countIdentities(value), 1);
  });
});

describe('what is kept', () => {
  test('is encrypted, and opens for nobody else', async () => {
    const key = randomUUID();
    const { body } = await post('/webhooks', key, webhook());
    const [row] = await sql`select body, status, location from idempotency_records where key = ${key}`;
    const stored = row?.body as Buffer;
    assert.equal(row?.status, 201);
    for (const text of [body.secret, body.id, 'whsec_', '"url"'])
      assert.equal(stored.includes(text), false, text);

    // Moved to another owner's name it does not open, so it cannot be read through the API either.
    const other = await service.makeUser();
    await sql`update idempotency_records set owner_id = ${other.userId} where key = ${key}`;
    const answer = await post('/webhooks', key, webhook(), other);
    assert.equal(answer.text.includes(body.secret), false);
    assertProblem(answer, 500, 'internal_error');
  });

  test('counts for 24 hours and no longer', async () => {
    const [key, value] = [randomUUID(), domain()];
    const first = await post('/identities', key, { value });
    const age = (text: string) =>
      sql`update idempotency_records set created_at = now() - ${text}::interval where key = ${key}`;
    await age('23 hours 59 minutes');
    assert.equal((await post('/identities', key, { value })).text, first.text);
    await age('24 hours 1 second');
    assertProblem(await post('/identities', key, { value }), 409, 'identity_exists');
    const renewed = await post('/identities', key, { value: domain() });
    assert.equal(renewed.status, 201, 'an old key may stand for another request');
    assert.equal((await post('/identities', key, { value: renewed.body.value })).text, renewed.text);
  });

  test('is purged in batches once it is old, and not before', async () => {
    // In a transaction, where the service's own purge sees nothing of it.
    await sql.begin(async (sql) => {
      await sql`truncate idempotency_records`;
      await sql`
        insert into idempotency_records (owner_id, path, key, request_hash, status, body, created_at)
        select ${service.user.userId}, '/identities', 'k' || n, '\\x00', 201, '\\x00',
          now() - case when n <= 5 then interval '25 hours' else interval '23 hours' end
        from generate_series(1, 8) n`;
      const left = async () => (await sql`select from idempotency_records`).count;
      assert.equal(await purgeResponses(sql, 2), true);
      assert.equal(await left(), 6);
      assert.equal(await purgeResponses(sql, 2), true);
      assert.equal(await purgeResponses(sql, 2), false);
      assert.equal(await left(), 3);
      assert.equal(await purgeResponses(sql), false);
      assert.equal(await left(), 3);
    });
  });
});

describe('the header', () => {
  for (const key of ['', 'a b', 'x'.repeat(256), 'schlüssel', '\t']) {
    test(`${JSON.stringify(key.slice(0, 12))} (${key.length} characters) is 400`, async () => {
      const value = domain();
      const { detail } = assertProblem(await post('/identities', key, { value }), 400, 'invalid_header');
      assert.match(detail, /Idempotency-Key/);
      assert.equal(await countIdentities(value), 0);
    });
  }

  test('255 printable characters are taken', async () => {
    assert.equal((await post('/identities', '~'.repeat(255), { value: domain() })).status, 201);
  });

  test('means nothing on methods other than POST', async () => {
    const headers = { 'idempotency-key': 'not one' };
    assert.equal((await service.call('GET', '/me', { headers })).status, 200);
  });

  test('without it, nothing is kept', async () => {
    await sql`truncate idempotency_records`;
    await service.call('POST', '/identities', { body: { value: domain() } });
    assert.equal((await sql`select from idempotency_records`).count, 0);
  });
});

test('work that takes longer than a minute is not done a second time', async () => {
  const working = Promise.withResolvers<void>();
  let started = 0;
  const app = makeApp(makeTestLog().log);
  after(() => app.close());
  app.decorateRequest('ownerId', service.user.userId);
  const parts = {
    sql,
    sealer: makeSealer([randomBytes(32)]),
    log: makeTestLog().log,
    baseUrl: '',
    renewMs: 10,
  };
  app.post('/slow', (request, reply) =>
    actAndRespondOnce(
      parts,
      request,
      reply,
      () => {
        started += 1;
        return working.promise;
      },
      async () => ({ status: 200, body: {} }),
    ),
  );
  const ask = () => app.inject({ method: 'POST', url: '/slow', headers: { 'idempotency-key': 'slow' } });
  const first = ask();
  await waitFor('the work', () => started === 1);
  await sql`update idempotency_records set created_at = now() - interval '61 seconds' where key = 'slow'`;
  await waitFor('the renewal, or the end of the mark', async () => {
    const [row] = await sql`
      select created_at > now() - interval '30 seconds' as renewed from idempotency_records where key = 'slow'`;
    return row?.renewed;
  });
  assert.equal((await ask()).statusCode, 409);
  working.resolve();
  assert.equal((await first).statusCode, 200);
  assert.equal((await ask()).headers['idempotent-replayed'], 'true');
  assert.equal(started, 1);
});
