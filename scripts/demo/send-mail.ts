/** Sends a message as a mail server does, in an SMTP session (RFC 5321 §3). */
import { once } from 'node:events';
import net from 'node:net';
import { createInterface } from 'node:readline';

export interface Mail {
  from: string;
  to: string;
  /** Headers and body. Lines end with CRLF, and no line starts with a dot. */
  message: string;
}

/** Returns the reply to the message. A 250 means that the server has accepted it. */
export async function sendMail(port: number, { from, to, message }: Mail): Promise<string> {
  const socket = net.connect(port, 'localhost').setTimeout(10_000, () => socket.destroy());
  await once(socket, 'connect').catch((cause) => {
    const advice = 'Set POSTHORN_SMTP_PORT to the SMTP port of your Posthorn.';
    throw new Error(`Cannot connect to an SMTP server on port ${port}. ${advice}`, { cause });
  });
  const lines = createInterface({ input: socket })[Symbol.asyncIterator]();
  const dialogue = [
    ['EHLO demo.localhost', '250'],
    [`MAIL FROM:<${from}>`, '250'],
    [`RCPT TO:<${to}>`, '250'],
    ['DATA', '354'],
    [`${message}\r\n.`, '250'],
  ] as const;
  let reply = await read();
  for (const [command, status] of dialogue) {
    socket.write(`${command}\r\n`);
    reply = await read();
    if (!reply.startsWith(status))
      throw new Error(`The SMTP server replied to "${command.slice(0, 80)}" with "${reply}"`);
  }
  socket.end('QUIT\r\n');
  return reply;

  async function read(): Promise<string> {
    for (;;) {
      const { value: line, done } = await lines.next();
      if (done) throw new Error('The SMTP server closed the connection.');
      // A reply with `250-` continues in the next line.
      if (line[3] !== '-') return line;
    }
  }
}
