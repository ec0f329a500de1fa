/** swaks and msmtp submit mail with an API key as the password. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { startTestService } from '../harness.ts';
import { execute } from './programs.ts';

const service = await startTestService();
const { call, user, submissionPort } = service;
const { body: identity } = await call('POST', '/identities', { body: { value: 'shop@submit.example' } });

async function findNewest() {
  const { body } = await call('GET', '/messages?direction=outgoing&limit=1');
  return (await call('GET', `/messages/${body[0].id}`)).body;
}

describe('swaks', () => {
  const swaks = (...more: string[]) =>
    execute('swaks', [
      ...['--server', '127.0.0.1', '--port', String(submissionPort), '--from', 'shop@submit.example'],
      ...['--to', 'ada@dest.example', '--auth-user', 'posthorn', ...more],
    ]);
  for (const mechanism of ['PLAIN', 'LOGIN'])
    for (const tls of [[], ['--tls']])
      test(`AUTH ${mechanism}${tls.length > 0 ? ' over TLS' : ''}`, async () => {
        const subject = `by ${mechanism}${tls.join('')}`;
        const given = ['--auth', mechanism, '--auth-password', user.apiKey, '--h-Subject', subject, ...tls];
        const { code, output } = await swaks(...given);
        assert.equal(code, 0, output);
        const message = await findNewest();
        assert.deepEqual(
          [message.source, message.subject, message.identity.id, message.envelope.rcptTo],
          ['submission', subject, identity.id, ['ada@dest.example']],
        );
        assert.match(output, new RegExp(`250 2\\.0\\.0 Accepted as ${message.id}`));
      });

  test('a wrong password is 535, another sender 550', async () => {
    const wrong = await swaks('--auth', 'PLAIN', '--auth-password', `${user.apiKey}x`);
    assert.notEqual(wrong.code, 0);
    assert.match(wrong.output, /535 5\.7\.8/);
    const given = ['--auth', 'PLAIN', '--auth-password', user.apiKey, '--from', 'eve@other.example'];
    const other = await swaks(...given);
    assert.notEqual(other.code, 0);
    assert.match(other.output, /550 5\.7\.1/);
  });
});

test('msmtp', async () => {
  const raw =
    'From: shop@submit.example\nTo: ada@dest.example\nBcc: eve@dest.example\nSubject: by msmtp\n\nHello\n';
  const args = [
    ...['--host=127.0.0.1', `--port=${submissionPort}`, '--auth=plain', '--user=posthorn', '--tls=on'],
    ...['--tls-certcheck=off', `--passwordeval=printf %s ${user.apiKey}`, '--from=shop@submit.example'],
    ...['--read-recipients', '--file=/dev/null', '--domain=laptop.example'],
  ];
  const { code, output } = await execute('msmtp', args, raw);
  assert.equal(code, 0, output);
  const message = await findNewest();
  assert.equal(message.subject, 'by msmtp');
  assert.deepEqual(message.bcc, [{ name: null, address: 'eve@dest.example' }]);
  const { text } = await call('GET', `/messages/${message.id}/raw`);
  assert.doesNotMatch(text, /eve/);
});
