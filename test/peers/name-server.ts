/** Knot DNS on a loopback port, with one zone that a test writes. Give `address` to POSTHORN_DNS_SERVERS. */
import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after } from 'node:test';
import { startDns } from '../dns.ts';
import { run } from '../programs.ts';
import { findPeer, makePeerFolder, succeed } from './programs.ts';

export interface NameServer {
  /** `127.0.0.1:port` */
  address: string;
  /** Replaces the records of the zone while the server runs; resolves when they are served. */
  change(records: string): Promise<void>;
  /** The served records of a name and type, as lines of a zone file; empty when there are none. */
  read(name: string, type: string): Promise<string>;
  stop(): Promise<void>;
}

/** `records`: lines of a zone file, with names relative to the zone or with a dot at the end. */
export async function startNameServer(
  zone: string,
  records: string,
  { signed = false } = {},
): Promise<NameServer> {
  const folder = makePeerFolder('knot');
  const zoneFile = path.join(folder.path, 'zone');
  const configFile = path.join(folder.path, 'knot.conf');
  const address = await findFreeAddress();
  let serial = 0;
  const writeRecords = (records: string) => {
    serial += 1;
    const authority = `@ SOA ns hostmaster ${serial} 3600 600 86400 60\n@ NS ns\nns A 127.0.0.1`;
    return writeFile(zoneFile, `$ORIGIN ${zone}.\n$TTL 60\n${authority}\n${records}\n`);
  };
  await mkdir(path.join(folder.path, 'db'));
  await writeRecords(records);
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
    ${signed ? 'dnssec-signing: on\n    zonefile-load: difference-no-serial' : ''}
    journal-content: ${signed ? 'all' : 'none'}
`,
  );
  const server = run(findPeer('knotd'), ['-c', configFile], {});
  const stop = async () => {
    server.child.kill();
    await server.ended;
  };
  after(async () => {
    await stop();
    folder.remove();
  });
  await server.line(/server started/);
  const control = (...args: string[]) => succeed('knotc', ['-c', configFile, ...args]);
  return {
    address,
    stop,
    async change(records) {
      await writeRecords(records);
      await control('--blocking', 'zone-reload', `${zone}.`);
    },
    async read(name, type) {
      // The command fails when there is no such record.
      return control('zone-read', `${zone}.`, name, type).catch(() => '');
    },
  };
}

/** A port that was free for UDP and TCP a moment ago. */
async function findFreeAddress(): Promise<string> {
  const { address, close } = await startDns();
  await close();
  return address;
}
