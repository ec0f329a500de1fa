/** The page at `/docs`: says what the document says, and whatever the document says stays text. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { renderDocsPage } from '../src/http/docs-page.ts';
import { problems } from '../src/problems.ts';

const json = (schema: object, more: object = {}) => ({ 'application/json': { schema, ...more } });
const thing = {
  type: 'object',
  required: ['id', 'note', 'parts'],
  properties: {
    id: { type: 'string', format: 'uuid' },
    note: { type: ['string', 'null'] },
    parts: {
      type: 'array',
      items: { type: 'object', required: ['size'], properties: { size: { type: 'integer' } } },
    },
    owner: { type: 'object', properties: { name: { anyOf: [{ type: 'string' }, { type: 'null' }] } } },
    marks: { type: 'array', items: { type: ['string', 'null'] } },
    anything: { description: 'Whatever it is.' },
  },
};
const newThing = {
  type: 'object',
  required: ['name'],
  properties: {
    name: { type: 'string', minLength: 1, maxLength: 100, description: 'What `it` is called.' },
    kind: { type: 'string', enum: ['email', 'domain'], default: 'email' },
    events: { type: 'array', items: { type: 'string', enum: ['a', 'b'] }, minItems: 1, uniqueItems: true },
    note: { type: ['string', 'null'], maxLength: 5 },
  },
};
const id = { name: 'id', in: 'path', required: true, schema: { type: 'string', format: 'uuid' } };
const limit = {
  name: 'limit',
  in: 'query',
  description: 'How many.',
  schema: { type: 'integer', minimum: 1, maximum: 10, default: 0 },
};
const document = {
  openapi: '3.1.0',
  info: { title: 'Things', version: '1.2.3', description: 'First.\n\nThen `code`.' },
  servers: [{ url: 'https://things.example/v1' }],
  components: {
    securitySchemes: {
      apiKey: { type: 'http', scheme: 'bearer', description: 'A key.' },
      unused: { type: 'http', scheme: 'bearer', description: 'Never asked for.' },
    },
  },
  paths: {
    '/things': {
      post: {
        tags: ['All things'],
        summary: 'Make a thing',
        security: [{ apiKey: [] }],
        requestBody: { content: json(newThing, { example: { name: "Ada's", events: ['a'] } }) },
        responses: {
          200: { content: json(thing) },
          201: { content: json(thing) },
          default: { content: json({ type: 'object', properties: { trouble: {} } }) },
        },
      },
      get: {
        tags: ['All things'],
        summary: 'List things',
        security: [{ apiKey: ['full'] }, { apiKey: ['read'] }],
        parameters: [limit],
        responses: { 200: { content: json({ type: 'array', items: thing }) } },
      },
    },
    '/things/{id}': {
      delete: {
        tags: ['All things'],
        summary: 'Delete a thing',
        security: [{ operatorToken: [] }],
        parameters: [id],
        responses: { 204: { description: 'Default Response' } },
      },
    },
    '/metrics': {
      get: {
        tags: ['Other things'],
        summary: 'Count',
        security: [{}, { metricsToken: [] }],
        responses: { 200: { content: { 'text/plain': { schema: { type: 'string' } } } } },
      },
    },
    '/linked': {
      get: {
        summary: 'Download',
        security: [{ apiKey: ['full'] }, { apiKey: ['read'] }, {}],
        responses: { 200: { content: json({}) } },
      },
    },
    '/open': { get: { summary: 'Look', responses: { 200: { content: json({}) } } } },
  },
};
const page = renderDocsPage(document);

test('every text of the document is escaped', () => {
  const evil = `<script>alert("1")</script><img src='x'>&amp;`;
  const poisoned = renderDocsPage(poison(document, evil) as object);
  assert.ok(!poisoned.includes('<script'));
  assert.ok(!poisoned.includes('<img'));
  assert.ok(!poisoned.includes('&amp;'));
  assert.ok(
    poisoned.includes(
      '&#60;script&#62;alert(&#34;1&#34;)&#60;/script&#62;&#60;img src=&#39;x&#39;&#62;&#38;amp;',
    ),
  );
  // The same tags stand in the poisoned page as in one with harmless words in the same places.
  assert.deepEqual(listTags(poisoned), listTags(renderDocsPage(poison(document, 'harmless') as object)));
});

test('the page loads nothing and runs nothing', () => {
  assert.doesNotMatch(page, /<(script|link|img|iframe|object|embed|base|form)\b/i);
  assert.doesNotMatch(page, /\s(src|srcset|action|on\w+|style)\s*=/i);
  assert.doesNotMatch(page, /@import|url\(|@font-face/i);
  for (const [, target] of page.matchAll(/href="([^"]*)"/g))
    assert.match(target ?? '', /^(#|openapi\.json$)/);
});

test('ids are unique, and every link within the page leads to one', () => {
  const ids = [...page.matchAll(/\sid="([^"]*)"/g)].map(([, one]) => one);
  assert.deepEqual(ids, [...new Set(ids)]);
  const targets = [...page.matchAll(/href="#([^"]*)"/g)].map(([, one]) => one);
  assert.deepEqual(
    targets.filter((target) => !ids.includes(target)),
    [],
  );
  const [navigation = ''] = /<nav.*<\/nav>/s.exec(page) ?? [];
  for (const anchor of [
    'tag-all-things',
    'tag-other-things',
    'tag-other',
    'post-things',
    'delete-things-id',
  ]) {
    assert.ok(navigation.includes(`href="#${anchor}"`), anchor);
  }
});

test('a route shows its method, path, summary and who may call it', () => {
  assert.match(read(section('post-things')), /^post \/things Make a thing API key Body/);
  assert.match(read(section('get-things')), /^get \/things List things API key \(full, read\) Query/);
  assert.match(
    read(section('get-linked')),
    /^get \/linked Download API key \(full, read\) or a signed link Example/,
  );
  assert.match(
    read(section('delete-things-id')),
    /^delete \/things\/\{id\} Delete a thing Operator token Path/,
  );
  assert.match(read(section('get-metrics')), /^get \/metrics Count Metrics token, if configured Example/);
  assert.match(read(section('get-open')), /^get \/open Look Public Example/);
});

test('a field shows its type, whether it is required, its description and its limits', () => {
  assert.equal(row('post-things', 'name'), 'name required string What it is called. 1 to 100 characters');
  assert.equal(row('post-things', 'kind'), 'kind string one of email domain default email');
  assert.equal(row('post-things', 'events'), 'events string[] each one of a b 1 or more items no repeats');
  assert.equal(row('post-things', 'note'), 'note string | null at most 5 characters');
  assert.equal(row('get-things', 'limit'), 'limit integer How many. 1 to 10 default 0');
  assert.equal(row('delete-things-id', 'id'), 'id required string uuid');
});

test('an answer shows statuses, nested fields, and which of them may be absent', () => {
  const made = section('post-things');
  assert.match(read(made), /Response 200 OK or 201 Created object Name/);
  assert.ok(!made.includes('trouble'));
  const answer = made.slice(made.indexOf('<details'));
  const rows = [...answer.matchAll(/<tr><td>.*?<\/tr>/gs)].map(([one]) => read(one));
  assert.deepEqual(rows, [
    'id string uuid',
    'note string | null',
    'parts object[]',
    'parts[].size integer',
    'owner optional object',
    'owner.name optional string | null',
    'marks optional (string | null)[]',
    'anything optional any Whatever it is.',
  ]);
  assert.match(read(section('get-things')), /Response 200 OK object\[\] Name/);
  assert.match(read(section('delete-things-id')), /Response 204 No Content no body$/);
  assert.match(read(section('get-metrics')), /Response 200 OK string · text\/plain$/);
});

test('a shape is open where it first appears, and folded where it does again', () => {
  assert.ok(section('post-things').includes('<details open>'));
  assert.ok(section('get-things').includes('<details>'));
});

test('the curl example can be pasted into a shell', () => {
  assert.equal(
    curl('post-things'),
    [
      'curl -X POST "https://things.example/v1/things" \\',
      '  -H "Authorization: Bearer $API_KEY" \\',
      '  -H "Content-Type: application/json" \\',
      `  -d '{`,
      `    "name": "Ada'\\''s",`,
      '    "events": [',
      '      "a"',
      '    ]',
      `  }'`,
    ].join('\n'),
  );
  assert.equal(
    curl('delete-things-id'),
    'curl -X DELETE "https://things.example/v1/things/$ID" \\\n  -H "Authorization: Bearer $ADMIN_TOKEN"',
  );
  assert.equal(curl('get-open'), 'curl "https://things.example/v1/open"');
});

test('the example of a body is also found in its schema', () => {
  const body = { content: json({ type: 'object', examples: [{ a: 1 }] }) };
  const other = renderDocsPage({ ...document, paths: { '/a': { post: { requestBody: body } } } });
  assert.match(curl('post-a', other), /-d '\{\n {4}"a": 1\n {2}\}'$/);
});

test('a document that does not know its host leaves it to the shell', () => {
  for (const [url, expected] of [
    ['/', 'curl "$BASE_URL/open"'],
    ['/api', 'curl "$BASE_URL/api/open"'],
  ] as const) {
    assert.equal(curl('get-open', renderDocsPage({ ...document, servers: [{ url }] })), expected);
  }
});

test('the introduction tells of authentication, errors, paging and idempotency', () => {
  for (const topic of ['authentication', 'errors', 'paging', 'idempotency']) {
    assert.ok(page.includes(`<h3 id="${topic}">`), topic);
  }
  assert.ok(page.includes('<h1>Things API <small>1.2.3</small></h1>'));
  assert.ok(page.includes('<p>Then <code>code</code>.</p>'));
  assert.ok(read(page).includes('API key $API_KEY A key.'));
  assert.ok(!page.includes('Never asked for.'));
});

test('the table of problems has every code, with its status, title and remedy', () => {
  const rows = [...page.matchAll(/<tr id="problem-([^"]*)">(.*?)<\/tr>/gs)];
  assert.deepEqual(
    rows.map(([, code, text = '']) => [code, read(text)]),
    Object.entries(problems).map(([code, { status, title, remedy }]) => [
      code,
      `${code} ${status} ${title}. ${remedy.replaceAll('`', '')}`,
    ]),
  );
});

/** The document with `evil` added to each text, and to each name that a person chose. */
function poison(value: unknown, evil: string): unknown {
  if (typeof value === 'string') return `${value}${evil}`;
  if (Array.isArray(value)) return value.map((one) => poison(one, evil));
  if (typeof value !== 'object' || value === null) return value;
  const entries = Object.entries(value).map(([key, inner]) => {
    if (key === 'in') return [key, inner];
    if (['paths', 'properties', 'securitySchemes', 'example'].includes(key))
      return [key, poisonKeys(inner, evil)];
    return [
      key,
      key === 'security' ? inner.map((one: object) => poisonKeys(one, evil)) : poison(inner, evil),
    ];
  });
  return Object.fromEntries(entries);
}

