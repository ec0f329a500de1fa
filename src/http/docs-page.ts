/**
 * `GET /docs`: the OpenAPI document as one page of plain HTML and CSS, which loads nothing and runs nothing.
 */
import { STATUS_CODES } from 'node:http';
import { Problem, problems, toDocument } from '../problems.ts';
import { docsStyle, hornDrawing } from './docs-style.ts';
import { type HtmlValue, html, type Markup } from './html.ts';

// The used part of OpenAPI 3.1. The types of @fastify/swagger describe 3.0, where `type` cannot be an array.
type Limit = 'minimum' | 'maximum' | 'minLength' | 'maxLength' | 'minItems' | 'maxItems';
interface Schema extends Partial<Record<Limit, number>> {
  type?: string | string[];
  format?: string;
  description?: string | undefined;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  anyOf?: Schema[];
  enum?: unknown[];
  default?: unknown;
  examples?: unknown[];
  uniqueItems?: boolean;
}
type Parameter = { name: string; in: string; required?: boolean; description?: string; schema?: Schema };
type Content = Record<string, { schema?: Schema; example?: unknown }>;
interface Operation {
  summary?: string;
  description?: string;
  tags?: string[];
  /** Alternatives. An empty object means that no credential is needed. */
  security?: Record<string, string[]>[];
  parameters?: Parameter[];
  requestBody?: { content?: Content };
  responses?: Record<string, { content?: Content }>;
}
interface ApiDocument {
  info: { title: string; version: string; description?: string };
  servers?: { url: string }[];
  paths?: Record<string, Record<string, Operation>>;
  components?: { securitySchemes?: Record<string, { description?: string }> };
}

type Route = Operation & { id: string; method: string; path: string };
/** `parent` is the path to a nested field, such as `errors[].`. */
type Field = { parent: string; name: string; required: boolean; schema: Schema };

const topics = ['Authentication', 'Errors', 'Paging', 'Idempotency'];
const credentials: Record<string, { name: string; variable: string }> = {
  apiKey: { name: 'API key', variable: '$API_KEY' },
  operatorToken: { name: 'Operator token', variable: '$ADMIN_TOKEN' },
  metricsToken: { name: 'Metrics token', variable: '$METRICS_TOKEN' },
};

export function renderDocsPage(given: object): string {
  const document = given as ApiDocument;
  const routes = listRoutes(document);
  const byTag = Map.groupBy(routes, ({ tags }) => tags?.[0] ?? 'Other');
  const baseUrl = readBaseUrl(document);
  const shown = new Set<string>();
  return html`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>${document.info.title} API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>${{ markup: docsStyle }}</style></head>
<body id="top"><a class="skip" href="#content">Skip to the content</a>
${renderNavigation(document.info.title, byTag)}
<main id="content">
${renderIntroduction(document, routes, baseUrl)}
${[...byTag].map(
  ([tag, members]) => html`<section id="${slug(`tag ${tag}`)}"><h2>${tag}</h2>
${members.map((route) => renderRoute(route, baseUrl, shown))}</section>`,
)}
${renderProblems()}
</main><a class="up" href="#top">↑ Contents</a></body></html>
`.markup;
}

function listRoutes({ paths = {} }: ApiDocument): Route[] {
  return Object.entries(paths).flatMap(([path, item]) =>
    Object.entries(item).map(([method, own]) => ({ id: slug(`${method} ${path}`), method, path, ...own })),
  );
}

/** Without a public URL in the configuration, the examples read the URL from a shell variable. */
function readBaseUrl({ servers = [] }: ApiDocument): string {
  const url = (servers[0]?.url ?? '').replace(/\/$/, '');
  return /^https?:/.test(url) ? quote(url) : `$BASE_URL${quote(url)}`;
}

