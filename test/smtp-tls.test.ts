import assert from 'node:assert/strict';
import { X509Certificate } from 'node:crypto';
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, describe, test } from 'node:test';
import type tls from 'node:tls';
import { readConfig } from '../src/config.ts';
import { makeLog } from '../src/lib/log.ts';
import { OperatorError } from '../src/lib/operator-error.ts';
import { Slots } from '../src/lib/slots.ts';
import { makeSelfSigned } from '../src/net/self-signed.ts';
import { Connection } from '../src/smtp/connection.ts';
import { makeRoom } from './data-reading.ts';
import { connectSmtp, faultsOf, SmtpClient, startTestMx, toWire } from './smtp-client.ts';

const fixtures = path.join(import.meta.dirname, 'fixtures/tls');
const message = toWire('Subject: x\r\n\r\nHello\r\n');

function makeFolder(): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'posthorn smtp tls '));
  after(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

const pairIn = (folder: string) => ({
  certFile: path.join(folder, 'cert.pem'),
  keyFile: path.join(folder, 'key.pem'),
});

function put(folder: string, name: string): void {
  mkdirSync(folder, { recursive: true });
  cpSync(path.join(fixtures, `${name}.pem`), path.join(folder, 'cert.pem'));
  cpSync(path.join(fixtures, `${name}-key.pem`), path.join(folder, 'key.pem'));
}

/** The name in the certificate that a new client gets. */
async function shownName(port: number, options: tls.ConnectionOptions = {}): Promise<string> {
  const client = await connectSmtp(port);
  const secured = await client.startTls(options);
  const { CN } = secured.getPeerCertificate().subject;
  assert.equal((await client.command('QUIT')).status, 221);
  return String(CN);
}

describe('STARTTLS', () => {
  test('with a generated certificate: TLS 1.3 or 1.2, for our host name, with a new key at each start', async () => {
    const prints = new Set<string>();
    for (const maxVersion of ['TLSv1.3', 'TLSv1.2'] as const) {
      const mx = await startTestMx();
      const client = await connectSmtp(mx.port);
      const secured = await client.startTls({ maxVersion });
      const certificate = secured.getPeerCertificate();
      assert.equal(certificate.subject.CN, 'mx.example');
      assert.equal(certificate.subjectaltname, 'DNS:mx.example');
      prints.add(certificate.fingerprint256);
      assert.equal((await client.command('NOOP')).status, 250);
      await client.envelope('a@there.example', 'b@here.example');
      assert.equal((await client.data(message)).status, 250);
      assert.equal(mx.mails[0]?.tls?.version, maxVersion);
      assert.match(mx.mails[0]?.tls?.cipher ?? '', /^TLS_\w+$/);
      assert.equal((await shownName(mx.port)).length, 10);
    }
    assert.equal(prints.size, 2);
  });

  test('TLS older than 1.2 is refused', async () => {
    const client = await connectSmtp((await startTestMx()).port);
    const tooOld = { maxVersion: 'TLSv1.1', minVersion: 'TLSv1', ciphers: 'DEFAULT@SECLEVEL=0' } as const;
    await assert.rejects(client.startTls(tooOld));
  });

  test('after the handshake the session starts again, and STARTTLS is not offered again', async () => {
    const client = await connectSmtp((await startTestMx()).port);
    assert.ok((await client.command('EHLO x')).lines.includes('STARTTLS'));
    await client.envelope('a@there.example', 'b@here.example');
    await client.startTls();
    assert.match((await client.command('DATA')).full, /^503 /);
    assert.match((await client.command('MAIL FROM:<a@there.example>')).full, /^503 5\.5\.1 /);
    assert.ok(!(await client.command('EHLO x')).lines.includes('STARTTLS'));
    assert.match((await client.command('STARTTLS')).full, /^503 5\.5\.1 /);
  });

  test('plain commands behind STARTTLS are never run (CVE-2011-0411)', async () => {
    for (const apart of [false, true]) {
      const mx = await startTestMx();
      const client = await connectSmtp(mx.port);
      await client.command('EHLO x');
      const injected = 'EHLO evil\r\nMAIL FROM:<evil@there.example>\r\nRCPT TO:<b@here.example>\r\n';
      if (apart) {
        await client.send('STARTTLS\r\n');
        await client.send(injected);
      } else {
        await client.send(`STARTTLS\r\n${injected}`);
      }
      assert.equal((await client.reply()).status, 220);
      try {
        await client.secure();
        assert.equal((await client.command('NOOP')).status, 250);
        assert.equal(client.unread, '');
        assert.match((await client.command('RCPT TO:<b@here.example>')).full, /^503 /);
      } catch {
        // Sent separately, the bytes may arrive as part of the handshake and break it.
        assert.ok(apart);
      }
      assert.deepEqual(mx.counts.recipients, []);
    }
  });

  test('garbage in the handshake or inside TLS ends the connection', async () => {
    const mx = await startTestMx();
    const client = await connectSmtp(mx.port);
    await client.command('STARTTLS');
    await client.send('this is no handshake\r\n'.repeat(10));
    await client.ended();

    const second = await connectSmtp(mx.port);
    const plain = second.socket;
    await second.startTls();
    plain.write('this is no record\r\n');
    await second.ended();
    await mx.stop();
    assert.equal(mx.counts.open, 0);
    assert.deepEqual(faultsOf(mx), []);
  });

  test('a handshake that stalls is disconnected', async () => {
    const mx = await startTestMx({ limits: { commandTimeoutMs: 1000 } });
    const client = await connectSmtp(mx.port);
    assert.equal((await client.command('STARTTLS')).status, 220);
    await client.ended();
  });

  test('a client that leaves before the handshake leaves no connection open', async () => {
    const mx = await startTestMx();
    const client = await connectSmtp(mx.port);
    await client.command('STARTTLS');
    client.socket.end();
    await client.ended();
    await mx.stop();
    assert.equal(mx.counts.open, 0);
  });

  test('if the certificate cannot be loaded: 454, and the session continues', async () => {
    const log = makeLog({ level: 'silent', json: true });
    const parts = {
      mailHost: 'mx.example',
      limits: readConfig({}).smtpLimits,
      certificate: { context: () => Promise.reject(new Error('none')) },
      room: makeRoom(),
      loading: new Slots({ inAll: 1, perOwner: 1 }),
      ownerOf: () => '',
      route: () => Promise.reject(new Error('not asked')),
      accept: () => Promise.reject(new Error('not asked')),
      log,
    };
    const server = net.createServer(
      (socket) => new Connection(socket, '127.0.0.1', parts, () => server.close()),
    );
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const client = new SmtpClient(net.connect((server.address() as net.AddressInfo).port, '127.0.0.1'));
    await client.reply();
    assert.match((await client.command('STARTTLS')).full, /^454 4\.7\.0 /);
    assert.equal((await client.command('QUIT')).status, 221);
    await client.ended();
  });
});

describe("the operator's certificate", () => {
  test('is presented with its chain', async () => {
    const folder = makeFolder();
    put(folder, 'receiver-good');
    const mx = await startTestMx({ tls: pairIn(folder) });
    const ca = readFileSync(path.join(fixtures, 'receiver-ca.pem'));
    const strict = { rejectUnauthorized: true, ca, servername: 'hooks.example' };
    assert.equal(await shownName(mx.port, strict), 'hooks.example');
  });

  const ways: [string, (folder: string) => void, (folder: string) => void][] = [
    ['written over', (folder) => put(folder, 'server'), (folder) => put(folder, 'receiver-other-name')],
    [
      'moved into place, key first',
      (folder) => put(folder, 'server'),
      (folder) => {
        put(path.join(folder, 'new'), 'receiver-other-name');
        renameSync(path.join(folder, 'new/key.pem'), path.join(folder, 'key.pem'));
        renameSync(path.join(folder, 'new/cert.pem'), path.join(folder, 'cert.pem'));
      },
    ],
    [
      'linked anew, as certbot does',
      (folder) => {
        put(path.join(folder, 'archive1'), 'server');
        for (const name of ['cert.pem', 'key.pem'])
          symlinkSync(path.join('archive1', name), path.join(folder, name));
      },
      (folder) => {
        put(path.join(folder, 'archive2'), 'receiver-other-name');
        for (const name of ['cert.pem', 'key.pem']) {
          symlinkSync(path.join('archive2', name), path.join(folder, 'new'));
          renameSync(path.join(folder, 'new'), path.join(folder, name));
        }
      },
    ],
    [
      'in a folder that is linked anew, as Kubernetes does',
      (folder) => {
        put(path.join(folder, '..1'), 'server');
        symlinkSync('..1', path.join(folder, '..data'));
        for (const name of ['cert.pem', 'key.pem'])
          symlinkSync(path.join('..data', name), path.join(folder, name));
      },
      (folder) => {
        put(path.join(folder, '..2'), 'receiver-other-name');
        symlinkSync('..2', path.join(folder, '..new'));
        renameSync(path.join(folder, '..new'), path.join(folder, '..data'));
        rmSync(path.join(folder, '..1'), { recursive: true });
      },
    ],
  ];
  for (const [way, before, change] of ways) {
    test(`is read again when it is ${way}`, async () => {
      const folder = makeFolder();
      before(folder);
      const mx = await startTestMx({ tls: pairIn(folder), certificateRecheckMs: 0 });
      assert.equal(await shownName(mx.port), 'localhost');
      change(folder);
      assert.equal(await shownName(mx.port), 'other.example');
      assert.ok(mx.logged.some(({ msg }) => msg.includes('new certificate') && msg.includes('in use')));
      assert.deepEqual(faultsOf(mx), []);
    });
  }

  test('a broken new file leaves the old certificate in use and is logged once; a good file replaces it', async () => {
    const folder = makeFolder();
    put(folder, 'server');
    const { certFile, keyFile } = pairIn(folder);
    const mx = await startTestMx({ tls: { certFile, keyFile }, certificateRecheckMs: 0 });
    const breakIt = [
      () => writeFileSync(certFile, 'no certificate'),
      () => cpSync(path.join(fixtures, 'receiver-other-name.pem'), certFile), // The key is another's.
      () => rmSync(certFile),
      () => writeFileSync(certFile, ''),
    ];
    for (const [index, breaks] of breakIt.entries()) {
      breaks();
      for (let n = 0; n < 3; n += 1) assert.equal(await shownName(mx.port), 'localhost');
      assert.equal(faultsOf(mx).length, index + 1);
    }
    assert.doesNotMatch(JSON.stringify(mx.logged), /PRIVATE KEY/);
    put(folder, 'receiver-other-name');
    assert.equal(await shownName(mx.port), 'other.example');
  });

  test('is checked at most once in `certificateRecheckMs`', async () => {
    const folder = makeFolder();
    put(folder, 'server');
    const mx = await startTestMx({ tls: pairIn(folder), certificateRecheckMs: 3_600_000 });
    put(folder, 'receiver-other-name');
    assert.equal(await shownName(mx.port), 'localhost');
  });

  test('an expired certificate is used, with a warning', async () => {
    const folder = makeFolder();
    put(folder, 'receiver-expired');
    const mx = await startTestMx({ tls: pairIn(folder) });
    assert.equal(await shownName(mx.port), 'hooks.example');
    assert.ok(mx.logged.some(({ level, msg }) => level === 'warn' && msg.includes('expired')));
  });

  test('an unusable certificate stops the start, and the error names the file', async () => {
    const folder = makeFolder();
    put(folder, 'server');
    const { certFile, keyFile } = pairIn(folder);
    const missing = path.join(folder, 'missing.pem');
    for (const tls of [
      { certFile: missing, keyFile },
      { certFile, keyFile: missing },
      { certFile: keyFile, keyFile: certFile },
    ]) {
      await assert.rejects(startTestMx({ tls }), (error: Error) => {
        assert.ok(error instanceof OperatorError);
        assert.ok(error.message.includes(tls.certFile) && error.message.includes(tls.keyFile));
        return true;
      });
    }
  });
});

describe('a self-signed certificate', () => {
  test('is self-signed, for the host, valid from yesterday for ten years', () => {
    const now = new Date('2026-03-01T12:00:00Z');
    for (const host of ['mx.example', `${'long.'.repeat(40)}example`]) {
      const { cert, key } = makeSelfSigned(host, now);
      const certificate = new X509Certificate(cert);
      assert.ok(certificate.verify(certificate.publicKey));
      assert.equal(certificate.checkHost(host), host);
      assert.equal(certificate.publicKey.asymmetricKeyDetails?.namedCurve, 'prime256v1');
      assert.equal(certificate.validFrom, 'Feb 28 12:00:00 2026 GMT');
      assert.equal(certificate.validTo, 'Feb 27 12:00:00 2036 GMT');
      assert.match(key, /^-----BEGIN PRIVATE KEY-----\n/);
    }
    const late = new X509Certificate(makeSelfSigned('mx.example', new Date('2045-03-01T12:00:00Z')).cert);
    assert.equal(late.validTo, 'Feb 27 12:00:00 2055 GMT');
    const foreign = new X509Certificate(makeSelfSigned('mx.bücher.example', now).cert);
    assert.equal(foreign.subjectAltName, 'DNS:mx.xn--bcher-kva.example');
  });
});
