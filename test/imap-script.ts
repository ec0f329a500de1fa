/** An IMAP server of the test's own on a raw socket: it knows logins and nothing else. */
import { once } from 'node:events';
import net, { type AddressInfo, type Socket } from 'node:net';
import { after } from 'node:test';
import tls from 'node:tls';

export interface ImapScript {
  port: number;
  /** Every command line, without its tag, and what follows a challenge. */
  commands: string[];
  /** What the next logins are answered with, after the tag. `%s` stands for the login that came. */
  answerLogins(text: string): void;
}

export async function startImapScript(
  options: { capabilities?: string; tls?: tls.TlsOptions; greeting?: string; ignoresLogout?: boolean } = {},
): Promise<ImapScript> {
  const { capabilities = 'IMAP4rev1 SASL-IR AUTH=PLAIN AUTH=XOAUTH2', greeting = '* OK ready' } = options;
  const commands: string[] = [];
  const sockets = new Set<Socket>();
  let login = 'OK Welcome';

  function serve(plain: Socket): void {
    sockets.add(plain);
    let socket = plain;
    let unread = '';
    let waitingTag: string | null = null;
    let given = '';
    const answerLogin = (tag: string) => say(`${tag} ${login.replace('%s', () => given)}`);
    const say = (line: string) => socket.write(`${line}\r\n`);
    function answer(line: string): void {
      const [tag = '', verb = ''] = line.split(' ');
      if (waitingTag !== null) {
        // The empty line, or the text, that a client sends after a challenge.
        commands.push(line);
        given += ` ${line}`;
        answerLogin(waitingTag);
        waitingTag = null;
        return;
      }
      commands.push(line.slice(tag.length + 1));
      const name = verb.toUpperCase();
      if (name === 'LOGIN' || name === 'AUTHENTICATE') given = line.slice(tag.length + 1);
      if (name === 'CAPABILITY') {
        const more = options.tls && socket === plain ? ' STARTTLS' : '';
        say(`* CAPABILITY ${capabilities}${more}\r\n${tag} OK done`);
      } else if (name === 'STARTTLS' && options.tls) {
        say(`${tag} OK go ahead`);
        plain.removeListener('data', read);
        socket = new tls.TLSSocket(plain, { isServer: true, ...options.tls });
        socket.on('data', read).on('error', () => {});
      } else if (name === 'LOGIN') answerLogin(tag);
      else if (name === 'AUTHENTICATE') {
        if (line.split(' ').length > 3 && login.startsWith('OK')) answerLogin(tag);
        else {
          say(`+ ${Buffer.from('{"status":"401"}').toString('base64')}`);
          waitingTag = tag;
        }
      } else if (name === 'LOGOUT') {
        if (options.ignoresLogout) return;
        say(`* BYE\r\n${tag} OK bye`);
        socket.end();
      } else say(`${tag} OK done`);
    }
    function read(chunk: Buffer): void {
      unread += chunk.toString();
      for (let end = unread.indexOf('\r\n'); end !== -1; end = unread.indexOf('\r\n')) {
        const line = unread.slice(0, end);
        unread = unread.slice(end + 2);
        answer(line);
      }
    }
    plain.on('data', read).on('error', () => {});
    plain.on('close', () => sockets.delete(plain));
    if (greeting !== '') say(greeting);
  }

  const server = net.createServer({ noDelay: true }, serve).listen(0, '127.0.0.1');
  await once(server, 'listening');
  after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return {
    port: (server.address() as AddressInfo).port,
    commands,
    answerLogins(text) {
      login = text;
    },
  };
}
