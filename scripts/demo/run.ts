/**
 * `npm run demo`: sends a mail to Posthorn, receives the signed webhook call and replies, without any setup. Every step is real and
 * prints a line. The demo removes everything that it creates, also after Ctrl-C.
 */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import http, { type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { styleText } from 'node:util';
import { readConfig } from '../../src/config.ts';
import { canUse, isPosthorn, type Posthorn, preferPort, startOwn, urlOf, useRunning } from './posthorn.ts';
import { sendMail } from './send-mail.ts';
import { verify } from './verify.js';

const from = 'ada@lovelace.example';
const to = `hello-${randomBytes(2).toString('hex')}@demo.example`;
/** A reply names it in In-Reply-To. */
const messageId = `<${randomBytes(8).toString('hex')}@lovelace.example>`;
const header = [`From: Ada <${from}>`, `To: ${to}`, `Message-ID: ${messageId}`, 'Subject: Hello'];
const message = [...header, '', 'Is anybody there?'].join('\r\n');
const events = ['message.received', 'message.sent', 'message.delivered', 'message.bounced'] as const;
const timeoutMs = 60_000;
const cleanups: (() => Promise<void>)[] = [];
let leaving: Promise<void> | undefined;

for (const event of ['SIGINT', 'SIGTERM', 'SIGHUP', 'disconnect'] as const) {
  process.on(event, () => leave().finally(() => process.exit(130)));
}
// The reader of the output has closed the pipe, as `head` does.
process.stdout.on('error', () => leave().finally(() => process.exit(1)));
process.channel?.unref();

try {
  const { promise: timeout, reject } = Promise.withResolvers<never>();
  const tooLate = new Error(`The demo did not finish within ${timeoutMs / 1000} seconds.`);
  setTimeout(() => reject(tooLate), timeoutMs).unref();
  await Promise.race([demonstrate(), timeout]);
} catch (error) {
  process.exitCode = 1;
  // After Ctrl-C a step may fail because its Posthorn is stopping: that is no error.
  if (!leaving) process.stderr.write(`${styleText('red', '✗')} ${(error as Error).message}\n`);
}
await leave();
process.exit();

async function demonstrate(): Promise<void> {
  const began = performance.now();
  // Only to find a running Posthorn; the settings that production requires are not needed for that.
  const config = readConfig({ ...process.env, NODE_ENV: 'development', POSTHORN_INSECURE_DEV: 'true' });
  const own = 'Started Posthorn with its own PostgreSQL in a temporary folder';
  const key = process.env.POSTHORN_API_KEY;
  const posthorn =
    (await isPosthorn(urlOf(config))) && canUse(config, key)
      ? await step(`Found a running Posthorn at ${urlOf(config)}`, () => useRunning(config, key))
      : await step(own, () => startOwn(config, defer));
  const call = makeCaller(posthorn);
  if (posthorn.removeUser) defer(posthorn.removeUser);

  const value = { value: to };
  const identity = await step(`Connected the identity ${to}`, () => call('POST', '/identities', value));
  defer(() => call('DELETE', `/identities/${identity.id}`));

  const { url, received } = await startReceiver();
  const { userId: ownerId } = await call('GET', '/me');
  const wanted = { url, events, ownerId, identityId: identity.id };
  const webhook = await step(`Registered a webhook with the URL ${url}`, () =>
    call('POST', '/webhooks', wanted),
  );
  defer(() => call('DELETE', `/webhooks/${webhook.id}`));

  const sent = (reply: string) => `Sent a mail by SMTP to port ${posthorn.smtpPort}; reply: ${reply}`;
  await step(sent, () => sendMail(posthorn.smtpPort, { from, to, message }));
  const { headers, body } = await step('Received the webhook call', () => received('message.received'));
  await step('Verified its signature (copy the code from scripts/demo/verify.js)', async () => {
    if (!verify(webhook.secret, headers, body))
      throw new Error('The signature of the webhook call is invalid.');
  });
  print(`\n${styleText('cyan', describePost(headers, body))}\n`);
  await reply(call, JSON.parse(body.toString()).data.message, received);
  print(
    `\nDone in ${seconds(began)}. The demo removes everything it created. To do the same steps yourself:\n`,
  );
  print(commands(posthorn, await preferPort(4000)));
}

/** Replies by capture: a Posthorn that sends real mail refuses, because the identity of the demo is not verified. */
async function reply(call: Caller, { id, identity }: ReceivedMessage, received: Received): Promise<void> {
  const answer = { identityId: identity.id, inReplyTo: id, text: 'Yes, we are.' };
  const sent = await step(
    (taken) =>
      taken
        ? `Replied to the mail ${taken.inReplyTo}; sending.status: ${taken.sending.status}`
        : 'Did not reply: this Posthorn sends real mail, and the identity of the demo is not verified',
    () =>
      call('POST', '/messages', answer).catch((error: Error) => {
        if (error.message.includes('identity_not_verified')) return null;
        throw error;
      }),
  );
  if (!sent) return;
  for (const event of ['message.sent', 'message.delivered'] as const) {
    const to = ({ body }: Post) => JSON.parse(body.toString()).data.recipient.address;
    await step(
      (post) => `Received ${event} for ${to(post)} (captured: it did not leave this machine)`,
      () => received(event),
    );
  }
}

/** Does the work, then prints a line with the time that the work took. */
async function step<T>(line: string | ((result: T) => string), work: () => Promise<T>): Promise<T> {
  const began = performance.now();
  if (leaving) throw new Error('The demo was stopped.');
  const result = await work();
  const took = styleText('dim', seconds(began).padStart(7));
  print(`${styleText('green', '✓')} ${took}  ${typeof line === 'string' ? line : line(result)}`);
  return result;
}

type Caller = ReturnType<typeof makeCaller>;

function makeCaller({ url, apiKey }: Posthorn) {
  // biome-ignore lint/suspicious/noExplicitAny: the API's /docs describes the responses.
  return async (method: string, at: string, body?: object): Promise<any> => {
    const json = body && { 'content-type': 'application/json' };
    const headers = { authorization: `Bearer ${apiKey}`, ...json };
    const response = await fetch(url + at, { method, headers, ...(body && { body: JSON.stringify(body) }) });
    if (response.ok) return response.status === 204 ? null : response.json();
    throw new Error(`${method} ${at} failed with ${response.status}: ${await response.text()}`);
  };
}

interface Post {
  headers: IncomingHttpHeaders;
  body: Buffer;
}
type Received = (event: (typeof events)[number]) => Promise<Post>;
interface ReceivedMessage {
  id: string;
  identity: { id: string };
}

/** `received` resolves with the first request that has the event. */
async function startReceiver() {
  const posts = new Map(events.map((event) => [event, Promise.withResolvers<Post>()]));
  const server = http.createServer(async (request, response) => {
    const body = await buffer(request);
    posts.get(JSON.parse(body.toString()).event)?.resolve({ headers: request.headers, body });
    response.writeHead(204).end();
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  defer(async () => server.close().closeAllConnections());
  const received: Received = (event) => posts.get(event)?.promise as Promise<Post>;
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/hooks`, received };
}

function describePost(headers: IncomingHttpHeaders, body: Buffer): string {
  const { event, data } = JSON.parse(body.toString());
  const { from, subject, text, attachments } = data.message;
  const shown = { event, data: { message: { from, subject, text, attachments, '…': '…' } } };
  const signed = Object.entries(headers).filter(([name]) => name.startsWith('webhook-'));
  const head = ['POST /hooks HTTP/1.1', ...signed.map(([name, value]) => `${name}: ${value}`)];
  return [...head, ...JSON.stringify(shown, null, 2).split('\n')].map((line) => `    ${line}`).join('\n');
}

/** Shell commands without comments, which an interactive zsh does not know; the README explains them. */
function commands({ preparation, setup, laterSmtpPort }: Posthorn, receiverPort: number): string {
  const post = '-H "$AUTH" -H "Content-Type: application/json" -d';
  return `${preparation}${setup}
AUTH="Authorization: Bearer $API_KEY"
node -e 'http.createServer((q, s) => { console.log(q.headers); q.on("end", () => console.log()).pipe(process.stdout); s.end() }).listen(${receiverPort}, "127.0.0.1")' &
curl -sw '\\n' $BASE_URL/identities ${post} '{"value":"${to}"}'
OWNER=$(curl -s $BASE_URL/me -H "$AUTH" | node -p 'JSON.parse(fs.readFileSync(0)).userId')
curl -sw '\\n' $BASE_URL/webhooks ${post} '{"url":"http://localhost:${receiverPort}/hooks","events":${JSON.stringify(events)},"ownerId":"'$OWNER'"}'
printf '${message.replaceAll('\r\n', '\\r\\n')}\\r\\n' |
  curl -sS smtp://localhost:${laterSmtpPort} --mail-from ${from} --mail-rcpt ${to} --upload-file -
REPLY=$(curl -s "$BASE_URL/messages?direction=incoming&limit=1" -H "$AUTH" |
  node -p 'const [m] = JSON.parse(fs.readFileSync(0)); JSON.stringify({ identityId: m.identity.id, inReplyTo: m.id, text: "Yes, we are." })')
curl -sw '\\n' $BASE_URL/messages ${post} "$REPLY"

To clean up, with the ids from the responses:

kill %1
curl -X DELETE $BASE_URL/webhooks/WEBHOOK_ID -H "$AUTH"
curl -X DELETE $BASE_URL/identities/IDENTITY_ID -H "$AUTH"`;
}

function defer(cleanup: () => Promise<void>): void {
  cleanups.push(cleanup);
}

/** Removes everything that was created, the newest first, also when one removal fails. */
function leave(): Promise<void> {
  leaving ??= (async () => {
    for (const cleanup of cleanups.reverse()) await cleanup().catch(() => {});
  })();
  return leaving;
}

function print(text: string): void {
  process.stdout.write(`${text}\n`);
}

function seconds(since: number): string {
  const ms = performance.now() - since;
  return ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`;
}
