/** A Dovecot for one test. */
import { after, afterEach } from 'node:test';
import { type Dovecot, openDovecot } from './dovecot-server.ts';
import { tellIfFailed } from './programs.ts';

/** As `openDovecot`. */
export async function startDovecot(...given: Parameters<typeof openDovecot>): Promise<Dovecot> {
  const dovecot = await openDovecot(...given);
  afterEach((context) => tellIfFailed(context, 'Dovecot', dovecot.readLog()));
  after(() => dovecot.remove());
  return dovecot;
}
