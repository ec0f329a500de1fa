/** POST /smtp-accounts/{id}/verify: logs in on both sides, and says what to do. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import net, { type AddressInfo } from 'node:net';
import { after, describe, test } from 'node:test';
import { makeLog } from '../src/lib/log.ts';
import { makeSealer } from '../src/lib/secrets.ts';
import { openImap } from '../src/mailboxes/open-imap.ts';
import { AccessTokens } from '../src/net/access-tokens.ts';
import { makeEgress } from '../src/net/egress.ts';
import { makeSelfSigned } from '../src/net/self-signed.ts';
import { AccountServers } from '../src/sending/account-servers.ts';
import { startDns } from './dns.ts';
import { startTestService } from './harness.ts';
import { startImapScript } from './imap-script.ts';
import { makeImapThreads } from './imap-threads.ts';
import { startSink } from './smtp-sink.ts';
import { startTokenServer } from './token-server.ts';

const silent = makeLog({ level: 'silent', json: true });
const dns = await startDns();
after(() => dns.close());
dns.answer('mail.elsewhere.example', { A: ['127.0.0.1'] });
const secretKey = randomBytes(32);
const service = await startTestService({
  POSTHORN_ROLES: 'api',
  POSTHORN_DNS_SERVERS: dns.address,
  POSTHORN_SECRET_KEY: secretKey.toString('base64'),
});
const { call } = service;
const owner = service.user.userId;
const threads = makeImapThreads();
const extensions = ['AUTH PLAIN LOGIN XOAUTH2'];
const smtpSink = await startSink({ extensions });
const imapScript = await startImapScript();
const certificate = makeSelfSigned('mail.elsewhere.example', new Date());
const tls = { cert: certificate.cert, key: certificate.key };

const serverOf = ({ port }: { port: number }, more: object = {}) => ({
  ...{ host: '127.0.0.1', port, username: 'ada@post.example', password: 'correct horse' },
  ...more,
});
async function make(smtp: object, imap?: object): Promise<string> {
  const made = await call('POST', '/smtp-accounts', {
    body: { label: 'Post', smtp, ...(imap ? { imap } : {}) },
  });
  assert.equal(made.status, 201, made.text);
  return made.body.id;
}
async function verify(id: string) {
  const answer = await call('POST', `/smtp-accounts/${id}/verify`);
  assert.equal(answer.status, 200, answer.text);
  assert.deepEqual((await call('GET', `/smtp-accounts/${id}`)).body, answer.body);
  return answer.body;
}
async function closedPort(): Promise<number> {
  const server = net.createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

test('both logins work: ok, with the time and without an error', async () => {
  const { send, receive } = await verify(await make(serverOf(smtpSink), serverOf(imapScript)));
  for (const { state, checkedAt, error } of [send, receive]) {
    assert.deepEqual({ state, error }, { state: 'ok', error: null });
    assert.match(checkedAt, /^\d{4}-/);
  }
  const plain = Buffer.from('\0ada@post.example\0correct horse').toString('base64');
  assert.ok(smtpSink.commands.includes(`AUTH PLAIN ${plain}`));
  assert.ok(
    imapScript.commands.some((line) => line.includes(plain)),
    imapScript.commands.join('\n'),
  );
  assert.ok(imapScript.commands.includes('LOGOUT'));
});

test('a PATCH that leaves the secrets out keeps them: both logins still work', async () => {
  const id = await make(serverOf(smtpSink), serverOf(imapScript));
  const { host, username } = serverOf(smtpSink);
  const change = { smtp: { host, port: smtpSink.port, username }, imap: { host, username } };
  const patched = await call('PATCH', `/smtp-accounts/${id}`, { body: { label: 'Other', ...change } });
  assert.equal(patched.status, 200, patched.text);
  smtpSink.commands.length = 0;
  const { send, receive } = await verify(id);
  assert.deepEqual([send.error, receive.error], [null, null]);
  const plain = Buffer.from('\0ada@post.example\0correct horse').toString('base64');
  assert.ok(smtpSink.commands.includes(`AUTH PLAIN ${plain}`));
});

test('an account that only sends: receive stays unknown', async () => {
  const { send, receive } = await verify(await make(serverOf(smtpSink)));
  assert.deepEqual([send.state, receive.state], ['ok', 'unknown']);
});

test('wrong passwords: authentication_failed with the words of the servers, and ok once it is right', async () => {
  const id = await make(serverOf(smtpSink), serverOf(imapScript));
  smtpSink.behave('AUTH', `535 5.7.8 Bad credentials${'.'.repeat(300)}`);
  imapScript.answerLogins('NO [AUTHENTICATIONFAILED] Wrong password');
  const { send, receive } = await verify(id);
  assert.deepEqual([send.state, send.error.code], ['failing', 'authentication_failed']);
  assert.deepEqual([receive.state, receive.error.code], ['failing', 'authentication_failed']);
  assert.match(send.error.message, /app password/);
  assert.match(send.error.response, /^535 5\.7\.8 Bad credentials\.+$/);
  assert.equal(send.error.response.length, 200);
  assert.match(receive.error.response, /Wrong password/);
  smtpSink.behave('AUTH', '235 2.7.0 Welcome');
  imapScript.answerLogins('OK Welcome');
  const again = await verify(id);
  assert.deepEqual([again.send.state, again.receive.state], ['ok', 'ok']);
});

test('a login that the server puts off is not a wrong password', async () => {
  const id = await make(serverOf(smtpSink), serverOf(imapScript));
  smtpSink.behave('AUTH', '454 4.7.0 Try later');
  imapScript.answerLogins('NO [UNAVAILABLE] Try later');
  const { send, receive } = await verify(id);
  smtpSink.behave('AUTH', '235 2.7.0 Welcome');
  imapScript.answerLogins('OK Welcome');
  assert.deepEqual([send.error.code, receive.error.code], ['server_refused', 'server_refused']);
});

test('a check that is ended, because its client has gone, says nothing about the account', async () => {
  const id = await make(serverOf(smtpSink));
  const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers: [dns.address] });
  const accounts = new AccountServers({
    ...{
      sql: service.sql,
      sealer: makeSealer([secretKey]),
      log: silent,
      egress,
      heloName: 'us.example',
      production: false,
    },
    tokens: new AccessTokens({ egress, allowHttp: true }),
  });
  await accounts.check({ ownerId: service.user.userId, accountId: id }, AbortSignal.abort());
  assert.equal((await call('GET', `/smtp-accounts/${id}`)).body.send.state, 'unknown');
});

describe('the way there', () => {
  const elsewhere = { host: 'mail.elsewhere.example' };
  const codesOf = async (id: string) => {
    const { send, receive } = await verify(id);
    for (const { error } of [send, receive]) assert.ok(error.message.length > 20, JSON.stringify(error));
    return [send.error.code, receive.error.code];
  };

  test('nothing listens: connection_refused', async () => {
    const port = await closedPort();
    const codes = await codesOf(await make(serverOf({ port }), serverOf({ port })));
    assert.deepEqual(codes, ['connection_refused', 'connection_refused']);
  });

  test('DNS has no such host: host_not_found', async () => {
    const nowhere = { host: 'nowhere.elsewhere.example', port: 587 };
    const id = await make(
      serverOf({ port: 587 }, nowhere),
      serverOf({ port: 993 }, { ...nowhere, port: 993 }),
    );
    assert.deepEqual(await codesOf(id), ['host_not_found', 'host_not_found']);
  });

  test('a name that leads to a private address since it was saved: target_refused', async () => {
    dns.answer('moved.elsewhere.example', { A: ['127.0.0.1'] });
    const moved = { host: 'moved.elsewhere.example' };
    const id = await make(serverOf(smtpSink, moved), serverOf(imapScript, moved));
    dns.answer('moved.elsewhere.example', { A: ['10.1.2.3'] });
    assert.deepEqual(await codesOf(id), ['target_refused', 'target_refused']);
  });

  test('no TLS on a server that is not this machine: tls_unavailable, and no password goes out', async () => {
    const [smtp, imap] = [await startSink({ extensions }), await startImapScript()];
    const id = await make(serverOf(smtp, elsewhere), serverOf(imap, elsewhere));
    assert.deepEqual(await codesOf(id), ['tls_unavailable', 'tls_unavailable']);
    assert.doesNotMatch([...smtp.commands, ...imap.commands].join('\n'), /AUTH|LOGIN /);
  });

  test('a certificate of an unknown authority: certificate_invalid, and no password goes out', async () => {
    const [smtp, imap] = [await startSink({ extensions, tls }), await startImapScript({ tls })];
    const id = await make(serverOf(smtp, elsewhere), serverOf(imap, elsewhere));
    assert.deepEqual(await codesOf(id), ['certificate_invalid', 'certificate_invalid']);
    assert.doesNotMatch([...smtp.commands, ...imap.commands].join('\n'), /AUTH|LOGIN /);
  });

  test('in production TLS is needed on this machine too', async () => {
    const imap = await startImapScript();
    const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers: [dns.address] });
    const server = { ...serverOf(imap), secure: false, login: { password: 'x' } };
    const opened = await openImap(owner, server, server.login, { egress, threads, production: true });
    assert.equal('error' in opened && opened.error.code, 'tls_unavailable');
    assert.doesNotMatch(imap.commands.join('\n'), /AUTH|LOGIN /);
    const id = await make(serverOf(smtpSink));
    const accounts = new AccountServers({
      ...{ sql: service.sql, sealer: makeSealer([secretKey]), log: silent, egress, heloName: 'us.example' },
      production: true,
      tokens: new AccessTokens({ egress, allowHttp: true }),
    });
    await accounts.check({ ownerId: service.user.userId, accountId: id }, new AbortController().signal);
    assert.equal((await call('GET', `/smtp-accounts/${id}`)).body.send.error.code, 'tls_unavailable');
  });

  test('IMAP over STARTTLS with a valid certificate, for the name and not for the address', async () => {
    const imap = await startImapScript({ tls });
    const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers: [dns.address] });
    const server = { ...serverOf(imap, elsewhere), secure: false, login: { password: 'x' } };
    const parts = { egress, threads, production: true, ca: certificate.cert };
    const opened = await openImap(owner, server, server.login, parts);
    assert.ok('client' in opened, JSON.stringify(opened));
    await opened.client.logOut();
    assert.ok(imap.commands.includes('STARTTLS'));
    const wrong = await openImap(owner, { ...server, host: 'localhost' }, server.login, parts);
    assert.equal('error' in wrong && wrong.error.code, 'certificate_invalid');
  });

  test('a server that says nothing: timeout', async () => {
    const silent = await startImapScript({ greeting: '' });
    const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers: [dns.address] });
    const server = { ...serverOf(silent), secure: false, login: { password: 'x' } };
    const timeouts = { connectMs: 5000, greetingMs: 50, silenceMs: 5000, loginMs: 60_000 };
    const opened = await openImap(owner, server, server.login, {
      egress,
      threads,
      production: false,
      timeouts,
    });
    assert.equal('error' in opened && opened.error.code, 'timeout');
  });
});

describe('OAuth2', () => {
  const login = (tokens: { url: string }) => ({
    password: undefined,
    oauth2: {
      clientId: 'client',
      clientSecret: 'hush',
      refreshToken: 'first',
      tokenUrl: tokens.url,
      scope: 'mail',
    },
  });

  test('an access token is fetched for each side and used by XOAUTH2', async () => {
    const tokens = await startTokenServer();
    tokens.answer({ body: { access_token: 'token-1', token_type: 'Bearer', expires_in: 3600 } });
    const id = await make(serverOf(smtpSink, login(tokens)), serverOf(imapScript, login(tokens)));
    const { send, receive } = await verify(id);
    assert.deepEqual([send.error, receive.error], [null, null]);
    const text = Buffer.from('user=ada@post.example\x01auth=Bearer token-1\x01\x01').toString('base64');
    assert.ok(smtpSink.commands.includes(`AUTH XOAUTH2 ${text}`));
    assert.ok(imapScript.commands.includes(`AUTHENTICATE XOAUTH2 ${text}`), imapScript.commands.join('\n'));
    const form = { grant_type: 'refresh_token', refresh_token: 'first', client_id: 'client' };
    const asked = { ...form, client_secret: 'hush', scope: 'mail' };
    assert.deepEqual(tokens.requests, [asked, asked]);
    await verify(id);
    assert.equal(tokens.requests.length, 2, 'kept until they expire');
  });

  test('a token that both servers refuse: authentication_failed, and the next try fetches another', async () => {
    const tokens = await startTokenServer();
    tokens.answer({ body: { access_token: 'revoked', expires_in: 3600 } });
    const id = await make(serverOf(smtpSink, login(tokens)), serverOf(imapScript, login(tokens)));
    smtpSink.behave('AUTH', `334 ${Buffer.from('{"status":"401"}').toString('base64')}`);
    smtpSink.behave('text', '535 5.7.8 Token refused');
    imapScript.answerLogins('NO [AUTHENTICATIONFAILED] Token refused');
    const { send, receive } = await verify(id);
    smtpSink.behave('AUTH', '235 2.7.0 Welcome');
    imapScript.answerLogins('OK Welcome');
    assert.deepEqual(
      [send.error.code, receive.error.code],
      ['authentication_failed', 'authentication_failed'],
    );
    assert.match(send.error.response, /Token refused/);
    assert.equal((await verify(id)).send.state, 'ok');
    assert.equal(tokens.requests.length, 4);
  });

  test('a new refresh token is stored, and the next token is asked for with it', async () => {
    const tokens = await startTokenServer();
    tokens.answer(
      { body: { access_token: 'a', expires_in: 1, refresh_token: 'second' } },
      { body: { access_token: 'b', expires_in: 1 } },
    );
    const id = await make(serverOf(smtpSink, login(tokens)));
    await verify(id);
    await verify(id);
    assert.deepEqual(
      tokens.requests.map(({ refresh_token }) => refresh_token),
      ['first', 'second'],
    );
  });

  test('of an error of the token server only error and error_description are shown, 200 characters', async () => {
    const tokens = await startTokenServer();
    const secret = { error: 'invalid_grant', error_description: 'x'.repeat(500), access_token: 'leak' };
    tokens.answer({ status: 400, body: secret });
    const id = await make(serverOf(smtpSink, login(tokens)));
    const refused = (await verify(id)).send.error;
    assert.equal(refused.code, 'authentication_failed');
    assert.equal(refused.response, `invalid_grant: ${'x'.repeat(185)}`);
    assert.match(refused.message, /refresh token/);
    tokens.answer({ status: 500, body: '<html>internal detail</html>' });
    const failed = (await verify(id)).send.error;
    assert.deepEqual([failed.code, failed.response], ['token_server_failed', null]);
    tokens.answer({ body: JSON.stringify({ access_token: 'a', filler: 'x'.repeat(65_536) }) });
    assert.equal((await verify(id)).send.error.code, 'token_server_failed');
    assert.doesNotMatch(JSON.stringify([refused, failed]), /leak|internal detail/);
  });
});
