/** The thread that imapflow runs in: connects, parses and answers for the main thread, which waits for none of it. */
import { parentPort } from 'node:worker_threads';
import { lowerThreadPriority } from '../lib/low-priority.ts';
import type { ImapFailure } from './imap-failure.ts';
import type { FromThread, ImapCommand, OpenOptions, ToThread } from './imap-messages.ts';
import { ImapSession } from './imap-session.ts';

const port = parentPort;
if (!port) throw new Error('imap-thread.ts runs in a worker thread only.');
lowerThreadPriority();

const sessions = new Map<number, ImapSession>();
const say = (message: FromThread, transfer: ArrayBuffer[] = []) => port.postMessage(message, transfer);

port.on('message', (message: ToThread) => {
  if (message.kind === 'ping') say({ kind: 'pong' });
  else if (message.kind === 'open') void open(message.id, message.options);
  else {
    // It may have closed while the message was on its way.
    const session = sessions.get(message.id);
    if (message.kind === 'close') session?.close();
    else if (message.kind === 'idle') session?.startIdle();
    else if (session) void answer(session, message);
  }
});

async function open(id: number, options: OpenOptions): Promise<void> {
  const end = (failure: ImapFailure) => {
    if (sessions.delete(id)) say({ kind: 'closed', id, costMs: session.costMs, failure });
  };
  const session: ImapSession = new ImapSession(options, {
    news: () => say({ kind: 'news', id }),
    closed: end,
  });
  sessions.set(id, session);
  try {
    await session.open(options.timeouts.loginMs);
    const { costMs, hasIdle, hasGmailExtension } = session;
    say({ kind: 'opened', id, costMs, hasIdle, hasGmailExtension });
  } catch (error) {
    end(session.describeFailure(error));
    session.close();
  }
}

async function answer(
  session: ImapSession,
  { id, ask, name, args }: Extract<ToThread, { kind: 'ask' }>,
): Promise<void> {
  try {
    const run = session[name] as (...args: unknown[]) => Promise<unknown>;
    const value = await run.apply(session, args);
    const { total, costMs } = session;
    say({ kind: 'answer', id, costMs, ask, total, value }, listTransferred(name, value));
  } catch (error) {
    say({ kind: 'failed', id, costMs: session.costMs, ask, failure: session.describeFailure(error) });
  }
}

function listTransferred(name: ImapCommand, value: unknown): ArrayBuffer[] {
  if (name === 'search') return [(value as Uint32Array<ArrayBuffer>).buffer];
  if (name !== 'readMessages') return [];
  return (value as { raw: Uint8Array<ArrayBuffer> }[]).map(({ raw }) => raw.buffer);
}
