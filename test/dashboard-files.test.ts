/** The files of the dashboard: who may frame, cache and run them. */
import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, describe, test } from 'node:test';
import { buildDashboard } from '../scripts/dashboard.js';
import { readDashboard } from '../src/http/dashboard-files.ts';
import { listen, makeApp } from '../src/http/fastify.ts';
import { answerOtherMethods } from '../src/http/methods.ts';
import { dashboardRoutes } from '../src/http/routes/dashboard.ts';
import { makeLog } from '../src/lib/log.ts';
import { assertProblem, callUrl, startTestService } from './harness.ts';
import { makeFolder } from './programs.ts';

const folder = makeFolder();
after(() => folder.remove());
mkdirSync(path.join(folder.path, 'assets'));
const script = 'console.log(1);'.repeat(100);
writeFileSync(path.join(folder.path, 'assets/main-5KQZ2C4A.js'), script);
writeFileSync(path.join(folder.path, 'horn.svg'), '<svg/>');
writeFileSync(
  path.join(folder.path, 'index.html'),
  '<a href="/docs"><a href="//x.example"><script type="module" src="/app/assets/main-5KQZ2C4A.js"></script>',
);

async function serve(basePath = '', from = folder.path): Promise<string> {
  const app = makeApp(makeLog({ level: 'silent', json: true }));
  after(() => app.close());
  answerOtherMethods(app, []);
  const files = readDashboard(basePath, from);
  await app.register(async (api) => dashboardRoutes(api as typeof app, { basePath, files, isOn: true }), {
    prefix: basePath,
  });
  return listen(app, '127.0.0.1', 0, 'PORT');
}
const url = await serve();
const get = (at: string, headers: Record<string, string> = {}) => callUrl('GET', `${url}${at}`, { headers });

describe('the page', () => {
  for (const at of [
    '/',
    '/app',
    '/app/',
    '/app/sign-in',
    '/app/messages/1?q=2',
    '/app/suppressions/a@b.example',
  ]) {
    test(`is at ${at}, and nobody may frame it, keep it, or run other scripts in it`, async () => {
      const answer = await get(at);
      assert.equal(answer.status, 200);
      assert.match(answer.text, /src="\/app\/assets\/main-5KQZ2C4A\.js"/);
      assert.equal(answer.headers.get('content-type'), 'text/html; charset=utf-8');
      assert.equal(answer.headers.get('cache-control'), 'no-store');
      assert.equal(answer.headers.get('x-content-type-options'), 'nosniff');
      assert.equal(answer.headers.get('x-frame-options'), 'DENY');
      const policy = new Map(
        (answer.headers.get('content-security-policy') ?? '').split('; ').map((rule) => {
          const [name = '', ...values] = rule.split(' ');
          return [name, values.join(' ')];
        }),
      );
      assert.equal(policy.get('default-src'), "'none'");
      assert.equal(policy.get('script-src'), "'self'");
      assert.equal(policy.get('frame-ancestors'), "'none'");
      assert.equal(policy.get('base-uri'), "'none'");
      assert.equal(policy.get('connect-src'), "'self'");
    });
  }

  test('knows the base path', async () => {
    const base = await serve('/api/v2');
    for (const at of ['/api/v2', '/api/v2/', '/api/v2/app/webhooks']) {
      const { text } = await callUrl('GET', `${base}${at}`, {});
      assert.equal(
        text,
        '<a href="/api/v2/docs"><a href="//x.example"><script type="module" src="/api/v2/app/assets/main-5KQZ2C4A.js"></script>',
      );
    }
    assert.equal((await callUrl('GET', `${base}/api/v2/app/assets/main-5KQZ2C4A.js`, {})).text, script);
  });
});

describe('a file', () => {
  test('with a hash in its name is kept for a year, and compressed', async () => {
    const answer = await get('/app/assets/main-5KQZ2C4A.js', { 'accept-encoding': 'gzip' });
    assert.equal(answer.text, script);
    assert.equal(answer.headers.get('content-type'), 'text/javascript; charset=utf-8');
    assert.equal(answer.headers.get('cache-control'), 'public, max-age=31536000, immutable');
    assert.equal(answer.headers.get('content-encoding'), 'gzip');
    assert.equal(answer.headers.get('vary'), 'accept-encoding');
    assert.equal(answer.headers.get('x-content-type-options'), 'nosniff');
    const plain = await get('/app/assets/main-5KQZ2C4A.js', { 'accept-encoding': 'identity' });
    assert.deepEqual([plain.text, plain.headers.get('content-encoding')], [script, null]);
  });

  test('without a hash is asked for again each time, and 304 while it is the same', async () => {
    const answer = await get('/app/horn.svg');
    assert.equal(answer.headers.get('cache-control'), 'no-cache');
    assert.equal(answer.headers.get('content-type'), 'image/svg+xml');
    const again = await get('/app/horn.svg', { 'if-none-match': answer.headers.get('etag') ?? '' });
    assert.deepEqual([again.status, again.text], [304, '']);
  });

  test('that does not exist is 404, and nothing outside the folder is a file', async () => {
    for (const at of ['/app/assets/main-AAAAAAAA.js', '/app/main.css', '/app/..%2f..%2fpackage.json'])
      assertProblem(await get(at), 404, 'route_not_found');
  });
});

test('the build: at most 120 KB to load, and every script and style is kept for a year', async () => {
  const built = path.join(folder.path, 'built');
  mkdirSync(built);
  writeFileSync(path.join(built, 'main-0LDBU1LD.js'), 'of an earlier build');
  await buildDashboard(built);
  const files = readDashboard('', built) ?? assert.fail('nothing was built');
  const index = files.get('index.html')?.bytes.toString() ?? '';
  assert.equal(files.size, 4);
  for (const kind of ['js', 'css']) {
    const name = [...files.keys()].find((one) => one.endsWith(`.${kind}`)) ?? assert.fail(kind);
    assert.match(name, /^main-[0-9A-Z]{8}\./);
    assert.ok(index.includes(`"/app/${name}"`), index);
    assert.match(files.get(name)?.cacheControl ?? '', /immutable/);
  }
  const bytes = [...files.values()].reduce((sum, { gzipped }) => sum + gzipped.length, 0);
  assert.ok(bytes <= 120 * 1024, `${bytes} bytes`);
});

test('other methods are 405', async () => {
  const answer = await callUrl('POST', `${url}/app/messages/1`, {});
  assertProblem(answer, 405, 'method_not_allowed');
});

test('without a built dashboard, `/` and `/app` are a short page that names /docs', async () => {
  const unbuilt = await serve('', path.join(folder.path, 'assets'));
  for (const at of ['/', '/app', '/app/sign-in']) {
    const answer = await callUrl('GET', `${unbuilt}${at}`, {});
    assert.equal(answer.status, 200);
    assert.match(answer.text, /<a href="\/docs">/);
  }
});

test('POSTHORN_DASHBOARD=false: `/` is a short page that names /docs, and /app does not exist', async () => {
  const service = await startTestService({
    POSTHORN_DASHBOARD: 'false',
    POSTHORN_BASE_PATH: '/mail',
    POSTHORN_ROLES: 'api',
  });
  for (const at of ['', '/']) {
    const answer = await service.call('GET', at, { as: null });
    assert.equal(answer.status, 200);
    assert.match(answer.text, /<a href="\/mail\/docs">/);
    assert.equal(answer.headers.get('cache-control'), 'no-store');
    assert.match(answer.headers.get('content-security-policy') ?? '', /frame-ancestors 'none'/);
  }
  assertProblem(await service.call('GET', '/app/', { as: null }), 404, 'route_not_found');
});
