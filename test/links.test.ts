/** Signed links: what opens with one, for how long, and what does not. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { makeLinks } from '../src/contract/links.ts';
import { startDns } from './dns.ts';
import {
  type Answer,
  assertProblem,
  callUrl,
  startTestService,
  type TestService,
  type TestUser,
} from './harness.ts';
import { startReceiver } from './receiver.ts';

const dns = await startDns();
after(() => dns.close());
const secretKey = randomBytes(32);
const settings = { POSTHORN_DNS_SERVERS: dns.address, POSTHORN_ROLES: 'api' };
const service = await startTestService({ ...settings, POSTHORN_SECRET_KEY: secretKey.toString('base64') });
const { call } = service;

const message = [
  'Subject: linked',
  'Content-Type: multipart/mixed; boundary=b',
  '',
  '--b\r\n\r\nText\r\n--b',
  'Content-Disposition: attachment; filename=one.bin',
  '',
  'first\r\n--b',
  'Content-Disposition: attachment; filename=two.bin',
  '',
  'second\r\n--b--\r\n',
].join('\r\n');

/** More than the buffers of the system take for a connection, and more than half of an owner's share. */
const largeBytes = 17_000_000;

interface Made {
  id: string;
  identityId: string;
  raw: string;
  attachments: string[];
}

async function make(at: TestService = service): Promise<Made> {
  const value = `a${randomBytes(5).toString('hex')}@link.example`;
  const { body: identity } = await at.call('POST', '/identities', { body: { value } });
  const headers = { 'content-type': 'message/rfc822' };
  const taken = await at.call('POST', `/inbound?recipient=${value}`, { body: message, headers });
  assert.equal(taken.status, 202, taken.text);
  const [event] = (await at.call('GET', `/events?identity_id=${identity.id}`)).body;
  const { data } = (await at.call('GET', `/events/${event.id}`)).body;
  return {
    id: data.message.id,
    identityId: identity.id,
    raw: data.rawEmailUrl,
    attachments: data.message.attachments.map(({ url }: { url: string }) => url),
  };
}

/** Without a key, unless one is given. */
const open = (url: string | URL, headers: Record<string, string> = {}, method = 'GET'): Promise<Answer> =>
  callUrl(method, String(url), { as: null, headers });

function change(url: string, edit: (url: URL) => void): URL {
  const changed = new URL(url);
  edit(changed);
  return changed;
}

