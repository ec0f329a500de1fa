/** The command line, beside a running service and alone. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { after, test } from 'node:test';
import { assertProblem, callUrl } from './harness.ts';
import { makeDataFolder, makeFolder, postgresPid, posthorn, readyUrl, run } from './programs.ts';

const folder = makeDataFolder();
const settings = { POSTHORN_DATA_DIR: folder.path, PORT: '0', POSTHORN_SMTP_PORT: '0' };
const server = run(process.execPath, ['src/cli/posthorn.ts', 'serve'], settings);
const url = await readyUrl(server);

after(async () => {
  server.child.kill('SIGTERM');
  await server.ended;
  folder.remove();
});

async function json(...args: string[]) {
  const { code, output } = await posthorn([...args, '--json'], settings);
  assert.equal(code, 0, output);
  return JSON.parse(output);
}

function meWith(apiKey: string) {
  return callUrl('GET', `${url}/me`, { as: { apiKey, userId: '', email: '' } });
}

test('users create prints userId, email and apiKey, and the key works at once', async () => {
  const made = await json('users', 'create', '--email', 'Ada@EXAMPLE.com');
  assert.deepEqual(Object.keys(made), ['userId', 'email', 'apiKey']);
  assert.equal(made.email, 'Ada@example.com');
  assert.deepEqual((await meWith(made.apiKey)).body, { userId: made.userId });
});

test('users create of one that exists fails and says what to do', async () => {
  const { code, output } = await posthorn(['users', 'create', '--email', 'ada@example.com'], settings);
  assert.equal(code, 1);
  assert.match(output, /: npm run -s posthorn -- keys create --user Ada@example.com/);
});

test('users list shows every user', async () => {
  const found = await json('users', 'list');
  assert.deepEqual(
    found.map((user: { email: string }) => user.email),
    ['admin@localhost', 'Ada@example.com'],
  );
});

test('keys create, list and revoke', async () => {
  const made = await json('keys', 'create', '--user', 'ada@example.com', '--name', 'ci');
  assert.deepEqual(Object.keys(made), ['id', 'apiKey']);
  assert.equal((await meWith(made.apiKey)).status, 200);

  const listed = await json('keys', 'list', '--user', 'ada@example.com');
  assert.deepEqual(
    listed.map((key: { name: string | null }) => key.name),
    ['ci', null],
  );
  assert.equal(JSON.stringify(listed).includes(made.apiKey), false);

  assert.deepEqual(await json('keys', 'revoke', made.id), { id: made.id, revoked: true });
  const again = await posthorn(['keys', 'revoke', made.id], settings);
  assert.equal(again.code, 1);
  assert.match(again.output, /No active API key/);
});

test('keys create makes a full key, or one of the scope it is given', async () => {
  const create = (...more: string[]) => json('keys', 'create', '--user', 'ada@example.com', ...more);
  const [full, read] = [await create(), await create('--scope', 'read')];
  assert.deepEqual(Object.keys(read), ['id', 'apiKey']);
  const listed: { id: string; scope: string }[] = await json('keys', 'list', '--user', 'ada@example.com');
  const scopeOf = (id: string) => listed.find((key) => key.id === id)?.scope;
  assert.deepEqual([scopeOf(full.id), scopeOf(read.id)], ['full', 'read']);
  const { output } = await posthorn(['keys', 'list', '--user', 'ada@example.com'], settings);
  assert.match(output, new RegExp(`${read.id} .* read +active`));

  const post = ({ apiKey }: { apiKey: string }) =>
    callUrl('POST', `${url}/api-keys`, { as: { apiKey, userId: '', email: '' }, body: {} });
  assert.equal((await post(full)).status, 201);
  assertProblem(await post(read), 403, 'scope_insufficient');

  const wrong = await posthorn(['keys', 'create', '--user', 'ada@example.com', '--scope', 'all'], settings);
  assert.equal(wrong.code, 2);
  assert.match(wrong.output, /full, send, read/);
});

test('the first key of a user is full, also that of the first start', async () => {
  for (const user of ['admin@localhost', 'ada@example.com']) {
    const listed = await json('keys', 'list', '--user', user);
    assert.equal(listed.at(-1).scope, 'full', user);
  }
});

test('keys create takes an expiry in the future only', async () => {
  const past = await posthorn(
    ['keys', 'create', '--user', 'ada@example.com', '--expires-at', '2020-01-01'],
    settings,
  );
  assert.equal(past.code, 2);
  assert.match(past.output, /in the future/);
  await json('keys', 'create', '--user', 'ada@example.com', '--expires-at', '2099-01-01T00:00:00Z');
});

test('doctor finds a healthy service healthy', async () => {
  const findings: { check: string; level: string }[] = await json('doctor');
  const checks = findings.map((finding) => finding.check);
  assert.deepEqual(checks, [
    'configuration',
    'database',
    'schema',
    'secret key',
    'clock',
    'port',
    'mail port',
    'submission port',
    'dns',
  ]);
  for (const { check, level } of findings) if (check !== 'dns') assert.equal(level, 'ok', check);
});

test('doctor tells mistakes of the configuration, and a database that is away, with exit code 1', async () => {
  const wrong = await posthorn(['doctor'], { ...settings, PORT: 'many' });
  assert.equal(wrong.code, 1);
  assert.match(wrong.output, /✗ configuration[\s\S]*PORT=many: write a whole number/);
  const key = Buffer.alloc(32).toString('base64');
  const away = { ...settings, DATABASE_URL: 'postgres://127.0.0.1:1/none', POSTHORN_SECRET_KEY: key };
  const gone = await posthorn(['doctor'], away);
  assert.equal(gone.code, 1);
  assert.match(gone.output, /✗ database[\s\S]*Check DATABASE_URL/);
});

test('doctor and backup make no database where there is none', async () => {
  const elsewhere = makeFolder();
  const settings = { POSTHORN_DATA_DIR: elsewhere.path, PORT: '0', POSTHORN_SMTP_PORT: '0' };
  const { code, output } = await posthorn(['doctor'], settings);
  assert.equal(code, 0, output);
  assert.match(output, /! database +no database in .* yet\n +→ The first start creates the database/);
  const backup = await posthorn(['backup', path.join(elsewhere.path, 'copy')], settings);
  assert.equal(backup.code, 1);
  assert.match(backup.output, /contains no database/);
  assert.deepEqual(readdirSync(elsewhere.path), []);
  elsewhere.remove();
});

test('doctor knows the ports of its own service from those of a Posthorn on another data folder', async () => {
  const [, smtpPort = ''] = await server.line(/accepts mail on port (\d+)/);
  const [, submissionPort = ''] = await server.line(/submit mail on port (\d+)/);
  const ports = {
    PORT: new URL(url).port,
    POSTHORN_SMTP_PORT: smtpPort,
    POSTHORN_SUBMISSION_PORT: submissionPort,
  };
  const own = await posthorn(['doctor'], { ...settings, ...ports });
  assert.equal(own.code, 0, own.output);
  assert.match(
    own.output,
    /✓ port +this Posthorn uses 127\.0\.0\.1:\d+\n✓ mail port +this Posthorn uses 127.*\n✓ submission port +this Posthorn uses 127/,
  );

  const elsewhere = makeFolder();
  const other = await posthorn(['doctor'], { ...ports, POSTHORN_DATA_DIR: elsewhere.path });
  assert.equal(other.code, 0, other.output);
  assert.match(other.output, /! port +another Posthorn uses 127\.0\.0\.1:\d+\n +→ Stop it, or set PORT\.\n/);
  assert.match(
    other.output,
    /! mail port +another program uses .*\n +→ Stop it, or set POSTHORN_SMTP_PORT\.\n/,
  );
  assert.match(
    other.output,
    /! submission port +another program uses .*\n +→ Stop it, or set POSTHORN_SUBMISSION_PORT\.\n/,
  );
  assert.deepEqual(readdirSync(elsewhere.path), []);
  elsewhere.remove();
});

test('doctor does not take another web server for a Posthorn', async () => {
  const other = http
    .createServer((_request, response) => response.end('{"status":"ok"}'))
    .listen(0, '127.0.0.1');
  await once(other, 'listening');
  const { port } = other.address() as AddressInfo;
  const { code, output } = await posthorn(['doctor'], { ...settings, PORT: String(port) });
  other.close();
  assert.equal(code, 1);
  assert.match(output, /✗ port +another program uses 127\.0\.0\.1:\d+/);
});

test('migrate says when there is nothing to do', async () => {
  assert.deepEqual(await json('migrate'), { applied: [] });
});

test('a command that is not understood exits with 2 and suggests the near one', async () => {
  const { code, output } = await posthorn(['usres'], settings);
  assert.equal(code, 2);
  assert.match(output, /Did you mean users\?/);
  assert.equal((await posthorn(['users', 'create'], settings)).code, 2);
  const help = await posthorn(['--help'], settings);
  assert.equal(help.code, 0);
  for (const name of ['serve', 'migrate', 'backup', 'reseal', 'users', 'keys', 'identities', 'doctor'])
    assert.match(help.output, new RegExp(`^  ${name}`, 'm'));
});

test('without a server the CLI starts the database for itself and stops it again', async () => {
  const alone = makeDataFolder();
  const there = { POSTHORN_DATA_DIR: alone.path };
  const { code, output } = await posthorn(['users', 'create', '--email', 'eve@example.com', '--json'], there);
  assert.equal(code, 0, output);
  assert.equal(postgresPid(alone.path), undefined);
  alone.remove();
});
