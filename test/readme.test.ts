/** The README's commands and the examples of docs/sending.md, run by a shell as a person would paste them, against a real service. */
import assert from 'node:assert/strict';
import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { after, test } from 'node:test';
import { startTestService, waitFor } from './harness.ts';
import { startImapServer } from './imap-server.ts';
import { isIdling, mailWith } from './mailbox-service.ts';
import { makeFolder, root, run } from './programs.ts';
import { startReceiver } from './receiver.ts';

const readme = readFileSync(path.join(root, 'README.md'), 'utf8');
const sending = readFileSync(path.join(root, 'docs/sending.md'), 'utf8');
const tour = readBlocks(readme, /<!-- tour:.*?<!-- end of the tour -->/s);
const connecting = readBlocks(readme, /<!-- mailbox:.*?<!-- end of the mailbox -->/s);
const examples = readBlocks(sending, /<!-- examples:.*?<!-- end of the examples -->/s);
const pages = globSync('{*.md,{docs,bench}/**/*.md}', { cwd: root });
const manifest = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8'));

function readBlocks(page: string, part: RegExp): string {
  const [text = ''] = part.exec(page) ?? [];
  return [...text.matchAll(/```sh\n(.*?)```/gs)].map(([, block]) => block).join('');
}

test('the tour works when pasted', async () => {
  const service = await startTestService();
  const folder = makeFolder();
  after(() => folder.remove());
  const received = path.join(folder.path, 'received');
  const receiverPort = String(await freePort());
  const script = tour
    .replace('http://localhost:3000', service.url)
    .replace('ph_paste_yours_here', service.user.apiKey)
    .replace('localhost:2525', `localhost:${service.smtpPort}`)
    .replaceAll('4000', receiverPort)
    // What the tour's own receiver prints goes apart from the answers.
    .replace(/ &$/m, ' > "$RECEIVED" &');
  const program = run('sh', ['-eu', '-c', `${script}\necho done; wait`], { RECEIVED: received });
  after(() => process.kill(-program.pid, 'SIGKILL'));
  await program.line(/^done$/m);
  const answers = program
    .output()
    .replace(/done\n$/, '')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));

  assert.equal(answers.length, 6, program.output());
  const [me, identity, webhook, messages, reply, mistake] = answers;
  assert.deepEqual(me, { userId: service.user.userId });
  assert.equal(identity.value, 'sales@example.com');
  assert.equal(webhook.ownerId, service.user.userId);
  assert.match(webhook.secret, /^whsec_/);
  assert.equal(messages.length, 1);
  assert.equal(messages[0].subject, 'Hello');
  assert.equal(reply.subject, 'Re: Hello');
  assert.equal(reply.threadId, messages[0].threadId);
  assert.match(reply.inReplyTo, /^<\d+@lovelace\.example>$/);
  assert.equal(reply.inReplyTo, messages[0].messageId);
  assert.ok(webhook.events.includes('message.bounced'));
  assert.deepEqual(reply.envelope.rcptTo, ['ada@lovelace.example']);
  assert.equal(reply.sending.transport, 'capture');
  assert.equal(mistake.code, 'invalid_body');
  assert.match(JSON.stringify(mistake.errors), /Did you mean message.received/);
  for (const event of ['received', 'sent', 'delivered']) {
    const posted = new RegExp(`"event":"message\\.${event}".*\\}\\n`);
    await waitFor(`the POST of message.${event}`, () => posted.test(readFileSync(received, 'utf8')));
  }
  assert.match(readFileSync(received, 'utf8'), /'webhook-signature': 'v1,/);
});

