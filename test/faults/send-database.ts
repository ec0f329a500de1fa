/**
 * PostgreSQL stopped or killed in the middle of conversations with the relay; and the connection of one of two processes to the database
 * lost for longer than its leases last. That process ends no message whose lease is not safe, because the other process may be
 * sending it, and records no outcome of a lost lease. Every recipient is sent to, and every outcome has one event.
 */
import { once } from 'node:events';
import net, { type AddressInfo, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { waitFor } from '../harness.ts';
import { type Fault, type FaultRun, type Outcome, pick } from './fault.ts';
import { preparePostgres } from './postgres.ts';
import { type Relay, startRelay } from './relay.ts';
import type { Hold } from './relay-manner.ts';
import { prepareSendTrial, type SendTrial, sendSettings } from './send-trial.ts';
import { prepareServer, type Server } from './server.ts';

const clients = 4;
const answerMs = 60;
/** Fewer than the relay gets connections. Half of them are odd, half are even. */
const heldLetters = 6;

const cutOff = 'cut-off.faults.example';
const connected = 'connected.faults.example';

export const sendDatabase: Fault = {
  about: 'PostgreSQL away in the middle of conversations with the relay, for all or for one of two processes',
  rounds: { usual: 3, short: 1 },
  boundMs: (rounds, short) => 200_000 + rounds * (short ? 150_000 : 200_000),
  run,
};

async function run(lent: FaultRun): Promise<Outcome> {
  const relay = await startRelay(lent);
  const postgres = await preparePostgres(lent);
  await postgres.start();
  const network = await startNetwork(lent, postgres.url);
  const api = await prepareServer(lent, {
    databaseUrl: postgres.url,
    settings: { ...sendSettings(relay), POSTHORN_ROLES: 'api,deliver' },
  });
  const prepareSender = (databaseUrl: string, name: string) =>
    prepareServer(lent, {
      databaseUrl,
      settings: { ...sendSettings(relay, name), POSTHORN_ROLES: 'send' },
    });
  await api.start();
  const first = await prepareSender(network.url, cutOff);
  const second = await prepareSender(postgres.url, connected);
  await first.start();
  const trial = await prepareSendTrial(lent, api, relay);
  const broken: string[] = [];

  for (let round = 1; round <= lent.rounds; round += 1) {
    await relay.behave({ answerMs });
    const load = trial.keepSubmitting(clients);
    const enough = relay.taken.length + pick(lent.random, 20, 100);
    await waitFor('messages at the relay', () => relay.taken.length >= enough);
    const isStop = round % 2 === 1;
    await trial.during(`the database of round ${round}`, async () => {
      await (isStop ? postgres.stop() : postgres.kill());
      await delay(lent.short ? pick(lent.random, 3000, 6000) : pick(lent.random, 20_000, 25_000));
      await postgres.start();
    });
    await load.stop();
    await trial.settle();
    lent.log(
      `round ${round}/${lent.rounds}: PostgreSQL ${isStop ? 'stopped' : 'killed'}, everything was sent`,
    );
    broken.push(...(await cutOffOne({ trial, relay, network, second, api })));
    lent.log(`round ${round}/${lent.rounds}: one of two processes cut off, everything was sent`);
  }
  const outcome = await trial.conclude(lent);
  return { ...outcome, broken: [...outcome.broken, ...broken] };
}

/**
 * The first process is in the middle of even messages (before the final dot) and odd ones (before the reply to it) when it loses
 * the database. The second process claims them. Returns the violations.
 */
async function cutOffOne(parts: {
  trial: SendTrial;
  relay: Relay;
  network: Network;
  second: Server;
  api: Server;
}): Promise<string[]> {
  const { trial, relay, network, second, api } = parts;
  const holds = {
    even: { client: cutOff, at: 'DATA', letters: 'even' },
    odd: { client: cutOff, at: '.', letters: 'odd' },
    claimedOdd: { client: connected, at: 'DATA', letters: 'odd' },
  } satisfies Record<string, Hold>;
  const countHeld = ({ client, at, letters }: Hold) =>
    relay.held.filter(({ hold }) => hold.client === client && hold.at === at && hold.letters === letters)
      .length;
  const heldBefore = relay.held.length;
  const [evenBefore, oddBefore, claimedBefore] = [holds.even, holds.odd, holds.claimedOdd].map(countHeld);
  await relay.behave({ holds: [holds.even, holds.odd] });
  const from = trial.letters.length;
  await trial.submitMany(heldLetters, 1, 1);
  await waitFor('all messages to wait', () => relay.held.length - heldBefore === heldLetters);
  const even = countHeld(holds.even) - (evenBefore ?? 0);
  const odd = countHeld(holds.odd) - (oddBefore ?? 0);
  network.cut();
  const takenBefore = relay.taken.length;
  await relay.behave({ holds: Object.values(holds) });
  await second.start();
  await waitFor(
    'the second process to claim everything',
    () =>
      relay.taken.length - takenBefore === even && countHeld(holds.claimedOdd) - (claimedBefore ?? 0) === odd,
  );
  // The lease of the first process is lost: it must not end the even messages.
  const countEnded = () =>
    relay.abandoned.length + relay.taken.filter(({ client }) => client === cutOff).length;
  const endedBefore = countEnded();
  await relay.behave({ holds: [holds.odd, holds.claimedOdd] });
  await waitFor('the first process to leave the messages', () => countEnded() - endedBefore >= even);
  // The second process has the odd messages when the first one hears that they are put off, and has a database again.
  await relay.behave({ holds: [holds.claimedOdd], heldReply: '451 4.3.0 Later' });
  network.restore();
  const ours = relay.taken.length;
  await waitFor('the first process to send again', async () => {
    await trial.submit();
    return relay.taken.slice(ours).some(({ client }) => client === cutOff);
  });
  await relay.behave();
  await trial.settle();
  await second.stop();
  const repeated = trial.letters
    .slice(from, from + heldLetters)
    .flatMap(({ to }) => to)
    .filter((address) => relay.taken.filter(({ rcpt }) => rcpt === address).length > 1);
  const stale = await api.look(
    (sql) => sql<{ address: string }[]>`
      select recipients[1] as address from send_attempts where response->>'code' = '451'`,
  );
  return [
    ...repeated.map(
      (address) => `${address} was sent to by two processes, the first of which had lost its lease`,
    ),
    ...stale.map(({ address }) => `the try to ${address} was recorded by a process that had lost its lease`),
  ];
}

interface Network {
  /** Of the database, through this network. */
  url: string;
  /** No byte passes, and nobody notices: as when a cable is cut. */
  cut(): void;
  restore(): void;
}

async function startNetwork(lent: FaultRun, databaseUrl: string): Promise<Network> {
  const target = new URL(databaseUrl);
  const sockets = new Set<Socket>();
  let isCut = false;
  const server = net.createServer((client) => {
    sockets.add(client);
    client.on('error', () => {}).on('close', () => sockets.delete(client));
    if (isCut) return;
    const upstream = net.connect(Number(target.port), target.hostname);
    sockets.add(upstream);
    upstream
      .on('error', () => {})
      .on('close', () => {
        sockets.delete(upstream);
        client.destroy();
      });
    client.on('close', () => upstream.destroy());
    client.pipe(upstream).pipe(client);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  lent.defer(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  const { port } = server.address() as AddressInfo;
  return {
    url: databaseUrl.replace(target.host, `127.0.0.1:${port}`),
    cut() {
      isCut = true;
      for (const socket of sockets) socket.unpipe().pause();
    },
    restore() {
      isCut = false;
      for (const socket of sockets) socket.destroy();
    },
  };
}