describe('a link', () => {
  test('names the host and port that the start prints, also with a port of its own', async () => {
    const receiver = await startReceiver();
    await receiver.close();
    const own = await startTestService({ ...settings, PORT: String(receiver.port) });
    assert.equal(new URL((await make(own)).raw).origin, own.url);
    await own.stop();
  });

  test('opens the message and its attachments without a key: 200, and is kept by no cache', async () => {
    const { raw, attachments } = await make();
    const contents = [message, 'first', 'second'];
    for (const [n, url] of [raw, ...attachments].entries()) {
      const answer = await open(url);
      assert.equal(answer.status, 200, answer.text);
      assert.equal(answer.text, contents[n]);
      assert.equal(answer.headers.get('cache-control'), 'no-store');
      assert.equal(answer.headers.get('referrer-policy'), 'no-referrer');
      assert.equal((await open(url, {}, 'HEAD')).status, 200);
    }
    const [range] = [await open(raw, { range: 'bytes=0-6' })];
    assert.deepEqual([range.status, range.text], [206, 'Subject']);
    assert.equal(range.headers.get('cache-control'), 'no-store');
  });

  test('counts for the owner of the message: 429 beyond the limit, which leaves the API and other owners alone', async () => {
    const limited = await startTestService({ ...settings, POSTHORN_RATE_LIMIT: '6' });
    const mine = await make(limited);
    const other = await limited.makeUser();
    const foreign = await make({
      ...limited,
      call: (method, path, options) => limited.call(method, path, { ...options, as: other }),
    });
    const links = [mine.raw, ...mine.attachments];
    const answers: Answer[] = [];
    for (const url of [...links, ...links, mine.raw]) answers.push(await open(url));
    assert.deepEqual(
      answers.map(({ status }) => status),
      [200, 200, 200, 200, 200, 200, 429],
    );
    assert.match(answers[0]?.headers.get('ratelimit') ?? '', /r=5;/);
    assert.match(answers.at(-1)?.headers.get('retry-after') ?? '', /^\d+$/);
    assert.equal((await open(foreign.raw)).status, 200);
    assert.equal(
      (await limited.call('GET', '/me')).status,
      200,
      'a stranger with a link cannot lock its owner out',
    );
    await limited.stop();
  });

  test('counts for the owner with what its client has not read: 503 beyond, and other owners are served', async () => {
    const raw =
      'Subject: large\r\nContent-Type: application/octet-stream\r\nContent-Disposition: attachment\r\n' +
      `Content-Transfer-Encoding: base64\r\n\r\n${Buffer.alloc(largeBytes).toString('base64')}`;
    async function makeLarge(as: TestUser): Promise<string> {
      const value = `a${randomBytes(5).toString('hex')}@link.example`;
      await call('POST', '/identities', { as, body: { value } });
      const headers = { 'content-type': 'message/rfc822' };
      const taken = await call('POST', `/inbound?recipient=${value}`, { as, body: raw, headers });
      assert.equal(taken.status, 202, taken.text);
      const { body } = await call('GET', `/messages/${taken.body.messageIds[0]}`, { as });
      return body.attachments[0].url;
    }
    const [mine, others] = [
      await makeLarge(await service.makeUser()),
      await makeLarge(await service.makeUser()),
    ];
    const leaving = new AbortController();
    const unread = await fetch(mine, { signal: leaving.signal });
    assert.equal(unread.status, 200);
    const refused = open(mine);
    assert.equal((await fetch(others)).status, 200);
    assertProblem(await refused, 503, 'answers_unread');
    assert.equal(unread.bodyUsed, false);
    leaving.abort();
    const again = await fetch(mine);
    assert.equal((await again.arrayBuffer()).byteLength, largeBytes);
  });

  test('is told under the public address and base path, where these are set', async () => {
    const settled = { POSTHORN_PUBLIC_URL: 'https://mail.example', POSTHORN_BASE_PATH: '/api/v2' };
    const other = await startTestService({ ...settings, ...settled });
    const { id, raw, attachments } = await make(other);
    assert.ok(raw.startsWith(`https://mail.example/api/v2/messages/${id}/raw?`), raw);
    assert.ok(attachments[1]?.startsWith(`https://mail.example/api/v2/messages/${id}/attachments/1?`));
    const { pathname, search } = new URL(raw);
    assert.equal((await open(`${new URL(other.url).origin}${pathname}${search}`)).text, message);
    await other.stop();
  });

  test('of the raw message opens its attachments too, and those of no other message: 403', async () => {
    const [one, other] = [await make(), await make()];
    const { search } = new URL(one.raw);
    const at = (id: string, path: string) => `${service.url}/messages/${id}/${path}${search}`;
    assert.equal((await open(at(one.id, 'attachments/1'))).text, 'second');
    assertProblem(await open(at(one.id, 'attachments/2')), 404, 'not_found');
    for (const path of ['raw', 'attachments/0']) {
      assertProblem(await open(at(other.id, path)), 403, 'invalid_link');
      assertProblem(await open(at('00000000-0000-7000-8000-000000000000', path)), 403, 'invalid_link');
    }
    assert.equal((await open(at(one.id.toUpperCase(), 'raw'))).status, 200, 'an id has any case of letters');
  });

  test('opens nothing but these: 401', async () => {
    const { id, raw } = await make();
    const { search } = new URL(raw);
    for (const path of [`/messages/${id}`, '/messages', '/events', '/me']) {
      const answer = await open(`${service.url}${path}${search}`);
      assertProblem(answer, 401, 'missing_api_key');
    }
  });

  test('without its signature asks for a key: 401', async () => {
    const { raw } = await make();
    const bare = change(raw, (url) => url.searchParams.delete('signature'));
    assertProblem(await open(bare), 401, 'missing_api_key');
    assertProblem(await open(change(raw, (url) => (url.search = ''))), 401, 'missing_api_key');
  });

  const spoilt: [string, (url: URL) => void][] = [
    ['its last character changed', (url) => url.searchParams.set('signature', flipLast(url))],
    ['its signature cut', (url) => url.searchParams.set('signature', signatureOf(url).slice(0, -2))],
    ['its signature longer', (url) => url.searchParams.set('signature', `${signatureOf(url)}AA`)],
    ['its signature spelled otherwise', (url) => url.searchParams.set('signature', respell(url))],
    ['an empty signature', (url) => url.searchParams.set('signature', '')],
    [
      'another end',
      (url) => url.searchParams.set('expires', `${Number(url.searchParams.get('expires')) + 86_400}`),
    ],
    [
      'an end spelled otherwise',
      (url) => url.searchParams.set('expires', `0${url.searchParams.get('expires')}`),
    ],
    ['an end that is no number', (url) => url.searchParams.set('expires', 'never')],
    ['no end', (url) => url.searchParams.delete('expires')],
    ['a second signature', (url) => url.searchParams.append('signature', 'x')],
    ['a second end', (url) => url.searchParams.append('expires', '99999999999')],
  ];
  for (const [name, edit] of spoilt) {
    test(`with ${name} is refused: 403`, async () => {
      const { raw, attachments } = await make();
      for (const url of [raw, attachments[0] ?? '']) {
        const answer = await open(change(url, edit));
        assertProblem(answer, 403, 'invalid_link');
        assert.ok(!answer.text.includes('linked'));
      }
    });
  }

  test('with characters in its signature that do not belong there is refused: 400', async () => {
    const { raw } = await make();
    for (const junk of ['!!', ' ', '=', '\u00e9', '+', '.'])
      for (const spoil of [(text: string) => junk + text, (text: string) => text + junk]) {
        const url = change(raw, (url) => url.searchParams.set('signature', spoil(signatureOf(url))));
        assertProblem(await open(url), 400, 'invalid_query');
      }
    const twice = change(raw, (url) => {
      const signature = signatureOf(url);
      url.searchParams.set('signature', '');
      url.searchParams.append('signature', signature);
    });
    assertProblem(await open(twice), 403, 'invalid_link');
  });

  test('with more in its query than belongs there is refused: 400', async () => {
    const { raw } = await make();
    assertProblem(await open(change(raw, (url) => url.searchParams.set('more', '1'))), 400, 'invalid_query');
  });

  test('that is wrong is refused with a good key as well; a good one is good with a wrong key', async () => {
    const { raw } = await make();
    const wrong = change(raw, (url) => url.searchParams.set('signature', flipLast(url)));
    assertProblem(await open(wrong, { authorization: `Bearer ${service.user.apiKey}` }), 403, 'invalid_link');
    assert.equal((await open(raw, { authorization: 'Bearer nonsense' })).status, 200);
  });
});

