/** Webhooks: what is refused, where, and that all of it is told at once. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { newId } from '../src/lib/ids.ts';
import { assertProblem, startTestService } from './harness.ts';

const service = await startTestService();
const { user, call } = service;
const other = await service.makeUser();
const foreignIdentity = (await call('POST', '/identities', { as: other, body: { value: 'f.example' } })).body
  .id;
const httpsOnly = await startTestService({ POSTHORN_ALLOW_HTTP: 'false' });
const production = await startTestService({
  NODE_ENV: 'production',
  POSTHORN_MAIL_HOST: 'mx.example',
  POSTHORN_PUBLIC_URL: 'https://mail.example',
});

function newWebhook(given: Record<string, unknown> = {}, ownerId = user.userId) {
  return { url: 'https://example.com/h', events: ['message.received'], ownerId, ...given };
}

async function make() {
  const answer = await call('POST', '/webhooks', { body: newWebhook() });
  assert.equal(answer.status, 201, answer.text);
  return answer.body;
}

/** Supplies a field at creation and in PATCH, which must agree, and returns the pointers and codes of the faults. */
async function refuse(field: string, value: unknown) {
  const { id, secret: _, ...record } = await make();
  const [created, patched] = [
    await call('POST', '/webhooks', { body: newWebhook({ [field]: value }) }),
    await call('PATCH', `/webhooks/${id}`, { body: { [field]: value } }),
  ].map((answer) => assertProblem(answer, 400, 'invalid_body').errors);
  assert.deepEqual(created, patched);
  assert.deepEqual((await call('GET', `/webhooks/${id}`)).body, { id, ...record });
  return created ?? [];
}

function places(errors: { pointer: string; code: string }[]): string[] {
  return errors.map(({ pointer, code }) => `${pointer} ${code}`);
}

const longest = `https://example.com/${'a'.repeat(2048 - 20)}`;
const good = [
  ['https', 'https://example.com'],
  ['http, where it is allowed', 'http://example.com/'],
  ['a scheme in upper case', 'HTTPS://EXAMPLE.COM/Path'],
  ['a port', 'https://example.com:8443/'],
  ['an @ beyond the host', 'https://example.com/@me?a=b@c'],
  ['an international name', 'https://bücher.example/ü'],
  ['an IPv6 address', 'https://[2606:4700::1111]/'],
  ['an IPv6 address with a port', 'https://[2606:4700::1111]:8443/'],
  ['a dot after the host', 'https://example.com./'],
  ['an underscore in the host', 'https://my_hooks.example.com/'],
  ['a port with a zero before it', 'https://example.com:08443/'],
  ['several slashes in the path', 'https://example.com//a//b'],
  ['quotes and braces beyond the host', 'https://example.com/{"a"}?b=`c`'],
  ['2,048 characters', longest],
] as const;
for (const [what, url] of good) {
  test(`url takes ${what}, and keeps it as it is`, async () => {
    const answer = await call('POST', '/webhooks', { body: newWebhook({ url }) });
    assert.deepEqual([answer.status, answer.body.url], [201, url], answer.text);
  });
}

for (const [what, url, code] of [
  ['no text', 5, 'wrong_type'],
  ['null', null, 'wrong_type'],
  ['an empty text', '', 'invalid_value'],
  ['a word', 'example', 'invalid_value'],
  ['a path', '/hooks', 'invalid_value'],
  ['no scheme', 'example.com/hooks', 'invalid_value'],
  ['no scheme but slashes', '//example.com/hooks', 'invalid_value'],
  ['ftp', 'ftp://example.com/', 'invalid_value'],
  ['javascript', 'javascript:alert(1)', 'invalid_value'],
  ['a file', 'file:///etc/passwd', 'invalid_value'],
  ['no host', 'https://', 'invalid_value'],
  ['no slashes', 'https:example.com', 'invalid_value'],
  ['backslashes', 'https:\\\\example.com', 'invalid_value'],
  ['three slashes', 'https:///example.com/', 'invalid_value'],
  ['four slashes', 'https:////example.com', 'invalid_value'],
  ['a backslash before the host', 'https://\\example.com/', 'invalid_value'],
  ['a backslash after the host', 'https://example.com\\b', 'invalid_value'],
  ['a backslash in the path', 'https://example.com/a\\b', 'invalid_value'],
  ['a quote in the host', 'https://a"b.example/', 'invalid_value'],
  ['a single quote in the host', "https://a'b.example/", 'invalid_value'],
  ['an encoded quote in the host', 'https://a%22b.example/', 'invalid_value'],
  ['a wide quote in the host', 'https://a＂b.example/', 'invalid_value'],
  ['a backtick in the host', 'https://a`b.example/', 'invalid_value'],
  ['braces in the host', 'https://{name}.example/', 'invalid_value'],
  ['a wildcard in the host', 'https://*.example.com/', 'invalid_value'],
  ['port 0', 'https://example.com:0/', 'invalid_value'],
  ['port 0 with more zeros', 'https://example.com:000', 'invalid_value'],
  ['a port out of range', 'https://example.com:65536/', 'invalid_value'],
  ['a broken IPv6 address', 'https://[::1/', 'invalid_value'],
  ['a user name', 'https://ada@example.com/', 'invalid_value'],
  ['a user name and password', 'https://ada:pw@example.com/', 'invalid_value'],
  ['an empty user name', 'https://@example.com/', 'invalid_value'],
  ['a fragment', 'https://example.com/#part', 'invalid_value'],
  ['an empty fragment', 'https://example.com/#', 'invalid_value'],
  ['a space before it', ' https://example.com/', 'invalid_value'],
  ['a space within', 'https://example.com/a b', 'invalid_value'],
  ['a tab', 'https://exa\tmple.com/', 'invalid_value'],
  ['a newline after it', 'https://example.com/\n', 'invalid_value'],
  ['a NUL', 'https://example.com/\0', 'invalid_value'],
  ['2,049 characters', `${longest}a`, 'too_long'],
] as const) {
  test(`url refuses ${what}`, async () => {
    assert.deepEqual(places(await refuse('url', url)), [`/url ${code}`]);
  });
}

