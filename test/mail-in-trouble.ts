/** Mail sent while something fails, and what is stored of it. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { identifier } from '../src/db/sql.ts';
import type { TestService } from './harness.ts';
import { connectSmtp, type SmtpReply, toWire } from './smtp-client.ts';

const tables = ['messages', 'events', 'deliveries', 'raw_chunks'];

export async function makeIdentity(at: TestService): Promise<string> {
  const value = `a${randomBytes(5).toString('hex')}@away.example`;
  const answer = await at.call('POST', '/identities', { body: { value } });
  assert.equal(answer.status, 201, answer.text);
  return value;
}

export const told = ({ status, enhanced }: SmtpReply) => `${status} ${enhanced}`;

/** Returns the reply to the message; `meanwhile` runs after its recipients were accepted. */
export async function send(
  at: TestService,
  to: string[],
  raw: string,
  meanwhile?: () => Promise<unknown>,
): Promise<SmtpReply> {
  const client = await connectSmtp(at.smtpPort);
  const routed = await client.envelope('ada@sender.example', ...to);
  assert.equal(routed.status, 250, routed.full);
  await meanwhile?.();
  const reply = await client.data(toWire(raw));
  client.close();
  return reply;
}

export async function countRows(sql: TestService['sql']): Promise<Record<string, number>> {
  const counts: Record<string, number> = {};
  for (const table of tables) counts[table] = (await sql`select from ${identifier(table)}`).count;
  return counts;
}

export const small = 'Subject: away\r\nMessage-ID: <small@away.example>\r\n\r\nBody\r\n';
export const large = `Subject: away\r\nMessage-ID: <large@away.example>\r\n\r\n${'x'.repeat(3_000_000)}\r\n`;
