/**
 * SMTP clients that stall, open too many connections, send lines of 1 GB, pipeline garbage, or try to smuggle a second message
 * behind a false line end. Memory and time are bounded, each client gets a reply and is disconnected, no second message
 * appears, and a correct client is served all the time.
 */
import { once } from 'node:events';
import net from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { waitFor } from '../harness.ts';
import { SmtpClient } from '../smtp-client.ts';
import { type Fault, type FaultRun, type Outcome, pick } from './fault.ts';
import { watchMemory } from './memory.ts';
import { sendLetter } from './post-office.ts';
import { prepareServer } from './server.ts';
import { addresses, conclude, keepSending, prepareTrial, type Trial } from './trial.ts';

const gigabyte = 2 ** 30;
/** The bad clients have their own address, because the limit for each address is what stops them. */
const badHost = '127.0.0.2';
const timeoutSeconds = 2;
const messageTimeoutSeconds = 4;
const perAddress = 50;
/** By default 128 MiB of mail may be in memory. */
const mostGrowthMb = 250;
/** The memory is compared after so many messages: the first messages need as much as an attack. */
const warmLetters = 300;
/** The longest wait for the reply to a correct message during an attack. */
const honestMs = 5000;
const patienceMs = 10_000;

export const smtp: Fault = {
  about: 'SMTP clients that stall, flood, send garbage or smuggle',
  rounds: { usual: 5, short: 1 },
  boundMs: (rounds) => 120_000 + rounds * 90_000,
  run,
};

type Attack = (trial: Trial) => Promise<string[]>;
const attacks: Record<string, Attack> = {
  stall,
  'flood of connections': floodConnections,
  'a command line of 1 GB': (trial) => pour(trial, [], Buffer.alloc(65_536, 'x')),
  'four message lines of 1 GB': async (trial) => {
    const all = Array.from({ length: 4 }, () => pour(trial, toData, Buffer.alloc(65_536, 'x')));
    return (await Promise.all(all)).flat();
  },
  'large messages that stop in the middle': stopInTheMiddle,
  'garbage in a pipeline': sendGarbage,
  'commands without end, and no reading': neverRead,
  smuggling: smuggle,
};

async function run(lent: FaultRun): Promise<Outcome> {
  const server = await prepareServer(lent, {
    settings: {
      POSTHORN_SMTP_COMMAND_TIMEOUT: String(timeoutSeconds),
      POSTHORN_SMTP_DATA_TIMEOUT: String(timeoutSeconds),
      POSTHORN_SMTP_MESSAGE_TIMEOUT: String(messageTimeoutSeconds),
      POSTHORN_SMTP_MAX_CONNECTIONS_PER_ADDRESS: String(perAddress),
    },
  });
  await server.start();
  const trial = await prepareTrial(lent, server, { senders: 2 });
  const { post } = trial;
  const broken: string[] = [];
  const warming = keepSending(trial, 0);
  await waitFor('the service to be warm', () => post.acknowledged >= warmLetters, 60_000);
  await warming.stop();
  const memory = watchMemory(server);
  for (let round = 1; round <= lent.rounds; round += 1) {
    for (const [name, attack] of Object.entries(attacks)) {
      const load = keepSending(trial, round);
      const [began, taken] = [performance.now(), post.acknowledged];
      const found = await attack(trial);
      const tookMs = Math.round(performance.now() - began);
      await waitFor('an honest letter', () => post.acknowledged > taken, honestMs).catch(() => {});
      await load.stop();
      broken.push(...found.map((fault) => `${name}: ${fault}`));
      if (post.acknowledged === taken) broken.push(`${name}: no honest letter was taken meanwhile`);
      lent.log(
        `round ${round}/${lent.rounds}: ${name}, over in ${tookMs} ms; ${post.acknowledged - taken} honest letters meanwhile, ` +
          `the slowest so far in ${Math.round(post.slowestMs)} ms; ${memory.describe()}`,
      );
    }
  }
  memory.stop();
  if (memory.growthMb() > mostGrowthMb) broken.push(`memory grew by ${memory.growthMb()} MB`);
  if (post.slowestMs > honestMs) broken.push(`an honest letter waited ${Math.round(post.slowestMs)} ms`);
  if (post.broken > 0 || post.deferred > 0)
    broken.push(`honest connections broke ${post.broken} times, letters were put off ${post.deferred} times`);
  if (!server.isRunning()) broken.push('the service has ended');
  broken.push(...server.errors().map((line) => `the service logged: ${line}`));
  const outcome = await conclude(trial);
  return { ...outcome, broken: [...outcome.broken, ...broken] };
}

