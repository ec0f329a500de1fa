/** A DNS server in a process of its own: knows the TXT records it is given, and says of all else that it does not exist. */
import { startDns } from '../test/dns.ts';

const [records = '{}'] = process.argv.slice(2);
const server = await startDns();
for (const [name, text] of Object.entries(JSON.parse(records) as Record<string, string>))
  server.answerType(name, 'TXT', { TXT: [text] });
process.stdout.write(`listens on ${server.address}\n`);
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());