describe('a link ends', () => {
  const links = makeLinks([secretKey], () => service.url);
  const dayMs = 86_400_000;

  test('at the end of the UTC day seven days on, which it says', async () => {
    const before = Date.now();
    const { raw } = await make();
    const expires = Number(new URL(raw).searchParams.get('expires')) * 1000;
    const ends = [before, Date.now()].map((now) => (Math.floor(now / dayMs) + 8) * dayMs);
    assert.ok(ends.includes(expires), new Date(expires).toISOString());

    for (const [made, end] of [
      ['2026-02-25T00:00:00.000Z', '2026-03-05T00:00:00.000Z'],
      ['2026-02-25T23:59:59.999Z', '2026-03-05T00:00:00.000Z'],
    ] as const) {
      const url = new URL(links.to('id', Date.parse(made)).raw);
      const [stated = '', signature = ''] = [...url.searchParams.values()];
      assert.equal(new Date(Number(stated) * 1000).toISOString(), end);
      assert.equal(links.isValid('id', stated, signature, Date.parse(end) - 1), true);
      assert.equal(links.isValid('id', stated, signature, Date.parse(end)), false);
    }
  });

  test('and is refused then: 403; one made seven days ago is still good', async () => {
    const { id } = await make();
    const eight = links.to(id, Date.now() - 8 * dayMs);
    assertProblem(await open(eight.raw), 403, 'invalid_link');
    assertProblem(await open(eight.attachment(0)), 403, 'invalid_link');
    assert.equal((await open(links.to(id, Date.now() - 7 * dayMs + 60_000).raw)).status, 200);
  });

  test('with its identity: 404 at once, and again after the rows are gone', async () => {
    const { id, identityId, raw, attachments } = await make();
    assert.equal((await call('DELETE', `/identities/${identityId}`)).status, 204);
    for (const url of [raw, ...attachments]) assertProblem(await open(url), 404, 'not_found');
    await service.sql`delete from messages where id = ${id}`;
    for (const url of [raw, ...attachments]) assertProblem(await open(url), 404, 'not_found');
  });

  test('with the key it was signed under, and not before', async () => {
    const { raw } = await make();
    const { pathname, search } = new URL(raw);
    const others = { ...settings, DATABASE_URL: service.databaseUrl };
    const next = randomBytes(32).toString('base64');
    const both = await startTestService({
      ...others,
      POSTHORN_SECRET_KEY: `${next},${secretKey.toString('base64')}`,
    });
    assert.equal((await open(`${both.url}${pathname}${search}`)).text, message, 'the old key still verifies');
    const renewed = await make(both);
    assertProblem(await open(renewed.raw.replace(both.url, service.url)), 403, 'invalid_link');
    await both.stop();
    const alone = await startTestService({ ...others, POSTHORN_SECRET_KEY: next });
    assertProblem(await open(`${alone.url}${pathname}${search}`), 403, 'invalid_link');
    assert.equal((await open(renewed.raw.replace(both.url, alone.url))).text, message, 'the first key signs');
    await alone.stop();
  });
});

