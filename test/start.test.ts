/**
 * `npm start` as a person runs it: signals, kills, second starts. The tests share a folder and run in order; where a test leaves
 * a service running, the next one uses it, because every start takes two seconds of a core.
 */
import assert from 'node:assert/strict';
import { createServer } from 'node:net';
import { after, test } from 'node:test';
import { callUrl, waitFor } from './harness.ts';
import { makeFolder, type Program, postgresPid, readyUrl, startNpm } from './programs.ts';

const folder = makeFolder();
const settings = { POSTHORN_DATA_DIR: folder.path };
let apiKey = '';
let running: { program: Program; url: string };

after(async () => {
  running?.program.child.kill('SIGTERM');
  await running?.program.ended;
  // A test that failed may have left a server behind: the next start adopts it, and stops it.
  if (postgresPid(folder.path) !== undefined) {
    const last = startNpm(settings);
    await readyUrl(last).catch(() => {});
    last.child.kill('SIGTERM');
    await last.ended;
  }
  folder.remove();
});

async function me(url: string): Promise<unknown> {
  const as = { apiKey, userId: '', email: '' };
  return (await callUrl('GET', `${url}/me`, { as })).body;
}

async function assertStopsCleanly(program: Program, stop: () => void): Promise<void> {
  stop();
  await program.ended;
  assert.match(program.output(), /stopped/);
  assert.equal(postgresPid(folder.path), undefined, 'the database was stopped, last');
}

test('a port in use is told with what to do, and does not use up the key of the first start', async () => {
  const other = createServer();
  await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
  const address = other.address();
  const port = typeof address === 'object' ? String(address?.port) : '';
  const program = startNpm({ ...settings, PORT: port, POSTHORN_LOG_FORMAT: 'pretty' });
  assert.equal(await program.ended, 1);
  assert.match(program.output(), /starting Posthorn[\s\S]*schema created \(\d+ migrations\)/);
  assert.match(
    program.output(),
    new RegExp(`Port ${port} on 127.0.0.1 is in use by another program. .* set PORT`),
  );
  assert.doesNotMatch(program.output(), /ph_/);
  await waitFor('the database to be stopped', () => postgresPid(folder.path) === undefined);
  other.close();
});

test('the first start that can listen prints a key that works', async () => {
  const first = startNpm({ ...settings, POSTHORN_LOG_FORMAT: 'pretty' });
  const url = await readyUrl(first);
  assert.match(first.output(), /starting Posthorn[\s\S]*is ready/);
  await first.line(/outgoing mail is captured and does not leave this machine/);
  [apiKey = ''] = /ph_[0-9A-Za-z]{38}/.exec(first.output()) ?? [];
  assert.match(JSON.stringify(await me(url)), /^\{"userId":"[0-9a-f-]{36}"\}$/);
  running = { program: first, url };
});

test('a second start on the same folder says who holds it, and exits', async () => {
  const second = startNpm(settings);
  assert.equal(await second.ended, 1);
  assert.match(second.output(), /Another Posthorn \(pid \d+\) already runs on/);
  assert.ok(await me(running.url), 'the first goes on');
});

test('kill -9 of `npm start` and a new one on the same folder: up again by itself, twice in a row', async () => {
  const before = await me(running.url);
  for (let round = 1; round <= 2; round += 1) {
    const { pid } = running.program;
    // First npm alone, which leaves its children behind, then all of them at once.
    process.kill(round % 2 ? pid : -pid, 'SIGKILL');
    const next = startNpm(settings);
    running = { program: next, url: await readyUrl(next) };
    assert.deepEqual(await me(running.url), before, `round ${round}`);
    assert.doesNotMatch(next.output(), /ph_/, 'the key is shown only once');
  }
});

test('SIGTERM to npm stops everything cleanly', async () => {
  const { program } = running;
  await assertStopsCleanly(program, () => program.child.kill('SIGTERM'));
});

test('development mode refuses to listen beyond loopback, and says the two ways out', async () => {
  const program = startNpm({ ...settings, HOST: '0.0.0.0' });
  assert.equal(await program.ended, 1);
  assert.match(program.output(), /HOST=0\.0\.0\.0 .*NODE_ENV=production,? or POSTHORN_INSECURE_DEV=true/);
  const meant = startNpm({ ...settings, HOST: '0.0.0.0', POSTHORN_INSECURE_DEV: 'true' });
  running = { program: meant, url: await readyUrl(meant) };
});

test('Ctrl-C reaches npm, the launcher and the service at once, and stops everything cleanly', async () => {
  const { program } = running;
  await assertStopsCleanly(program, () => process.kill(-program.pid, 'SIGINT'));
});
