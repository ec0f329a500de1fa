/**
 * OpenDKIM, which signs what Postfix sends, or verifies what Postfix receives. Of a signer, `socket` is a milter for Postfix, `record` the public key for a name server.
 */
import { existsSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after } from 'node:test';
import { waitFor } from '../harness.ts';
import { run } from '../programs.ts';
import { findPeer, makePeerFolder, succeed } from './programs.ts';

export interface Signer {
  /** `unix:/path` */
  socket: string;
  /** Lines of a zone file, for `mail._domainkey` of the domain itself. */
  record: string;
}

/**
 * OpenDKIM, which verifies what Postfix receives. Returns its socket. `keys` are names and values of TXT records: OpenDKIM asks DNS
 * only on port 53.
 */
export async function startVerifier(keys: Record<string, string>): Promise<string> {
  const folder = makePeerFolder('opendkim');
  const inside = (name: string) => path.join(folder.path, name);
  const lines = Object.entries(keys).map(([name, value]) => `${name} ${value}\n`);
  await writeFile(inside('keys'), lines.join(''));
  return serve(folder, ['Mode v', 'AlwaysAddARHeader yes', `TestPublicKeys ${inside('keys')}`]);
}

/** Signs the mail of authors at the domains `authors` as `domain`. */
export async function startSigner(domain: string, authors: string[]): Promise<Signer> {
  const folder = makePeerFolder('opendkim');
  const inside = (name: string) => path.join(folder.path, name);
  await succeed('opendkim-genkey', ['-b', '2048', '-d', domain, '-s', 'mail', '-D', folder.path]);
  await writeFile(inside('keys'), `it ${domain}:mail:${inside('mail.private')}\n`);
  await writeFile(inside('authors'), authors.map((author) => `*@${author} it\n`).join(''));
  const socket = await serve(folder, [
    'Mode s',
    'InternalHosts 127.0.0.1',
    // OpenDKIM refuses a key in a folder below /tmp, which everyone can write to.
    'RequireSafeKeys no',
    `KeyTable ${inside('keys')}`,
    `SigningTable refile:${inside('authors')}`,
  ]);
  return { socket, record: await readFile(inside('mail.txt'), 'utf8') };
}

/** Returns its socket. */
async function serve(
  folder: ReturnType<typeof makePeerFolder>,
  settings: readonly string[],
): Promise<string> {
  const inside = (name: string) => path.join(folder.path, name);
  const common = [
    `PidFile ${inside('opendkim.pid')}`,
    `Socket local:${inside('socket')}`,
    // Postfix connects as another user.
    'UMask 000',
  ];
  await writeFile(inside('config'), `${[...settings, ...common].join('\n')}\n`);
  const program = run(findPeer('opendkim'), ['-f', '-x', inside('config')], {});
  after(async () => {
    // OpenDKIM has no state to lose, and checks for a SIGTERM only every five seconds.
    program.child.kill('SIGKILL');
    await program.ended;
    folder.remove();
  });
  await waitFor('the socket of OpenDKIM', () => existsSync(inside('socket')));
  return `unix:${inside('socket')}`;
}
