/** The form of the log: JSON lines for programs, short lines for people, and no mail addresses where the operator wants none. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import { gatherLines, makeLog } from '../src/lib/log.ts';
import { makeDatabase } from './harness.ts';
import { run } from './programs.ts';

function collect(options: { json: boolean; addresses?: boolean }) {
  const lines: string[] = [];
  const base = { service: 'posthorn', role: 'api', pid: 7 };
  const stream = { write: (line: string) => lines.push(line) };
  return { lines, log: makeLog({ level: 'info', base, stream, ...options }) };
}

test('a JSON line has the level as a word, the time, and which process wrote it', () => {
  const { lines, log } = collect({ json: true });
  log.warn({ address: 'a@b.example' }, 'text');
  const { time, ...rest } = JSON.parse(lines[0] ?? '');
  assert.deepEqual(rest, {
    ...{ level: 'warn', service: 'posthorn', role: 'api', pid: 7, address: 'a@b.example', msg: 'text' },
  });
  assert.ok(Math.abs(Date.parse(time) - Date.now()) < 60_000 && /\.\d{3}Z$/.test(time), time);
});

test('without addresses, the fields that have them are left out', () => {
  const { lines, log } = collect({ json: true, addresses: false });
  log.info({ mailFrom: 'a@b.example', recipients: ['c@d.example'], remoteIp: '192.0.2.1' }, 'accepted');
  const err = Object.assign(new Error('duplicate key'), { detail: 'Key (value)=(a@b.example)' });
  log.error({ address: 'a@b.example', err }, 'failed');
  log.warn({ reply: '<a@b.example>: no such user' }, 'mail bounced');
  assert.doesNotMatch(lines.join(''), /@/);
  assert.match(lines.join(''), /192\.0\.2\.1/);
});

test('a readable line leaves out the process, and a value cannot look like another field or line', () => {
  const { lines, log } = collect({ json: false });
  log.info({ mailFrom: 'a@b.example', helo: 'x level=error\nfake' }, 'accepted');
  log.error('failed');
  assert.match(
    lines[0] ?? '',
    /^\d\d:\d\d:\d\d accepted mailFrom=a@b\.example helo="x level=error\\nfake"\n$/,
  );
  assert.match(lines[1] ?? '', /^\d\d:\d\d:\d\d ERROR failed\n$/);
});

test('the lines of one turn are written together, and none is lost at the end', async () => {
  const written: string[] = [];
  const stream = gatherLines({ write: (text: string) => written.push(text) });
  for (const line of ['a\n', 'b\n']) stream.write(line);
  assert.deepEqual(written, []);
  await new Promise((resolve) => setImmediate(resolve));
  stream.write('c\n');
  stream.flush();
  assert.deepEqual(written, ['a\nb\n', 'c\n']);
});

test('the service writes JSON into a pipe, and readable lines when that is set', async () => {
  const database = await makeDatabase();
  after(() => database.drop());
  const settings = {
    ...{ DATABASE_URL: database.url, POSTHORN_SECRET_KEY: randomBytes(32).toString('base64') },
    ...{ PORT: '0', POSTHORN_SMTP_PORT: '0', POSTHORN_ROLES: 'api,verify' },
  };
  const serve = async (more: Record<string, string>) => {
    const program = run(process.execPath, ['src/cli/posthorn.ts', 'serve'], { ...settings, ...more });
    await program.line(/is ready/);
    program.child.kill('SIGTERM');
    assert.equal(await program.ended, 0, program.output());
    return { pid: program.pid, lines: program.output().trim().split('\n') };
  };
  const piped = await serve({});
  const json = piped.lines.filter((line) => line.startsWith('{')).map((line) => JSON.parse(line));
  assert.ok(json.length >= 3, piped.lines.join('\n'));
  for (const { level, service, role, pid } of json)
    assert.deepEqual([level, service, role, pid], ['info', 'posthorn', 'api,verify', piped.pid]);
  const readable = await serve({ POSTHORN_LOG_FORMAT: 'pretty' });
  assert.match(readable.lines.at(-1) ?? '', /^\d\d:\d\d:\d\d stopped$/);
});