function renderNavigation(title: string, byTag: Map<string, Route[]>): Markup {
  const link = ({ id, method, path }: Route) =>
    html`<li><a href="#${id}"><span class="verb ${method}">${method}</span> <code>${breakable(path)}</code></a></li>`;
  return html`<nav aria-label="Contents">
<div class="brand"><a href="#top">${{ markup: hornDrawing }}${title}</a><label for="menu">Contents</label></div>
<input type="checkbox" id="menu" aria-label="Show the contents">
<div class="menu"><h2>Introduction</h2><ul>${topics.map((topic) => html`<li><a href="#${slug(topic)}">${topic}</a></li>`)}</ul>
${[...byTag].map(
  ([tag, routes]) => html`<h2><a href="#${slug(`tag ${tag}`)}">${tag}</a></h2><ul>${routes.map(link)}</ul>`,
)}
<h2><a href="#problems">Problem codes</a></h2></div></nav>`;
}

function renderIntroduction(document: ApiDocument, routes: Route[], baseUrl: string): Markup {
  const { title, version, description = '' } = document.info;
  const [tagline = '', ...rest] = description.split(/\n{2,}/);
  const used = new Set(routes.flatMap(({ security = [] }) => security.flatMap(Object.keys)));
  const schemes = Object.entries(document.components?.securitySchemes ?? {}).filter(([key]) => used.has(key));
  const problem = toDocument(new Problem('owner_mismatch'), '01994f5e-6c1a-7c3e-9d0b-5a2f3b1c7e44');
  return html`<header><h1>${title} API <small>${version}</small></h1>
<p class="tagline">${prose(tagline)}</p>
<p>An identity is an email address, or a whole domain, that Posthorn receives mail for. A webhook is a URL of yours that
Posthorn sends events to. Posthorn runs on your own server and stores all data in your own PostgreSQL.</p>
${rest.map((paragraph) => html`<p>${prose(paragraph)}</p>`)}
<p class="base"><span>Base URL</span> <code>${baseUrl}</code>
${baseUrl.startsWith('$') && html`<span>Set this variable to the URL of this service.</span>`} <a href="openapi.json">openapi.json</a></p>
</header>
<section class="introduction"><article><h3 id="authentication">Authentication</h3>
<p>Send the header <code>Authorization: Bearer …</code>. Each route names the credential that it needs, with the scopes
of API keys that it accepts. The examples read the credential from a shell variable.</p>
<ul>${schemes.map(([key, scheme]) => {
    const { name, variable } = credentialOf(key);
    return html`<li><b>${name}</b> <code>${variable}</code> ${prose(scheme.description ?? '')}</li>`;
  })}</ul></article>
<article><h3 id="errors">Errors</h3>
<p>Every error response is a problem document (RFC 9457, <code>application/problem+json</code>). Decide by its
<code>code</code>, which never changes: see <a href="#problems">all codes</a>. When you ask the operator for help, give the
<code>requestId</code>: the log has the cause under this id.</p>
<pre tabindex="0"><code>${JSON.stringify(problem, null, 2)}</code></pre></article>
<article><h3 id="paging">Paging</h3>
<p>A list is a JSON array. If there are more items, the response has a <code>Link</code> header with
<code>rel="next"</code>. Request that URL unchanged, until a response has no such header. Cursors are opaque.</p></article>
<article><h3 id="idempotency">Idempotency</h3>
<p>Send an <code>Idempotency-Key</code>, such as a UUID, with any POST. If you repeat the request within 24 hours, you get
the first successful response again, marked <code>Idempotent-Replayed: true</code>, and nothing happens twice.</p></article>
</section>`;
}

