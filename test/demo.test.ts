/** `npm run demo` as a person runs it: by itself, beside a running service, and when things go wrong. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { copyFileSync, readdirSync, readFileSync } from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import { after, test } from 'node:test';
import { verify } from '../scripts/demo/verify.js';
import { signatureHeaders, signingKey } from '../src/webhooks/sign.ts';
import { callUrl, startTestService, waitFor } from './harness.ts';
import { makeDataFolder, makeFolder, type Program, postgresPid, readyUrl, run } from './programs.ts';
import { startReceiver } from './receiver.ts';

const printed = [
  /Connected the identity hello-[0-9a-f]{4}@demo\.example/,
  /Registered a webhook with the URL http:\/\/127\.0\.0\.1:\d+\/hooks/,
  /Sent a mail by SMTP to port \d+; reply: 250 2\.0\.0/,
  /Received the webhook call/,
  /Verified its signature/,
  /webhook-signature: v1,/,
  /"event": "message\.received"/,
  /Replied to the mail <[0-9a-f]{16}@lovelace\.example>; sending\.status: queued/,
  /"message\.bounced"/,
  /messages\?direction=incoming&limit=1/,
  /Received message\.sent for ada@lovelace\.example/,
  /Received message\.delivered for ada@lovelace\.example/,
  /curl -sw '\\n' \$BASE_URL\/webhooks/,
  /curl -X DELETE \$BASE_URL\/webhooks\/WEBHOOK_ID/,
];

/** Where the demo puts what it makes: it must be empty afterwards. */
const temporary = makeFolder();
after(() => temporary.remove());

function npmDemo(settings: Record<string, string>): Program {
  return run('npm', ['run', 'demo'], { ...settings, TMPDIR: temporary.path });
}

/** Without npm and the launcher, which take half a second of a core. */
function demo(settings: Record<string, string>): Program {
  return run(process.execPath, ['scripts/demo/run.ts'], { ...settings, TMPDIR: temporary.path });
}

function serve(settings: Record<string, string>): Program {
  const ports = { PORT: '0', POSTHORN_SMTP_PORT: '0' };
  return run(process.execPath, ['src/cli/posthorn.ts', 'serve'], { ...ports, ...settings });
}

function assertPrinted(program: Program, ...lines: RegExp[]): void {
  for (const line of [...lines, ...printed]) assert.match(program.output(), line);
  assert.ok(!program.output().includes('\u001b['), 'no colours where there is no terminal');
}

function listOwnFolders(): string[] {
  return readdirSync(temporary.path).filter((name) => name.startsWith('posthorn-demo-'));
}

test('by itself it starts a service, and leaves nothing behind', async () => {
  const program = npmDemo({ PORT: '0' });
  assert.equal(await program.ended, 0, program.output());
  assertPrinted(program, /Started Posthorn/);
  assert.deepEqual(listOwnFolders(), []);
});

test('when the reader closes the pipe, it leaves nothing behind either', async () => {
  const program = run('sh', ['-c', 'npm run -s demo | head -n 1'], { PORT: '0', TMPDIR: temporary.path });
  assert.equal(await program.ended, 0, program.output());
  assert.match(program.output(), /Started Posthorn/);
  assert.doesNotMatch(program.output(), /EPIPE|Unhandled/);
  assert.deepEqual(listOwnFolders(), []);
});

test('Ctrl-C in the middle leaves nothing behind', async () => {
  const program = npmDemo({ PORT: '0' });
  const own = await waitFor('its folder', () => listOwnFolders()[0]);
  const pid = await waitFor('its database', () => postgresPid(`${temporary.path}/${own}`));
  process.kill(-program.pid, 'SIGINT');
  await program.ended;
  await waitFor('its folder to go', () => !listOwnFolders().includes(own));
  assert.throws(() => process.kill(pid, 0), 'the database has ended');
});

test('beside a service it uses that one, and the lines it prints work there', async () => {
  const folder = makeDataFolder();
  const smtpPort = String(await freePort());
  const settings = { POSTHORN_DATA_DIR: folder.path, POSTHORN_SMTP_PORT: smtpPort };
  const service = serve(settings);
  after(async () => {
    service.child.kill('SIGTERM');
    await service.ended;
    folder.remove();
  });
  const url = await readyUrl(service);
  const program = demo({ ...settings, PORT: new URL(url).port });
  assert.equal(await program.ended, 0, program.output());
  assertPrinted(program, new RegExp(`Found a running Posthorn at ${url}`));
  const users = run(process.execPath, ['src/cli/posthorn.ts', 'users', 'list', '--json'], settings);
  assert.equal(await users.ended, 0, users.output());
  assert.doesNotMatch(users.output(), /demo/, 'its user is gone');

  const [, apiKey = ''] = /(ph_[0-9A-Za-z]{38})/.exec(service.output()) ?? [];
  const as = { apiKey, userId: '', email: '' };
  assert.deepEqual((await callUrl('GET', `${url}/webhooks`, { as })).body, [], "nothing is the first user's");
  await runByHand(program, settings);
});

