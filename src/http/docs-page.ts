/**
 * `GET /docs`: the OpenAPI document as one page for people. Plain HTML and CSS, so that it works under a policy that
 * lets nothing load and nothing run. Whatever `html` is given is escaped; only what `html` made passes as it is.
 */
import { STATUS_CODES } from 'node:http';
import { Problem, problems, toDocument } from '../problems.ts';
import { docsStyle } from './docs-style.ts';

// What is read of OpenAPI 3.1. The types of @fastify/swagger are those of 3.0, where `type` is a single word.
interface Schema {
  type?: string | string[];
  format?: string;
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  anyOf?: Schema[];
  oneOf?: Schema[];
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  examples?: unknown[];
  minLength?: number;
  maxLength?: number;
  minimum?: number;
  maximum?: number;
  minItems?: number;
  maxItems?: number;
  uniqueItems?: boolean;
  pattern?: string;
}

interface Media {
  schema?: Schema;
  example?: unknown;
}

interface Parameter {
  name: string;
  in: string;
  required?: boolean;
  description?: string;
  schema?: Schema;
}

type Security = Record<string, string[]>[];

interface Operation {
  summary?: string;
  description?: string;
  tags?: string[];
  security?: Security;
  parameters?: Parameter[];
  requestBody?: { content?: Record<string, Media> };
  responses?: Record<string, { content?: Record<string, Media> }>;
}

interface ApiDocument {
  info: { title: string; version: string; description?: string };
  servers?: { url: string }[];
  paths?: Record<string, Record<string, Operation>>;
  components?: { securitySchemes?: Record<string, { description?: string }> };
}

interface Route {
  id: string;
  method: string;
  path: string;
  operation: Operation;
}

interface Field {
  /** The way to a nested field, such as `errors[].`. */
  parent: string;
  name: string;
  required: boolean;
  schema: Schema;
}

interface Markup {
  readonly markup: string;
}
type Piece = Markup | string | number | false | undefined | Piece[];

const methods = ['get', 'post', 'put', 'patch', 'delete', 'head', 'options'];
const credentials: Record<string, { name: string; variable: string }> = {
  apiKey: { name: 'API key', variable: '$API_KEY' },
  operatorToken: { name: 'Operator token', variable: '$ADMIN_TOKEN' },
  metricsToken: { name: 'Metrics token', variable: '$METRICS_TOKEN' },
};

