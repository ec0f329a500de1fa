/**
 * `npm run demo`: mail in, signed POST out, with nothing set up. Every step is the real thing, told in a line; whatever it
 * makes is gone at its end, also after Ctrl-C.
 */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import http, { type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { styleText } from 'node:util';
import { type Config, readConfig } from '../../src/config.ts';
import { isPosthorn, type Posthorn, startOwn, urlOf, useRunning } from './posthorn.ts';
import { sendMail } from './send-mail.ts';
import { verify } from './verify.ts';

const from = 'ada@lovelace.example';
const to = `hello-${randomBytes(2).toString('hex')}@demo.example`;
const message = [`From: Ada <${from}>`, `To: ${to}`, 'Subject: Hello', '', 'Is anybody there?'].join('\r\n');
const patienceMs = 60_000;
const undoing: (() => Promise<void>)[] = [];
let leaving: Promise<void> | undefined;

for (const event of ['SIGINT', 'SIGTERM', 'SIGHUP', 'disconnect'] as const) {
  process.on(event, () => leave().finally(() => process.exit(130)));
}
// Whoever read it has gone, as `head` does.
process.stdout.on('error', () => leave().finally(() => process.exit(1)));
process.channel?.unref();

try {
  const { promise: late, reject } = Promise.withResolvers<never>();
  setTimeout(() => reject(new Error(`It took more than ${patienceMs / 1000} seconds.`)), patienceMs).unref();
  await Promise.race([demonstrate(), late]);
} catch (error) {
  process.exitCode = 1;
  // Whatever fails under our hands while we leave is no news.
  if (!leaving) process.stderr.write(`${styleText('red', '✗')} ${(error as Error).message}\n`);
}
await leave();
process.exit();

async function demonstrate(): Promise<void> {
  const began = performance.now();
  // To find a service by: what production requires is that service's affair.
  const config = readConfig({ ...process.env, NODE_ENV: 'development', POSTHORN_INSECURE_DEV: 'true' });
  const own = 'Started a Posthorn, with a PostgreSQL of its own, in a temporary folder';
  const key = process.env.POSTHORN_API_KEY;
  const posthorn = (await isPosthorn(urlOf(config)))
    ? await step(`Found a Posthorn at ${urlOf(config)}`, () => useRunning(config, key))
    : await step(own, () => startOwn(defer));
  const call = makeCaller(posthorn);
  if (posthorn.keyId) defer(() => call('DELETE', `/api-keys/${posthorn.keyId}`));

  const value = { value: to };
  const identity = await step(`Connected the identity ${to}`, () => call('POST', '/identities', value));
  defer(() => call('DELETE', `/identities/${identity.id}`));

  const { url, post } = await startReceiver();
  const { userId: ownerId } = await call('GET', '/me');
  const wanted = { url, events: ['message.received'], ownerId, identityId: identity.id };
  const webhook = await step(`Registered a webhook to ${url}`, () => call('POST', '/webhooks', wanted));
  defer(() => call('DELETE', `/webhooks/${webhook.id}`));

  const answered = (line: string) => `Sent a message to port ${posthorn.smtpPort} over SMTP: ${line}`;
  await step(answered, () => sendMail(posthorn.smtpPort, { from, to, message }));
  const { headers, body } = await step('The webhook was called', () => post);
  await step('Its signature is right (scripts/demo/verify.ts is the code to copy)', async () => {
    if (!verify(webhook.secret, headers, body)) throw new Error('The signature of the POST is wrong.');
  });
  tell(`\n${styleText('cyan', describePost(headers, body))}\n`);
  tell(`All in ${seconds(began)}, and it is removed again. The same by hand, to keep:\n`);
  tell(byHand(config, posthorn.keyLine));
}

/** Does it, and tells it in a line with the time it took. */
async function step<T>(told: string | ((made: T) => string), work: () => Promise<T>): Promise<T> {
  const began = performance.now();
  if (leaving) throw new Error('It was stopped.');
  const made = await work();
  const took = styleText('dim', seconds(began).padStart(7));
  tell(`${styleText('green', '✓')} ${took}  ${typeof told === 'string' ? told : told(made)}`);
  return made;
}

function makeCaller({ url, apiKey }: Posthorn) {
  // biome-ignore lint/suspicious/noExplicitAny: /docs says what is in an answer.
  return async (method: string, at: string, body?: object): Promise<any> => {
    const json = body && { 'content-type': 'application/json' };
    const headers = { authorization: `Bearer ${apiKey}`, ...json };
    const response = await fetch(url + at, { method, headers, ...(body && { body: JSON.stringify(body) }) });
    if (response.ok) return response.status === 204 ? null : response.json();
    throw new Error(`${method} ${at} was answered with ${response.status}: ${await response.text()}`);
  };
}

/** `post`: the first that comes. */
async function startReceiver() {
  const { promise: post, resolve } = Promise.withResolvers<{ headers: IncomingHttpHeaders; body: Buffer }>();
  const server = http.createServer(async (request, response) => {
    resolve({ headers: request.headers, body: await buffer(request) });
    response.writeHead(204).end();
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  defer(async () => server.close().closeAllConnections());
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/hooks`, post };
}

function describePost(headers: IncomingHttpHeaders, body: Buffer): string {
  const { event, data } = JSON.parse(body.toString());
  const { from, subject, text, attachments } = data.message;
  const shown = { event, data: { message: { from, subject, text, attachments, '…': '…' } } };
  const signed = Object.entries(headers).filter(([name]) => name.startsWith('webhook-'));
  const head = ['POST /hooks HTTP/1.1', ...signed.map(([name, value]) => `${name}: ${value}`)];
  return [...head, ...JSON.stringify(shown, null, 2).split('\n')].map((line) => `    ${line}`).join('\n');
}

/** Lines for a shell; README's tour explains them. */
function byHand(config: Config, keyLine: string): string {
  const post = '-H "$AUTH" -H "Content-Type: application/json" -d';
  return `BASE=${urlOf(config)}
${keyLine}
AUTH="Authorization: Bearer $API_KEY"
node -e 'http.createServer((q, s) => { console.log(q.headers); q.pipe(process.stdout); s.end() }).listen(4000, "127.0.0.1")' &
curl -s $BASE/identities ${post} '{"value":"${to}"}'
OWNER=$(curl -s $BASE/me -H "$AUTH" | node -p 'JSON.parse(fs.readFileSync(0)).userId')
curl -s $BASE/webhooks ${post} '{"url":"http://localhost:4000/hooks","events":["message.received"],"ownerId":"'$OWNER'"}'
printf '${message.replaceAll('\r\n', '\\r\\n')}\\r\\n' |
  curl -sS smtp://localhost:${config.smtpPort} --mail-from ${from} --mail-rcpt ${to} --upload-file -
# To clean up, with the ids that were answered:
# kill %1; curl -X DELETE $BASE/webhooks/<id> -H "$AUTH"; curl -X DELETE $BASE/identities/<id> -H "$AUTH"`;
}

function defer(undo: () => Promise<void>): void {
  undoing.push(undo);
}

/** Removes whatever was made, the last first; what cannot be removed holds up nothing else. */
function leave(): Promise<void> {
  leaving ??= (async () => {
    for (const undo of undoing.reverse()) await undo().catch(() => {});
  })();
  return leaving;
}

function tell(text: string): void {
  process.stdout.write(`${text}\n`);
}

function seconds(since: number): string {
  const ms = performance.now() - since;
  return ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`;
}