test('of the query of a link, good or not, no line of the log says anything', async () => {
  const { raw, attachments } = await make();
  const urls = [
    raw,
    attachments[0] ?? '',
    `${raw}&more=1`,
    `${raw}x`,
    change(raw, (url) => (url.pathname += '/x')),
  ];
  const signature = signatureOf(new URL(raw));
  for (const url of urls) await open(url);
  await open(raw, {}, 'DELETE');
  await service.sql`alter table messages rename to hidden`;
  assertProblem(await open(raw), 500, 'internal_error');
  await service.sql`alter table hidden rename to messages`;
  assert.ok(
    service.logged.some(({ route }) => route === '/messages/:id/raw'),
    'requests are in the log',
  );
  assert.ok(
    service.logged.some(({ level }) => level === 'error'),
    'so are failures',
  );
  const lines = JSON.stringify(service.logged);
  assert.ok(!lines.includes(signature));
  assert.ok(!lines.includes('signature='));
});

function signatureOf(url: URL): string {
  return url.searchParams.get('signature') ?? '';
}

/** Another character of which the first bit counts. */
/** The last of 43 characters has two bits that stand for nothing. */
function respell(url: URL): string {
  const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
  const signature = signatureOf(url);
  return signature.slice(0, -1) + alphabet[alphabet.indexOf(signature.slice(-1)) + 1];
}

function flipLast(url: URL): string {
  const signature = signatureOf(url);
  return `${signature.slice(0, -2)}${signature.at(-2) === 'A' ? 'B' : 'A'}${signature.at(-1)}`;
}
