/** Dovecot holds the mailbox: new mail, older mail, a folder that is numbered anew, restarts and cut connections. */
import assert from 'node:assert/strict';
import net, { type AddressInfo } from 'node:net';
import { after, test } from 'node:test';
import { startDns } from '../dns.ts';
import { mailWith, startMailboxService } from '../mailbox-service.ts';
import { startReceiver } from '../receiver.ts';
import { startDovecot } from './dovecot.ts';

const dns = await startDns();
after(() => dns.close());
const service = await startMailboxService({ POSTHORN_DNS_SERVERS: dns.address });
const receiver = await startReceiver();
after(() => receiver.close());
const dovecot = await startDovecot({ live: '', older: '', rebuilt: '', restarted: '', cut: '' });

async function countMessages(id: string): Promise<number> {
  const [row] = await service.sql`select count(*)::int as count from messages where identity_id = ${id}`;
  return row?.count;
}

async function connect(username: string, port = dovecot.port) {
  return service.connect({ port, password: dovecot.password, username }, `${username}@home.example`);
}

test('new mail reaches the webhook by IDLE, with the bytes of the mailbox', async () => {
  const { id } = await connect('live');
  await service.makeWebhook(receiver.url('/live'), { identityId: id });
  const boxes = await service.mailboxes(id);
  assert.equal(boxes.sent?.path, 'Gesendet');
  assert.equal(boxes.spam?.path, 'Junk');
  const raw = mailWith('Hello from Dovecot');
  dovecot.deliver('live', raw);
  const [request] = await receiver.received(1, ({ url }) => url === '/live');
  assert.equal(JSON.parse(request?.body.toString() ?? '').data.rawEmail, raw);
});

test('thousands of older messages are imported once, and new mail does not wait for them', async () => {
  const count = 10_000;
  const day = new Date('2024-02-02T00:00:00Z');
  for (let n = 0; n < count; n += 1) dovecot.deliver('older', mailWith(`old ${n}`), day);
  const { id } = await connect('older');
  await service.makeWebhook(receiver.url('/older'), { identityId: id });
  await service.mailboxes(id);
  assert.equal(await countMessages(id), 0);
  await service.call('POST', `/identities/${id}/sync`, { body: { since: '2024-01-01T00:00:00Z' } });
  await service.mailboxes(id, ({ inbox }) => (inbox?.sync?.backlog ?? 0) > 0);
  dovecot.deliver('older', mailWith('new'));
  await receiver.received(1, ({ url }) => url === '/older');
  assert.ok((await countMessages(id)) <= count, 'the new message came before the last older one');
  await service.mailboxes(id, ({ inbox }) => inbox?.sync?.state === 'idle');
  assert.equal(await countMessages(id), count + 1);
  assert.equal(receiver.requests.filter(({ url }) => url === '/older').length, 1);
});

test('a mailbox that lost its index has no message twice, and loses none', async () => {
  const { id } = await connect('rebuilt');
  await service.mailboxes(id);
  dovecot.deliver('rebuilt', mailWith('one'));
  await service.messages(id, 1);
  await dovecot.stop();
  dovecot.deliver('rebuilt', mailWith('two'));
  dovecot.rebuild('rebuilt');
  await dovecot.start();
  await service.messages(id, 2);
  await service.mailboxes(id);
  assert.equal(await countMessages(id), 2);
});

test('mail that came while the server was stopped is read after its start', async () => {
  const { id } = await connect('restarted');
  await service.mailboxes(id);
  await dovecot.stop();
  await service.mailboxes(id, ({ inbox }) => inbox?.sync?.state === 'failing');
  dovecot.deliver('restarted', mailWith('meanwhile'));
  await dovecot.start();
  await service.messages(id, 1);
  await service.mailboxes(id);
});

test('a connection that is cut in the middle of a message loses nothing', async () => {
  let cuts = 0;
  const proxy = net.createServer((client) => {
    const server = net.connect(dovecot.port, '127.0.0.1');
    for (const socket of [client, server]) socket.on('error', () => {});
    client.pipe(server);
    client.on('close', () => server.destroy());
    server.on('close', () => client.destroy());
    let left = 300_000;
    server.on('data', (bytes) => {
      left -= bytes.length;
      if (left > 0 || cuts > 0) return client.write(bytes);
      cuts += 1;
      client.write(bytes.subarray(0, 10));
      client.destroySoon();
    });
  });
  await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve));
  after(() => proxy.close());
  const { id } = await connect('cut', (proxy.address() as AddressInfo).port);
  await service.mailboxes(id);
  const raw = `${mailWith('large')}${'0123456789abcdef'.repeat(4).concat('\r\n').repeat(10_000)}`;
  dovecot.deliver('cut', raw);
  const [message] = await service.messages(id, 1);
  assert.equal(cuts, 1);
  const stored = await service.call('GET', `/messages/${message.id}/raw`);
  assert.equal(stored.text, raw);
  assert.equal(await countMessages(id), 1);
});
