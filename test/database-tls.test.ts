/** The TLS options of DATABASE_URL mean what libpq's do, against a PostgreSQL that speaks TLS. */
import assert from 'node:assert/strict';
import { chown, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, describe, type TestContext, test } from 'node:test';
import { connect, type Pool } from '../src/db/client.ts';
import { waitForDatabase } from '../src/db/wait.ts';
import { makeLog } from '../src/lib/log.ts';
import { OperatorError } from '../src/lib/operator-error.ts';
import { startNetwork } from './database-network.ts';
import { waitFor } from './harness.ts';
import { makeOwnPostgres } from './own-postgres.ts';

const log = makeLog({ level: 'silent', json: true });
const fixture = (name: string) => path.join(import.meta.dirname, 'fixtures/tls', name);
const { cluster, port, url, start, stop, remove } = await makeOwnPostgres();
after(remove);

/** PostgreSQL takes a key only from a file that is its own and nobody else's. */
async function giveToServer(name: string, content: string | Buffer): Promise<void> {
  const file = path.join(cluster.pgdata, name);
  await writeFile(file, content, { mode: 0o600 });
  if (cluster.user) await chown(file, cluster.user.uid, cluster.user.gid);
}

const access = `
hostssl certified all all scram-sha-256 clientcert=verify-ca
host all all all scram-sha-256
`;

/** Restarts the server with that certificate, or without TLS. */
async function serveWith(certificate: string | null): Promise<void> {
  await stop();
  await giveToServer('access.conf', access);
  const settings: Record<string, string> = { hba_file: 'access.conf' };
  if (certificate !== null) {
    await giveToServer('tls.pem', await readFile(fixture(`${certificate}.pem`)));
    await giveToServer('tls-key.pem', await readFile(fixture(`${certificate}-key.pem`)));
    await giveToServer('tls-ca.pem', await readFile(fixture('ca.pem')));
    const files = { ssl_cert_file: 'tls.pem', ssl_key_file: 'tls-key.pem', ssl_ca_file: 'tls-ca.pem' };
    Object.assign(settings, { ssl: 'on', ...files });
  } else {
    settings.hba_file = 'pg_hba.conf';
  }
  await start(settings);
}

function open(t: TestContext, options: string, host = 'localhost', database = 'postgres') {
  const address = `postgres://posthorn:${cluster.password}@${host}:${port}/${database}${options}`;
  const sql = connect(address, { max: 1, applicationName: 'posthorn tls test' });
  t.after(() => sql.end({ timeoutMs: 0 }));
  return sql;
}

/** What a start does first; it would wait for ever for a server that is away. */
function begin(sql: Pool): Promise<void> {
  return waitForDatabase(sql, log, AbortSignal.timeout(30_000));
}

async function isEncrypted(t: TestContext, ...where: [string, string?, string?]): Promise<boolean> {
  const [row] = await open(t, ...where)`select ssl from pg_stat_ssl where pid = pg_backend_pid()`;
  return row?.ssl;
}

const ca = `sslrootcert=${fixture('ca.pem')}`;
const otherCa = `sslrootcert=${fixture('other-ca.pem')}`;

