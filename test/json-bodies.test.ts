/** JSON bodies are read strictly: what is not clear is refused, and what is taken is taken as it came. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import vm from 'node:vm';
import { parseJson } from '../src/lib/json.ts';
import { assertProblem, startTestService } from './harness.ts';

const service = await startTestService();
const post = (body: string | Uint8Array, headers = {}) =>
  service.call('POST', '/identities', { body, headers });
const bytes = (...parts: (string | number[])[]) =>
  new Uint8Array(Buffer.concat(parts.map((part) => Buffer.from(part as string))));

let count = 0;
const freshDomain = () => `json${++count}.example`;

/** The meta that is stored for a body's meta, given as JSON text. */
async function storeMeta(meta: string): Promise<string> {
  const answer = await post(`{"value":"${freshDomain()}","meta":${meta}}`);
  assert.equal(answer.status, 201, answer.text);
  const read = await service.call('GET', `/identities/${answer.body.id}`);
  assert.equal(read.body.meta, answer.body.meta);
  return read.body.meta;
}

describe('what is not JSON is 400 invalid_json', () => {
  const bodies: [string, string | Uint8Array][] = [
    ['cut off', '{"value":"a.example"'],
    ['a trailing comma', '{"value":"a.example",}'],
    ['single quotes', "{'value':'a.example'}"],
    ['a comment', '{"value":"a.example"} // mine'],
    ['two documents', '{"value":"a.example"}{}'],
    ['NaN', '{"value":"a.example","meta":{"a":NaN}}'],
    ['a raw newline in a string', '{"value":"a\n.example"}'],
    ['only spaces', '   '],
    ['a byte order mark', '\ufeff{"value":"a.example"}'],
    ['invalid UTF-8', bytes('{"value":"', [0xff, 0xfe], '.example"}')],
    ['overlong UTF-8', bytes('{"value":"a', [0xc0, 0xaf], '.example"}')],
    ['a surrogate in UTF-8', bytes('{"value":"a.example","meta":{"a":"', [0xed, 0xa0, 0x80], '"}}')],
    ['UTF-16', new Uint8Array(Buffer.from('{"value":"a.example"}', 'utf16le'))],
    ['half a surrogate pair', '{"value":"a.example","meta":{"a":"\\ud83d"}}'],
    ['the other half', '{"value":"a.example","meta":{"a":"x\\uDC00"}}'],
    ['half a surrogate pair in a key', '{"value":"a.example","meta":{"\\ud800":1}}'],
    ['a number that no double holds', '{"value":"a.example","meta":{"a":1e999}}'],
    ['a negative one', '{"value":"a.example","meta":{"a":[-1E+400]}}'],
    ['one with many digits', `{"value":"a.example","meta":{"a":${'9'.repeat(400)}}}`],
    ['one more than all integers that a double holds', '{"value":"a.example","meta":{"a":9007199254740993}}'],
    ['a fraction of too many digits', '{"value":"a.example","meta":{"a":3.14159265358979323846}}'],
    ['one smaller than all doubles', '{"value":"a.example","meta":{"a":1e-400}}'],
    ['a key twice', '{"value":"a.example","value":"b.example"}'],
    ['a key twice, once with an escape', '{"value":"a.example","meta":{"a":1,"\\u0061":2}}'],
    ['101 levels', `{"value":"a.example","meta":${'{"a":'.repeat(100)}1${'}'.repeat(100)}}`],
    ['20,000 levels', `{"value":"a.example","meta":{"a":${'['.repeat(20_000)}${']'.repeat(20_000)}}}`],
    ['30,000 levels that never end', '['.repeat(30_000)],
  ];
  for (const [what, body] of bodies) {
    test(what, async () => {
      const answer = await post(body);
      const { detail } = assertProblem(answer, 400, 'invalid_json');
      assert.match(detail, /Send a JSON document in UTF-8\.$/);
      assert.ok(detail.length < 300, 'the body is not echoed at length');
    });
  }

  test('none of them made anything', async () => {
    assert.deepEqual((await service.call('GET', '/identities?value=a.example')).body, []);
  });
});

test('a number of a million digits does not stop the process', () => {
  const text = `0.1${'0'.repeat(1_000_000)}1`;
  // In quadratic time it takes half an hour. A timeout of the test could not end it.
  const parse = () => vm.runInNewContext('parseJson(text)', { parseJson, text }, { timeout: 60_000 });
  assert.throws(parse, /more digits than a double keeps/);
});