export function renderDocsPage(given: object): string {
  const document = given as ApiDocument;
  const routes = listRoutes(document);
  const byTag = Map.groupBy(routes, ({ operation }) => operation.tags?.[0] ?? 'Other');
  const baseUrl = readBaseUrl(document);
  const shown = new Set<string>();
  const { title } = document.info;
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>${title} API</title>
<style>${{ markup: docsStyle }}</style>
</head>
<body id="top">
<a class="skip" href="#content">Skip to the content</a>
${renderNavigation(title, byTag)}
<main id="content">
${renderIntroduction(document, routes, baseUrl)}
${[...byTag].map(
  ([tag, members]) => html`<section id="${tagId(tag)}"><h2>${tag}</h2>
${members.map((route) => renderRoute(route, baseUrl, shown))}</section>`,
)}
${renderProblems()}
</main>
<a class="up" href="#top">↑ Contents</a>
</body>
</html>
`.markup;
}

function listRoutes({ paths = {} }: ApiDocument): Route[] {
  return Object.entries(paths).flatMap(([path, operations]) =>
    Object.entries(operations)
      .filter(([method]) => methods.includes(method))
      .map(([method, operation]) => ({ id: slug(`${method} ${path}`), method, path, operation })),
  );
}

/** The document does not know its host unless the operator told it; then the reader's shell does. */
function readBaseUrl({ servers = [] }: ApiDocument): string {
  const url = (servers[0]?.url ?? '').replace(/\/$/, '');
  return /^https?:/.test(url) ? quote(url) : `$BASE_URL${quote(url)}`;
}

function renderNavigation(title: string, byTag: Map<string, Route[]>): Markup {
  const link = ({ id, method, path }: Route) =>
    html`<li><a href="#${id}"><span class="verb ${method}">${method}</span> <code>${path}</code></a></li>`;
  return html`<nav aria-label="Contents">
<div class="brand"><a href="#top">${horn}${title}</a>
<label for="menu">Contents</label></div>
<input type="checkbox" id="menu" aria-label="Show the contents">
<div class="menu"><h2>Introduction</h2><ul class="plain">${introduction.map(([id, heading]) => html`<li><a href="#${id}">${heading}</a></li>`)}</ul>
${[...byTag].map(
  ([tag, routes]) =>
    html`<h2><a href="#${tagId(tag)}">${tag}</a></h2><ul>${routes.map(link)}</ul>
`,
)}<h2><a href="#problems">Problem codes</a></h2></div>
</nav>`;
}

const introduction = [
  ['authentication', 'Authentication'],
  ['errors', 'Errors'],
  ['paging', 'Paging'],
  ['idempotency', 'Idempotency'],
] as const;

function renderIntroduction(document: ApiDocument, routes: Route[], baseUrl: string): Markup {
  const { title, version, description = '' } = document.info;
  const [tagline = '', ...rest] = description.split(/\n{2,}/);
  const used = new Set(routes.flatMap(({ operation }) => (operation.security ?? []).flatMap(Object.keys)));
  const schemes = Object.entries(document.components?.securitySchemes ?? {}).filter(([key]) => used.has(key));
  const problem = toDocument(new Problem('owner_mismatch'), '01994f5e-6c1a-7c3e-9d0b-5a2f3b1c7e44');
  const heading = (index: number) =>
    html`<h3 id="${introduction[index]?.[0]}">${introduction[index]?.[1]}</h3>`;
  return html`<header>
<h1>${title} API <small>${version}</small></h1>
<p class="tagline">${prose(tagline)}</p>
<p>An identity is an address, or a whole domain, that Posthorn takes mail for; a webhook is a URL of yours that it
tells about that mail. Posthorn runs on your own server, and everything it knows stays in your own PostgreSQL.</p>
${rest.map((paragraph) => html`<p>${prose(paragraph)}</p>`)}
<p class="base"><span>Base URL</span> <code>${baseUrl}</code> <a href="openapi.json">openapi.json</a></p>
</header>
<section class="introduction">
<article>${heading(0)}
<p>Send <code>Authorization: Bearer …</code>. Each route says which credential it takes; the examples read it from a
variable of your shell.</p>
<ul>${schemes.map(([key, scheme]) => html`<li><b>${credentialOf(key).name}</b> <code>${credentialOf(key).variable}</code> ${prose(scheme.description ?? '')}</li>`)}</ul></article>
<article>${heading(1)}
<p>Every failure is a problem document (RFC 9457, <code>application/problem+json</code>). Decide by its
<code>code</code>, which never changes; <a href="#problems">all codes</a> are listed below. Tell the operator the
<code>requestId</code>: the log has the cause under it.</p>
<pre tabindex="0"><code>${JSON.stringify(problem, null, 2)}</code></pre></article>
<article>${heading(2)}
<p>A list is a bare array. When there is more, the answer has a <code>Link</code> header with
<code>rel="next"</code>: follow that URL as it is, until an answer has none. Cursors are opaque.</p></article>
<article>${heading(3)}
<p>Send an <code>Idempotency-Key</code> (a UUID, say) with any POST and repeat it safely: for 24 hours the first
successful answer is given again, marked <code>Idempotent-Replayed: true</code>, and nothing happens twice.</p></article>
</section>`;
}

function renderRoute({ id, method, path, operation }: Route, baseUrl: string, shown: Set<string>): Markup {
  const { summary, description, parameters = [], responses = {} } = operation;
  const fieldsIn = (place: string) => parameters.filter((one) => one.in === place).map(toField);
  const [body] = Object.values(operation.requestBody?.content ?? {});
  const answers = Object.entries(responses).filter(([status]) => status !== 'default');
  const alike = Map.groupBy(answers, ([, { content }]) => JSON.stringify(content ?? null));
  return html`<article class="route" id="${id}">
<h3><a href="#${id}"><span class="method ${method}">${method}</span> <code>${path.split(/(?=\/)/).map((part) => html`${part}<wbr>`)}</code></a></h3>
<p class="summary">${summary} <span class="who">${describeSecurity(operation.security)}</span></p>
${description !== undefined && html`<p>${prose(description)}</p>`}
${renderFields('Path', fieldsIn('path'))}${renderFields('Query', fieldsIn('query'))}${renderFields('Headers', fieldsIn('header'))}
${body?.schema && renderFields('Body', listFields(body.schema))}
<h4>Example</h4>
<pre tabindex="0"><code>${writeCurl({ id, method, path, operation }, baseUrl, body)}</code></pre>
<h4>Answer</h4>
${[...alike.values()].map((same) =>
  renderAnswer(
    same.map(([status]) => status),
    same[0]?.[1].content,
    shown,
  ),
)}</article>
`;
}

/** A shape that was shown before is there to unfold; its first appearance is open. */
function renderAnswer(
  statuses: string[],
  content: Record<string, Media> | undefined,
  shown: Set<string>,
): Markup {
  const [type, media] = Object.entries(content ?? {})[0] ?? [];
  const titles = statuses.map(
    (status) =>
      html`<b class="status">${status}</b> ${STATUS_CODES[status] ?? ''}${status !== statuses.at(-1) && ' or '}`,
  );
  if (!type || !media?.schema) return html`<p class="answer">${titles}<span class="shape">no body</span></p>`;
  const fields = listFields(media.schema);
  const shape = html`<span class="shape">${describeType(media.schema)}${type !== 'application/json' && ` · ${type}`}</span>`;
  if (fields.length === 0) return html`<p class="answer">${titles}${shape}</p>`;
  const key = JSON.stringify(fields);
  const open = shown.has(key) ? '' : ' open';
  shown.add(key);
  return html`<details${open}><summary class="answer">${titles}${shape}</summary>${renderFields('', fields, 'answer')}</details>`;
}

function renderFields(
  title: string,
  fields: Field[],
  kind: 'given' | 'answer' = 'given',
): Markup | undefined {
  if (fields.length === 0) return undefined;
  const marked = kind === 'given' ? 'required' : 'optional';
  return html`${title !== '' && html`<h4>${title}</h4>`}<table class="fields">
<thead><tr><th>Name</th><th>Type</th><th>Description</th></tr></thead>
<tbody>${fields.map(
    ({ parent, name, required, schema }) => html`
<tr><td><code><span class="parent">${parent}</span>${name}</code>${required === (kind === 'given') && html` <em class="${marked}">${marked}</em>`}</td>
<td><code>${describeType(schema)}</code>${schema.format && html` <small>${schema.format}</small>`}</td>
<td>${prose(schema.description ?? '')} ${listLimits(schema).map((limit) => html`<span class="limit">${limit}</span> `)}</td></tr>`,
  )}
</tbody></table>`;
}

function toField({ name, required = false, description, schema = {} }: Parameter): Field {
  return {
    parent: '',
    name,
    required,
    schema: description === undefined ? schema : { ...schema, description },
  };
}

/** The fields of an object, or of the objects in an array, each followed by those nested in it. */
function listFields(schema: Schema, parent = ''): Field[] {
  const variants = schema.anyOf ?? schema.oneOf;
  if (variants) return variants.flatMap((variant) => listFields(variant, parent));
  if (schema.items) return listFields(schema.items, parent && `${parent.slice(0, -1)}[].`);
  return Object.entries(schema.properties ?? {}).flatMap(([name, property]) => [
    { parent, name, required: schema.required?.includes(name) ?? false, schema: property },
    ...listFields(property, `${parent}${name}.`),
  ]);
}

function describeType(schema: Schema): string {
  const variants = schema.anyOf ?? schema.oneOf;
  if (variants) return [...new Set(variants.map(describeType))].join(' | ');
  const types = [schema.type ?? (schema.properties ? 'object' : 'any')].flat();
  const item = schema.items ? describeType(schema.items) : 'any';
  const array = item.includes(' | ') ? `(${item})[]` : `${item}[]`;
  return types.map((type) => (type === 'array' ? array : type)).join(' | ');
}

function listLimits(schema: Schema): Piece[] {
  const code = (value: unknown) =>
    html`<code>${typeof value === 'string' ? value : JSON.stringify(value)}</code>`;
  const values = schema.enum ?? schema.items?.enum;
  return [
    values && [schema.enum ? 'one of ' : 'each one of ', values.map((value) => [code(value), ' '])],
    schema.const !== undefined && ['always ', code(schema.const)],
    describeRange(schema.minimum, schema.maximum, ''),
    describeRange(schema.minLength, schema.maxLength, ' characters'),
    describeRange(schema.minItems, schema.maxItems, ' items'),
    schema.uniqueItems && 'no repeats',
    schema.pattern !== undefined && ['matches ', code(schema.pattern)],
    schema.default !== undefined && ['default ', code(schema.default)],
    schema.examples?.[0] !== undefined && ['for example ', code(schema.examples[0])],
  ].filter((limit) => limit !== undefined && limit !== false) as Piece[];
}

function describeRange(min: number | undefined, max: number | undefined, unit: string): string | undefined {
  if (min === undefined) return max === undefined ? undefined : `at most ${max}${unit}`;
  return max === undefined
    ? `at least ${min}${min === 1 ? unit.replace(/s$/, '') : unit}`
    : `${min} to ${max}${unit}`;
}

function describeSecurity(security: Security = []): string {
  const named = security.map((all) =>
    Object.keys(all)
      .map((key) => credentialOf(key).name)
      .join(' and '),
  );
  const needed = named.filter((name) => name !== '').join(' or ');
  if (needed === '') return 'Anyone';
  return named.includes('') ? `${needed}, where one is set` : needed;
}

function credentialOf(scheme: string): { name: string; variable: string } {
  return credentials[scheme] ?? { name: scheme, variable: '$TOKEN' };
}

function writeCurl({ method, path, operation }: Route, baseUrl: string, body: Media | undefined): string {
  const scheme = operation.security?.flatMap(Object.keys)[0];
  const variable = (name: string) => `$${name.replace(/\W/g, '_').toUpperCase()}`;
  const query = (operation.parameters ?? [])
    .filter((one) => one.in === 'query' && one.required)
    .map(({ name }) => `${quote(name)}=${variable(name)}`);
  const route = path.split(/\{(\w+)\}/).map((part, index) => (index % 2 ? variable(part) : quote(part)));
  const url = `"${baseUrl}${route.join('')}${query.length > 0 ? `?${query.join('&')}` : ''}"`;
  const example = body?.example ?? body?.schema?.examples?.[0];
  const lines = [method === 'get' ? `curl ${url}` : `curl -X ${method.toUpperCase()} ${url}`];
  if (scheme !== undefined) lines.push(`-H "Authorization: Bearer ${credentialOf(scheme).variable}"`);
  if (example !== undefined) {
    lines.push('-H "Content-Type: application/json"');
    lines.push(`-d '${JSON.stringify(example, null, 2).replaceAll("'", "'\\''")}'`);
  }
  return lines.join(' \\\n  ');
}

/** For a place between double quotes in a shell. */
function quote(text: string): string {
  return text.replace(/["$`\\]/g, '\\$&');
}

