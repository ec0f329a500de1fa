/** `npm start` as a person runs it: signals, kills, second starts. */
import assert from 'node:assert/strict';
import { createServer } from 'node:net';
import { after, test } from 'node:test';
import { callUrl, waitFor } from './harness.ts';
import { makeDataFolder, makeFolder, type Program, postgresPid, readyUrl, startNpm } from './programs.ts';

const folder = makeFolder();
const settings = { POSTHORN_DATA_DIR: folder.path };
let apiKey = '';

after(async () => {
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

test('the first start prints a key that works, and SIGTERM to npm stops everything cleanly', async () => {
  const program = startNpm({ ...settings, POSTHORN_LOG_FORMAT: 'pretty' });
  const url = await readyUrl(program);
  assert.match(program.output(), /starting Posthorn[\s\S]*schema created \(\d+ migrations\)[\s\S]*is ready/);
  [apiKey = ''] = /ph_[0-9A-Za-z]{38}/.exec(program.output()) ?? [];
  assert.match(JSON.stringify(await me(url)), /^\{"userId":"[0-9a-f-]{36}"\}$/);
  await assertStopsCleanly(program, () => program.child.kill('SIGTERM'));
});

test('Ctrl-C reaches npm, the launcher and the service at once, and stops everything cleanly', async () => {
  const program = startNpm(settings);
  await readyUrl(program);
  assert.doesNotMatch(program.output(), /ph_/, 'the key is shown only once');
  await assertStopsCleanly(program, () => process.kill(-program.pid, 'SIGINT'));
});

test('kill -9 of `npm start` and a new one on the same folder: up again by itself, twice in a row', async () => {
  const first = startNpm(settings);
  const before = await me(await readyUrl(first));
  let running = first;
  for (let round = 1; round <= 2; round += 1) {
    // First npm alone, which leaves its children behind, then all of them at once.
    process.kill(round % 2 ? running.pid : -running.pid, 'SIGKILL');
    const next = startNpm(settings);
    assert.deepEqual(await me(await readyUrl(next)), before, `round ${round}`);
    running = next;
  }
  await assertStopsCleanly(running, () => running.child.kill('SIGTERM'));
});

test('a second start on the same folder says who holds it, and exits', async () => {
  const first = startNpm(settings);
  const url = await readyUrl(first);
  const second = startNpm(settings);
  assert.equal(await second.ended, 1);
  assert.match(second.output(), /Another Posthorn \(pid \d+\) already runs on/);
  assert.ok(await me(url), 'the first goes on');
  await assertStopsCleanly(first, () => first.child.kill('SIGTERM'));
});

test('a port in use is told with what to do', async () => {
  const other = createServer();
  await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
  const address = other.address();
  const port = typeof address === 'object' ? String(address?.port) : '';
  const program = startNpm({ ...settings, PORT: port });
  assert.equal(await program.ended, 1);
  assert.match(
    program.output(),
    new RegExp(`Port ${port} on 127.0.0.1 is in use by another program. .* set PORT`),
  );
  await waitFor('the database to be stopped', () => postgresPid(folder.path) === undefined);
  other.close();
});

test('development mode refuses to listen beyond loopback, and says the two ways out', async () => {
  const program = startNpm({ ...settings, HOST: '0.0.0.0' });
  assert.equal(await program.ended, 1);
  assert.match(program.output(), /HOST=0\.0\.0\.0 .*NODE_ENV=production,? or POSTHORN_INSECURE_DEV=true/);
  const meant = startNpm({ ...settings, HOST: '0.0.0.0', POSTHORN_INSECURE_DEV: 'true' });
  await readyUrl(meant);
  await assertStopsCleanly(meant, () => meant.child.kill('SIGTERM'));
});

test('a first start that fails for its port does not use up the key', async () => {
  const fresh = makeDataFolder();
  const other = createServer();
  await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
  const address = other.address();
  const port = typeof address === 'object' ? String(address?.port) : '';
  const refused = startNpm({ POSTHORN_DATA_DIR: fresh.path, PORT: port });
  assert.equal(await refused.ended, 1);
  other.close();
  const program = startNpm({ POSTHORN_DATA_DIR: fresh.path });
  await readyUrl(program);
  assert.match(program.output(), /ph_[0-9A-Za-z]{38}/);
  program.child.kill('SIGTERM');
  await program.ended;
  fresh.remove();
});
