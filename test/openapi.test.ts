/** The OpenAPI document is valid, says what the service answers, and every operation is in a described chapter. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { describe, test } from 'node:test';
import { Validator } from '@seriousme/openapi-schema-validator';
import { Ajv } from 'ajv';
import { dereference } from '../src/http/openapi-document.ts';
import { problems } from '../src/problems.ts';
import { type Answer, startTestService } from './harness.ts';

const adminToken = randomBytes(20).toString('hex');
const service = await startTestService({ POSTHORN_ADMIN_TOKEN: adminToken });
const { body: written, headers } = await service.call('GET', '/openapi.json', { as: null });
const document = dereference(written);

interface Documented {
  summary?: string;
  tags?: string[];
  requestBody?: { required?: boolean };
  responses: Record<string, { content?: Record<string, { schema: Schema }> }>;
}
interface Body {
  content: Record<string, { schema: { $ref?: string } } | undefined>;
}
interface Schema {
  properties?: Record<string, { enum?: string[] }>;
}

test('it is a valid OpenAPI 3.1 document, sent as JSON', async () => {
  assert.match(headers.get('content-type') ?? '', /^application\/json/);
  assert.match(document.openapi, /^3\.1\./);
  const validator = new Validator();
  const { valid, errors } = await validator.validate(structuredClone(written));
  assert.equal(valid, true, JSON.stringify(errors, null, 2));
});

test('every operation has a summary, a tag, an answer and the problem document', () => {
  for (const [path, operations] of Object.entries<Record<string, Documented>>(document.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      const { summary, tags, responses } = operation;
      const name = `${method} ${path}`;
      assert.ok(summary && tags, name);
      assert.ok(
        Object.keys(responses).some((status) => status.startsWith('2')),
        name,
      );
      for (const range of ['4XX', '5XX']) {
        const problem = responses[range]?.content?.['application/problem+json']?.schema;
        assert.deepEqual(problem?.properties?.code?.enum, Object.keys(problems), name);
      }
    }
  }
});

test('every operation has a name of its own, and the schemas have names', () => {
  const operations = Object.values<Record<string, { operationId?: string }>>(written.paths).flatMap(
    (methods) => Object.values(methods),
  );
  const names = operations.map(({ operationId = '' }) => operationId);
  for (const name of names) assert.match(name, /^[a-z]+(?:[A-Z][a-z]+)*$/);
  assert.equal(new Set(names).size, operations.length);
  const used = new Set(JSON.stringify(written).match(/(?<="\$ref":"#\/components\/schemas\/)\w+/g));
  assert.deepEqual([...used].sort(), Object.keys(written.components.schemas).sort());
  for (const [path, method, status, name] of [
    ['/messages/{id}', 'get', 200, 'Message'],
    ['/messages', 'post', 202, 'Message'],
    ['/identities/{id}', 'get', 200, 'Identity'],
  ] as const) {
    const { schema } = written.paths[path][method].responses[status].content['application/json'];
    assert.deepEqual(schema, { $ref: `#/components/schemas/${name}` });
  }
  assert.ok(JSON.stringify(written).length < JSON.stringify(document).length / 2);
});

test('every JSON body has the name of its operation', () => {
  const bodies = Object.values<Record<string, { operationId: string; requestBody?: Body }>>(written.paths)
    .flatMap((methods) => Object.values(methods))
    .flatMap(({ operationId, requestBody }) => {
      const schema = requestBody?.content['application/json']?.schema;
      return schema ? [[operationId, schema.$ref ?? 'inline']] : [];
    });
  assert.ok(bodies.length > 10);
  for (const [operation = '', reference] of bodies) {
    // A body that two operations share has the name of the first.
    const named = operation === 'createUserApiKey' ? 'createApiKey' : operation;
    const name = `${named.charAt(0).toUpperCase()}${named.slice(1)}Request`;
    assert.equal(reference, `#/components/schemas/${name}`);
  }
});

test('a field that can be null or has fixed values says what they mean', () => {
  interface Field {
    type?: string | string[];
    enum?: string[];
    anyOf?: Field[];
    items?: Field;
    properties?: Record<string, Field>;
    description?: string;
  }
  const isPlain = ({ type, enum: values = [], anyOf = [] }: Field) =>
    !type?.includes('null') && values.length < 2 && !anyOf.some((one) => one.type === 'null');
  const findUnclear = (schema: Field, name: string): string[] => [
    ...Object.entries(schema.properties ?? {}).flatMap(([key, field]) => [
      ...(field.description || isPlain(field) ? [] : [`${name}.${key}`]),
      ...findUnclear(field, `${name}.${key}`),
    ]),
    ...[...(schema.items ? [schema.items] : []), ...(schema.anyOf ?? [])].flatMap((inner) =>
      findUnclear(inner, name),
    ),
  ];
  const schemas = Object.entries<Field>(written.components.schemas);
  assert.deepEqual(
    schemas.flatMap(([name, schema]) => findUnclear(schema, name)),
    [],
  );
});

test('every event is described as a webhook, with the headers of its signature', async () => {
  const { body: types } = await service.call('GET', '/event-types');
  assert.deepEqual(
    Object.keys(document.webhooks),
    types.map(({ name }: { name: string }) => name),
  );
  for (const { name, schema } of types) {
    const { parameters, requestBody } = document.webhooks[name].post;
    assert.deepEqual(requestBody.content['application/json'].schema, schema);
    const headers = parameters.map((parameter: { name: string }) => parameter.name);
    assert.deepEqual(headers, ['webhook-id', 'webhook-timestamp', 'webhook-signature']);
  }
});

test('every body is required, except of routes that work without a body', () => {
  const optional: string[] = [];
  for (const [path, operations] of Object.entries<Record<string, Documented>>(document.paths))
    for (const [method, { requestBody }] of Object.entries(operations))
      if (requestBody && !requestBody.required) optional.push(`${method} ${path}`);
  assert.deepEqual(optional, ['post /identities/{id}/sync', 'post /webhooks/{id}/test']);
});

describe('answers are what the document says', () => {
  const ajv = new Ajv({ strict: false, allErrors: true, validateFormats: false });

  /** Exactly: nothing may be there that is not named. */
  function close(schema: unknown): unknown {
    if (Array.isArray(schema)) return schema.map(close);
    if (typeof schema !== 'object' || schema === null) return schema;
    const closed = Object.fromEntries(Object.entries(schema).map(([key, value]) => [key, close(value)]));
    return closed.type === 'object' && closed.properties
      ? { ...closed, additionalProperties: false }
      : closed;
  }

  function assertDocumented(method: string, path: string, answer: Answer): void {
    const responses = document.paths[path][method.toLowerCase()].responses;
    const { content } = responses[answer.status] ?? responses[`${String(answer.status)[0]}XX`];
    if (!content) {
      assert.equal(answer.text, '', `${method} ${path} documents no body`);
      return;
    }
    const type = (answer.headers.get('content-type') ?? '').split(';')[0] ?? '';
    assert.ok(content[type], `${method} ${path} ${answer.status}: ${type} is not documented`);
    const validate = ajv.compile(close(content[type].schema) as object);
    assert.ok(
      validate(answer.body),
      `${method} ${path}: ${ajv.errorsText(validate.errors)} in ${answer.text}`,
    );
  }

  async function call(method: string, path: string, id?: string, body?: unknown): Promise<Answer> {
    const isAdmin = path.startsWith('/admin');
    const answer = await service.call(method, id ? path.replace('{id}', id) : path, {
      ...(isAdmin ? { as: null, headers: { authorization: `Bearer ${adminToken}` } } : {}),
      body,
    });
    assertDocumented(method, path, answer);
    return answer;
  }

  test('the checker finds what is not documented', () => {
    const headers = new Headers({ 'content-type': 'application/json' });
    const answer = (body: unknown): Answer => ({ status: 200, headers, text: JSON.stringify(body), body });
    assertDocumented('GET', '/me', answer({ userId: 'x' }));
    assert.throws(() => assertDocumented('GET', '/me', answer({ userId: 5 })));
    assert.throws(() => assertDocumented('GET', '/me', answer({})));
    assert.throws(() => assertDocumented('GET', '/me', answer({ userId: 'x', email: 'y' })));
  });

  test('identities', async () => {
    const { body: domain } = await call('POST', '/identities', undefined, { value: 'open.example' });
    const { body } = await call('POST', '/identities', undefined, {
      value: 'a@open.example',
      meta: { a: 1 },
    });
    assert.equal(body.domain_identity_id, domain.id);
    assert.equal((await call('GET', '/identities')).body.length, 2);
    for (const method of ['GET', 'PATCH', 'DELETE']) {
      const { status } = await call(method, '/identities/{id}', body.id, method === 'PATCH' ? {} : undefined);
      assert.ok(status < 300);
    }
    assert.equal((await call('GET', '/identities/{id}', body.id)).status, 404);
    assert.equal((await call('POST', '/identities', undefined, { value: 5 })).status, 400);
  });

  test('webhooks and their secrets', async () => {
    const given = { url: 'https://example.com/', events: ['message.received'], ownerId: service.user.userId };
    const { body } = await call('POST', '/webhooks', undefined, given);
    assert.equal((await call('GET', '/webhooks')).body.length, 1);
    for (const [method, path] of [
      ['GET', '/webhooks/{id}'],
      ['GET', '/webhooks/{id}/secret'],
      ['POST', '/webhooks/{id}/secret/rotate'],
      ['DELETE', '/webhooks/{id}'],
    ] as const) {
      assert.ok((await call(method, path, body.id)).status < 300, `${method} ${path}`);
    }
    assert.equal((await call('POST', '/webhooks', undefined, { ...given, ownerId: body.id })).status, 403);
  });

  test('keys, users, event types, health', async () => {
    assert.equal((await call('POST', '/admin/users', undefined, { email: 'o@users.example' })).status, 201);
    const { body: user } = await call('POST', '/admin/users', undefined, { email: 'o@users.example' });
    assert.equal((await call('GET', '/admin/users/{id}', user.userId)).body.email, 'o@users.example');
    assert.equal((await call('POST', '/admin/users/{id}/api-keys', user.userId, {})).status, 201);
    const expiresAt = '2999-01-01T00:00:00Z';
    const { body: key } = await call('POST', '/api-keys', undefined, { name: 'ci', expiresAt });
    assert.ok((await call('GET', '/api-keys')).body.length > 1);
    assert.equal((await call('GET', '/api-keys/{id}', key.id)).body.apiKey, undefined);
    assert.equal((await call('DELETE', '/api-keys/{id}', key.id)).status, 204);
    for (const path of ['/me', '/event-types', '/health/live', '/health/ready']) {
      assert.equal((await call('GET', path)).status, 200);
    }
  });
});

