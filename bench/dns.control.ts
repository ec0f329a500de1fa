/** A DNS server in its own process. It has the given records (a text is a TXT record); every other name does not exist. */
import { type Answer, startDns } from '../test/dns.ts';

const [records = '{}'] = process.argv.slice(2);
const server = await startDns();
for (const [name, given] of Object.entries(JSON.parse(records) as Record<string, string | Answer>))
  if (typeof given === 'string') server.answerType(name, 'TXT', { TXT: [given] });
  else server.answer(name, given);
process.stdout.write(`listens on ${server.address}\n`);
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());
