/**
 * The drill of docs/operations.md: a backup beside a service that takes mail all the while, put back into a new folder. What
 * was acknowledged before the backup is there, whole; what waited to be delivered is; the service goes on from there.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { after, test } from 'node:test';
import { Webhook } from 'standardwebhooks';
import { connect, type Pool } from '../src/db/client.ts';
import { makeRandom } from './faults/fault.ts';
import { Ledger, type Letter } from './faults/ledger.ts';
import { embeddedUrl } from './faults/server.ts';
import { callUrl, waitFor } from './harness.ts';
import { copyCluster } from './own-postgres.ts';
import { makeFolder, type Program, postgresPid, posthorn, readyUrl, run } from './programs.ts';
import { startReceiver } from './receiver.ts';
import { connectSmtp, toWire } from './smtp-client.ts';

const address = 'ada@backup.example';
const folder = makeFolder();
const place = (name: string) => path.join(folder.path, name);
copyCluster(place('data'));
const receiver = await startReceiver();
const ledger = new Ledger(makeRandom(1), [address]);
receiver.behave((request, response) => {
  ledger.note(request);
  response.writeHead(204).end();
});
const programs: Program[] = [];
after(async () => {
  for (const { child } of programs) child.kill('SIGTERM');
  await Promise.all(programs.map(({ ended }) => ended));
  await receiver.close();
  folder.remove();
});

interface Running {
  program: Program;
  url: string;
  smtpPort: number;
}

async function serve(dataDir: string, more: Record<string, string> = {}): Promise<Running> {
  const program = run(process.execPath, ['src/cli/posthorn.ts', 'serve'], {
    POSTHORN_DATA_DIR: dataDir,
    PORT: '0',
    POSTHORN_SMTP_PORT: '0',
    // Nobody answers there, at once: no message waits for DNS.
    POSTHORN_DNS_SERVERS: '127.0.0.1:9',
    ...more,
  });
  programs.push(program);
  const url = await readyUrl(program);
  const [, port] = await program.line(/accepts mail on port (\d+)/);
  return { program, url, smtpPort: Number(port) };
}

async function look<T>(dataDir: string, work: (sql: Pool) => Promise<T>): Promise<T> {
  const sql = connect(embeddedUrl(dataDir), { max: 1, applicationName: 'posthorn backup test' });
  try {
    return await work(sql);
  } finally {
    await sql.end({ timeoutMs: 1000 });
  }
}

async function send(smtpPort: number, letter: Letter): Promise<void> {
  const client = await connectSmtp(smtpPort);
  await client.envelope('load@sender.example', ...letter.to);
  const { status, full } = await client.data(toWire(letter.compose()));
  assert.equal(status, 250, full);
  client.close();
}

/** Sends letters one after the other until told to stop; tells how many have been acknowledged. */
function startLoad(smtpPort: number) {
  const acknowledged: Letter[] = [];
  let goesOn = true;
  const sendInTurn = async () => {
    while (goesOn) {
      const letter = ledger.write();
      await send(smtpPort, letter);
      acknowledged.push(letter);
    }
  };
  const ended = sendInTurn();
  return {
    acknowledged,
    async stop() {
      goesOn = false;
      await ended;
    },
  };
}

/** While the files are being copied: what would make PostgreSQL forget the WAL that the backup still needs. */
async function wearOutWal(dataDir: string): Promise<void> {
  const isCopying = (name: string) =>
    name.startsWith('backup.unfinished') && existsSync(place(`${name}/postgres`));
  await waitFor('the copying to begin', () => readdirSync(folder.path).some(isCopying));
  await look(dataDir, async (sql) => {
    for (let round = 0; round < 3; round += 1) {
      await sql`select pg_switch_wal()`;
      await sql`checkpoint`;
    }
  });
}

