/** Programs of others read the OpenAPI document: a linter, three generators of clients that do the tour of the README, and a fuzzer. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, describe, test } from 'node:test';
import { startTestService } from '../harness.ts';
import { startReceiver } from '../receiver.ts';
import { openapiFolder as folder, openapiTool as tool } from './programs.ts';

const made = path.join(folder, 'made');
const file = path.join(made, 'openapi.json');
const service = await startTestService();
const receiver = await startReceiver();
after(() => receiver.close());
rmSync(made, { recursive: true, force: true });
mkdirSync(made);
writeFileSync(file, (await service.call('GET', '/openapi.json', { as: null })).text);

/** Runs a program to its end, and fails with its output if it fails. */
async function succeed(command: string, args: string[], more: Record<string, string> = {}): Promise<string> {
  const { PATH = '', HOME = '' } = process.env;
  const venv = path.join(folder, '.venv/bin');
  const child = spawn(command, args, {
    cwd: folder,
    env: { PATH: `${venv}${path.delimiter}${PATH}`, HOME, LANG: 'C.UTF-8', ...more },
    timeout: 300_000,
  });
  let output = '';
  child.stdout.on('data', (chunk) => (output += chunk));
  child.stderr.on('data', (chunk) => (output += chunk));
  const code = await new Promise((resolve) => child.on('close', resolve));
  assert.equal(code, 0, `${command} ${args.join(' ')}:\n${output}`);
  return output;
}

test('Spectral finds neither an error nor a warning', async () => {
  await succeed(tool('spectral'), ['lint', file, '--ruleset', 'spectral.yaml', '--fail-severity', 'hint']);
});

describe('a client does the tour that was made by', () => {
  async function doTour(address: string, command: string, args: string[], more = {}): Promise<void> {
    const settings = {
      BASE_URL: service.url,
      API_KEY: service.user.apiKey,
      ADDRESS: address,
      HOOK: receiver.url(`/${address}`),
      ...more,
    };
    const output = await succeed(command, args, settings);
    assert.match(output, /the tour is done/);
    const { body } = await service.call('GET', '/messages');
    const subjects = body
      .filter(({ identity }: { identity: { value: string } }) => identity.value === address)
      .map(({ subject }: { subject: string }) => subject);
    assert.deepEqual(subjects, ['Re: Hello', 'Hello']);
  }

  test('openapi-typescript and @hey-api/openapi-ts', async () => {
    // Otherwise a field with a default must be given: it does not know that a named schema is the body of a request.
    await succeed(tool('openapi-typescript'), [file, '-o', 'made/schema.ts', '--default-non-nullable=false']);
    await succeed(tool('openapi-ts'), ['-i', file, '-o', 'made/hey', '-c', '@hey-api/client-fetch']);
    await succeed(tool('tsc'), ['-p', '.']);
    await doTour('fetch@tour.example', process.execPath, ['made/out/tour-fetch.js']);
    await doTour('hey@tour.example', process.execPath, ['made/out/tour-hey.js']);
  });

  test('openapi-python-client', async () => {
    const output = path.join(made, 'posthorn_client');
    const config = ['--config', 'python-client.yaml', '--meta', 'none', '--output-path', output];
    const said = await succeed('openapi-python-client', ['generate', '--path', file, ...config]);
    assert.doesNotMatch(said, /warning/i);
    await doTour('python@tour.example', 'python3', ['tour.py'], { PYTHONPATH: made });
  });
});

test('schemathesis finds no failure', async () => {
  async function make(of: string, body: unknown, headers = {}): Promise<string> {
    const { status, body: made, text } = await service.call('POST', of, { body, headers });
    assert.ok(status < 300, text);
    return made.id ?? made.messageIds[0];
  }
  const address = 'fuzz@example.com';
  const server = { host: 'mail.example.com', port: 465, username: 'ada', password: 'secret' };
  const account = await make('/smtp-accounts', {
    label: 'Mail',
    smtp: server,
    imap: { ...server, port: 993 },
  });
  const identity = await make('/identities', { value: address, smtp_account_id: account });
  // schemathesis.toml puts these ids into paths: random ids would find nothing but 404.
  const ids = {
    ADDRESS: address,
    ACCOUNT: account,
    IDENTITY: identity,
    WEBHOOK: await make('/webhooks', {
      url: receiver.url('/fuzz'),
      events: ['message.received'],
      ownerId: service.user.userId,
    }),
    MESSAGE: await make(`/inbound?recipient=${address}`, 'Subject: Hello\r\n\r\nHi\r\n', {
      'content-type': 'message/rfc822',
    }),
    PROVIDER: await make('/providers', { kind: 'postmark', credentials: { serverToken: 'secret' } }),
  };
  const bearer = `Authorization: Bearer ${service.user.apiKey}`;
  const bounds = ['--phases=examples,coverage', '--max-examples=10', '--workers=2', '--no-color'];
  await succeed('schemathesis', ['run', file, '--url', service.url, '--header', bearer, ...bounds], ids);
});