describe('a server for localhost and 127.0.0.1', () => {
  before(() => serveWith('server'));

  test('channel_binding=require: works with TLS', async (t) => {
    assert.equal(await isEncrypted(t, '?sslmode=require&channel_binding=require'), true);
  });

  test('channel_binding=require: refused without TLS, before the password is proven', async (t) => {
    const sql = open(t, '?sslmode=disable&channel_binding=require');
    await assert.rejects(begin(sql), /channel_binding=require.*Use TLS/);
  });

  const works: [string, boolean][] = [
    ['', false],
    ['?sslmode=disable', false],
    [`?sslmode=disable&${otherCa}`, false],
    ['?sslmode=prefer', true],
    ['?sslmode=require', true],
    [`?sslmode=require&${ca}`, true],
    [`?sslmode=verify-ca&${ca}`, true],
    [`?sslmode=verify-full&${ca}`, true],
    [`?${ca}`, true],
  ];
  for (const [options, encrypted] of works) {
    const shown = options.replaceAll(/[^=]*\//g, '') || 'no option';
    test(`${shown} connects ${encrypted ? 'with' : 'without'} TLS, by name and by address`, async (t) => {
      assert.equal(await isEncrypted(t, options, 'localhost'), encrypted);
      assert.equal(await isEncrypted(t, options, '127.0.0.1'), encrypted);
    });
  }

  const fails: [string, RegExp][] = [
    [`?sslmode=verify-full&${otherCa}`, /certificate/],
    [`?sslmode=verify-ca&${otherCa}`, /certificate/],
    [`?sslmode=require&${otherCa}`, /certificate/],
    ['?sslmode=verify-full', /certificate/],
    ['?sslmode=verify-ca', /certificate/],
  ];
  for (const [options, reason] of fails) {
    test(`${options.replaceAll(/[^=]*\//g, '')} is refused, and a start ends with the reason`, async (t) => {
      await assert.rejects(begin(open(t, options)), (error) => {
        assert.ok(error instanceof OperatorError, String(error));
        assert.match(error.message, reason);
        assert.match(error.message, /Check DATABASE_URL/);
        return true;
      });
    });
  }

  test('a file that is not there is named', () => {
    assert.throws(
      () =>
        connect('postgres://u@localhost/d?sslmode=verify-full&sslrootcert=/no/such.pem', {
          max: 1,
          applicationName: 'x',
        }),
      (error) => error instanceof OperatorError && /cannot read the file \/no\/such\.pem/.test(error.message),
    );
  });

  test('a client certificate is shown where the server asks for one', async (t) => {
    await open(t, '')`create database certified`;
    const pair = `sslcert=${fixture('client.pem')}&sslkey=${fixture('client-key.pem')}`;
    const refused = isEncrypted(t, `?sslmode=verify-full&${ca}`, 'localhost', 'certified');
    await assert.rejects(refused, /certificate/);
    assert.equal(await isEncrypted(t, `?sslmode=verify-full&${ca}&${pair}`, 'localhost', 'certified'), true);
    assert.equal(await isEncrypted(t, `?sslmode=require&${pair}`, 'localhost', 'certified'), true);
  });
});

// Elsewhere Node asks the keychain of the system.
describe('the certificates of the system', { skip: process.platform !== 'linux' }, () => {
  // Node reads them once, at the first use.
  before(() => {
    process.env.SSL_CERT_FILE = fixture('ca.pem');
  });
  after(() => {
    delete process.env.SSL_CERT_FILE;
  });

  test('sslrootcert=system verifies chain and name', async (t) => {
    await serveWith('name-only');
    assert.equal(await isEncrypted(t, '?sslrootcert=system', 'localhost'), true);
    assert.equal(await isEncrypted(t, '?sslrootcert=system&sslmode=verify-full', 'localhost'), true);
    const wrongName = begin(open(t, '?sslrootcert=system', '127.0.0.1'));
    await assert.rejects(wrongName, /does not match certificate/);
  });
});

describe('names are checked by verify-full, and by nothing else', () => {
  const servers: [string, string, string][] = [
    ['name-only', 'localhost', '127.0.0.1'],
    ['address-only', '127.0.0.1', 'localhost'],
  ];
  for (const [certificate, right, wrong] of servers) {
    test(`a certificate for ${right} is not one for ${wrong}`, async (t) => {
      await serveWith(certificate);
      assert.equal(await isEncrypted(t, `?sslmode=verify-full&${ca}`, right), true);
      await assert.rejects(begin(open(t, `?sslmode=verify-full&${ca}`, wrong)), /does not match certificate/);
      assert.equal(await isEncrypted(t, `?sslmode=verify-ca&${ca}`, wrong), true);
      assert.equal(await isEncrypted(t, '?sslmode=require', wrong), true);
    });
  }
});

describe('a server without TLS', () => {
  before(() => serveWith(null));

  test('is used where TLS is not asked for', async (t) => {
    assert.equal(await isEncrypted(t, ''), false);
    assert.equal(await isEncrypted(t, '?sslmode=prefer'), false);
  });

  for (const options of ['?sslmode=require', `?sslmode=verify-full&${ca}`, `?${ca}`]) {
    test(`${options.replaceAll(/[^=]*\//g, '')} never falls back to plain text`, async (t) => {
      await assert.rejects(isEncrypted(t, options));
    });
  }
});

describe('sslmode=prefer', () => {
  test('is still encrypted after a connection was lost at its start', async (t) => {
    await serveWith('server');
    const network = await startNetwork(t, url);
    const sql = connect(`${network.url(1)}?sslmode=prefer`, { max: 1, applicationName: 'posthorn tls test' });
    t.after(() => sql.end({ timeoutMs: 0 }));
    // The beginning of a request for TLS.
    network.cutAt({ question: '\0\0\0\b\x04' });
    const [row] = await sql`select ssl from pg_stat_ssl where pid = pg_backend_pid()`;
    assert.equal(row?.ssl, true);
  });

  test('is encrypted once the server can encrypt, after a time without', async (t) => {
    await serveWith(null);
    const sql = open(t, '?sslmode=prefer');
    const readSession = async () => (await sql`select ssl from pg_stat_ssl where pid = pg_backend_pid()`)[0];
    assert.equal((await readSession())?.ssl, false);
    await serveWith('server');
    await waitFor('an encrypted session', async () => (await readSession().catch(() => null))?.ssl, 60_000);
  });
});
