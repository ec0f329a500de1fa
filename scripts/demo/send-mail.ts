/** Sends a message as any mail server does: a plain SMTP dialogue (RFC 5321 §3). */
import { once } from 'node:events';
import net from 'node:net';
import { createInterface } from 'node:readline';

export interface Mail {
  from: string;
  to: string;
  /** Header and body, lines ended by CRLF, none of them beginning with a dot. */
  message: string;
}

/** Returns the answer to the message: with that it is the server's. */
export async function sendMail(port: number, { from, to, message }: Mail): Promise<string> {
  const socket = net.connect(port, 'localhost').setTimeout(10_000, () => socket.destroy());
  await once(socket, 'connect').catch((cause) => {
    throw new Error(`Nobody takes mail on port ${port}: set POSTHORN_SMTP_PORT as your Posthorn has it.`, {
      cause,
    });
  });
  const lines = createInterface({ input: socket })[Symbol.asyncIterator]();
  const dialogue = [
    ['EHLO demo.localhost', '250'],
    [`MAIL FROM:<${from}>`, '250'],
    [`RCPT TO:<${to}>`, '250'],
    ['DATA', '354'],
    [`${message}\r\n.`, '250'],
  ] as const;
  let answer = await read();
  for (const [said, status] of dialogue) {
    socket.write(`${said}\r\n`);
    answer = await read();
    if (!answer.startsWith(status))
      throw new Error(`The mail door answers ${said.slice(0, 80)} with ${answer}`);
  }
  socket.end('QUIT\r\n');
  return answer;

  async function read(): Promise<string> {
    for (;;) {
      const { value: line, done } = await lines.next();
      if (done) throw new Error('The mail door closed the connection.');
      // `250-` goes on in the next line.
      if (line[3] !== '-') return line;
    }
  }
}
