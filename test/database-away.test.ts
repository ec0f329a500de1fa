/**
 * A PostgreSQL that goes away and comes back under a running service. It is a server of this file's own, started and
 * ended by hand, and reached through DATABASE_URL like any other.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, describe, type TestContext, test } from 'node:test';
import { readConfig } from '../src/config.ts';
import { connect } from '../src/db/client.ts';
import { makeLog } from '../src/lib/log.ts';
import { OperatorError } from '../src/lib/operator-error.ts';
import { startService } from '../src/main.ts';
import { createApiKey } from '../src/store/api-keys.ts';
import { ensureUser } from '../src/store/users.ts';
import { type Answer, assertProblem, callUrl, waitFor } from './harness.ts';
import { makeOwnPostgres } from './own-postgres.ts';

const { cluster, url, start, stop, crash, remove } = await makeOwnPostgres();
after(remove);

const secret = randomBytes(32).toString('base64');

function readSettings(databaseUrl = url) {
  return readConfig({
    DATABASE_URL: databaseUrl,
    POSTHORN_SECRET_KEY: secret,
    PORT: '0',
    POSTHORN_SMTP_PORT: '0',
    POSTHORN_SUBMISSION_PORT: '0',
  });
}

function collect() {
  const lines: string[] = [];
  const stream = { write: (line: string) => lines.push(line) } as unknown as NodeJS.WritableStream;
  return { lines, log: makeLog({ level: 'info', json: true, stream }) };
}

/** The service on that server, which has to be up, as a user of its own. */
async function serve(t: TestContext) {
  const { log, lines } = collect();
  const service = await startService(readSettings(), log);
  t.after(() => service.stop());
  const sql = connect(url, { max: 1, applicationName: 'away test' });
  const { user } = await ensureUser(sql, `${randomBytes(6).toString('hex')}@users.example`);
  const { apiKey } = await createApiKey(sql, user.userId);
  await sql.end();
  const call = (method: string, route: string, body?: unknown, headers = {}): Promise<Answer> =>
    callUrl(method, `${service.url}${route}`, { as: { ...user, apiKey }, body, headers });
  const recovered = () =>
    waitFor('the service to recover', async () => (await call('GET', '/health/ready')).status === 200);
  return { call, recovered, lines, userId: user.userId };
}

function assertAway(answer: Answer): void {
  assertProblem(answer, 503, 'database_unavailable');
  assert.match(answer.headers.get('retry-after') ?? '', /^[1-9]\d*$/);
  assert.doesNotMatch(answer.text, /ECONNREFUSED|127\.0\.0\.1|postgres/i);
}

const domain = () => `a${randomBytes(6).toString('hex')}.example`;
const deadline = { timeout: 300_000 };

