/** `/docs` over HTTP: what browsers may load and keep, and what the page says when its script is not built. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { gunzipSync } from 'node:zlib';
import { buildReference } from '../scripts/reference.js';
import { makeReference } from '../src/http/reference.ts';
import { startTestService } from './harness.ts';
import { makeFolder } from './programs.ts';

await buildReference();
const service = await startTestService({ POSTHORN_ROLES: 'api' });
const page = await service.call('GET', '/docs', { as: null });
const sources = [...page.text.matchAll(/<script src="([^"]+)"/g)].map(([, src = '']) => src);

test('the page runs two scripts of this service, under a policy that allows nothing from elsewhere', () => {
  assert.equal(page.status, 200);
  assert.equal(sources.length, 2);
  const policy = page.headers.get('content-security-policy') ?? '';
  for (const rule of [
    "default-src 'none'",
    "script-src 'self'",
    "connect-src 'self'",
    "frame-ancestors 'none'",
  ])
    assert.ok(policy.split('; ').includes(rule), rule);
  assert.doesNotMatch(policy, /\*|https?:|unsafe-eval/);
  assert.doesNotMatch(policy, /script-src[^;]*unsafe-inline/);
});

test('the scripts are kept for a year, compressed or not', async () => {
  for (const source of sources) {
    const answer = await fetch(`${service.url}/${source}`);
    assert.equal(answer.status, 200, source);
    assert.match(answer.headers.get('content-type') ?? '', /^text\/javascript/);
    assert.equal(answer.headers.get('cache-control'), 'public, max-age=31536000, immutable');
    const plain = await fetch(`${service.url}/${source}`, { headers: { 'accept-encoding': 'identity' } });
    assert.equal(plain.headers.get('content-encoding'), null);
    assert.equal(await plain.text(), await answer.text());
  }
  const scalar = await makeReference().script?.readGzipped();
  assert.ok(scalar && gunzipSync(scalar).includes('createApiReference'));
});

test('another file does not exist, also not outside the folder', async () => {
  for (const file of ['scalar-0.0.1.js', '..%2fpackage.json', 'start.js'])
    assert.equal((await service.call('GET', `/docs/${file}`, { as: null })).status, 404, file);
});

test('without the script, the page says how to build it', () => {
  const empty = makeFolder();
  after(() => empty.remove());
  const { page, script } = makeReference(empty.path);
  assert.equal(script, null);
  assert.match(page.toString(), /npm run build/);
  assert.doesNotMatch(page.toString(), /<script/);
});