test('a url that the parser would change is refused with what to do', async () => {
  for (const [url, rest] of [
    [
      'https:///example.com/',
      'must have exactly two slashes before the host, such as https://example.com/hooks.',
    ],
    ['https://example.com\\b', 'must not contain backslashes; use "/" in the path, or %5C.'],
    [
      'https://{name}.example/',
      'must have a host of letters, digits, dots, hyphens and underscores, or an IP address.',
    ],
    ['https://example.com:0/', 'must not have port 0; use the port on which your server listens.'],
  ] as const) {
    const [error] = await refuse('url', url);
    assert.equal(error?.message, `"url" ${rest}`);
  }
});

for (const [name, strict, message] of [
  ['POSTHORN_ALLOW_HTTP=false', httpsOnly, '"url" must begin with https://.'],
  [
    'NODE_ENV=production',
    production,
    '"url" must begin with https://. In production, webhooks must use https://.',
  ],
] as const) {
  test(`with ${name} a url is https only, at creation and in PATCH`, async () => {
    const post = (url: string) =>
      strict.call('POST', '/webhooks', { body: newWebhook({ url }, strict.user.userId) });
    const { id } = (await post('https://example.com/')).body;
    const patched = await strict.call('PATCH', `/webhooks/${id}`, { body: { url: 'http://example.com/' } });
    for (const answer of [await post('http://example.com/'), patched]) {
      const { errors } = assertProblem(answer, 400, 'invalid_body');
      assert.deepEqual(places(errors ?? []), ['/url invalid_value']);
      assert.equal(errors?.[0]?.message, message);
    }
  });
}

test('in production a url on this machine is refused with what to do', async () => {
  const body = newWebhook({ url: 'https://localhost/hooks' }, production.user.userId);
  const { errors } = assertProblem(await production.call('POST', '/webhooks', { body }), 400, 'invalid_body');
  const message =
    '"url": localhost is this machine. Use a public address; the operator can allow others with POSTHORN_ALLOW_TARGETS.';
  assert.deepEqual(errors, [{ pointer: '/url', code: 'target_refused', message }]);
});

test('events takes all four names at once, in their order', async () => {
  const events = ['message.bounced', 'message.delivered', 'message.sent', 'message.received'];
  const answer = await call('POST', '/webhooks', { body: newWebhook({ events }) });
  assert.deepEqual(answer.body.events, events);
});

for (const [what, events, expected] of [
  ['an empty array', [], ['/events too_short']],
  ['null', null, ['/events wrong_type']],
  ['a scalar', 'message.received', ['/events wrong_type']],
  ['an object', { 0: 'message.received' }, ['/events wrong_type']],
  ['repeats', ['message.sent', 'message.sent'], ['/events repeated']],
  ['an unknown name', ['message.received', 'message.opened'], ['/events/1 unknown_value']],
  ['a name in another case', ['Message.Received'], ['/events/0 unknown_value']],
  ['a wildcard', ['*'], ['/events/0 unknown_value']],
] as const) {
  test(`events refuses ${what}`, async () => {
    assert.deepEqual(places(await refuse('events', events)), expected);
  });
}

test('an event that is no text is refused at its place', async () => {
  const errors = await refuse('events', ['message.received', 5]);
  assert.deepEqual([...new Set(errors.map(({ pointer }) => pointer))], ['/events/1']);
});

test('an unknown event name is answered with the known ones and the one that was meant', async () => {
  const [fault] = await refuse('events', ['message.recieved']);
  for (const name of ['message.received', 'message.sent', 'message.delivered', 'message.bounced']) {
    assert.ok(fault?.message.includes(name), fault?.message);
  }
  assert.match(fault?.message ?? '', /Did you mean message\.received\?/);
});

