/**
 * The drill of docs/operations.md for an upgrade that is not a rolling one: the migration of a newer Posthorn says that older
 * processes cannot work with it. It is refused while one is connected, and no older one gets past it.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import { after, type TestContext, test } from 'node:test';
import { connect, type Pool } from '../src/db/client.ts';
import { readVersion } from '../src/lib/version.ts';
import { callUrl, makeDatabase, waitFor } from './harness.ts';
import { makeNewer } from './newer-posthorn.ts';
import { makeDataFolder, makeFolder, posthorn, readyUrl, root, run } from './programs.ts';

const newer = makeFolder();
/** A test can stop the migration in the middle, by this lock. */
const gate = 4711;
makeNewer(
  newer.path,
  `-- Stops older processes: they would not write this table.
   select pg_advisory_xact_lock(${gate});
   create table later_things (id int);`,
);
after(() => newer.remove());

interface Scene {
  sql: Pool;
  url: string;
  /** Starts `posthorn serve`; it ends with the test. */
  serve(cwd: string): ReturnType<typeof run>;
  migrate(): Promise<{ code: unknown; output: string }>;
}

async function makeScene(t: TestContext, database: Record<string, string> | null = null): Promise<Scene> {
  const own = database ? null : await makeDatabase();
  const settings = {
    ...(database ?? { DATABASE_URL: own?.url }),
    ...{ POSTHORN_SECRET_KEY: randomBytes(32).toString('base64'), POSTHORN_DNS_SERVERS: '127.0.0.1:9' },
    ...{ PORT: '0', POSTHORN_SMTP_PORT: '0', POSTHORN_ROLES: 'api,deliver' },
  };
  const programs: ReturnType<typeof run>[] = [];
  const url = own?.url ?? '';
  const sql = connect(url, { max: 1, applicationName: 'upgrade test' });
  t.after(async () => {
    for (const { child } of programs) child.kill('SIGTERM');
    await Promise.all(programs.map(({ ended }) => ended));
    await sql.end();
    await own?.drop();
  });
  return {
    ...{ sql, url },
    serve(cwd) {
      const program = run(process.execPath, ['src/cli/posthorn.ts', 'serve'], settings, { cwd });
      programs.push(program);
      return program;
    },
    migrate: () => posthorn(['migrate'], settings, newer.path),
  };
}

async function isApplied(sql: Pool): Promise<boolean> {
  return (await sql`select from schema_migrations where version = 9001`).count === 1;
}

test('a running service is named and goes on; killed, it blocks nobody; started again, it is refused', async (t) => {
  const { sql, serve, migrate } = await makeScene(t);
  const older = serve(root);
  const url = await readyUrl(older);

  const refused = serve(newer.path);
  await refused.line(/cannot run while/);
  assert.equal(await refused.ended, 1);
  for (const output of [refused.output(), (await migrate()).output]) {
    assert.match(output, /9001_later\.sql cannot run while an older Posthorn is connected/);
    assert.ok(
      output.includes(`pid ${older.pid} on ${hostname()}: Posthorn ${readVersion()} (api, deliver)`),
      output,
    );
    assert.match(output, /connections of posthorn serve from [\d.:]+: \d+/);
    assert.match(output, /It has changed nothing\. Stop these processes, then start again\./);
  }
  assert.equal(await isApplied(sql), false);
  assert.equal((await callUrl('GET', `${url}/health/ready`, {})).status, 200);

  older.child.kill('SIGKILL');
  await older.ended;
  const [first, second] = [serve(newer.path), serve(newer.path)];
  await Promise.all([readyUrl(first), readyUrl(second)]);
  assert.equal(await isApplied(sql), true);

  const again = serve(root);
  assert.equal(await again.ended, 1);
  assert.match(again.output(), /newer than this Posthorn supports/);
});

test('a process from before there was a name for the schema or a row for the process', async (t) => {
  const { sql, url, migrate } = await makeScene(t);
  const olderOnes = ['posthorn serve', 'posthorn serve delivery', 'posthorn tool'].map((applicationName) =>
    connect(url, { max: 1, applicationName }),
  );
  for (const older of olderOnes) await older`select 1`;
  const { code, output } = await migrate();
  for (const older of olderOnes) await older.end();
  assert.equal(code, 1);
  assert.match(output, /connections of posthorn serve from [\d.:]+: 2/);
  assert.match(output, /connections of a posthorn command from [\d.:]+: 1/);
  assert.equal(await isApplied(sql), false);
  // Not a process of ours.
  const other = connect(url, { max: 1, applicationName: 'posthorn server statistics' });
  await other`select 1`;
  assert.equal((await migrate()).code, 0);
  await other.end();
  assert.equal(await isApplied(sql), true);
});

test('an older process that starts during the migration waits for it, and is refused', async (t) => {
  const { sql, serve, migrate } = await makeScene(t);
  await sql`select pg_advisory_lock(${gate})`;
  const waiting = (query: string) => async () =>
    (
      await sql`select from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock' and query like ${query}`
    ).count > 0;
  const migrating = migrate();
  await waitFor('the migration to be in the middle', waiting('-- Stops older processes%'));
  const older = serve(root);
  await waitFor('the older process to wait', waiting('select version from schema_migrations%'));
  await sql`select pg_advisory_unlock(${gate})`;
  assert.equal((await migrating).code, 0);
  assert.equal(await older.ended, 1);
  assert.match(older.output(), /newer than this Posthorn supports/);
});

test('on the embedded database, a command of the newer version is refused beside an older service', async (t) => {
  const folder = makeDataFolder();
  const { serve, migrate } = await makeScene(t, { POSTHORN_DATA_DIR: folder.path });
  t.after(() => folder.remove());
  const older = serve(root);
  await readyUrl(older);
  const { code, output } = await migrate();
  assert.equal(code, 1);
  assert.ok(
    output.includes(`pid ${older.pid} on ${hostname()}: Posthorn ${readVersion()} (api, deliver)`),
    output,
  );
  older.child.kill('SIGTERM');
  await older.ended;
  assert.deepEqual(await migrate(), { code: 0, output: 'Applied 9001_later.sql.\n' });
});