describe('JSON that is not an object is 400 invalid_body', () => {
  for (const body of ['[]', '[{"value":"b.example"}]', '"b.example"', '5', 'true', 'null']) {
    test(body, async () => {
      const { errors } = assertProblem(await post(body), 400, 'invalid_body');
      assert.deepEqual(errors, [{ pointer: '', code: 'wrong_type', message: 'The body must be an object.' }]);
    });
  }

  test('no body at all, with and without a content type', async () => {
    for (const headers of [{}, { 'content-type': 'application/json' }]) {
      const answer = await service.call('POST', '/identities', { headers });
      const { errors } = assertProblem(answer, 400, 'invalid_body');
      assert.deepEqual(
        errors?.map(({ pointer }) => pointer),
        [''],
      );
    }
  });

  test('a route that takes no body does not mind an empty one', async () => {
    const made = await service.call('POST', '/api-keys', { body: {} });
    const headers = { 'content-type': 'application/json' };
    assert.equal((await service.call('DELETE', `/api-keys/${made.body.id}`, { headers })).status, 204);
  });
});

describe('nothing is coerced', () => {
  const { userId: ownerId } = service.user;
  const webhook = { url: 'https://example.com/h', events: ['message.received'], ownerId };
  const faults: [string, object, string, string][] = [
    ['1 is not true', { ...webhook, enabled: 1 }, '/enabled', 'a boolean'],
    ['"true" is not true', { ...webhook, enabled: 'true' }, '/enabled', 'a boolean'],
    ['null is not false', { ...webhook, enabled: null }, '/enabled', 'a boolean'],
    ['a scalar is not an array', { ...webhook, events: 'message.received' }, '/events', 'an array'],
    ['an object is not an array', { ...webhook, events: { 0: 'message.received' } }, '/events', 'an array'],
    ['5 is not "5"', { ...webhook, description: 5 }, '/description', 'a string or null'],
    ['["x"] is not "x"', { ...webhook, url: ['https://example.com/h'] }, '/url', 'a string'],
    ['null is not a URL', { ...webhook, url: null }, '/url', 'a string'],
  ];
  for (const [what, body, pointer, wanted] of faults) {
    test(what, async () => {
      const { errors } = assertProblem(
        await service.call('POST', '/webhooks', { body }),
        400,
        'invalid_body',
      );
      const message = `"${pointer.slice(1)}" must be ${wanted}.`;
      assert.deepEqual(errors, [{ pointer, code: 'wrong_type', message }]);
    });
  }

  test('"" and 0 are not left out fields', async () => {
    const body = { ...webhook, identityId: '', description: 0 };
    const { errors } = assertProblem(await service.call('POST', '/webhooks', { body }), 400, 'invalid_body');
    assert.deepEqual(errors?.map(({ pointer }) => pointer).sort(), ['/description', '/identityId']);
  });
});

describe('unknown fields are refused by name', () => {
  const fields: [string, string | null][] = [
    ['vlaue', 'value'],
    ['Value', 'value'],
    ['incomingDomain', 'incoming_domain'],
    ['entirely_else', null],
    ['__proto__', null],
    ['constructor', null],
    ['toString', null],
    ['a/b~c', null],
    ['', null],
  ];
  for (const [field, meant] of fields) {
    test(`"${field}" ${meant ? `is taken for "${meant}"` : 'resembles nothing'}`, async () => {
      const text = `{"value":"c.example",${JSON.stringify(field)}:1}`;
      const { errors } = assertProblem(await post(text), 400, 'invalid_body');
      const known = 'value, kind, incoming_domain, provider_id, smtp_account_id, meta';
      const hint = meant ? `Did you mean "${meant}"?` : `Known: ${known}.`;
      const pointer = `/${field.replaceAll('~', '~0').replaceAll('/', '~1')}`;
      const message = `Unknown field "${field}". ${hint}`;
      assert.deepEqual(errors, [{ pointer, code: 'unknown_field', message }]);
    });
  }

  test('all faults of a body are told at once', async () => {
    const body = { kind: 'emial', incoming_domain: 'no', colour: 'red', provider_id: 'x' };
    const { errors } = assertProblem(
      await service.call('POST', '/identities', { body }),
      400,
      'invalid_body',
    );
    assert.deepEqual(errors?.map(({ pointer, code }) => `${pointer} ${code}`).sort(), [
      '/colour unknown_field',
      '/incoming_domain wrong_type',
      '/kind unknown_value',
      '/provider_id invalid_value',
      '/value required',
    ]);
  });
});