async function open({ server }: Trial): Promise<SmtpClient> {
  const socket = net.connect({
    host: '127.0.0.1',
    port: server.smtpPort,
    localAddress: badHost,
    noDelay: true,
  });
  const client = new SmtpClient(socket);
  await once(socket, 'connect');
  return client;
}

const envelope = ['EHLO bad.example', 'MAIL FROM:<bad@sender.example>', `RCPT TO:<${addresses[0]}>`];
const toData = [...envelope, 'DATA'];

/** Opens a connection and sends these commands. */
async function say(trial: Trial, commands: readonly string[]): Promise<SmtpClient> {
  const client = await open(trial);
  await client.reply();
  for (const command of commands) await client.command(command);
  return client;
}

/** Waits until the server closes the connection; returns a sentence when it does not. */
async function awaitCut(what: string, client: SmtpClient, withinMs: number): Promise<string[]> {
  const cut = await Promise.race([
    client.ended().then(
      () => true,
      () => false,
    ),
    delay(withinMs, false, { ref: false }),
  ]);
  client.close();
  return cut ? [] : [`${what} was not cut within ${withinMs} ms`];
}

/** The server closes a session that stalls at any point, also when a byte comes now and then. */
async function stall(trial: Trial): Promise<string[]> {
  const stops = [[], envelope.slice(0, 1), envelope.slice(0, 2), envelope, toData];
  const silent = stops.map(async (commands) => {
    const client = await say(trial, commands);
    return awaitCut(
      `silence after ${commands.at(-1) ?? 'the greeting'}`,
      client,
      timeoutSeconds * 1000 + patienceMs,
    );
  });
  const dripping = [[], toData].map(async (commands) => {
    const client = await say(trial, commands);
    const timer = setInterval(() => client.socket.write('x'), 300);
    const found = await awaitCut('a drip of bytes', client, messageTimeoutSeconds * 1000 + patienceMs);
    clearInterval(timer);
    return found;
  });
  return (await Promise.all([...silent, ...dripping])).flat();
}

async function floodConnections(trial: Trial): Promise<string[]> {
  const clients = await Promise.all(Array.from({ length: 4 * perAddress }, () => open(trial)));
  const greetings = await Promise.all(clients.map((client) => client.reply().catch(() => null)));
  const welcome = greetings.filter((greeting) => greeting?.status === 220).length;
  for (const client of clients) client.close();
  return welcome <= perAddress ? [] : [`${welcome} of ${clients.length} connections were welcome`];
}

/** Sends up to 1 GB without a line end; the server must disconnect long before. */
async function pour(trial: Trial, commands: readonly string[], piece: Buffer): Promise<string[]> {
  const client = await say(trial, commands);
  const { socket } = client;
  const deadline = performance.now() + 60_000;
  let sent = 0;
  while (sent < gigabyte && !client.isOver && client.error === null && performance.now() < deadline) {
    sent += piece.length;
    if (socket.write(piece)) continue;
    await waitFor('room', () => !socket.writableNeedDrain || client.isOver || client.error, patienceMs);
  }
  const found = await awaitCut('it', client, patienceMs);
  return sent < gigabyte / 4 ? found : [...found, `${sent} bytes were read`];
}