test('three pasted commands connect a mailbox, and new mail in it makes a POST', async () => {
  const service = await startTestService();
  const imap = await startImapServer('secret');
  const receiver = await startReceiver();
  after(() => receiver.close());
  const script = connecting
    .replace('"port":143', `"port":${imap.port}`)
    .replace('http://localhost:4000', receiver.url(''));
  assert.equal(script.match(/curl /g)?.length, 3, script);
  const settings = { BASE_URL: service.url, API_KEY: service.user.apiKey, OWNER: service.user.userId };
  const program = run('sh', ['-eu', '-c', script], settings);
  assert.equal(await program.ended, 0, program.output());
  const [identity, webhook] = program
    .output()
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  assert.match(identity.smtp_account_id, /^[0-9a-f-]{36}$/);
  assert.equal(webhook.enabled, true);
  await isIdling(imap);
  imap.deliver('INBOX', mailWith('Hello from the mailbox'));
  const [request] = await receiver.received(1, ({ url }) => url === '/hooks');
  const { event, data } = JSON.parse(request?.body.toString() ?? '');
  assert.deepEqual(
    [event, data.message.subject, data.message.source],
    ['message.received', 'Hello from the mailbox', 'imap'],
  );
});

test('the examples of docs/sending.md work when pasted', async () => {
  const service = await startTestService();
  const settings = { BASE_URL: service.url, API_KEY: service.user.apiKey };
  const script = examples.replace('localhost:2587', `localhost:${service.submissionPort}`);
  async function runExamples() {
    const program = run('sh', ['-eu', '-c', script], settings);
    assert.equal(await program.ended, 0, program.output());
    const lines = program.output().trim().split('\n');
    assert.equal(lines.length, 7, program.output());
    return lines.map((line) => JSON.parse(line));
  }
  const [identity, sent, raw, listed, suppression, suppressions, deleted] = await runExamples();
  assert.equal(identity.value, 'shop@example.com');
  assert.deepEqual(sent.envelope.rcptTo, ['ada@dest.example', 'bob@bounce.test']);
  assert.deepEqual(sent.sending.metadata, { order: '7' });
  assert.equal(raw.subject, 'Raw');
  assert.deepEqual(
    listed.map(({ id }: { id: string }) => id),
    [raw.id, sent.id],
  );
  assert.equal(suppression.reason, 'manual');
  assert.deepEqual(suppressions, [suppression]);
  assert.equal(deleted, 204);
  const ended = await waitFor('the recipients to end', async () => {
    const { body } = await service.call('GET', `/messages/${sent.id}`);
    return body.sending.status === 'queued' ? null : body.sending.recipients;
  });
  assert.deepEqual(
    ended.map(({ status }: { status: string }) => status),
    ['delivered', 'bounced'],
  );
  const { body } = await service.call('GET', '/messages?direction=outgoing&limit=1');
  assert.deepEqual([body[0].subject, body[0].source], ['By SMTP', 'submission']);

  const [again, same, anotherRaw] = await runExamples();
  assert.equal(again.code, 'identity_exists');
  assert.equal(same.id, sent.id, 'by its Idempotency-Key');
  assert.equal(anotherRaw.identity.id, identity.id);
});

test('each block is one command, so that pasting a block does not run into the next command', () => {
  for (const [, block = ''] of `${readme}${sending}`.matchAll(/```sh\n(.*?)```/gs)) {
    const commands = block
      .replaceAll(/[\\|]\n/g, ' ')
      .trim()
      .split('\n');
    assert.equal(commands.length, 1, block);
  }
});

test('every npm script that the documents name exists', () => {
  for (const page of pages) {
    const text = readFileSync(path.join(root, page), 'utf8');
    for (const [, name = ''] of text.matchAll(/npm run (?:-s )?([a-z][a-z:]*)/g)) {
      assert.ok(name in manifest.scripts, `${page} names npm run ${name}`);
    }
  }
});

test('every file that the documents link to exists', () => {
  for (const page of pages) {
    const text = readFileSync(path.join(root, page), 'utf8');
    for (const [, target = ''] of text.matchAll(/\]\((?!https?:|#)([^)#\s]+)/g)) {
      const file = path.join(root, path.dirname(page), target);
      assert.doesNotThrow(() => readFileSync(file), `${page} links to ${target}`);
    }
  }
});

async function freePort(): Promise<number> {
  const receiver = await startReceiver();
  await receiver.close();
  return receiver.port;
}
