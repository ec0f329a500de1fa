/**
 * A Postfix that receives: it has mailboxes at `dest.test`, greylists one address, and sends everything else, its reports too, to
 * the service.
 */
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { globSync, readFileSync } from 'node:fs';
import { chmod, mkdir, writeFile } from 'node:fs/promises';
import net, { type AddressInfo } from 'node:net';
import path from 'node:path';
import { after } from 'node:test';
import { waitFor } from '../harness.ts';
import { readCertificate } from '../receiver.ts';
import { type Postfix, startPostfix } from './postfix.ts';
import { makePeerFolder } from './programs.ts';

export interface MailServer extends Postfix {
  /** Waits for the only message in bob's mailbox with this subject. */
  delivered(subject: string): Promise<string>;
}

export const sizeLimit = 30_000;
/** Not root: Postfix writes mailboxes as this user. */
const nobody = 65_534;

export async function startMailServer(parts: {
  port: number;
  /** Of the service. */
  smtpPort: number;
  settings?: Record<string, string>;
}): Promise<MailServer> {
  const folder = makePeerFolder('mailboxes');
  after(() => folder.remove());
  const mailboxes = path.join(folder.path, 'mail');
  await mkdir(mailboxes);
  execFileSync('chown', [String(nobody), mailboxes]);
  const full = path.join(mailboxes, 'full');
  await writeFile(full, `${'x'.repeat(sizeLimit - 200)}\n`);
  execFileSync('chown', [String(nobody), full]);
  const { key, cert } = readCertificate('self-signed');
  const pem = path.join(folder.path, 'key-and-certificate.pem');
  await writeFile(pem, `${key}\n${cert}`);
  await chmod(pem, 0o600);
  // The service does not ask for reports of success; a mail server before it may.
  const filter = path.join(folder.path, 'commands');
  await writeFile(filter, '/^(RCPT TO:<reported@.*>)$/ $1 NOTIFY=SUCCESS,FAILURE\n');
  const policy = await startGreylisting('slow@dest.test');
  const postfix = await startPostfix(
    parts.smtpPort,
    {
      myhostname: 'mx.dest.test',
      mynetworks: '127.0.0.0/8',
      virtual_mailbox_domains: 'dest.test',
      virtual_mailbox_base: mailboxes,
      virtual_mailbox_maps:
        'inline:{ { bob@dest.test = bob/ }, { reported@dest.test = bob/ }, { slow@dest.test = bob/ }, { full@dest.test = full } }',
      virtual_uid_maps: `static:${nobody}`,
      virtual_gid_maps: `static:${nobody}`,
      virtual_mailbox_limit: String(sizeLimit),
      message_size_limit: String(sizeLimit),
      smtpd_tls_security_level: 'may',
      smtpd_tls_chain_files: pem,
      smtpd_command_filter: `regexp:${filter}`,
      smtpd_recipient_restrictions: `check_policy_service inet:127.0.0.1:${policy}, permit_mynetworks, reject_unauth_destination`,
      ...parts.settings,
    },
    `127.0.0.1:${parts.port} inet n - n - - smtpd\nvirtual unix - n n - - virtual\n`,
  );
  return {
    ...postfix,
    delivered: (subject) =>
      waitFor(`a message with the subject ${subject}`, () => {
        const files = globSync('bob/new/*', { cwd: mailboxes });
        const found = files.map((file) => readFileSync(path.join(mailboxes, file), 'latin1'));
        const [one, ...others] = found.filter((text) => text.includes(`\nSubject: ${subject}\n`));
        if (others.length > 0) throw new Error(`${others.length + 1} messages have the subject ${subject}`);
        return one;
      }),
  };
}

/** A policy server (Postfix's SMTPD_POLICY_README), which puts off the first try to an address. Returns its port. */
async function startGreylisting(address: string): Promise<number> {
  let tries = 0;
  const server = net.createServer((socket) => {
    let text = '';
    socket.on('error', () => {});
    socket.on('data', (chunk) => {
      text += chunk;
      for (let end = text.indexOf('\n\n'); end !== -1; end = text.indexOf('\n\n')) {
        const isPutOff = text.slice(0, end).includes(`recipient=${address}`) && ++tries === 1;
        text = text.slice(end + 2);
        socket.write(`action=${isPutOff ? '450 4.7.1 Greylisted, try again later' : 'DUNNO'}\n\n`);
      }
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  after(() => server.close());
  return (server.address() as AddressInfo).port;
}
