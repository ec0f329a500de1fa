/**
 * A hostile IMAP server, in its own process. With the argument `login` it answers LOGIN with status responses without an end; with
 * `list` and a number, it answers LIST with so many folders.
 */
import net, { type AddressInfo, type Socket } from 'node:net';

const [mode = 'login', folders = '0'] = process.argv.slice(2);
const endless = Buffer.from('* OK x\r\n'.repeat(8192));
const list = Array.from(
  { length: Number(folders) },
  (_, n) => `* LIST (\\HasNoChildren) "/" "a folder with a long name, number ${n}"\r\n`,
).join('');

function serve(socket: Socket): void {
  let unread = '';
  let idleTag = '';
  const flood = () => {
    while (!socket.destroyed && socket.write(endless));
  };
  socket.on('error', () => {}).setEncoding('latin1');
  socket.on('data', (text) => {
    unread += text;
    for (let end = unread.indexOf('\r\n'); end !== -1; end = unread.indexOf('\r\n')) {
      const line = unread.slice(0, end);
      unread = unread.slice(end + 2);
      const [tag = '', command = ''] = line.split(' ');
      if (command === 'LOGIN' && mode === 'login') socket.on('drain', flood).emit('drain');
      else if (command === 'IDLE') {
        idleTag = tag;
        socket.write('+ idling\r\n');
      } else socket.write(`${answer(command)}${tag === 'DONE' ? idleTag : tag} OK done\r\n`);
    }
  });
  socket.write('* OK ready\r\n');
}

function answer(command: string): string {
  if (command === 'CAPABILITY') return '* CAPABILITY IMAP4rev1 IDLE\r\n';
  if (command === 'LIST') return `* LIST (\\HasNoChildren) "/" "INBOX"\r\n${list}`;
  if (command === 'SELECT' || command === 'EXAMINE')
    return '* 0 EXISTS\r\n* OK [UIDVALIDITY 1] valid\r\n* OK [UIDNEXT 1] next\r\n';
  return '';
}

const server = net.createServer({ noDelay: true }, serve).listen(0, '127.0.0.1', () => {
  process.stdout.write(`port ${(server.address() as AddressInfo).port}\n`);
});
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());
