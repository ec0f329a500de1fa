/** A client that submits mail: AUTH, the envelope and the message, on the ports of a test service. */
import assert from 'node:assert/strict';
import { randomInt } from 'node:crypto';
import { connectSmtp, openSmtp, type SmtpClient, type SmtpReply, toWire } from './smtp-client.ts';

export const base64 = (text: string) => Buffer.from(text).toString('base64');
export const plainAuth = (key: string, name = 'posthorn') => `AUTH PLAIN ${base64(`\0${name}\0${key}`)}`;

/** Failed AUTH commands are counted by address: a test with failures has its own. */
export const makeAddress = () => `127.${randomInt(1, 255)}.${randomInt(255)}.${randomInt(1, 255)}`;

/** Connects and says EHLO. */
export async function greet(port: number, localAddress = '127.0.0.1'): Promise<SmtpClient> {
  const client = await connectSmtp(port, { localAddress });
  await client.command('EHLO client.example');
  return client;
}

export async function signIn(port: number, key: string): Promise<SmtpClient> {
  const client = await greet(port);
  assert.equal((await client.command(plainAuth(key))).status, 235);
  return client;
}

/** Begins with TLS, then says EHLO. */
export async function greetByTls(port: number, localAddress = '127.0.0.1'): Promise<SmtpClient> {
  const client = await openSmtp(port, { localAddress });
  await client.secure();
  assert.equal((await client.reply()).status, 220);
  await client.command('EHLO client.example');
  return client;
}

export function letterFrom(from: string, ...more: string[]): Buffer {
  const header = [`From: ${from}`, 'To: bob@dest.example', 'Subject: Hello', ...more];
  return toWire(Buffer.from([...header, '', 'How are you?', ''].join('\r\n')));
}

/** MAIL, RCPT and DATA; returns the first reply that refuses, or the last. */
export async function submit(
  client: SmtpClient,
  given: { from?: string; to?: string[]; wire?: Buffer } = {},
): Promise<SmtpReply> {
  const { from = 'ada@sender.example', to = ['bob@dest.example'], wire = letterFrom(from) } = given;
  const sender = await client.command(`MAIL FROM:<${from}>`);
  if (sender.status !== 250) return sender;
  for (const one of to) {
    const recipient = await client.command(`RCPT TO:<${one}>`);
    if (recipient.status !== 250) return recipient;
  }
  return client.data(wire);
}

export function assertReply(answer: SmtpReply, status: number, enhanced: string, text = /./): void {
  assert.equal(`${answer.status} ${answer.enhanced}`, `${status} ${enhanced}`, answer.full);
  assert.match(answer.full, text);
}

/** The id of the message, from the reply. */
export function idIn(answer: SmtpReply): string {
  assertReply(answer, 250, '2.0.0');
  const [id = assert.fail(answer.full)] = /[0-9a-f]{8}-[0-9a-f-]{27}/.exec(answer.full) ?? [];
  return id;
}
