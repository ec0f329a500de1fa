/** A minimal SMTP client on a socket. A refusal by the server ends the scenario. */
import net, { type Socket } from 'node:net';

export const sender = 'ada@sender.example';
export const recipient = 'inbox@customer.example';

/** Sent at once, as PIPELINING allows. */
function envelope(from: string): string {
  return `MAIL FROM:<${from}>\r\nRCPT TO:<${recipient}>\r\nDATA\r\n`;
}

export class SmtpSession {
  readonly #socket: Socket;
  #text = '';
  #missing = 0;
  #resolve = () => {};
  #reject = (_: Error) => {};

  private constructor(socket: Socket) {
    this.#socket = socket;
    socket.setEncoding('latin1').on('data', (text) => this.#read(String(text)));
    socket.on('error', (error) => this.#reject(error));
    socket.on('close', () => this.#reject(new Error('The server closed the connection')));
  }

  /** `password`: for the submission listener. */
  static async open(port: number, password?: string): Promise<SmtpSession> {
    const session = new SmtpSession(net.connect({ host: '127.0.0.1', port, noDelay: true }));
    await session.#replies(1);
    await session.#say('EHLO mx.sender.example\r\n', 1);
    if (password !== undefined) {
      const login = Buffer.from(`\0posthorn\0${password}`).toString('base64');
      await session.#say(`AUTH PLAIN ${login}\r\n`, 1);
    }
    return session;
  }

  /** `wire` is the SMTP data: with doubled dots and the final dot. */
  async send(wire: Buffer, from = sender): Promise<void> {
    await this.#say(envelope(from), 3);
    await this.#say(wire, 1);
  }

  async quit(): Promise<void> {
    await this.#say('QUIT\r\n', 1);
    this.close();
  }

  get isOpen(): boolean {
    return this.#socket.readyState === 'open';
  }

  close(): void {
    this.#socket.destroy();
  }

  #say(bytes: string | Buffer, replies: number): Promise<void> {
    this.#socket.write(bytes);
    return this.#replies(replies);
  }

  #replies(count: number): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#missing = count;
      this.#resolve = resolve;
      this.#reject = reject;
    });
  }

  #read(text: string): void {
    this.#text += text;
    for (let end = this.#text.indexOf('\r\n'); end !== -1; end = this.#text.indexOf('\r\n')) {
      const line = this.#text.slice(0, end);
      this.#text = this.#text.slice(end + 2);
      if (line >= '4') this.#reject(new Error(`The server replied ${line}`));
      // A hyphen after the status: the reply continues.
      if (line[3] !== '-') this.#missing -= 1;
    }
    if (this.#missing === 0) this.#resolve();
  }
}
