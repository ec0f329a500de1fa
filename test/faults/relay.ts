/** The relay of the faults that send: a mail server in its own process, and what it took. */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { nodeFlags } from '../../bin/launch.js';
import { waitFor } from '../harness.ts';
import type { FaultRun } from './fault.ts';
import { type Abandoned, goodManner, type Held, type Manner, type Taken } from './relay-manner.ts';

export interface Relay {
  port: number;
  /** In the order in which the relay took them. */
  taken: Taken[];
  /** Replies that wait, or have waited. */
  held: Held[];
  abandoned: Abandoned[];
  /** What is not given is as for a good server. Resolves when it is in force. */
  behave(manner?: Partial<Manner>): Promise<void>;
}

export async function startRelay(lent: FaultRun): Promise<Relay> {
  const child = fork(new URL('./relay.program.ts', import.meta.url), [], { execArgv: [...nodeFlags] });
  lent.defer(() => child.kill('SIGTERM'));
  let settings = 0;
  const relay: Relay = {
    port: 0,
    taken: [],
    held: [],
    abandoned: [],
    async behave(manner = {}) {
      const before = settings;
      child.send({ ...goodManner, ...manner });
      await waitFor('the relay', () => settings > before);
    },
  };
  child.on('message', (message: Taken | Held | Abandoned | { kind: 'ready'; port: number }) => {
    if (message.kind === 'taken') relay.taken.push(message);
    else if (message.kind === 'held') relay.held.push(message);
    else if (message.kind === 'abandoned') relay.abandoned.push(message);
    else {
      relay.port = message.port;
      settings += 1;
    }
  });
  await once(child, 'spawn');
  await relay.behave();
  return relay;
}
