/** A Dovecot for one test. */
import { after, afterEach } from 'node:test';
import { type Dovecot, openDovecot } from './dovecot-server.ts';
import { tellIfFailed } from './programs.ts';

/** `users`: names, with the rule of their quota. */
export async function startDovecot(users: Record<string, string>): Promise<Dovecot> {
  const dovecot = await openDovecot(users);
  afterEach((context) => tellIfFailed(context, 'Dovecot', dovecot.readLog()));
  after(() => dovecot.remove());
  return dovecot;
}
