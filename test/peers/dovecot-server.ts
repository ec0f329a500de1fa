/** A Dovecot on loopback, with all its files in a folder of its own. Also for the bench: nothing here needs a test. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  chownSync,
  existsSync,
  globSync,
  readFileSync,
  renameSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import net from 'node:net';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { findPeer, makePeerFolder } from './programs.ts';

export interface Dovecot {
  port: number;
  password: string;
  /** Where Postfix asks whether a login is right. */
  authSocket: string;
  /** Delivers a message as a delivery program does: into the maildir. */
  deliver(user: string, message: string, date?: Date): void;
  /** Loses the index of the inbox: it gets another UIDVALIDITY and other UIDs. */
  rebuild(user: string): void;
  /** The names of the files of a folder: their ends are flags. */
  names(user: string, folder: string): string[];
  /** What is in a folder. */
  read(user: string, folder: string): string[];
  stop(): Promise<void>;
  start(): Promise<void>;
  readLog(): string;
  /** Stops it and removes its files. */
  remove(): Promise<void>;
}

/** Not root: Dovecot reads mailboxes as this user. */
const nobody = 65_534;

/** `users`: names, with the rule of their quota. `introspectionUrl`: who knows access tokens; without it there is no XOAUTH2. */
export async function openDovecot(
  users: Record<string, string>,
  introspectionUrl: string | null = null,
): Promise<Dovecot> {
  const folder = makePeerFolder('dovecot');
  const at = (name: string) => path.join(folder.path, name);
  const [config, log, mail] = [at('config'), at('log'), at('mail')];
  const [port, password] = [await findPort(), 'secret'];
  await mkdir(mail);
  await writeFile(log, '');
  const entries = Object.entries(users).map(([name, quota]) => {
    const rule = quota && `userdb_quota_rule=*:${quota}`;
    return `${name}:{PLAIN}${password}:${nobody}:${nobody}::${path.join(mail, name)}::${rule}`;
  });
  await writeFile(at('users'), `${entries.join('\n')}\n`);
  for (const name of Object.keys(users))
    for (const part of ['cur', 'new', 'tmp'])
      await mkdir(path.join(mail, name, 'Maildir', part), { recursive: true });
  execFileSync('chown', ['-R', `${nobody}:${nobody}`, mail]);
  await writeFile(config, writeConfig(folder.path, port, introspectionUrl !== null));
  const oauth2 = {
    introspection_url: introspectionUrl,
    introspection_mode: 'post',
    username_attribute: 'email',
  };
  const lines = Object.entries({ ...oauth2, active_attribute: 'active', active_value: 'true' });
  await writeFile(at('oauth2'), lines.map(([name, value]) => `${name} = ${value}\n`).join(''));

  let running: ChildProcess | null = null;
  async function start(): Promise<void> {
    // In the foreground: a program in the background keeps the pipes of its parent open.
    running = spawn(findPeer('dovecot'), ['-F', '-c', config], { stdio: 'ignore' });
    while (!existsSync(at('run/master.pid'))) {
      if (running.exitCode !== null) throw new Error(`Dovecot did not start:\n${readFileSync(log, 'utf8')}`);
      await delay(20);
    }
  }
  async function stop(): Promise<void> {
    if (!running || running.exitCode !== null) return;
    running.kill();
    await once(running, 'exit');
    running = null;
  }
  await start();

  let files = 0;
  const maildir = (user: string, name = '') => path.join(mail, user, 'Maildir', name);
  const names = (user: string, name: string) => globSync(`.${name}/{cur,new}/*`, { cwd: maildir(user) });
  return {
    port,
    password,
    authSocket: at('run/auth-postfix'),
    start,
    stop,
    readLog: () => readFileSync(log, 'utf8'),
    async remove() {
      await stop();
      folder.remove();
    },
    deliver(user, message, date = new Date()) {
      files += 1;
      const name = `${Math.floor(date.getTime() / 1000)}.M${files}.test`;
      const [made, delivered] = [maildir(user, `tmp/${name}`), maildir(user, `new/${name}`)];
      writeFileSync(made, message);
      // The INTERNALDATE of a maildir.
      utimesSync(made, date, date);
      chownSync(made, nobody, nobody);
      renameSync(made, delivered);
    },
    rebuild(user) {
      for (const file of globSync('dovecot*', { cwd: maildir(user) })) rmSync(maildir(user, file));
    },
    names,
    read: (user, name) => names(user, name).map((file) => readFileSync(maildir(user, file), 'utf8')),
  };
}

function writeConfig(folder: string, port: number, hasOAuth2: boolean): string {
  const oauth2 = `
passdb {
  driver = oauth2
  mechanisms = xoauth2
  args = ${folder}/oauth2
}`;
  return `
base_dir = ${folder}/run
state_dir = ${folder}/state
log_path = ${folder}/log
protocols = imap
listen = 127.0.0.1
ssl = no
disable_plaintext_auth = no
auth_mechanisms = plain login${hasOAuth2 ? ' xoauth2' : ''}
auth_failure_delay = 0
first_valid_uid = 1
mail_location = maildir:~/Maildir
mail_plugins = quota
mail_max_userip_connections = 100${hasOAuth2 ? oauth2 : ''}
passdb {
  driver = passwd-file
  args = ${folder}/users
}
userdb {
  driver = passwd-file
  args = ${folder}/users
}
plugin {
  quota = maildir:User quota
}
service auth {
  unix_listener auth-postfix {
    mode = 0666
  }
}
service imap-login {
  inet_listener imap {
    port = ${port}
  }
  inet_listener imaps {
    port = 0
  }
}
namespace inbox {
  inbox = yes
  separator = /
  mailbox Gesendet {
    special_use = \\Sent
    auto = create
  }
  mailbox Junk {
    special_use = \\Junk
    auto = create
  }
  mailbox Trash {
    special_use = \\Trash
    auto = create
  }
}
`;
}

async function findPort(): Promise<number> {
  const server = net.createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as net.AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}
