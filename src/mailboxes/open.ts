/** Opens the connection to a claimed mailbox, with the login that the user stored. */
import type { Sql } from '../db/client.ts';
import type { Sealer } from '../lib/secrets.ts';
import type { Egress } from '../net/egress.ts';
import { findMailServer, type ServerError } from '../store/smtp-accounts.ts';
import type { ConnectionParts } from './connection.ts';
import { openImap } from './imap-client.ts';
import { MailboxClient } from './mailbox-client.ts';

export function makeOpenMailbox(parts: {
  sql: Sql;
  sealer: Sealer;
  egress: Egress;
  maxMessageBytes: number;
}): { open: ConnectionParts['open']; describe(error: unknown): ServerError } {
  const { sql, sealer, egress, maxMessageBytes } = parts;
  return {
    async open({ ownerId, accountId }, on, signal) {
      const found = await findMailServer(sql, sealer, { ownerId, accountId, side: 'imap' });
      if (!found) throw new Error('The account was deleted');
      const { server } = found;
      const resolved = await egress.resolve(server.host);
      if (!resolved.ok) throw new Error(resolved.reason);
      const address = resolved.addresses[0]?.address ?? '';
      const flow = await openImap(server, address, maxMessageBytes);
      const client = new MailboxClient(flow, on);
      if (signal.aborted) client.close();
      return { server, client };
    },
    describe(error) {
      const { authenticationFailed, message, response } = error as Record<string, unknown>;
      const code = authenticationFailed ? 'authentication_failed' : 'connection_failed';
      return { code, message: String(message), response: typeof response === 'string' ? response : null };
    },
  };
}