test('with POSTHORN_API_KEY it acts for that user, and removes what it made', async () => {
  const service = await startTestService();
  const settings = {
    PORT: new URL(service.url).port,
    POSTHORN_SMTP_PORT: String(service.smtpPort),
    POSTHORN_API_KEY: service.user.apiKey,
  };
  const program = demo(settings);
  assert.equal(await program.ended, 0, program.output());
  assertPrinted(program, /Found a running Posthorn/);
  for (const list of ['/identities', '/webhooks', '/messages']) {
    assert.deepEqual((await service.call('GET', list)).body, [], list);
  }

  const wrong = demo({ ...settings, POSTHORN_API_KEY: 'ph_wrong' });
  assert.equal(await wrong.ended, 1);
  assert.match(wrong.output(), /✗ POST \/identities failed with 401/);
  const noMail = demo({ ...settings, POSTHORN_SMTP_PORT: String(await freePort()) });
  assert.equal(await noMail.ended, 1);
  assert.match(noMail.output(), /✗ Cannot connect to an SMTP server on port \d+\. Set POSTHORN_SMTP_PORT/);
  assert.deepEqual((await service.call('GET', '/identities')).body, [], 'what was made before is removed');
});

test('beside a service of another folder it starts its own, and the lines it prints work on free ports', async () => {
  const service = await startTestService();
  const folder = makeDataFolder();
  // The default port of the receiver in the printed lines may be in use too.
  const other = http
    .createServer()
    .listen(4000, '127.0.0.1')
    .on('error', () => {});
  const settings = { PORT: new URL(service.url).port, POSTHORN_SMTP_PORT: String(service.smtpPort) };
  const program = demo({ ...settings, POSTHORN_DATA_DIR: '/nonexistent' });
  assert.equal(await program.ended, 0, program.output());
  assertPrinted(program, /Started Posthorn/);

  const start = /another terminal: (.*) npm start/.exec(program.output())?.[1] ?? '';
  const chosen = Object.fromEntries(start.split(' ').map((setting) => setting.split('=')));
  assert.notEqual(chosen.PORT, settings.PORT);
  const own = serve({ ...chosen, POSTHORN_DATA_DIR: folder.path });
  after(async () => {
    other.close();
    own.child.kill('SIGTERM');
    await own.ended;
    folder.remove();
  });
  await readyUrl(own);
  const [apiKey = ''] = /ph_[0-9A-Za-z]{38}/.exec(own.output()) ?? [];
  await runByHand(program, {}, apiKey);
});

/** Runs the printed lines in a shell, as a person would paste them. */
async function runByHand(program: Program, settings: Record<string, string>, apiKey = ''): Promise<void> {
  const [lines = ''] = /^BASE_URL=[\s\S]*?(?=\n\nTo clean up)/m.exec(program.output()) ?? [];
  assert.doesNotMatch(lines, /#/, 'an interactive zsh has no comments');
  const script = `${lines.replace('ph_…', apiKey)}\nwait`;
  const byHand = run('sh', ['-eu', '-c', script], { ...settings, PORT: '0' });
  after(() => process.kill(-byHand.pid, 'SIGKILL'));
  for (const event of ['received', 'sent', 'delivered']) {
    await byHand.line(new RegExp(`"event":"message\\.${event}"`));
  }
}

test('the code to copy runs on a Node without TypeScript, such as Node 20', () => {
  const folder = makeFolder();
  after(() => folder.remove());
  const [, copied = ''] = /copy \[a few lines\]\((.*?)\)/.exec(readFileSync('README.md', 'utf8')) ?? [];
  const copy = path.join(folder.path, `verify${path.extname(copied).replace('.js', '.mjs')}`);
  copyFileSync(copied, copy);
  const script = 'import(process.argv[1]).then(({ verify }) => process.stdout.write(typeof verify))';
  const options = ['--no-experimental-strip-types', '-e', script, copy];
  const { stdout, stderr } = spawnSync(process.execPath, options, { encoding: 'utf8' });
  assert.equal(stdout, 'function', stderr);
});

test('the code to copy takes what was signed with the secret, and nothing else', () => {
  const secret = `whsec_${Buffer.alloc(24, 1).toString('base64')}`;
  const other = `whsec_${Buffer.alloc(24, 2).toString('base64')}`;
  const body = Buffer.from('{"a":"ü"}');
  const sign = (ageSeconds: number, ...secrets: string[]) =>
    signatureHeaders('id', Math.floor(Date.now() / 1000) - ageSeconds, body, secrets.map(signingKey));
  assert.equal(verify(secret, sign(0, secret), body), true);
  assert.equal(verify(secret, sign(0, other, secret), body), true);
  assert.equal(verify(secret, sign(0, other), body), false);
  assert.equal(verify(secret, sign(400, secret), body), false);
  assert.equal(verify(secret, sign(-400, secret), body), false);
  assert.equal(verify(secret, sign(0, secret), Buffer.from('{"a":"u"}')), false);
  assert.equal(verify(secret, {}, body), false);
});

async function freePort(): Promise<number> {
  const receiver = await startReceiver();
  await receiver.close();
  return receiver.port;
}
