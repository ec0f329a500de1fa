/** `posthorn identities`, beside a running service, with a DNS server of the test's own. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import { startDns } from './dns.ts';
import { callUrl } from './harness.ts';
import { makeDataFolder, posthorn, readyUrl, run } from './programs.ts';

const dns = await startDns();
const folder = makeDataFolder();
const settings = {
  POSTHORN_DATA_DIR: folder.path,
  PORT: '0',
  POSTHORN_SMTP_PORT: '0',
  POSTHORN_MAIL_HOST: 'mx.posthorn.example',
  POSTHORN_DNS_SERVERS: dns.address,
};
const server = run(process.execPath, ['src/cli/posthorn.ts', 'serve'], settings);
const url = await readyUrl(server);

after(async () => {
  server.child.kill('SIGTERM');
  await server.ended;
  folder.remove();
  await dns.close();
});

const { output } = await posthorn(['users', 'create', '--email', 'ada@users.example', '--json'], settings);
const user = JSON.parse(output) as { userId: string; email: string; apiKey: string };

function identities(...args: string[]) {
  return posthorn(['identities', ...args, '--user', 'Ada@users.example'], settings);
}

async function told(...args: string[]): Promise<string> {
  const { code, output } = await identities(...args);
  assert.equal(code, 0, output);
  return output;
}

// biome-ignore lint/suspicious/noExplicitAny: tests look into answers freely.
async function json(...args: string[]): Promise<any> {
  return JSON.parse(await told(...args, '--json'));
}

async function fails(code: number, pattern: RegExp, ...args: string[]): Promise<void> {
  const ended = await identities(...args);
  assert.equal(ended.code, code, ended.output);
  assert.match(ended.output, pattern);
}

async function get(path: string) {
  const { status, body, text } = await callUrl('GET', `${url}${path}`, { as: user });
  assert.equal(status, 200, text);
  return body;
}

let token = '';

test('add connects a domain, as POST /identities does, and shows what must stand in DNS', async () => {
  const output = await told('add', '--value', 'Shop.Example', '--incoming');
  assert.match(output, /^shop\.example is unverified$/m);
  assert.match(output, /^\? ownership {2}required {2}unknown {2}TXT {2}_posthorn\.shop\.example$/m);
  assert.match(
    output,
    /^\? mx {9}required {2}unknown {2}MX {3}shop\.example\n {4}value {4}10 mx\.posthorn\.example$/m,
  );
  assert.match(output, /^ {4}found {4}not checked yet$/m);
  assert.match(output, /^\? ownership .*\n {4}value .*\n {4}for {6}sending and receiving$/m);
  assert.match(output, /^\? mx .*\n {4}value .*\n {4}for {6}receiving$/m);
  token = /value +(posthorn-verification=\S+)/.exec(output)?.[1] ?? assert.fail(output);

  const [identity] = await get('/identities?value=shop.example');
  assert.equal(identity.incoming_domain, true);
  const records = await get(`/identities/${identity.id}/dns`);
  assert.deepEqual(
    records.map(({ purpose }: { purpose: string }) => purpose),
    ['ownership', 'mx', 'spf', 'dkim', 'dmarc'],
  );
  assert.equal(records[0].value, token);
});

test('add with --json prints the identity', async () => {
  const made = await json('add', '--value', 'sales@shop.example');
  assert.deepEqual(made, await get(`/identities/${made.id}`));
  assert.ok(made.domain_identity_id);
});

test('verify looks now: what was found, and what to change', async () => {
  dns.answer('_posthorn.shop.example', { TXT: ['something else'] });
  dns.answer('shop.example', { MX: ['10 other.example'], TXT: ['v=spf1 -all'] });
  const { code, output } = await identities('verify', 'shop.example');
  assert.equal(code, 1, 'a script can wait until the domain is verified');
  assert.match(output, /^✗ ownership {2}required {2}mismatch/m);
  assert.match(
    output,
    /^ {4}found {4}something else\n {4}change {3}There is another TXT record at this name/m,
  );
  assert.match(
    output,
    /^ {4}found {4}10 other\.example\n {4}change {3}The MX records of shop\.example name another/m,
  );
  assert.match(output, /^ {4}value {4}v=spf1 a:mx\.posthorn\.example -all$/m);
  assert.match(output, /^ {4}found {4}nothing\n {4}change {3}The DKIM key ph\d+-\w+ is not published/m);

  dns.answer('_posthorn.shop.example', { TXT: [token] });
  dns.answer('shop.example', { MX: ['10 mx.posthorn.example'] });
  const verified = await told('verify', 'sales@shop.example');
  assert.match(verified, /^sales@shop\.example is verified, as shop\.example is$/m);
  assert.match(verified, /^✓ ownership {2}required {2}valid/m);
  assert.match(verified, new RegExp(`^ {4}found {4}${token}$`, 'm'));
});

test('verify with --json prints the identity, found by its id as well', async () => {
  const [, domain] = await get('/identities');
  const verified = await json('verify', domain.id);
  assert.deepEqual(verified, await get(`/identities/${domain.id}`));
  assert.equal(verified.status, 'verified');
});

test('dns shows the records as they were last seen, for a domain and for its addresses', async () => {
  const [, domain] = await get('/identities');
  const asked = dns.count('_posthorn.shop.example');
  assert.deepEqual(await json('dns', 'shop.example'), await get(`/identities/${domain.id}/dns`));
  assert.match(await told('dns', 'SALES@shop.example'), /as shop\.example is\n\n✓ ownership/);
  assert.equal(dns.count('_posthorn.shop.example'), asked, 'nothing was asked');
});

test('list shows every identity', async () => {
  assert.match(
    await told('list'),
    /^[\da-f-]{36} {2}email {3}verified {2}sales@shop\.example\n[\da-f-]{36} {2}domain {2}verified {2}shop\.example$/m,
  );
  assert.deepEqual(await json('list'), await get('/identities'));
});

test('mistakes are told with what to do', async () => {
  await fails(
    1,
    /already has the identity shop\.example.*identities dns shop\.example/,
    'add',
    '--value',
    'shop.example',
  );
  await fails(2, /error: option '--value/, 'add', '--value', 'shop..example');
  await fails(1, /--incoming is for domains/, 'add', '--value', 'a@b.example', '--incoming');
  await fails(1, /has no identity "other\.example".*identities list/, 'verify', 'other.example');
  await fails(1, /has no identity "not a name"/, 'dns', 'not a name');
  await json('add', '--value', 'ada@elsewhere.example');
  for (const command of ['verify', 'dns'])
    await fails(
      1,
      /verified through its domain.*--value elsewhere\.example/,
      command,
      'ada@elsewhere.example',
    );
  const stranger = await posthorn(['identities', 'list', '--user', 'eve@users.example'], settings);
  assert.equal(stranger.code, 1);
  assert.match(stranger.output, /No user with the address or id "eve@users\.example"/);
});

test("another user's identity is not found", async () => {
  const [identity] = await get('/identities?value=shop.example');
  for (const given of ['shop.example', identity.id]) {
    const { code, output } = await posthorn(
      ['identities', 'dns', given, '--user', 'admin@localhost'],
      settings,
    );
    assert.equal(code, 1, output);
    assert.match(output, /admin@localhost has no identity/);
  }
});

test("with another key of the operator's nothing is added or verified, and doctor says why", async () => {
  const other = { ...settings, POSTHORN_SECRET_KEY: randomBytes(32).toString('base64') };
  const as = ['--user', 'ada@users.example'];
  for (const args of [
    ['identities', 'add', '--value', 'other.example', ...as],
    ['identities', 'verify', 'shop.example', ...as],
    ['doctor'],
  ]) {
    const { code, output } = await posthorn(args, other);
    assert.equal(code, 1, output);
    assert.match(
      output,
      /POSTHORN_SECRET_KEY does not contain the key of some stored secrets: \d+ encrypted under key \w+/,
    );
  }
});

test('add ends with the command to run next', async () => {
  const domain = await told('add', '--value', 'next.example');
  assert.match(
    domain,
    /\n\nPublish these records, then run: npm run -s posthorn -- identities verify next\.example --user ada@users\.example\n$/,
  );
  const address = await told('add', '--value', 'ada@next.example');
  assert.match(
    address,
    /^ada@next\.example is unverified\n\n.*identities verify ada@next\.example --user ada@/,
  );
  const alone = await told('add', '--value', 'ada@alone.example');
  assert.match(alone, /Add the domain: .*identities add --value alone\.example --user ada@users\.example\n$/);
});

test('without a mail host no record that names localhost is shown: the output says what to set', async () => {
  const { POSTHORN_MAIL_HOST: _, ...unnamed } = settings;
  const owner = ['--user', 'ada@users.example'];
  for (const args of [
    ['add', '--value', 'unnamed.example', '--incoming'],
    ['verify', 'unnamed.example'],
    ['dns', 'unnamed.example'],
  ]) {
    const { code, output } = await posthorn(['identities', ...args, ...owner], unnamed);
    assert.equal(code, args[0] === 'verify' ? 1 : 0, output);
    assert.doesNotMatch(output, /localhost/);
    assert.match(output, /^. mx .* unnamed\.example\n {4}value {4}not known yet$/m);
    assert.match(output, /^. spf .* unnamed\.example\n {4}value {4}not known yet$/m);
    assert.match(
      output,
      /^The name of this mail server is not set\. Set POSTHORN_MAIL_HOST \(for example mx\.example\.com\), start again, then publish the MX and SPF records\.$/m,
    );
  }
});
