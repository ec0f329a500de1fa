/** The texts of docs/errors.md and docs/config.md, made from the catalogue of problems and the table of settings. */
import { settings } from '../src/config.ts';
import { problems } from '../src/problems.ts';

const generated = '<!-- Made by `npm run docs`; change the code it is made from instead. -->';

export function renderErrorsPage(): string {
  const rows = Object.entries(problems).map(
    ([code, { status, title, remedy }]) => `| \`${code}\` | ${status} | ${title} | ${remedy} |`,
  );
  return `${generated}
# Errors

Every error is a problem document (RFC 9457), \`application/problem+json\`:

\`\`\`json
{
  "type": "urn:posthorn:problem:invalid_body",
  "title": "The body has faults",
  "status": 400,
  "detail": "Each fault is in \`errors\`, with a pointer to its place. Mend them all and send the request again.",
  "code": "invalid_body",
  "requestId": "01a1dcf7-c511-73c2-b0d0-5f51b05f69a6",
  "errors": [{ "pointer": "/url", "code": "required", "message": "\\"url\\" is required." }]
}
\`\`\`

\`code\` is stable: write programs against it. \`detail\` is for people. \`errors\` is there where fields are at fault,
and tells all of them at once. \`requestId\` is also in the \`X-Request-Id\` header and in the service's log.

| code | status | what it means | what to do |
|---|---|---|---|
${rows.join('\n')}
`;
}

export function renderConfigPage(): string {
  const rows = Object.entries(settings).map(
    ([name, { shown, about }]) => `| \`${name}\` | ${shown} | ${about} |`,
  );
  return `${generated}
# Configuration

Posthorn is set up by environment variables alone. A mistake stops the start, and every mistake is told at once.
Booleans are \`true\`, \`false\`, \`1\` or \`0\`. A variable that is empty counts as not set.

Without \`NODE_ENV=production\` it runs in development mode: \`http\` webhook URLs are allowed, and it listens on loopback
only, unless \`POSTHORN_INSECURE_DEV=true\`. In production \`POSTHORN_SECRET_KEY\`, \`POSTHORN_MAIL_HOST\` and
\`POSTHORN_PUBLIC_URL\` are required. A setting that you give wins over what the mode implies.

| variable | default | meaning |
|---|---|---|
${rows.join('\n')}
`;
}