function renderProblems(): Markup {
  return html`<section id="problems"><h2>Problem codes</h2>
<table class="problems">
<thead><tr><th>Code</th><th>Status</th><th>What it means, and what to do</th></tr></thead>
<tbody>${Object.entries(problems).map(
    ([code, { status, title, remedy }]) => html`
<tr id="problem-${code}"><td><a href="#problem-${code}"><code>${code}</code></a></td><td>${status}</td>
<td><b>${title}.</b> ${prose(remedy)}</td></tr>`,
  )}
</tbody></table></section>`;
}

/** Text with `code` in it. */
function prose(text: string): Piece {
  return text.split(/`([^`]+)`/).map((part, index) => (index % 2 ? html`<code>${part}</code>` : part));
}

function tagId(tag: string): string {
  return slug(`tag ${tag}`);
}

function slug(text: string): string {
  return text
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, '-')
    .replace(/^-|-$/g, '');
}

function html(strings: TemplateStringsArray, ...pieces: Piece[]): Markup {
  return { markup: strings.map((text, index) => text + write(pieces[index])).join('') };
}

const entities: Record<string, string> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

function write(piece: Piece): string {
  if (piece === undefined || piece === false) return '';
  if (Array.isArray(piece)) return piece.map(write).join('');
  if (typeof piece === 'object') return piece.markup;
  return String(piece).replace(/[&<>"']/g, (character) => entities[character] ?? '');
}

const horn = html`<svg viewBox="0 0 32 24" width="28" height="21" fill="none" stroke="currentColor" stroke-width="2.4" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><circle cx="13" cy="14" r="7"/><path d="M3 5h12c6 0 9-1 13-4v11c-3-3-5-4-8-4"/></svg>`;
