/**
 * A DNS server in its own process. The bench sends the records (a text is a TXT record) before the first question; every other
 * name does not exist.
 */
import { type Answer, startDns } from '../test/dns.ts';

export type DnsRecords = Record<string, string | Answer>;

const server = await startDns();
process.on('message', (records: DnsRecords) => {
  for (const [name, given] of Object.entries(records))
    if (typeof given === 'string') server.answerType(name, 'TXT', { TXT: [given] });
    else server.answer(name, given);
  process.send?.(server.address);
});
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());