function poisonKeys(value: object, evil: string): object {
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [`${key}${evil}`, poison(one, evil)]));
}

function listTags(html: string): string[] {
  return [...html.matchAll(/<\/?([a-z0-9]+)/g)].map(([tag]) => tag).filter((tag) => tag !== '<wbr');
}

function section(anchor: string, html = page): string {
  const start = html.indexOf(`<article class="route" id="${anchor}">`);
  assert.notEqual(start, -1, anchor);
  return html.slice(start, html.indexOf('</article>', start));
}

function row(anchor: string, name: string): string | undefined {
  const rows = section(anchor).matchAll(/<tr><td>.*?<\/tr>/gs);
  return [...rows].map(([one]) => read(one)).find((text) => text.startsWith(`${name} `));
}

function curl(anchor: string, html = page): string {
  return decode(/<pre tabindex="0"><code>(.*?)<\/code>/s.exec(section(anchor, html))?.[1] ?? '');
}

/** What a person reads of it: no tags, single spaces. */
function read(html: string): string {
  const joined = html
    .replace(/<span class="parent">(.*?)<\/span>/g, '$1')
    .replace(/<\/?(code|wbr|b|a)\b[^>]*>/g, '');
  const text = decode(joined.replace(/<[^>]*>/g, ' '));
  return text.replace(/\s+/g, ' ').trim();
}

function decode(html: string): string {
  return html.replace(/&#(\d+);/g, (_, code) => String.fromCharCode(Number(code)));
}
