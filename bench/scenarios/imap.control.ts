/** The first control of imap: imapflow logs in, fetches every message of the inbox, and discards it. Answers with messages per second. */
import { ImapFlow } from 'imapflow';

const [port = '', user = '', pass = ''] = process.argv.slice(2);

async function fetchAll(): Promise<number> {
  const client = new ImapFlow({
    ...{ host: '127.0.0.1', port: Number(port), secure: false, logger: false },
    auth: { user, pass },
  });
  await client.connect();
  await client.mailboxOpen('INBOX', { readOnly: true });
  const began = performance.now();
  let count = 0;
  for await (const { source } of client.fetch('1:*', { uid: true, source: true })) if (source) count += 1;
  const seconds = (performance.now() - began) / 1000;
  await client.logout();
  return count / seconds;
}

process.on('message', async () => process.send?.(await fetchAll()));
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());
