/** Signing in: links that work once, and a limit that counts failures only. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { makeApiKey } from '../src/lib/api-key.ts';
import { createApiKey, revokeApiKey } from '../src/store/api-keys.ts';
import { createSignInLink } from '../src/store/sessions.ts';
import { openBrowser, signIn } from './browser-session.ts';
import { assertProblem, makeDatabase, startTestService } from './harness.ts';
import { posthorn, readyUrl, run } from './programs.ts';

const service = await startTestService({ POSTHORN_ROLES: 'api' });
const { user, sql, url } = service;

describe('a sign-in link', () => {
  test('signs in once, as its user, with all rights', async () => {
    const owner = await service.makeUser();
    const { token } = await createSignInLink(sql, owner.userId);
    const browser = await openBrowser(url, { token });
    assert.deepEqual((await browser.call('GET', '/me')).body, { userId: owner.userId });
    const { body } = await browser.call('GET', '/sessions/current');
    assert.deepEqual([body.scope, body.apiKeyId], ['full', null]);
    assertProblem(await signIn(url, { token }), 401, 'invalid_sign_in_link');
  });

  test('signs in one of many who use it at the same time', async () => {
    const { token } = await createSignInLink(sql, user.userId);
    const answers = await Promise.all([1, 2, 3, 4].map(() => signIn(url, { token })));
    assert.deepEqual(answers.map(({ status }) => status).sort(), [201, 401, 401, 401]);
  });

  test('is refused after 10 minutes, and is not stored', async () => {
    const { token, expiresAt } = await createSignInLink(sql, user.userId);
    const [{ left, row } = {}] = await sql`
      select extract(epoch from ${expiresAt}::text::timestamptz - now())::float8 as left, l::text as row from sign_in_links l
      order by expires_at desc limit 1`;
    assert.ok(left > 0 && left <= 600);
    assert.ok(!row.includes(token));
    await sql`update sign_in_links set expires_at = now()`;
    assertProblem(await signIn(url, { token }), 401, 'invalid_sign_in_link');
  });

  test('of a session can send mail and make keys', async () => {
    const { token } = await createSignInLink(sql, user.userId);
    const browser = await openBrowser(url, { token });
    const value = `a@${randomBytes(6).toString('hex')}.example`;
    const identity = await browser.call('POST', '/identities', { body: { value } });
    const sent = await browser.call('POST', '/messages', {
      body: { identityId: identity.body.id, to: 'bob@dest.example', subject: 'Hello', text: 'Hello' },
    });
    assert.equal(sent.status, 202, sent.text);
    assert.equal((await browser.call('POST', '/api-keys', { body: {} })).status, 201);
  });
});

describe('failures', () => {
  const proxied = (client: string) => ({ 'x-forwarded-for': client });

  test('are limited to 20 a minute from an address, and a valid key always passes', async () => {
    const limited = await startTestService({ DATABASE_URL: service.databaseUrl });
    for (let n = 0; n < 20; n += 1) {
      const wrong = n % 2 ? { apiKey: makeApiKey() } : { token: randomBytes(32).toString('base64url') };
      assert.equal((await signIn(limited.url, wrong)).status, 401);
    }
    // Without trusted proxies the header says nothing.
    for (const headers of [{}, proxied('192.0.2.7')]) {
      const answer = await signIn(limited.url, { apiKey: makeApiKey() }, headers);
      assertProblem(answer, 429, 'rate_limited');
      assert.equal(answer.headers.get('retry-after'), '60');
    }
    assert.equal((await signIn(limited.url, { apiKey: user.apiKey })).status, 201);
    await limited.stop();
  });

  test('behind a trusted proxy count for the client that it names', async () => {
    const behind = await startTestService({
      DATABASE_URL: service.databaseUrl,
      POSTHORN_TRUSTED_PROXIES: '127.0.0.0/8,::1/128',
    });
    const fail = (client: string) => signIn(behind.url, { apiKey: makeApiKey() }, proxied(client));
    // What the client itself wrote stands before what the proxy added.
    for (let n = 0; n < 20; n += 1) assert.equal((await fail(`198.51.100.${n}, 192.0.2.1`)).status, 401);
    assertProblem(await fail('192.0.2.1'), 429, 'rate_limited');
    assert.equal((await fail('192.0.2.2')).status, 401);
    await behind.stop();
  });

  test('a wrong, a revoked and an expired key are told alike', async () => {
    const [revoked, expired] = [
      await createApiKey(sql, user.userId),
      await createApiKey(sql, user.userId, { expiresAt: '2020-01-01T00:00:00Z' }),
    ];
    await revokeApiKey(sql, user.userId, revoked.id);
    const details = new Set<string>();
    for (const apiKey of [revoked.apiKey, expired.apiKey, makeApiKey(), 'nonsense']) {
      details.add(assertProblem(await signIn(url, { apiKey }), 401, 'invalid_api_key').detail);
    }
    assert.equal(details.size, 1);
  });
});

describe('the command line', () => {
  const setUp = async (more: Record<string, string> = {}) => {
    const database = await makeDatabase();
    after(() => database.drop());
    return {
      ...{ DATABASE_URL: database.url, POSTHORN_SECRET_KEY: randomBytes(32).toString('base64') },
      ...{
        PORT: '0',
        POSTHORN_SMTP_PORT: '0',
        POSTHORN_SUBMISSION_PORT: '0',
        POSTHORN_DNS_SERVERS: '127.0.0.1:9',
      },
      ...more,
    };
  };
  const serve = (settings: Record<string, string>) => {
    const program = run(process.execPath, ['src/cli/posthorn.ts', 'serve'], settings);
    after(async () => {
      program.child.kill('SIGTERM');
      await program.ended;
    });
    return program;
  };

  test('in development the start prints a link that signs in, and `sign-in-link` prints another', async () => {
    const settings = await setUp();
    const program = serve(settings);
    const base = await readyUrl(program);
    const [, link = ''] = await program.line(/(http:\S+\/app\/sign-in#\S+)/);
    const [page, token = ''] = link.split('#');
    assert.equal(page, `${base}/app/sign-in`);
    const [, box = ''] = program.output().split('─'.repeat(80));
    assert.ok(box.includes(link), 'the link is not in the box of the first start');
    assert.equal(program.output().split('sign-in#').length, 2, 'the link is printed twice');
    const browser = await openBrowser(base, { token });
    assert.equal((await browser.call('GET', '/me')).status, 200);

    const { code, output } = await posthorn(['sign-in-link', '--json'], {
      ...settings,
      POSTHORN_PUBLIC_URL: 'https://mail.example.com',
      POSTHORN_BASE_PATH: '/api',
    });
    assert.equal(code, 0, output);
    const printed = JSON.parse(output);
    assert.deepEqual(Object.keys(printed), ['url', 'expiresAt']);
    assert.match(printed.url, /^https:\/\/mail\.example\.com\/api\/app\/sign-in#[\w-]{43}$/);
    const another = await openBrowser(base, { token: printed.url.split('#')[1] });
    assert.equal((await another.call('GET', '/me')).status, 200);

    await posthorn(['users', 'create', '--email', 'ada@example.com'], settings);
    const several = await posthorn(['sign-in-link'], settings);
    assert.equal(several.code, 1);
    assert.match(several.output, /Name one: npm run -s posthorn -- sign-in-link --user admin@localhost/);
    assert.equal((await posthorn(['sign-in-link', '--user', 'ada@example.com'], settings)).code, 0);
  });

  test('without the dashboard, in production and in a JSON log, no link is printed', async () => {
    const production = {
      ...{ NODE_ENV: 'production', POSTHORN_MAIL_HOST: 'mx.example.com' },
      POSTHORN_PUBLIC_URL: 'https://mail.example.com',
    };
    const json = { POSTHORN_LOG_FORMAT: 'json' };
    for (const more of [{ POSTHORN_DASHBOARD: 'false' }, production, json]) {
      const program = serve(await setUp(more));
      await program.line(/is ready/);
      await program.line(/accepts mail on port/);
      assert.doesNotMatch(program.output(), /sign-in#/);
      const isTold = /print a link: npm run -s posthorn -- sign-in-link/.test(program.output());
      assert.equal(isTold, more === json);
    }
  });
});
