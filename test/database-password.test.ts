/** A false server asks for the password in a form that it could use: it gets nothing, and the operator reads what to do. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import net, { type AddressInfo } from 'node:net';
import { type TestContext, test } from 'node:test';
import { connect, isUnavailable, openDedicated } from '../src/db/client.ts';
import { waitForDatabase } from '../src/db/wait.ts';
import { OperatorError } from '../src/lib/operator-error.ts';
import { makeTestLog } from './harness.ts';

const options = { applicationName: 'password test', max: 2 };
const password = 'a-password-of-the-superuser';

/** Answers each startup message with an authentication request, and keeps everything that it receives. */
async function startFalseServer(t: TestContext, request: Buffer) {
  const received: Buffer[] = [];
  const closed: Promise<unknown>[] = [];
  const server = net.createServer((socket) => {
    closed.push(once(socket, 'close'));
    socket.on('error', () => {});
    socket.once('data', () => socket.write(request));
    socket.on('data', (bytes) => received.push(bytes));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  const { port } = server.address() as AddressInfo;
  return { url: `postgres://posthorn:${password}@127.0.0.1:${port}/posthorn`, received, closed };
}

/** Message `R` with the kind of request (PostgreSQL's protocol, "Message Formats"). */
function authenticationRequest(kind: number, more = Buffer.alloc(0)): Buffer {
  const message = Buffer.alloc(9);
  message.write('R');
  message.writeInt32BE(8 + more.length, 1);
  message.writeInt32BE(kind, 5);
  return Buffer.concat([message, more]);
}

const requests = {
  'in clear text': authenticationRequest(3),
  'as an MD5 hash': authenticationRequest(5, Buffer.from('salt')),
};

for (const [form, request] of Object.entries(requests)) {
  const refused = (error: unknown) => {
    assert.ok(error instanceof OperatorError);
    assert.match(error.message, new RegExp(`asked for the password ${form}`));
    assert.match(error.message, /password_encryption = 'scram-sha-256'.*set the password again/s);
    assert.ok(isUnavailable(error), 'a running service answers 503 and tries again');
    return true;
  };

  test(`a request for the password ${form} is not answered`, async (t) => {
    const { url, received, closed } = await startFalseServer(t, request);
    const sql = connect(url, options);
    t.after(() => sql.end({ timeoutMs: 0 }));
    await assert.rejects(sql`select 1`, refused);
    await assert.rejects(openDedicated(url, options), refused);
    await assert.rejects(waitForDatabase(sql, makeTestLog().log), refused);
    await Promise.all(closed);
    const startupOnly = received.every((bytes) => bytes.readInt32BE(4) === 196_608 || bytes[0] === 0x58);
    assert.ok(startupOnly, 'nothing but startup messages and goodbyes');
    assert.equal(Buffer.concat(received).includes(password), false);
  });
}