describe('what is taken is kept as it came', () => {
  const kept: [string, string, string][] = [
    ['spaces between tokens', '{ "a" :\n[ 1 ,\t2 ] }', '{"a":[1,2]}'],
    ['text beyond the BMP', '{"a":"\\ud83d\\ude00 é"}', '{"a":"😀 é"}'],
    ['NUL in a string', '{"a":"\\u0000"}', '{"a":"\\u0000"}'],
    ['a __proto__ key', '{"__proto__":{"admin":true}}', '{"__proto__":{"admin":true}}'],
    ['the order of keys', '{"b":1,"a":2}', '{"b":1,"a":2}'],
    ['all digits of a double', '{"a":0.10000000000000001,"b":4.9E-324}', '{"a":0.1,"b":5e-324}'],
    [
      'long numbers that a double keeps',
      '{"a":100000000000000000000,"b":1.50}',
      '{"a":100000000000000000000,"b":1.5}',
    ],
    ['numbers in another form', '{"a":1E2,"b":0.5,"c":-0,"d":1e308}', '{"a":100,"b":0.5,"c":0,"d":1e+308}'],
    [
      'brackets in strings',
      `{"a":"${'['.repeat(500)}\\"${'{'.repeat(500)}"}`,
      `{"a":"${'['.repeat(500)}\\"${'{'.repeat(500)}"}`,
    ],
    ['99 levels', `${'{"a":'.repeat(98)}{}${'}'.repeat(98)}`, `${'{"a":'.repeat(98)}{}${'}'.repeat(98)}`],
    ['the text of an object', JSON.stringify('{"a": "x"}'), '{"a":"x"}'],
  ];
  for (const [what, given, stored] of kept) {
    test(what, async () => assert.equal(await storeMeta(given), stored));
  }

  const refused: [string, string][] = [
    ['an array', '[]'],
    ['the text of an array', '[1]'],
    ['nothing', ''],
    ['no JSON', '{a:1}'],
    ['too many levels', `{"a":${'['.repeat(5000)}${']'.repeat(5000)}}`],
    ['half a surrogate pair', '{"a":"\\ud800"}'],
    ['a number that no double holds', '{"a":1e999}'],
  ];
  for (const [what, text] of refused) {
    test(`meta as text that holds ${what} is refused`, async () => {
      const body = { value: freshDomain(), meta: text };
      const { errors } = assertProblem(
        await service.call('POST', '/identities', { body }),
        400,
        'invalid_body',
      );
      assert.deepEqual(
        errors?.map(({ pointer, code }) => `${pointer} ${code}`),
        ['/meta invalid_value'],
      );
    });
  }

  test('a key named __proto__ changes nothing for others', () => {
    assert.equal(({} as { admin?: unknown }).admin, undefined);
  });
});

test('a route that takes no body refuses what it would drop in silence', async () => {
  const { userId: ownerId } = service.user;
  const body = { url: 'https://127.0.0.1:9/', events: ['message.received'], ownerId };
  const { id } = (await service.call('POST', '/webhooks', { body })).body;
  const answer = await service.call('POST', `/webhooks/${id}/secret/rotate`, { body: { sceret: 'mine' } });
  const { errors } = assertProblem(answer, 400, 'invalid_body');
  assert.equal(errors?.[0]?.pointer, '/sceret');
  const empty = await service.call('POST', `/webhooks/${id}/secret/rotate`, { body: {} });
  assert.equal(empty.status, 200, empty.text);
});

test('a compressed body is 415: nothing here decompresses it', async () => {
  const headers = { 'content-encoding': 'gzip' };
  assertProblem(await post(`{"value":"${freshDomain()}"}`, headers), 415, 'unsupported_media_type');
  const identity = await post(`{"value":"${freshDomain()}"}`, { 'content-encoding': 'identity' });
  assert.equal(identity.status, 201, identity.text);
});

test('a route without query parameters refuses them', async () => {
  const calls: [string, string, object?][] = [
    ['GET', '/me?page=1'],
    ['GET', '/event-types?page=1'],
    ['POST', '/identities?page=1', { value: freshDomain() }],
  ];
  for (const [method, path, body] of calls) {
    const { errors } = assertProblem(await service.call(method, path, { body }), 400, 'invalid_query');
    assert.equal(errors?.[0]?.message, 'Unknown query parameter "page". This request takes none.');
  }
});
