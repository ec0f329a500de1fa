/**
 * Our own formats (http/validation.ts) as patterns, for tools that do not know their names. A pattern is only documented: the format
 * validates, because it says in words what is wrong. What a pattern refuses, the format refuses, but the format accepts some rare forms
 * too: hosts and domains in Unicode; in URLs also IP addresses in brackets, hosts with underscores or a dot at the end, and characters
 * that belong percent-encoded, such as quotes in a path.
 */
import type { UrlRules } from '../webhooks/url.ts';

const uuid = '[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}';
const label = '[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?';
/** A host whose last label begins with a digit is an IP address for a URL. */
const lastLabel = '[A-Za-z]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?';
const domain = `(${label}\\.)+${lastLabel}`;
const ipv4 = '((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])';
const port = '0*(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})';
const word = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
const address = `(?=[^@]{1,64}@)${word}(\\.${word})*@${domain}`;

function makePatterns({ allowHttp }: UrlRules): Record<string, string | undefined> {
  const host = `((${label}\\.)*${lastLabel}|${ipv4})`;
  return {
    'uuid-list': `^${uuid}(,${uuid}){0,49}$`,
    text: '^[^\\u0000]*$',
    line: '^[^\\u0000-\\u001f\\u007f]*$',
    cursor: `^[0-9]{1,16}_${uuid}$`,
    'webhook-url': `^${allowHttp ? 'https?' : 'https'}://${host}(:${port})?([/?][!$-;=?-Z_a-z~]*)?$`,
    'identity-value': `^(${address}|${domain})$`,
    'email-address': `^${address}$`,
  };
}

export function addPatterns<Document extends object>(document: Document, rules: UrlRules): Document {
  const patterns = makePatterns(rules);
  const add = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(add);
    if (typeof value !== 'object' || value === null) return value;
    const copy: Record<string, unknown> = Object.fromEntries(
      Object.entries(value).map(([key, one]) => [key, add(one)]),
    );
    const pattern = typeof copy.format === 'string' ? patterns[copy.format] : undefined;
    return pattern === undefined ? copy : { ...copy, pattern };
  };
  return add(document) as Document;
}
