/**
 * The control of inbound and inbound-mx: smtp-server, postal-mime and mailauth; the result is discarded. DNS answers are cached
 * for a minute, as in the service, so that DNS makes no difference.
 */
import type { AddressInfo } from 'node:net';
import { authenticate } from 'mailauth';
import PostalMime from 'postal-mime';
import { SMTPServer } from 'smtp-server';
import { makeMailauthResolver } from '../../src/mailauth/authenticate.ts';
import { makeDnsClient } from '../../src/net/dns.ts';

const [dnsServer = ''] = process.argv.slice(2);
const dns = makeDnsClient({ dnsServers: [dnsServer], keepMs: 60_000 });
const { signal } = new AbortController();

const server = new SMTPServer({
  name: 'localhost',
  authOptional: true,
  disabledCommands: ['AUTH', 'STARTTLS'],
  disableReverseLookup: true,
  logger: false,
  onData(stream, session, done) {
    const chunks: Buffer[] = [];
    stream.on('data', (chunk: Buffer) => chunks.push(chunk));
    stream.on('end', async () => {
      const raw = Buffer.concat(chunks);
      const { mailFrom } = session.envelope;
      await Promise.all([
        authenticate(raw, {
          ip: session.remoteAddress,
          helo: session.hostNameAppearsAs,
          sender: mailFrom ? mailFrom.address : '',
          mta: 'localhost',
          resolver: makeMailauthResolver(dns, signal),
          // The service does not check these either.
          disableBimi: true,
        }),
        PostalMime.parse(raw),
      ]);
      done();
    });
  },
});
server.on('error', () => {});
const listening = server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`port ${(listening.address() as AddressInfo).port}\n`);
});
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());
