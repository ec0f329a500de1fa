/** PostgreSQL becomes unavailable while Postfix sends mail to the service. This file starts and stops its own PostgreSQL. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { waitFor } from '../harness.ts';
import { freePort, makeCluster, serveCluster } from '../own-postgres.ts';
import { startMailroom } from './mailroom.ts';
import { startPostfix } from './postfix.ts';
import { makePeerFolder } from './programs.ts';

const folder = makePeerFolder('outage');
const { url, start, stop } = serveCluster(await makeCluster(folder.path), await freePort());
after(async () => {
  await stop();
  folder.remove();
});

test('a 451 makes Postfix keep the mail, and all of it comes once when the database is back', async () => {
  await start();
  const room = await startMailroom({ DATABASE_URL: url });
  const postfix = await startPostfix(room.service.smtpPort);
  await room.addIdentity('sales@shop.example');
  await stop();

  const message = 'From: ada@client.example\nSubject: kept\n\nx\n';
  const count = 5;
  for (let n = 0; n < count; n += 1) {
    await postfix.send({ from: 'ada@client.example', to: ['sales@shop.example'], message });
  }
  await postfix.logged(/dsn=4\.3\.0, status=deferred .*said: 451 4\.3\.0/);
  await waitFor('all to be put off', async () => {
    const queued = await postfix.queue();
    return queued.length === count && queued.every(({ queue_name }) => queue_name === 'deferred');
  });

  await start();
  await waitFor(
    'the service to recover',
    async () => (await room.service.call('GET', '/health/ready')).status === 200,
  );
  await postfix.flush();
  assert.equal((await room.announced('kept', count)).length, count);
  await waitFor('an empty queue', async () => (await postfix.queue()).length === 0);
  assert.equal(await room.countStored('kept'), count);
});
