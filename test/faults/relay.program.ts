/**
 * A mail server in its own process, so that it survives the faults. It reports every message that it takes (`Taken`) before it
 * replies, and behaves as the last `Manner` says. It shares no code with src/.
 */
import { createHash } from 'node:crypto';
import net, { type AddressInfo, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { type Abandoned, goodManner, type Held, type Hold, type Manner, type Taken } from './relay-manner.ts';

interface Message {
  client: string;
  rcpt: string;
  wire: Buffer;
}

let manner = goodManner;
let port = 0;
let commands = 0;
let messages = 0;
const sockets = new Set<Socket>();
const waiting = new Map<() => void, Hold>();
const server = net.createServer({ noDelay: true }, (socket) => {
  sockets.add(socket);
  socket.on('close', () => sockets.delete(socket)).on('error', () => {});
  void converse(socket);
});

process.on('message', async (wanted: Manner) => {
  const wasThere = server.listening;
  manner = wanted;
  for (const [release, hold] of waiting) {
    if (findHold(hold)) continue;
    waiting.delete(release);
    release();
  }
  if (wanted.isThere && !wasThere) await listen();
  if (!wanted.isThere && wasThere) {
    server.close();
    for (const socket of sockets) socket.destroy();
  }
  process.send?.({ kind: 'ready', port });
});
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());

function listen(): Promise<void> {
  return new Promise((resolve) => {
    server.listen(port, '127.0.0.1', () => {
      port = (server.address() as AddressInfo).port;
      resolve();
    });
  });
}

async function converse(socket: Socket): Promise<void> {
  let unread = Buffer.alloc(0);
  let wake = () => {};
  // Read without pause, so that the end of the connection is noticed at once.
  socket.on('data', (chunk) => {
    unread = Buffer.concat([unread, chunk]);
    wake();
  });
  socket.on('close', () => wake());
  /** The bytes before the mark; null at the end of the connection. */
  async function readTo(mark: string): Promise<Buffer | null> {
    for (let from = 0; ; ) {
      const at = unread.indexOf(mark, from);
      if (at !== -1) {
        const found = unread.subarray(0, at);
        unread = unread.subarray(at + mark.length);
        return found;
      }
      if (socket.destroyed) return null;
      from = Math.max(0, unread.length - mark.length);
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
    }
  }
  const say = (text: string) => {
    if (!socket.destroyed) socket.write(`${text}\r\n`);
  };
  let [client, rcpt] = ['', ''];
  say('220 relay.example ESMTP');
  for (let line = await readTo('\r\n'); line; line = await readTo('\r\n')) {
    const [verb = '', argument = ''] = line.toString().split(' ');
    commands += 1;
    if (manner.isTired && commands % 2 === 0) {
      say('421 4.3.2 Every second command is too much');
      socket.end();
      return;
    }
    if (verb === 'EHLO') {
      client = argument;
      say('250-relay.example\r\n250-PIPELINING\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250 SIZE 50000000');
    } else if (verb === 'DATA') {
      await holdAt('DATA', client, rcpt);
      say('354 Go ahead');
      // A message without content would not begin with a line of its own.
      unread = Buffer.concat([Buffer.from('\r\n'), unread]);
      const wire = await readTo('\r\n.\r\n');
      if (!wire) {
        process.send?.({ kind: 'abandoned', client } satisfies Abandoned);
        return;
      }
      await answer(socket, say, { client, rcpt, wire });
    } else if (verb === 'QUIT') {
      say('221 2.0.0 Bye');
      socket.end();
      return;
    } else {
      if (verb === 'RCPT') rcpt = line.toString().slice('RCPT TO:<'.length, -1);
      say('250 2.0.0 Ok');
    }
  }
}

async function answer(socket: Socket, say: (text: string) => void, message: Message): Promise<void> {
  messages += 1;
  const { hangsOneOf, hangMs, answerMs, replyBytes } = manner;
  const hangs = hangsOneOf > 0 && messages % hangsOneOf === 0;
  // Every second message is taken at its final dot, the others with the reply: a client that counts a message as sent before the
  // reply loses it.
  const isTakenEarly = messages % 2 === 0;
  if (await holdAt('.', message.client, message.rcpt)) {
    if (manner.heldReply.startsWith('2')) take(message);
    say(manner.heldReply);
    return;
  }
  if (isTakenEarly) take(message);
  await delay(hangs ? hangMs : Math.random() ** 3 * answerMs);
  if (hangs) socket.destroy();
  if (socket.destroyed) return;
  if (!isTakenEarly) take(message);
  say(`250 2.0.0 Taken${'.'.repeat(replyBytes)}`);
}

/** Whether the reply had to wait. */
async function holdAt(at: Hold['at'], client: string, rcpt: string): Promise<boolean> {
  const letters = Number(/\d+/.exec(rcpt)?.[0]) % 2 === 0 ? 'even' : 'odd';
  const hold = findHold({ at, client, letters });
  if (!hold) return false;
  const released = new Promise<void>((resolve) => waiting.set(resolve, hold));
  process.send?.({ kind: 'held', hold } satisfies Held);
  await released;
  return true;
}

function findHold({ at, client, letters }: Hold): Hold | undefined {
  return manner.holds.find((hold) => hold.at === at && hold.client === client && hold.letters === letters);
}

function take({ client, rcpt, wire }: Message): void {
  const raw = Buffer.from(`${wire.toString('latin1')}\r\n`.replaceAll('\r\n.', '\r\n').slice(2), 'latin1');
  const sha256 = createHash('sha256').update(raw).digest('hex');
  const [, subject = ''] = /^Subject: (.*)\r$/m.exec(raw.toString('latin1', 0, 4000)) ?? [];
  process.send?.({ kind: 'taken', client, rcpt, subject, sha256, atMs: Date.now() } satisfies Taken);
}
