/**
 * The drill of docs/operations.md for an upgrade: a newer Posthorn, with a migration more, starts beside one that works. The
 * older goes on as before until it is stopped; started again, it is refused and touches nothing.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import { connect } from '../src/db/client.ts';
import { callUrl, makeDatabase, type TestUser, waitFor } from './harness.ts';
import { makeNewer } from './newer-posthorn.ts';
import { makeFolder, type Program, posthorn, readyUrl, root, run } from './programs.ts';
import { startReceiver } from './receiver.ts';
import { connectSmtp, toWire } from './smtp-client.ts';

const address = 'ada@upgrade.example';
const database = await makeDatabase();
const sql = connect(database.url, { max: 1, applicationName: 'posthorn upgrade test' });
const receiver = await startReceiver();
const newer = makeFolder();
const settings = {
  DATABASE_URL: database.url,
  POSTHORN_SECRET_KEY: randomBytes(32).toString('base64'),
  POSTHORN_DNS_SERVERS: '127.0.0.1:9',
  PORT: '0',
  POSTHORN_SMTP_PORT: '0',
};
/** As migrations promise that do not say otherwise. */
const additive = `
  alter table messages add column later text;
  alter table delivery_queue add column later int not null default 0;
     alter table ended_deliveries add column later int not null default 0;
  alter table webhooks add column later jsonb;
  create table later_things (id uuid primary key, owner_id uuid not null references users on delete cascade);
  create index messages_later on messages (owner_id, later) where later is not null;`;
const programs: Program[] = [];
after(async () => {
  for (const { child } of programs) child.kill('SIGTERM');
  await Promise.all(programs.map(({ ended }) => ended));
  await receiver.close();
  await sql.end();
  await database.drop();
  newer.remove();
});

async function serve(cwd: string) {
  const program = run(process.execPath, ['src/cli/posthorn.ts', 'serve'], settings, { cwd });
  programs.push(program);
  const url = await readyUrl(program);
  const [, port] = await program.line(/accepts mail on port (\d+)/);
  return { program, url, smtpPort: Number(port) };
}

type Running = Awaited<ReturnType<typeof serve>>;

/** All that a user sees of one of them: mail in, the POST, the API, ready. */
async function assertWorks(at: Running, as: TestUser, subject: string): Promise<void> {
  const client = await connectSmtp(at.smtpPort);
  await client.envelope('bea@sender.example', address);
  const taken = await client.data(
    toWire(`Subject: ${subject}\r\nMessage-ID: <${subject}@x>\r\n\r\nBody\r\n`),
  );
  assert.equal(taken.status, 250, taken.full);
  client.close();
  await receiver.received(1, ({ body }) => JSON.parse(body.toString()).data.message.subject === subject);
  const listed = await callUrl('GET', `${at.url}/messages`, { as });
  assert.equal(listed.body[0].subject, subject, listed.text);
  const changed = await callUrl('POST', `${at.url}/identities`, {
    as,
    body: { value: `${subject}@x.example` },
  });
  assert.equal(changed.status, 201, changed.text);
  assert.equal((await callUrl('GET', `${at.url}/health/ready`, {})).status, 200);
}

test('the older works on under a schema that a newer one brought up to date, and is refused a new start', async () => {
  const older = await serve(root);
  const [apiKey = ''] = /ph_[0-9A-Za-z]{38}/.exec(older.program.output()) ?? [];
  const { userId } = (await callUrl('GET', `${older.url}/me`, { as: { apiKey, userId: '', email: '' } }))
    .body;
  const as = { apiKey, userId, email: '' };
  await callUrl('POST', `${older.url}/identities`, { as, body: { value: address } });
  const webhook = { url: receiver.url(), events: ['message.received'], ownerId: userId };
  assert.equal((await callUrl('POST', `${older.url}/webhooks`, { as, body: webhook })).status, 201);
  // Its statements are prepared on every connection before the tables change under them.
  for (const subject of ['one', 'two', 'three']) await assertWorks(older, as, subject);

  makeNewer(newer.path, additive);
  const next = await serve(newer.path);
  assert.match(next.program.output(), /"applied":\["9001_later\.sql"\],"msg":"schema updated"/);
  for (const subject of ['four', 'five']) await assertWorks(older, as, subject);
  await assertWorks(next, as, 'six');
  assert.doesNotMatch(older.program.output(), /ERROR|WARN/);

  older.program.child.kill('SIGTERM');
  assert.equal(await older.program.ended, 0);
  await assertWorks(next, as, 'seven');

  const again = run(process.execPath, ['src/cli/posthorn.ts', 'serve'], settings);
  assert.equal(await again.ended, 1);
  assert.match(again.output(), /schema version 9001, which is newer than this Posthorn supports/);
  const tools = await Promise.all([posthorn(['users', 'list'], settings), posthorn(['migrate'], settings)]);
  for (const { code, output } of tools) {
    assert.equal(code, 1);
    assert.match(output, /newer than this Posthorn/);
  }
  const doctor = await posthorn(['doctor'], settings);
  assert.equal(doctor.code, 1);
  assert.match(doctor.output, /✗ schema .*9001 is newer[\s\S]*Run the newer Posthorn/);
  assert.equal((await sql`select from schema_migrations where version = 9001`).count, 1);
  await assertWorks(next, as, 'eight');
  await waitFor('every delivery to be done', async () => {
    return (await sql`select from deliveries where status <> 'delivered'`).count === 0;
  });
});
