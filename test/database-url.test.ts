/** DATABASE_URL means what it means to libpq, or the start ends with a sentence that says what to change. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import net, { type AddressInfo } from 'node:net';
import { describe, test } from 'node:test';
import { readDatabaseUrl } from '../src/db/address.ts';
import { connect, isUnavailable } from '../src/db/client.ts';
import { OperatorError } from '../src/lib/operator-error.ts';

describe('hosts and ports', () => {
  const cases: [url: string, hosts: string[]][] = [
    ['postgres://u@one/d', ['one 5432']],
    ['postgres://u@one:1/d', ['one 1']],
    ['postgres://u@one:1,two:2/d', ['one 1', 'two 2']],
    ['postgres://u@one,two:2/d', ['one 5432', 'two 2']],
    ['postgres://u@one,two/d?port=7', ['one 7', 'two 7']],
    ['postgres://u@one,two/d?port=1,2', ['one 1', 'two 2']],
    ['postgres://u@/d?host=one,two&port=1,2', ['one 1', 'two 2']],
    ['postgres://u@/d?host=one,two&port=,2', ['one 5432', 'two 2']],
    ['postgres://u@one:1/d?port=2', ['one 2']],
    ['postgres://u@[::1]:6/d', ['::1 6']],
    ['postgres://u@[::1],[fe80::1]:6/d', ['::1 5432', 'fe80::1 6']],
    ['postgres://u@/d?host=::1', ['::1 5432']],
    ['postgres:///d?host=/var/run/postgresql', ['/var/run/postgresql 5432']],
    ['postgres://u@%2Fvar%2Frun%2Fpostgresql:6/d', ['/var/run/postgresql 6']],
    ['postgres:///d', ['localhost 5432']],
  ];
  for (const [url, expected] of cases) {
    test(url, () => {
      const hosts = readDatabaseUrl(url).endpoints.map(({ host, port }) => `${host} ${port}`);
      assert.deepEqual(hosts, expected);
    });
  }
});

test('user, password and database can be parameters', () => {
  const { user, password, database, settings } = readDatabaseUrl(
    'postgres://one/?user=a&password=b%2Fc&dbname=d',
  );
  assert.deepEqual({ user, password, database }, { user: 'a', password: 'b/c', database: 'd' });
  assert.equal(settings.size, 0);
});

describe('parameters that only libpq reads', () => {
  const ignored = [
    'keepalives=1&keepalives_idle=30&keepalives_interval=10&keepalives_count=3&tcp_user_timeout=10000',
    'gssencmode=disable',
    'gssencmode=prefer&krbsrvname=postgres',
    'channel_binding=prefer',
    'channel_binding=require',
    'require_auth=scram-sha-256',
    'target_session_attrs=read-write',
    'load_balance_hosts=random',
    'client_encoding=auto',
    'client_encoding=UTF8',
    'sslcompression=0&sslsni=1&sslcertmode=allow&sslnegotiation=postgres',
    'ssl_min_protocol_version=TLSv1.2',
    'fallback_application_name=x',
  ];
  for (const query of ignored) {
    test(`${query} is not sent to PostgreSQL`, () => {
      const { settings } = readDatabaseUrl(`postgres://u@one/d?${query}&search_path=a`);
      assert.deepEqual([...settings], [['search_path', 'a']]);
    });
  }
});

describe('what Posthorn cannot do is refused', () => {
  const refused: [query: string, reason: RegExp][] = [
    ['gssencmode=require', /gssencmode.*Remove/],
    ['channel_binding=always', /channel_binding.*Remove/],
    ['require_auth=password', /require_auth.*Remove/],
    ['sslcrl=/a.crl', /sslcrl.*Remove/],
    ['ssl_min_protocol_version=TLSv1.3', /ssl_min_protocol_version.*Remove/],
    ['hostaddr=127.0.0.1', /hostaddr.*Remove/],
    ['service=mail', /service.*Remove/],
    ['client_encoding=LATIN1', /client_encoding.*Remove/],
    ['target_session_attrs=standby', /target_session_attrs=standby.*Remove/],
    ['port=1,2,3', /2 hosts and 3 ports/],
    ['port=70000', /"70000"/],
    ['port=abc', /"abc"/],
    ['connect_timeout=soon', /connect_timeout=soon/],
    ['connect_timeout=99999999', /connect_timeout=99999999/],
    ['sslmode=verify_full', /sslmode=verify_full.*verify-full/],
    ['sslmode=require&sslrootcert=system', /sslmode=verify-full/],
    ['sslmode=disable&sslrootcert=system', /sslmode=verify-full/],
    ['sslmode=require&sslrootcert=/no/such.pem', /cannot read the file \/no\/such\.pem/],
    [`sslmode=require&sslcert=${import.meta.filename}`, /cannot use the certificates/],
  ];
  for (const [query, reason] of refused) {
    test(query.replaceAll(import.meta.dirname, ''), () => {
      assert.throws(
        () => readDatabaseUrl(`postgres://u:secret@one,two/d?${query}`),
        (error) => error instanceof OperatorError && reason.test(error.message),
      );
    });
  }

  test('without a secret in the sentence', () => {
    assert.throws(
      () => readDatabaseUrl('postgres://u@one/d?sslpassword=hidden'),
      (error) => error instanceof OperatorError && !error.message.includes('hidden'),
    );
  });
});

describe('connect_timeout', () => {
  test('in seconds; without it, 0 and less: the default', () => {
    const read = (query: string) => readDatabaseUrl(`postgres://u@one/d${query}`).connectTimeoutMs;
    assert.deepEqual(['?connect_timeout=3', '?connect_timeout=0', '?connect_timeout=-1', ''].map(read), [
      3000,
      undefined,
      undefined,
      undefined,
    ]);
  });

  test('ends the wait for a silent server before the default does', { timeout: 60_000 }, async (t) => {
    const silent = net.createServer(() => {});
    await once(silent.listen(0, '127.0.0.1'), 'listening');
    t.after(() => silent.close());
    const { port } = silent.address() as AddressInfo;
    const ended: string[] = [];
    const ask = async (query: string) => {
      const sql = connect(`postgres://a:b@127.0.0.1:${port}/c${query}`, {
        max: 1,
        applicationName: 'silent',
      });
      t.after(() => sql.end({ timeoutMs: 0 }));
      await assert.rejects(sql`select 1`, (error) => isUnavailable(error));
      ended.push(query);
    };
    const byDefault = ask('');
    await ask('?connect_timeout=1');
    assert.deepEqual(ended, ['?connect_timeout=1']);
    await byDefault;
  });
});
