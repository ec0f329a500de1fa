/** Access tokens: fetched once, kept until they expire, and safe with refresh tokens that work only once. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { AccessTokens, type TokenSource } from '../src/net/access-tokens.ts';
import { makeEgress } from '../src/net/egress.ts';
import { startTokenServer } from './token-server.ts';

const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers: null });

function makeSource(tokenUrl: string, key = 'a') {
  const stored = { clientId: 'client', clientSecret: null, refreshToken: 'first', tokenUrl, scope: null };
  const source: TokenSource = {
    key,
    read: async () => ({ ...stored }),
    async save(old, renewed) {
      if (stored.refreshToken === old) stored.refreshToken = renewed;
    },
  };
  return { source, stored };
}

test('a token serves until a minute before it expires; each server has its own', async () => {
  const server = await startTokenServer();
  server.answer({ body: { access_token: 'one', expires_in: 3600 } }, { body: { access_token: 'two' } });
  let nowMs = 0;
  const tokens = new AccessTokens({ egress, allowHttp: true, now: () => nowMs });
  const { source } = makeSource(server.url);
  assert.deepEqual(await tokens.take(source), { token: 'one' });
  nowMs = 3_539_000;
  assert.deepEqual(await tokens.take(source), { token: 'one' });
  nowMs = 3_541_000;
  assert.deepEqual(await tokens.take(source), { token: 'two' });
  assert.deepEqual(await tokens.take(makeSource(server.url, 'b').source), { token: 'two' });
  assert.equal(server.requests.length, 3);
});

test('many who need a token at the same moment share one request', async () => {
  const server = await startTokenServer();
  server.answer({ body: { access_token: 'one', expires_in: 3600, refresh_token: 'second' } });
  const tokens = new AccessTokens({ egress, allowHttp: true });
  const { source, stored } = makeSource(server.url);
  const answers = await Promise.all(Array.from({ length: 5 }, () => tokens.take(source)));
  for (const answer of answers) assert.deepEqual(answer, { token: 'one' });
  assert.equal(server.requests.length, 1);
  assert.equal(stored.refreshToken, 'second');
});

test('a refresh token that another process used up meanwhile: the stored one is tried', async () => {
  const server = await startTokenServer();
  server.answer(
    { status: 400, body: { error: 'invalid_grant' } },
    { body: { access_token: 'one', expires_in: 3600 } },
  );
  const { source, stored } = makeSource(server.url);
  const read = source.read;
  source.read = async () => {
    const found = await read();
    stored.refreshToken = 'second';
    return found;
  };
  const tokens = new AccessTokens({ egress, allowHttp: true });
  assert.deepEqual(await tokens.take(source), { token: 'one' });
  assert.deepEqual(
    server.requests.map(({ refresh_token }) => refresh_token),
    ['first', 'second'],
  );
});

describe('no token', () => {
  const take = async (tokenUrl: string, more: { allowHttp?: boolean; withinMs?: number } = {}) => {
    const answer = await new AccessTokens({ egress, allowHttp: true, ...more }).take(
      makeSource(tokenUrl).source,
    );
    assert.ok('error' in answer, JSON.stringify(answer));
    return answer.error;
  };

  test('the server does not answer in time', async () => {
    const server = await startTokenServer();
    server.hang();
    assert.equal((await take(server.url, { withinMs: 50 })).code, 'timeout');
  });

  test('a redirect is not followed', async () => {
    const server = await startTokenServer();
    server.answer({ status: 302, body: { access_token: 'one' } });
    assert.equal((await take(server.url)).code, 'token_server_failed');
  });

  test('a token that would break the line of a command', async () => {
    const server = await startTokenServer();
    server.answer({ body: { access_token: 'one\r\nQUIT' } });
    assert.equal((await take(server.url)).code, 'token_server_failed');
  });

  test('a server that may not be called: without TLS, on another port, in the private network', async () => {
    const server = await startTokenServer();
    server.answer({ body: { access_token: 'one' } });
    assert.equal((await take(server.url, { allowHttp: false })).code, 'target_refused');
    assert.equal((await take('https://8.8.8.8:8443/token')).code, 'target_refused');
    assert.equal((await take('https://10.0.0.1/token')).code, 'target_refused');
    assert.equal(server.requests.length, 0);
  });
});
