/** A mail for many identities is in memory once, not once for each: the JSON of each is made when it is recorded. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { callUrl, makeDatabase } from './harness.ts';
import { readyUrl, run } from './programs.ts';

const recipients = Array.from({ length: 60 }, (_, n) => `a${n}@many.example`);

/** JSON writes six characters for each of these: 1 MiB of texts becomes 6 MiB. */
const text = `${'\x01'.repeat(900)}\r\n`.repeat(580);
const mail = [
  'Subject: x\r\nContent-Type: multipart/alternative; boundary=b\r\n',
  `--b\r\nContent-Type: text/plain\r\n\r\n${text}`,
  `--b\r\nContent-Type: text/html\r\n\r\n${text}`,
  '--b--\r\n',
].join('\r\n');

test('a process with little memory takes a mail for 60 identities whose JSON is six times as long', {
  timeout: 240_000,
}, async () => {
  const database = await makeDatabase();
  const settings = { DATABASE_URL: database.url, POSTHORN_SECRET_KEY: Buffer.alloc(32).toString('base64') };
  const program = run(process.execPath, ['--max-old-space-size=192', 'src/cli/posthorn.ts', 'serve'], {
    ...settings,
    ...{ PORT: '0', POSTHORN_SMTP_PORT: '0', POSTHORN_DNS_SERVERS: '127.0.0.1:9', POSTHORN_ROLES: 'api' },
  });
  after(async () => {
    program.child.kill('SIGTERM');
    await program.ended;
    await database.drop();
  });
  const url = await readyUrl(program);
  const [apiKey] = await program.line(/ph_\w{38}/);
  const authorization = `Bearer ${apiKey}`;
  for (const value of recipients) {
    const made = await callUrl('POST', `${url}/identities`, { body: { value }, headers: { authorization } });
    assert.equal(made.status, 201, made.text);
  }
  const query = recipients.map((value) => `recipient=${value}`).join('&');
  const headers = { authorization, 'content-type': 'message/rfc822' };
  const taken = await callUrl('POST', `${url}/inbound?${query}`, { body: mail, headers });
  assert.equal(taken.status, 202, taken.text);
  assert.equal(taken.body.messageIds.length, recipients.length);
});
