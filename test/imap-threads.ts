/** Threads of the IMAP client, for tests that open connections without the service. They end after the tests of the file. */
import { after } from 'node:test';
import { makeLog } from '../src/lib/log.ts';
import { type ImapThreadOptions, ImapThreads } from '../src/mailboxes/imap-threads.ts';

export function makeImapThreads(options: Partial<ImapThreadOptions> = {}): ImapThreads {
  const threads = new ImapThreads({ log: makeLog({ level: 'silent', json: true }), count: 2, ...options });
  after(() => threads.stop());
  return threads;
}