function renderRoute(route: Route, baseUrl: string, shown: Set<string>): Markup {
  const { id, method, path, summary, description, parameters = [], requestBody, responses = {} } = route;
  const fieldsIn = (place: string) => parameters.filter((given) => given.in === place).map(toField);
  const body = Object.values(requestBody?.content ?? {})[0]?.schema ?? {};
  const successes = Object.entries(responses).filter(([status]) => status !== 'default');
  const byContent = Map.groupBy(successes, ([, { content }]) => JSON.stringify(content));
  return html`<article class="route" id="${id}">
<h3><a href="#${id}"><span class="method ${method}">${method}</span> <code>${breakable(path)}</code></a></h3>
<p class="summary">${summary} <span class="who">${describeSecurity(route)}</span></p>
${description !== undefined && html`<p>${prose(description)}</p>`}
${renderFields('Path', fieldsIn('path'))}${renderFields('Query', fieldsIn('query'))}
${renderFields('Body', listFields(body))}
<h4>Example</h4>
<pre tabindex="0"><code>${writeCurl(route, baseUrl)}</code></pre>
<h4>Response</h4>
${[...byContent.values()].map((same) => renderResponse(Object.fromEntries(same), shown))}</article>
`;
}

/** Several statuses with the same content. A list of fields is expanded the first time, and collapsed when it repeats. */
function renderResponse(same: NonNullable<Operation['responses']>, shown: Set<string>): Markup {
  const titles = Object.keys(same).map((status, index) => {
    return html`${index > 0 && ' or '}<b class="status">${status}</b> ${STATUS_CODES[status]}`;
  });
  const [type, media] = Object.entries(Object.values(same)[0]?.content ?? {})[0] ?? [];
  const shape = [media?.schema ? describeType(media.schema) : 'no body'];
  if (type !== undefined && type !== 'application/json') shape.push(type);
  const title = html`${titles}<span class="shape">${shape.join(' · ')}</span>`;
  const fields = listFields(media?.schema ?? {});
  if (fields.length === 0) return html`<p class="response">${title}</p>`;
  const key = JSON.stringify(fields);
  const open = shown.has(key) ? '' : ' open';
  shown.add(key);
  return html`<details${open}><summary class="response">${title}</summary>${renderFields('', fields)}</details>`;
}

/** An empty title means a response, which marks its optional fields; requests mark their required fields. */
function renderFields(title: string, fields: Field[]): Markup | undefined {
  if (fields.length === 0) return undefined;
  const mark = title === '' ? 'optional' : 'required';
  return html`${title !== '' && html`<h4>${title}</h4>`}<table class="fields">
<thead><tr><th>Name</th><th>Type</th><th>Description</th></tr></thead>
<tbody>${fields.map(
    ({ parent, name, required, schema }) => html`
<tr><td><code><span class="parent">${parent}</span>${name}</code>
${required === (mark === 'required') && html`<em class="${mark}">${mark}</em>`}</td>
<td><code>${describeType(schema)}</code> ${schema.format !== 'text' && html`<small>${schema.format}</small>`}</td>
<td>${prose(schema.description ?? '')} ${listLimits(schema)}</td></tr>`,
  )}
</tbody></table>`;
}

function toField({ name, required = false, description, schema }: Parameter): Field {
  return { parent: '', name, required, schema: { description, ...schema } };
}

/** The fields of an object, or of the objects in an array, each followed by its nested fields. */
function listFields(schema: Schema, parent = ''): Field[] {
  if (schema.anyOf) return schema.anyOf.flatMap((variant) => listFields(variant, parent));
  if (schema.items) return listFields(schema.items, parent && `${parent.slice(0, -1)}[].`);
  return Object.entries(schema.properties ?? {}).flatMap(([name, property]) => [
    { parent, name, required: schema.required?.includes(name) ?? false, schema: property },
    ...listFields(property, `${parent}${name}.`),
  ]);
}

function describeType(schema: Schema): string {
  if (schema.anyOf) return schema.anyOf.map(describeType).join(' | ');
  const types = [schema.type ?? (schema.properties ? 'object' : 'any')].flat();
  const item = schema.items ? describeType(schema.items) : 'any';
  const array = item.includes(' | ') ? `(${item})[]` : `${item}[]`;
  return types.map((type) => (type === 'array' ? array : type)).join(' | ');
}