describe('a database that goes away', { concurrency: false }, () => {
  test(
    'gives 503 with Retry-After, live and not ready, and all is back with the database',
    deadline,
    async (t) => {
      await start();
      const { call, recovered, lines } = await serve(t);
      const before = await call('POST', '/identities', { value: domain() });
      assert.equal(before.status, 201);

      await stop();
      // More at once than the pool has connections: none may be left without an answer.
      const routes = ['/identities', '/webhooks', '/api-keys', `/identities/${before.body.id}`];
      const reads = Array.from({ length: 24 }, (_, index) => call('GET', routes[index % 4] ?? ''));
      for (const answer of await Promise.all(reads)) assertAway(answer);
      const lost = domain();
      assertAway(await call('POST', '/identities', { value: lost }));
      assertAway(await call('POST', '/identities', { value: lost }, { 'idempotency-key': 'once' }));
      assertAway(await call('DELETE', `/identities/${before.body.id}`));
      assert.equal((await call('GET', '/health/live')).status, 200);
      assertAway(await call('GET', '/health/ready'));
      assert.ok(
        lines.some((line) => line.includes('The database is unavailable')),
        'the operator is told as well',
      );
      assert.ok(
        !lines.some((line) => ['error', 'fatal'].includes(JSON.parse(line).level)),
        'and not as of a failure of ours',
      );

      await start();
      await recovered();
      const { status, body } = await call('GET', '/identities');
      assert.equal(status, 200);
      assert.deepEqual(body, [before.body]);
      const kept = await call('POST', '/identities', { value: lost }, { 'idempotency-key': 'once' });
      assert.equal(kept.status, 201);
    },
  );

  test(
    'in the middle of a transaction: 503, nothing done, and the retry does it once',
    deadline,
    async (t) => {
      const { call, recovered, userId } = await serve(t);
      const [value, key] = [domain(), { 'idempotency-key': 'retried' }];
      const blocker = connect(url, { max: 1, applicationName: 'blocker' });
      const watcher = connect(url, { max: 1, applicationName: 'watcher' });
      let first: Promise<Answer> | undefined;
      const blocked = blocker.begin(async (sql) => {
        // What createIdentity locks: its transaction is open and waits right here when the server dies.
        await sql`select from users where id = ${userId} for update`;
        first = call('POST', '/identities', { value }, key);
        await waitFor('the request to hang on the lock', async () => {
          const waiting = await watcher`select from pg_stat_activity where wait_event_type = 'Lock'`;
          return waiting.count > 0;
        });
        await crash();
      });
      await assert.rejects(blocked);
      assertAway((await first) as Answer);
      await Promise.all([blocker.end({ timeoutMs: 0 }), watcher.end({ timeoutMs: 0 })]);

      await start();
      await recovered();
      assert.deepEqual((await call('GET', '/identities')).body, []);
      const made = await call('POST', '/identities', { value }, key);
      assert.equal(made.status, 201);
      assert.equal((await call('POST', '/identities', { value }, key)).text, made.text);
      assert.equal((await call('GET', '/identities')).body.length, 1);
    },
  );

  test('under load: every answer is 201 or 503, and what was answered 201 is there', deadline, async (t) => {
    const { call, recovered } = await serve(t);
    const acknowledged: string[] = [];
    const refused: Answer[] = [];
    for (let round = 0; round < 3; round++) {
      let down = false;
      const clients = Array.from({ length: 15 }, async (_, client) => {
        for (let n = 0; !down; n++) {
          const headers = client % 2 ? { 'idempotency-key': `${round}-${client}-${n}` } : {};
          const answer = await call('POST', '/identities', { value: `a@${domain()}` }, headers);
          if (answer.status === 201) acknowledged.push(answer.body.id);
          else refused.push(answer);
        }
      });
      const target = acknowledged.length + 40;
      try {
        await waitFor('some work', () => acknowledged.length >= target);
        await (round % 2 ? stop() : crash());
      } finally {
        down = true;
        await Promise.all(clients);
      }
      await start();
      await recovered();
    }
    for (const answer of refused) assertAway(answer);
    assert.ok(refused.length > 0);
    const there = new Set((await call('GET', '/identities')).body.map(({ id }: { id: string }) => id));
    assert.deepEqual(
      acknowledged.filter((id) => !there.has(id)),
      [],
    );
  });
});

describe('a start', { concurrency: false }, () => {
  test(
    'waits for a database that does not answer yet, says so, and gets up when it does',
    deadline,
    async (t) => {
      await stop();
      const { log, lines } = collect();
      const starting = startService(readSettings(), log);
      await waitFor('two lines', () => lines.length >= 2);
      for (const line of lines) {
        const { level, msg } = JSON.parse(line);
        assert.equal(level, 'warn');
        assert.match(msg, /^the database does not answer \(.*ECONNREFUSED.*\); retrying in [\d.]+ s$/);
      }
      assert.ok(!lines.join().includes(cluster.password));
      await start();
      const service = await starting;
      t.after(() => service.stop());
      assert.equal((await callUrl('GET', `${service.url}/health/ready`, {})).status, 200);
    },
  );

  test('that waits can be told to stop', deadline, async () => {
    await stop();
    const { log, lines } = collect();
    const stopping = new AbortController();
    const starting = startService(readSettings(), log, { signal: stopping.signal });
    await waitFor('a line', () => lines.length > 0);
    stopping.abort();
    await assert.rejects(starting, OperatorError);
    await start();
  });

  const hopeless: [string, string, RegExp][] = [
    ['a wrong password', url.replace(cluster.password, 'wrong'), /password authentication failed/],
    ['a database that is not there', url.replace(/postgres$/, 'nowhere'), /"nowhere" does not exist/],
  ];
  for (const [what, wrong, reason] of hopeless) {
    test(`with ${what} ends at once, and says what to check`, deadline, async () => {
      const { log, lines } = collect();
      await assert.rejects(startService(readSettings(wrong), log), (error) => {
        assert.ok(error instanceof OperatorError);
        assert.match(error.message, reason);
        assert.match(error.message, /Check DATABASE_URL/);
        return true;
      });
      assert.deepEqual(lines, [], 'it did not wait');
    });
  }
});