describe('limits that a user can meet are in it', () => {
  const schemaOf = (path: string) => document.paths[path].post.requestBody.content['application/json'].schema;

  test('of bodies, pages and fields', () => {
    assert.match(document.info.description, /64 KiB/);
    assert.match(document.info.description, /1000 items/);
    const { url, events, description } = schemaOf('/webhooks').properties;
    assert.equal(url.maxLength, 2048);
    assert.equal(description.maxLength, 500);
    assert.deepEqual([events.minItems, events.uniqueItems], [1, true]);
    assert.equal(schemaOf('/api-keys').properties.name.maxLength, 100);
    assert.equal(schemaOf('/webhooks').additionalProperties, false);
    for (const path of ['/identities', '/webhooks', '/api-keys']) {
      const limit = document.paths[path].get.parameters.find(
        ({ name }: { name: string }) => name === 'limit',
      );
      assert.deepEqual([limit.schema.minimum, limit.schema.maximum, limit.schema.default], [1, 1000, 1000]);
    }
  });

  test('of requests a minute, as this service has it', async () => {
    assert.match(document.info.description, /no rate limit/);
    const limited = await startTestService({ POSTHORN_RATE_LIMIT: '77' });
    const { info } = (await limited.call('GET', '/openapi.json')).body;
    assert.match(info.description, /77 requests a minute/);
  });
});

