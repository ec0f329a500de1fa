/** The first start: in development it shows an API key before it is ready, in production it makes none. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import { readConfig } from '../src/config.ts';
import { type Service, startService } from '../src/main.ts';
import { assertProblem, callUrl, makeDatabase, makeTestLog } from './harness.ts';
import { type Program, run } from './programs.ts';

async function makeSettings() {
  const database = await makeDatabase();
  after(() => database.drop());
  const secretKey = randomBytes(32).toString('base64');
  return {
    ...{ DATABASE_URL: database.url, POSTHORN_SECRET_KEY: secretKey, PORT: '0', POSTHORN_SMTP_PORT: '0' },
    POSTHORN_DNS_SERVERS: '127.0.0.1:9',
  };
}

const production = {
  NODE_ENV: 'production',
  POSTHORN_MAIL_HOST: 'mx.example.com',
  POSTHORN_PUBLIC_URL: 'https://posthorn.example.com',
};

async function serve(settings: Record<string, string>): Promise<string> {
  const program: Program = run(process.execPath, ['src/cli/posthorn.ts', 'serve'], settings);
  await program.line(/is ready/);
  program.child.kill('SIGTERM');
  assert.equal(await program.ended, 0, program.output());
  return program.output();
}

test('in production no key is printed and no user made: the start names the command for it', async () => {
  const settings = { ...(await makeSettings()), ...production };
  const output = await serve(settings);
  assert.doesNotMatch(output, /ph_|curl/);
  assert.match(
    output,
    /There is no user yet\. Create one: npm run -s posthorn -- users create --email you@example\.com/,
  );
  const command = ['src/cli/posthorn.ts', 'users', 'create', '--email', 'ada@example.com', '--json'];
  const create = run(process.execPath, command, settings);
  assert.equal(await create.ended, 0, create.output());
  assert.doesNotMatch(await serve(settings), /There is no user yet/);
});

test('a process without the role `api` makes no key, so that the process with it can show one', async () => {
  const settings = await makeSettings();
  const output = await serve({ ...settings, POSTHORN_ROLES: 'smtp,deliver,verify' });
  assert.doesNotMatch(output, /ph_|null|curl/);
  const [, block = '', command = ''] =
    /^(─+\nFirst start:[\s\S]*?^( +curl http:[\s\S]*?)\n─+)$/m.exec(await serve(settings)) ?? [];
  assert.match(command, /^ +curl http:\/\/localhost:\d+\/me \\\n +-H "Authorization: Bearer ph_\w{38}"$/);
  for (const line of block.split('\n')) assert.ok(line.length <= 80, line);
});

test('it is ready only after the first key was shown', async () => {
  const settings = { ...(await makeSettings()), POSTHORN_METRICS_PORT: '0' };
  const ready = ({ url }: Service) => callUrl('GET', `${url}/health/ready`, {});
  let shown: string | undefined;
  const service = await startService(readConfig(settings), makeTestLog().log, {
    async announce(service) {
      assertProblem(await ready(service), 503, 'starting');
      assert.equal((await callUrl('GET', `${service.url}/health/live`, {})).status, 200);
      shown = service.firstUser?.apiKey;
    },
  });
  after(() => service.stop());
  assert.match(shown ?? '', /^ph_/);
  assert.equal((await ready(service)).status, 200);
});