function listLimits(schema: Schema): Markup[] {
  const code = (value: unknown) =>
    html`<code>${typeof value === 'string' ? value : JSON.stringify(value)}</code> `;
  const values = schema.enum ?? schema.items?.enum;
  const limits: HtmlValue[] = [
    values && [schema.enum ? 'one of ' : 'each one of ', values.map(code)],
    describeRange(schema.minimum, schema.maximum, ''),
    describeRange(schema.minLength, schema.maxLength, 'characters'),
    describeRange(schema.minItems, schema.maxItems, 'items'),
    schema.uniqueItems && 'no repeats',
    schema.default !== undefined && ['default ', code(schema.default)],
    schema.examples?.[0] !== undefined && ['for example ', code(schema.examples[0])],
  ];
  return limits.filter((limit) => limit).map((limit) => html`<span class="limit">${limit}</span> `);
}

function describeRange(min: number | undefined, max: number | undefined, unit: string): string | undefined {
  if (min === undefined) return max === undefined ? undefined : `at most ${max} ${unit}`;
  return max === undefined ? `${min} or more ${unit}` : `${min} to ${max} ${unit}`;
}

function describeSecurity({ security = [] }: Route): string {
  const schemes = [...new Set(security.flatMap(Object.keys))];
  if (schemes.length === 0) return 'Public';
  const names = schemes.map((scheme) => {
    const scopes = security.flatMap((one) => one[scheme] ?? []);
    return `${credentialOf(scheme).name}${scopes.length > 0 ? ` (${scopes.join(', ')})` : ''}`;
  });
  const isNeeded = security.every((one) => Object.keys(one).length > 0);
  if (isNeeded) return names.join(' or ');
  return schemes.includes('apiKey') ? `${names} or a signed link` : `${names.join(' or ')}, if configured`;
}

function credentialOf(scheme: string): { name: string; variable: string } {
  return credentials[scheme] ?? { name: scheme, variable: '$TOKEN' };
}

function writeCurl({ method, path, security = [], requestBody }: Route, baseUrl: string): string {
  const [scheme] = security.flatMap(Object.keys);
  const [body] = Object.values(requestBody?.content ?? {});
  // @fastify/swagger moves the `examples` of a body's schema to `example` beside it.
  const example = body?.example ?? body?.schema?.examples?.[0];
  const url = quote(path).replace(/\{(\w+)\}/g, (_, name: string) => `$${name.toUpperCase()}`);
  const lines = [`curl ${method === 'get' ? '' : `-X ${method.toUpperCase()} `}"${baseUrl}${url}"`];
  if (scheme !== undefined) lines.push(`-H "Authorization: Bearer ${credentialOf(scheme).variable}"`);
  if (example !== undefined) {
    const json = JSON.stringify(example, null, 2).replaceAll('\n', '\n  ').replaceAll("'", "'\\''");
    lines.push('-H "Content-Type: application/json"', `-d '${json}'`);
  }
  return lines.join(' \\\n  ');
}

/** Escapes text for a double-quoted string of a shell. */
function quote(text: string): string {
  return text.replace(/["$`\\]/g, '\\$&');
}

function renderProblems(): Markup {
  return html`<section id="problems"><h2>Problem codes</h2>
<table class="problems">
<thead><tr><th>Code</th><th>Status</th><th>Meaning, and what to do</th></tr></thead>
<tbody>${Object.entries(problems).map(
    ([code, { status, title, remedy }]) => html`
<tr id="problem-${code}"><td><a href="#problem-${code}"><code>${code}</code></a></td><td>${status}</td>
<td><b>${title}.</b> ${prose(remedy)}</td></tr>`,
  )}
</tbody></table></section>`;
}

/** Renders the parts between backquotes as code. */
function prose(text: string): HtmlValue {
  return text.split(/`([^`]+)`/).map((part, index) => (index % 2 ? html`<code>${part}</code>` : part));
}

function breakable(path: string): HtmlValue {
  return path.split(/(?=\/)/).map((part) => html`${part}<wbr>`);
}

function slug(text: string): string {
  return (text.toLowerCase().match(/[a-z0-9]+/g) ?? []).join('-');
}