test('the server it names is the public URL with the base path, and paths come without it', async () => {
  assert.equal(document.servers[0].url, '/');
  const prefixed = await startTestService({
    POSTHORN_BASE_PATH: '/api/v2',
    POSTHORN_PUBLIC_URL: 'https://mail.example.com',
  });
  const { servers, paths } = (await prefixed.call('GET', '/openapi.json')).body;
  assert.equal(servers[0].url, 'https://mail.example.com/api/v2');
  assert.ok(paths['/me'] && paths['/identities/{id}']);
  assert.deepEqual(
    Object.keys(paths).filter((path) => path.startsWith('/api/v2')),
    [],
  );
});

test('without an operator token its routes are neither there nor documented', async () => {
  const plain = await startTestService();
  const { paths, components } = (await plain.call('GET', '/openapi.json')).body;
  assert.equal(components.schemas.User, undefined);
  assert.deepEqual(
    Object.keys(paths).filter((path) => path.startsWith('/admin')),
    [],
  );
  assert.equal((await plain.call('POST', '/admin/users', { body: { email: 'a@b.example' } })).status, 404);
});

test('every operation is in one chapter, and every chapter is described', () => {
  const described = document.tags.map(({ name }: { name: string }) => name);
  const operations = Object.values<Record<string, Documented>>(document.paths).flatMap((one) =>
    Object.values(one),
  );
  assert.deepEqual([...new Set(operations.flatMap(({ tags }) => tags))].sort(), [...described].sort());
  for (const { description } of document.tags) assert.match(description, /\.$/);
});

