/** Connections to IMAP servers, by imapflow. */
import { ImapFlow } from 'imapflow';
import type { MailServer } from '../net/mail-server.ts';

export type { ImapFlow };

/** Connects and logs in. */
export async function openImap(
  server: MailServer,
  address: string,
  maxMessageBytes: number,
): Promise<ImapFlow> {
  const { host, port, secure, username, login } = server;
  const flow = new ImapFlow({
    ...{ host: address, port, secure, servername: host },
    auth: { user: username, ...('password' in login ? { pass: login.password } : {}) },
    logger: false,
    disableAutoIdle: true,
    connectionTimeout: 15_000,
    greetingTimeout: 15_000,
    socketTimeout: 120_000,
    maxLiteralSize: maxMessageBytes + 1024 * 1024,
    maxResponseSize: maxMessageBytes + 2 * 1024 * 1024,
  });
  flow.on('error', () => {});
  await flow.connect();
  return flow;
}
