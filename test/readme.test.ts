/** The README's tour, run by a shell block by block as a person would paste it, against a real service. */
import assert from 'node:assert/strict';
import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { after, test } from 'node:test';
import { startTestService, waitFor } from './harness.ts';
import { makeFolder, root, run } from './programs.ts';
import { startReceiver } from './receiver.ts';

const readme = readFileSync(path.join(root, 'README.md'), 'utf8');
const [tourText = ''] = /<!-- tour:.*?<!-- end of the tour -->/s.exec(readme) ?? [];
const tour = [...tourText.matchAll(/```sh\n(.*?)```/gs)].map(([, block]) => block).join('');
const pages = globSync('{*.md,{docs,bench}/**/*.md}', { cwd: root });
const manifest = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8'));

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

  assert.equal(answers.length, 5, program.output());
  const [me, identity, webhook, messages, mistake] = answers;
  assert.deepEqual(me, { userId: service.user.userId });
  assert.equal(identity.value, 'sales@example.com');
  assert.equal(webhook.ownerId, service.user.userId);
  assert.match(webhook.secret, /^whsec_/);
  assert.equal(messages.length, 1);
  assert.equal(messages[0].subject, 'Hello');
  assert.equal(mistake.code, 'invalid_body');
  assert.match(JSON.stringify(mistake.errors), /Did you mean message.received/);
  const posted = /"event":"message\.received".*\}\n$/;
  await waitFor('the POST, with a newline after it', () => posted.test(readFileSync(received, 'utf8')));
  assert.match(readFileSync(received, 'utf8'), /'webhook-signature': 'v1,/);
});

test('each block of the README is one command, so that pasting a block does not run into the next command', () => {
  for (const [, block = ''] of readme.matchAll(/```sh\n(.*?)```/gs)) {
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