test('the document has the guides', () => {
  for (const guide of ['Receiving', 'What is POSTed', 'Verifying signatures', 'Retries', 'Sending'])
    assert.ok(document.info.description.includes(`\n## ${guide}\n`), guide);
});

describe('every example runs:', () => {
  interface Example {
    requestBody?: { content: Record<string, { schema: { examples?: unknown[] }; example?: unknown }> };
    parameters?: { in: string; name: string; example?: string }[];
  }
  /** What makes the example of a route more than a form: the ids of this service. */
  const ids: Record<string, (made: { identity: string; webhook: string }) => object> = {
    '/webhooks': () => ({ ownerId: service.user.userId }),
    '/messages': ({ identity }) => ({ identityId: identity }),
    '/sessions': () => ({ apiKey: service.user.apiKey }),
  };
  const examples = Object.entries<Record<string, Example>>(document.paths).flatMap(([path, operations]) =>
    Object.entries(operations)
      .filter(([, { requestBody }]) => requestBody)
      .map(([method, operation]) => ({ method: method.toUpperCase(), path, ...operation })),
  );

  async function makeExample(path: string): Promise<string> {
    const found = examples.find((one) => one.path === path && one.method === 'POST');
    const { example, schema } = found?.requestBody?.content['application/json'] ?? { schema: {} };
    const made = await service.call('POST', path, { body: example ?? schema.examples?.[0] });
    assert.equal(made.status, 201, made.text);
    return made.body.id;
  }

  /** An identity whose mailbox another server holds. */
  async function makeSyncedIdentity(): Promise<string> {
    const body = { value: 'synced@example.com', smtp_account_id: await makeExample('/smtp-accounts') };
    const made = await service.call('POST', '/identities', { body });
    assert.equal(made.status, 201, made.text);
    return made.body.id;
  }

  test('every body has one', () => {
    assert.ok(examples.length > 10);
    for (const { method, path, requestBody } of examples)
      for (const [type, { example, schema }] of Object.entries(requestBody?.content ?? {}))
        assert.ok(example ?? schema.examples?.[0], `${method} ${path} ${type}`);
  });

  test('with the ids of this service, none is refused', async () => {
    const { body: identity } = await service.call('POST', '/identities', {
      body: { value: 'desk@example.com' },
    });
    for (const { method, path, requestBody, parameters = [] } of examples) {
      // An example may disable its webhook.
      const webhook = await service.makeWebhook('https://example.com/hooks');
      const made = { identity: identity.id, webhook: webhook.id };
      // A record of the example of its list: PATCH changes it.
      const list = path.replace('/{id}', '');
      let ownRecord: string | null = null;
      if (/^\/(smtp-accounts|providers)\/\{id\}/.test(path)) ownRecord = await makeExample(list);
      if (path === '/identities/{id}/sync') ownRecord = await makeSyncedIdentity();
      const [type = '', { example, schema } = { schema: {} }] =
        Object.entries(requestBody?.content ?? {})[0] ?? [];
      const given = example ?? schema.examples?.[0];
      const query = new URLSearchParams();
      for (const one of parameters)
        if (one.in === 'query' && one.example !== undefined) query.set(one.name, one.example);
      const id = ownRecord ?? (path.startsWith('/identities') ? made.identity : made.webhook);
      const user = path.startsWith('/admin/users/') ? service.user.userId : id;
      const answer = await service.call(method, `${path.replace('{id}', user)}?${query}`, {
        headers: {
          'content-type': type,
          ...(path.startsWith('/admin') ? { authorization: `Bearer ${adminToken}` } : {}),
        },
        body: typeof given === 'string' ? given : { ...(given as object), ...ids[path]?.(made) },
      });
      assert.ok(answer.status < 300, `${method} ${path}: ${answer.text}`);
    }
  });
});
