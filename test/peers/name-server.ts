/** Knot DNS on a loopback port, with one zone that a test writes. Give `address` to POSTHORN_DNS_SERVERS. */
import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after } from 'node:test';
import { startDns } from '../dns.ts';
import { run } from '../programs.ts';
import { findPeer, makePeerFolder } from './programs.ts';

/** `records`: lines of a zone file, with names relative to the zone or with a dot at the end. */
export async function startNameServer(zone: string, records: string): Promise<{ address: string }> {
  const folder = makePeerFolder('knot');
  const zoneFile = path.join(folder.path, 'zone');
  const configFile = path.join(folder.path, 'knot.conf');
  const address = await findFreeAddress();
  await mkdir(path.join(folder.path, 'db'));
  await writeFile(
    zoneFile,
    `$ORIGIN ${zone}.\n$TTL 60\n@ SOA ns hostmaster 1 3600 600 86400 60\n@ NS ns\nns A 127.0.0.1\n${records}\n`,
  );
  await writeFile(
    configFile,
    `
server:
    rundir: ${folder.path}
    listen: ${address.replace(':', '@')}
    udp-workers: 1
    tcp-workers: 1
    background-workers: 1
log:
  - target: stderr
    any: info
database:
    storage: ${path.join(folder.path, 'db')}
zone:
  - domain: ${zone}.
    file: ${zoneFile}
    zonefile-sync: -1
    journal-content: none
`,
  );
  const server = run(findPeer('knotd'), ['-c', configFile], {});
  after(async () => {
    server.child.kill();
    await server.ended;
    folder.remove();
  });
  await server.line(/server started/);
  return { address };
}

/** Free for UDP and TCP a moment ago. */
async function findFreeAddress(): Promise<string> {
  const { address, close } = await startDns();
  await close();
  return address;
}
