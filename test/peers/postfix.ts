/**
 * A Postfix for one test, which sends all mail to one port on loopback. It uses only its own folder: not /etc and not the log of the
 * machine. It needs no port, because mail comes in through its `sendmail` command; `mail-server.ts` gives it one.
 */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, afterEach } from 'node:test';
import { waitFor } from '../harness.ts';
import { makePeerFolder, succeed, tellIfFailed } from './programs.ts';

export interface Postfix {
  /** Puts a message into the queue. `sendmail` expects LF line ends. */
  send(mail: { from: string; to: string[]; message: string }): Promise<void>;
  /** Waits for a line of its log. */
  logged(pattern: RegExp): Promise<RegExpExecArray>;
  /** The mail in its queue, from `postqueue -j`. */
  queue(): Promise<QueuedMail[]>;
  /** Sends all queued mail now. */
  flush(): Promise<void>;
}

interface QueuedMail {
  queue_name: string;
  queue_id: string;
  sender: string;
  recipients: { address: string; delay_reason?: string }[];
}

/** Only the services that sending needs; without chroot, which would need copied files. */
const services = `
pickup    unix  n - n 60  1 pickup
cleanup   unix  n - n -   0 cleanup
qmgr      unix  n - n 300 1 qmgr
rewrite   unix  - - n -   - trivial-rewrite
bounce    unix  - - n -   0 bounce
defer     unix  - - n -   0 bounce
trace     unix  - - n -   0 bounce
error     unix  - - n -   - error
retry     unix  - - n -   - error
smtp      unix  - - n -   - smtp
flush     unix  n - n 1000? 0 flush
tlsmgr    unix  - - n 1000? 1 tlsmgr
proxymap  unix  - - n -   - proxymap
showq     unix  n - n -   - showq
anvil     unix  - - n -   1 anvil
scache    unix  - - n -   1 scache
postlog   unix-dgram n - n - 1 postlogd
`;

/** `settings` are added to main.cf after the common settings, `moreServices` to master.cf. */
export async function startPostfix(
  port: number,
  settings: Record<string, string> = {},
  moreServices = '',
): Promise<Postfix> {
  const folder = makePeerFolder('postfix');
  const config = path.join(folder.path, 'config');
  const queue = path.join(folder.path, 'queue');
  const data = path.join(folder.path, 'data');
  const log = path.join(folder.path, 'log');
  for (const made of [config, queue, data]) await mkdir(made);
  execFileSync('chown', ['postfix', data]);
  await writeFile(path.join(config, 'master.cf'), services + moreServices);
  await writeFile(
    path.join(config, 'main.cf'),
    formatSettings({
      compatibility_level: '3.6',
      queue_directory: queue,
      data_directory: data,
      maillog_file: log,
      maillog_file_prefixes: folder.path,
      myhostname: 'relay.example',
      mydestination: '',
      alias_maps: '',
      inet_interfaces: '127.0.0.1',
      inet_protocols: 'ipv4',
      smtp_dns_support_level: 'disabled',
      relayhost: `[127.0.0.1]:${port}`,
      ...settings,
    }),
  );
  await succeed('postfix', ['-c', config, 'start']);
  afterEach((context) => tellIfFailed(context, 'Postfix', readFileSync(log, 'utf8')));
  after(async () => {
    // Uses the pid in its own queue folder, and waits until Postfix has ended.
    await succeed('postfix', ['-c', config, 'stop']);
    folder.remove();
  });

  return {
    async send({ from, to, message }) {
      await succeed('sendmail', ['-C', config, '-i', '-f', from, ...to], message);
    },
    logged: (pattern) =>
      waitFor(`${pattern} in the log of Postfix`, () => pattern.exec(readFileSync(log, 'utf8'))),
    async queue() {
      const lines = (await succeed('postqueue', ['-c', config, '-j'])).split('\n').filter(Boolean);
      return lines.map((line) => JSON.parse(line));
    },
    async flush() {
      await succeed('postqueue', ['-c', config, '-f']);
    },
  };
}

function formatSettings(settings: Record<string, string>): string {
  return Object.entries(settings)
    .map(([name, value]) => `${name} = ${value}\n`)
    .join('');
}
