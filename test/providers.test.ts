/** Providers: their records, and that credentials never leave the service. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { createApiKey } from '../src/store/api-keys.ts';
import { assertProblem, startTestService } from './harness.ts';
import { mailgun, postmark, sendgrid, ses } from './provider-calls.ts';

const service = await startTestService({ POSTHORN_ROLES: 'api' });
const { call, sql } = service;
const make = (body: unknown) => call('POST', '/providers', { body });

const kinds = { postmark, mailgun, sendgrid, ses };
for (const [kind, { credentials }] of Object.entries(kinds)) {
  test(`${kind}: answers have the URLs of its hooks, and nothing of its credentials`, async () => {
    const made = await make({ kind, name: 'Ours', credentials });
    assert.equal(made.status, 201, made.text);
    const { id, inboundUrl, eventsUrl, createdAt, updatedAt, ...rest } = made.body;
    assert.equal(made.headers.get('location'), `/providers/${id}`);
    const send = { state: 'unknown', checkedAt: null, error: null };
    assert.deepEqual(rest, { ownerId: service.user.userId, kind, name: 'Ours', send });
    assert.ok(inboundUrl.startsWith(`${service.url}/hooks/`), inboundUrl);
    assert.ok(eventsUrl.startsWith(`${service.url}/hooks/`), eventsUrl);
    assert.ok(createdAt <= updatedAt);
    const answers = [
      await call('GET', `/providers/${id}`),
      await call('GET', '/providers'),
      await call('PATCH', `/providers/${id}`, { body: { credentials, name: null } }),
    ];
    assert.deepEqual(answers[0]?.body, made.body);
    assert.deepEqual(answers[1]?.body[0], made.body);
    assert.equal(answers[2]?.body.name, null);
    assert.equal(answers[2]?.body.inboundUrl, inboundUrl);
    const secrets = Object.entries(credentials).filter(([name]) => !['region', 'username'].includes(name));
    for (const { text } of [made, ...answers])
      for (const [, value] of secrets) assert.ok(!text.includes(String(value)), text);
    const [row] = await sql`select to_jsonb(providers)::text as row from providers where id = ${id}`;
    for (const value of [
      ...Object.values(credentials).filter((one) => one.length > 4),
      inboundUrl.split('/')[4],
    ])
      assert.ok(!row?.row.includes(value));
  });
}

test('a key with the scope read does not see the URLs of the hooks, which are secrets', async () => {
  const { body } = await make({ kind: 'postmark', credentials: postmark.credentials });
  const secret = body.inboundUrl.split('/hooks/')[1].split('/')[0];
  const { apiKey } = await createApiKey(sql, service.user.userId, { scope: 'read' });
  const as = { ...service.user, apiKey };
  for (const path of ['/providers', `/providers/${body.id}`]) {
    const answer = await call('GET', path, { as });
    assert.equal(answer.status, 200);
    const [shown] = [answer.body].flat();
    assert.deepEqual([shown.id, shown.inboundUrl, shown.eventsUrl], [body.id, null, null]);
    assert.ok(!answer.text.includes(secret));
  }
});

describe('a body that is not valid is 400 with every fault', () => {
  const { signingKey: _, ...unsigned } = mailgun.credentials;
  const cases: [string, unknown, string[]][] = [
    ['no credentials', { kind: 'ses' }, ['/credentials']],
    ['another kind', { kind: 'gmail', credentials: {} }, ['/kind']],
    ['a missing field', { kind: 'mailgun', credentials: unsigned }, ['/credentials/signingKey']],
    [
      'all fields missing',
      { kind: 'ses', credentials: {} },
      ['/credentials/username', '/credentials/password', '/credentials/region', '/credentials/topicArn'],
    ],
    [
      'an unknown field',
      { kind: 'postmark', credentials: { ...postmark.credentials, token: 'x' } },
      ['/credentials/token'],
    ],
    [
      'a field that is a name of JavaScript',
      { kind: 'postmark', credentials: { serverToken: 't', constructor: 'x' } },
      ['/credentials/constructor'],
    ],
    [
      'a text with a space',
      { kind: 'postmark', credentials: { serverToken: 'a b' } },
      ['/credentials/serverToken'],
    ],
    [
      'a line break',
      { kind: 'postmark', credentials: { serverToken: 'a\r\nQUIT' } },
      ['/credentials/serverToken'],
    ],
    [
      'a key that is none',
      { kind: 'sendgrid', credentials: { apiKey: 'k', verificationKey: 'AAAA' } },
      ['/credentials/verificationKey'],
    ],
    [
      'basic auth without a password',
      { kind: 'postmark', credentials: { serverToken: 't', basicAuth: { username: 'u' } } },
      ['/credentials/basicAuth'],
    ],
    [
      'a region that is a host',
      { kind: 'ses', credentials: { ...ses.credentials, region: 'us-east-1.evil.example' } },
      ['/credentials/region', '/credentials/topicArn'],
    ],
    [
      'a region with a slash',
      { kind: 'ses', credentials: { ...ses.credentials, region: 'us-east-1/' } },
      ['/credentials/region', '/credentials/topicArn'],
    ],
    [
      'a topic of another region',
      {
        kind: 'ses',
        credentials: { ...ses.credentials, topicArn: 'arn:aws:sns:eu-west-1:123456789012:mail' },
      },
      ['/credentials/topicArn'],
    ],
  ];
  for (const [what, body, pointers] of cases) {
    test(what, async () => {
      const { errors } = assertProblem(await make(body), 400, 'invalid_body');
      assert.deepEqual(
        errors?.map(({ pointer }) => pointer),
        pointers,
      );
    });
  }

  test('a change of credentials is checked by the stored kind', async () => {
    const { body } = await make({ kind: 'postmark', credentials: postmark.credentials });
    const patch = (change: unknown) => call('PATCH', `/providers/${body.id}`, { body: change });
    assertProblem(await patch({ credentials: mailgun.credentials }), 400, 'invalid_body');
    assertProblem(await patch({ kind: 'ses' }), 400, 'invalid_body');
    assertProblem(await patch({ inboundUrl: 'https://x.example' }), 400, 'invalid_body');
  });
});

test('a provider that identities refer to is not deleted: 409 names them', async () => {
  const { body: provider } = await make({ kind: 'postmark', credentials: postmark.credentials });
  const value = 'in-use@prov.example';
  const { body: identity } = await call('POST', '/identities', { body: { value, provider_id: provider.id } });
  const { detail } = assertProblem(await call('DELETE', `/providers/${provider.id}`), 409, 'in_use');
  assert.ok(detail.includes(value), detail);
  await call('PATCH', `/identities/${identity.id}`, { body: { provider_id: null } });
  assert.equal((await call('DELETE', `/providers/${provider.id}`)).status, 204);
  assertProblem(await call('GET', `/providers/${provider.id}`), 404, 'not_found');
});
