/** A DNS server in its own process. It has the given TXT records; every other name does not exist. */
import { startDns } from '../test/dns.ts';

const [records = '{}'] = process.argv.slice(2);
const server = await startDns();
for (const [name, text] of Object.entries(JSON.parse(records) as Record<string, string>))
  server.answerType(name, 'TXT', { TXT: [text] });
process.stdout.write(`listens on ${server.address}\n`);
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());