test('a backup under load, restored: all that was acknowledged before it, and the service goes on', async (t) => {
  // Without `deliver`, so that everything still waits when the backup is made.
  const first = await serve(place('data'), { POSTHORN_ROLES: 'api,smtp' });
  const [apiKey = ''] = /ph_[0-9A-Za-z]{38}/.exec(first.program.output()) ?? [];
  const as = { apiKey, userId: '', email: '' };
  const make = async (at: string, body: unknown) => {
    const answer = await callUrl('POST', `${first.url}${at}`, { as, body });
    assert.equal(answer.status, 201, answer.text);
    return answer.body;
  };
  await make('/identities', { value: address });
  const { userId: ownerId } = (await callUrl('GET', `${first.url}/me`, { as })).body;
  const { secret } = await make('/webhooks', {
    url: receiver.url('/hook'),
    events: ['message.received'],
    ownerId,
  });

  const load = startLoad(first.smtpPort);
  await waitFor('some mail', () => load.acknowledged.length >= 50);
  const before = [...load.acknowledged];
  for (const letter of before) letter.acknowledgedIn = 1;
  const backingUp = posthorn(['backup', place('backup'), '--json'], { POSTHORN_DATA_DIR: place('data') });
  await wearOutWal(place('data'));
  const { code, output } = await backingUp;
  assert.equal(code, 0, output);
  const [told, meanwhile] = [JSON.parse(output), load.acknowledged.length - before.length];
  assert.equal(told.hasKey, true);
  await waitFor('mail after the backup', () => load.acknowledged.length >= before.length + meanwhile + 20);
  await load.stop();

  execFileSync('cp', ['-a', place('backup'), place('restored')]);
  const second = await serve(place('restored'));
  const { stored, ...differences } = await look(place('restored'), (sql) => ledger.compare(sql));
  assert.deepEqual(differences, { lost: [], conjured: [], broken: [] });
  assert.ok(stored.size > before.length, 'mail that came while the files were copied is there as well');
  assert.ok(stored.size < ledger.letters.length, 'what came afterwards is not');

  const posted = ({ sha256 }: Letter) => ledger.posts.has(`/hook ${address} ${sha256}`);
  await waitFor('everything that is there to be announced', () => [...stored].every(posted));
  const [request] = receiver.requests;
  assert.ok(request);
  new Webhook(secret).verify(request.body.toString(), request.headers as Record<string, string>);
  assert.deepEqual((await callUrl('GET', `${second.url}/me`, { as })).body, { userId: ownerId });
  const letter = ledger.write();
  await send(second.smtpPort, letter);
  await waitFor('new mail to be announced', () => posted(letter));
  assert.deepEqual([...ledger.garbled, ...ledger.listConjuredPosts()], []);
  t.diagnostic(
    `${told.files} files; ${before.length} before, ${meanwhile} meanwhile, ${stored.size} are there`,
  );
});

test('what cannot be backed up is refused, and nothing is made', async () => {
  const backUp = (to: string, settings: Record<string, string>) => posthorn(['backup', to], settings);
  const here = { POSTHORN_DATA_DIR: place('data') };
  const key = Buffer.alloc(32).toString('base64');
  mkdirSync(place('full'));
  writeFileSync(place('full/mine'), '');

  const yours = { ...here, DATABASE_URL: 'postgres://127.0.0.1:1/x', POSTHORN_SECRET_KEY: key };
  const refusals = await Promise.all([
    backUp(place('full'), here),
    backUp(place('data/postgres/copy'), here),
    backUp(place('data/copy'), here),
    backUp(place('copies/of/mine'), here),
    backUp(place('copy'), { POSTHORN_DATA_DIR: place('dta') }),
    backUp(place('copy'), yours),
    backUp(place('copy'.padEnd(250, 'y')), here),
  ]);
  const reasons = [
    /is not empty/,
    /outside/,
    /outside/,
    /The folder .*copies\/of does not exist\. Create the folder/,
    /dta.* contains no database/,
    /pg_dump or pg_basebackup/,
    /^The backup to .* failed: ENAMETOOLONG.*\nFree some space or choose another folder/m,
  ];
  for (const [index, { code, output }] of refusals.entries()) {
    assert.equal(code, 1);
    assert.match(output, reasons[index] ?? /never/);
  }
  assert.deepEqual(
    readdirSync(folder.path).filter((name) => /copy|dta/.test(name)),
    [],
  );
});

test("with the operator's own key, the backup has none and says so; alone it starts and stops the database", async () => {
  const [server] = programs;
  server?.child.kill('SIGTERM');
  await server?.ended;
  const key = Buffer.alloc(32).toString('base64');
  const settings = { POSTHORN_DATA_DIR: place('data'), POSTHORN_SECRET_KEY: key };
  const { code, output } = await posthorn(['backup', place('keyless')], settings);
  assert.equal(code, 0, output);
  assert.match(output, /Store POSTHORN_SECRET_KEY elsewhere/);
  assert.equal(existsSync(place('keyless/secret.key')), false);
  assert.equal(postgresPid(place('data')), undefined);
});