/** As much as may be in memory, and then silence. */
async function stopInTheMiddle(trial: Trial): Promise<string[]> {
  const half = Buffer.alloc(5_500_000, 'half a message\r\n');
  const stopping = Array.from({ length: 23 }, async () => {
    const client = await say(trial, toData);
    void client.send(half);
    return awaitCut('half a message', client, messageTimeoutSeconds * 1000 + patienceMs);
  });
  return (await Promise.all(stopping)).flat();
}

async function sendGarbage(trial: Trial): Promise<string[]> {
  const { random } = trial.lent;
  const found: string[][] = [];
  for (let n = 0; n < 10; n += 1) {
    const client = await open(trial);
    const bytes = Buffer.from(
      Array.from({ length: pick(random, 1000, 200_000) }, () => pick(random, 0, 255)),
    );
    const words = [
      'MAIL FROM:<',
      'RCPT TO:<',
      'DATA\r\n',
      'STARTTLS\r\n',
      'BDAT 99999999999\r\n',
      '\r\n',
      '\n.\n',
    ];
    for (let at = 0; at < bytes.length; at += pick(random, 20, 2000))
      bytes.write(words[pick(random, 0, words.length - 1)] ?? '', at);
    client.socket.write(bytes);
    client.socket.end();
    found.push(await awaitCut('garbage', client, timeoutSeconds * 1000 + patienceMs));
  }
  return found.flat();
}

/** A client that sends commands without end and reads no reply: the server must disconnect it, and its memory is watched. */
async function neverRead(trial: Trial): Promise<string[]> {
  const client = await open(trial);
  const { socket } = client;
  socket.pause();
  const noops = Buffer.from('NOOP\r\n'.repeat(10_000));
  const withinMs = timeoutSeconds * 1000 + patienceMs;
  const deadline = performance.now() + withinMs;
  const hasRoom = () => !socket.writableNeedDrain || client.error;
  // A paused socket notices the end of the connection only when it writes.
  while (client.error === null && performance.now() < deadline)
    if (!socket.write(noops)) await waitFor('room', hasRoom, withinMs).catch(() => {});
  client.close();
  return client.error ? [] : [`a client that does not read was not disconnected within ${withinMs} ms`];
}

/** Sequences that some servers take for the end of a message, but are not (RFC 5321 §4.1.1.4). */
const falseEnds = [
  '\n.\n',
  '\r.\r',
  '\n.\r\n',
  '\r\n.\n',
  '\r\n.\r',
  '\r.\r\n',
  '\n.\r',
  '\r\r\n.\r\r\n',
  '\r\n\0.\r\n',
];

/** One message, with a hidden SMTP session in its body. */
async function smuggle(trial: Trial): Promise<string[]> {
  const { ledger, lent } = trial;
  const found: string[] = [];
  for (const end of falseEnds) {
    const n = ledger.letters.length;
    const hidden = [
      `MAIL FROM:<admin@faults.example>`,
      `RCPT TO:<${addresses[1]}>`,
      'DATA',
      `Message-ID: <hidden${n}@sender.example>`,
      '',
      `Hidden ${pick(lent.random, 0, 1e9)}`,
      '',
    ].join('\r\n');
    const raw = `Message-ID: <open${n}@sender.example>\r\nSubject: smuggling\r\n\r\nbefore${end}${hidden}`;
    const letter = ledger.enter([addresses[0] ?? ''], () => Buffer.from(raw, 'latin1'));
    const client = await say(trial, envelope.slice(0, 1));
    letter.sendings += 1;
    const reply = await sendLetter(client, letter);
    if (reply.status === 250) letter.acknowledgedIn = 1;
    else found.push(`${JSON.stringify(end)} was answered ${reply.full}`);
    const quit = await client.command('QUIT');
    if (quit.status !== 221) found.push(`${JSON.stringify(end)}: QUIT was answered ${quit.full}`);
    client.close();
  }
  return found;
}