test("another user's ownerId is 403, and nothing is made", async () => {
  const list = async (as: typeof user) => (await call('GET', '/webhooks', { as })).body.length;
  const before = [await list(user), await list(other)];
  for (const ownerId of [other.userId, newId()]) {
    assertProblem(await call('POST', '/webhooks', { body: newWebhook({ ownerId }) }), 403, 'owner_mismatch');
  }
  assert.deepEqual([await list(user), await list(other)], before);
});

for (const [what, ownerId, code] of [
  ['no UUID', 'me', 'invalid_value'],
  ['a number', 1, 'wrong_type'],
  ['null', null, 'wrong_type'],
] as const) {
  test(`ownerId refuses ${what}`, async () => {
    assert.deepEqual(places(await refuse('ownerId', ownerId)), [`/ownerId ${code}`]);
  });
}

for (const [what, identityId, code] of [
  ["another owner's identity", foreignIdentity, 'unknown_reference'],
  ['an id of nothing', newId(), 'unknown_reference'],
  ['no UUID', 'x', 'invalid_value'],
  ['a number', 7, 'wrong_type'],
] as const) {
  test(`identityId refuses ${what}`, async () => {
    assert.deepEqual(places(await refuse('identityId', identityId)), [`/identityId ${code}`]);
  });
}

test("another owner's identity and one that is not there are refused alike", async () => {
  for (const id of [foreignIdentity, newId()]) {
    const message = `No identity with the id "${id}".`;
    const expected = [{ pointer: '/identityId', code: 'unknown_reference', message }];
    assert.deepEqual(await refuse('identityId', id), expected);
  }
});

for (const [what, value] of [
  ['the text "true"', 'true'],
  ['1', 1],
  ['null', null],
] as const) {
  test(`enabled refuses ${what}`, async () => {
    assert.deepEqual(places(await refuse('enabled', value)), ['/enabled wrong_type']);
  });
}

test('description takes 500 characters, counted as people do, and not 501', async () => {
  for (const letter of ['a', 'ü', '🦉']) {
    const description = letter.repeat(500);
    const answer = await call('POST', '/webhooks', { body: newWebhook({ description }) });
    assert.deepEqual([answer.status, answer.body.description], [201, description]);
    assert.deepEqual(places(await refuse('description', letter.repeat(501))), ['/description too_long']);
  }
});

test('description refuses NUL and what is no text', async () => {
  assert.deepEqual(places(await refuse('description', 'a\0b')), ['/description invalid_value']);
  assert.deepEqual(places(await refuse('description', 5)), ['/description wrong_type']);
});

for (const field of ['id', 'disabledReason', 'createdAt', 'updatedAt']) {
  test(`PATCH refuses ${field}: it is read-only`, async () => {
    const { secret: _, ...record } = await make();
    const body = { [field]: record[field], enabled: false };
    const { errors } = assertProblem(
      await call('PATCH', `/webhooks/${record.id}`, { body }),
      400,
      'invalid_body',
    );
    assert.deepEqual(places(errors ?? []), [`/${field} read_only`]);
    assert.deepEqual((await call('GET', `/webhooks/${record.id}`)).body, record);
  });
}

for (const field of ['id', 'secret', 'disabledReason', 'createdAt', 'owner_id']) {
  test(`${field} cannot be supplied at creation`, async () => {
    const answer = await call('POST', '/webhooks', { body: newWebhook({ [field]: 'x' }) });
    const { errors } = assertProblem(answer, 400, 'invalid_body');
    assert.deepEqual(places(errors ?? []), [`/${field} unknown_field`]);
  });
}

test('secret cannot be changed by PATCH', async () => {
  assert.deepEqual(
    places(
      assertProblem(
        await call('PATCH', `/webhooks/${(await make()).id}`, { body: { secret: 'whsec_x' } }),
        400,
        'invalid_body',
      ).errors ?? [],
    ),
    ['/secret unknown_field'],
  );
});

test("every error is reported at once, with a reference to another owner's identity among them", async () => {
  const body = {
    url: 'ftp://example.com',
    events: ['message.opened', 'message.sent', 'message.sent'],
    identityId: foreignIdentity,
    enabled: 'yes',
    description: 'x'.repeat(501),
    'colour/~': 'red',
  };
  const { errors } = assertProblem(await call('POST', '/webhooks', { body }), 400, 'invalid_body');
  assert.deepEqual(places(errors ?? []).sort(), [
    '/colour~1~0 unknown_field',
    '/description too_long',
    '/enabled wrong_type',
    '/events repeated',
    '/events/0 unknown_value',
    '/identityId unknown_reference',
    '/ownerId required',
    '/url invalid_value',
  ]);
  for (const { message } of errors ?? [])
    assert.match(message, /^("|The body |Unknown field "|No identity ).+[.?]$/);
});

for (const body of [undefined, '', 'null', '[]', '"text"', '5']) {
  test(`a body that is ${body === undefined ? 'missing' : `«${body}»`} is refused`, async () => {
    const { errors } = assertProblem(await call('POST', '/webhooks', { body }), 400, 'invalid_body');
    assert.deepEqual(places(errors ?? []), [' wrong_type']);
  });
}
