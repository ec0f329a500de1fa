/** A service, an IMAP server, and identities whose mailboxes the server holds. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import type { Pool } from '../src/db/client.ts';
import { newId } from '../src/lib/ids.ts';
import { makeSealer } from '../src/lib/secrets.ts';
import { createSmtpAccount } from '../src/store/smtp-accounts.ts';
import { startTestService, type TestService, type TestUser, waitFor } from './harness.ts';
import type { ImapServer } from './imap-server.ts';

export interface MailboxService extends TestService {
  /** Creates an account at the server, and an identity with this address that uses it. */
  connect(
    server: { port: number; password: string; username?: string },
    value: string,
    as?: TestUser,
  ): Promise<Connected>;
  /** The mailboxes of the identity, by kind, as soon as they match. */
  mailboxes(
    id: string,
    matches?: (boxes: Record<string, ShownMailbox>) => boolean,
  ): Promise<Record<string, ShownMailbox>>;
  /** Messages of the identity, newest first, as soon as there are so many. */
  // biome-ignore lint/suspicious/noExplicitAny: tests read any field of a response.
  messages(id: string, count: number, as?: TestUser): Promise<any[]>;
}

interface Connected {
  id: string;
  accountId: string;
}

interface ShownMailbox {
  id: string;
  path: string | null;
  total: number | null;
  sync: {
    state: string;
    lastSyncedAt: string | null;
    error: { code: string; message: string; response: string | null } | null;
    backlog: number;
  } | null;
}

export async function startMailboxService(
  settings: Record<string, string> = {},
  options: Parameters<typeof startTestService>[1] = {},
): Promise<MailboxService> {
  const key = settings.POSTHORN_SECRET_KEY ?? randomBytes(32).toString('base64');
  const service = await startTestService({ ...settings, POSTHORN_SECRET_KEY: key }, options);
  const sealer = makeSealer([Buffer.from(key, 'base64')]);
  const boxesOf = async (id: string) => {
    const { status, body } = await service.call('GET', `/identities/${id}/mailboxes`);
    assert.equal(status, 200);
    return Object.fromEntries(body.map((box: { kind: string }) => [box.kind, box]));
  };
  return {
    ...service,
    async connect({ port, password, username = 'ada' }, value, as = service.user) {
      const server = { host: '127.0.0.1', port, secure: false, username, login: { password } };
      const given = { id: newId(), label: value, smtp: server, imap: server };
      const account = await createSmtpAccount(service.sql, sealer, as.userId, given, 1000);
      assert.ok(account);
      const body = { value, smtp_account_id: account.id };
      const made = await service.call('POST', '/identities', { as, body });
      assert.equal(made.status, 201, made.text);
      return { id: made.body.id, accountId: account.id };
    },
    mailboxes: (id, matches = wereRead) =>
      waitFor('the mailboxes', async () => {
        const boxes = await boxesOf(id);
        return matches(boxes) ? boxes : null;
      }),
    messages: (id, count, as = service.user) =>
      waitFor(`${count} messages`, async () => {
        const { body } = await service.call('GET', `/messages?identity_id=${id}`, { as });
        return body.length >= count ? body : null;
      }),
  };
}

/** Mail that comes before the first reading of a folder counts as mail that was there at first. */
function wereRead({ inbox, sent, spam }: Record<string, ShownMailbox>): boolean {
  const others = [sent, spam].every((box) => box?.path === null || box?.sync?.state === 'idle');
  return inbox?.sync?.state === 'idle' && others;
}

/** Waits until the service waits for the server's notice. */
export function isIdling(server: ImapServer, times = 1): Promise<boolean> {
  return waitFor('IDLE', () => server.commands.filter((command) => command === 'IDLE').length >= times);
}

/** The ledger of the identity takes nothing: each row fails with this error. */
export async function breakLedger(
  sql: Pool,
  id: string,
  code: string,
  text: string,
): Promise<{ fix(): Promise<void> }> {
  return breakInserts(sql, `mailbox_ledger for each row when (new.identity_id = '${id}')`, code, text);
}

/** Inserts into these rows of a table fail with this error. */
export async function breakInserts(
  sql: Pool,
  rows: string,
  code: string,
  text: string,
): Promise<{ fix(): Promise<void> }> {
  const name = `broken_${newId().replaceAll('-', '')}`;
  await sql.script(`
    create function ${name}() returns trigger language plpgsql as $$
      begin raise exception '${text}' using errcode = '${code}'; end $$;
    create trigger ${name} before insert on ${rows} execute function ${name}()`);
  return { fix: () => sql.script(`drop function ${name} cascade`) };
}

export function mailWith(subject: string, more: Record<string, string> = {}): string {
  const fields = {
    From: 'Bob <bob@example.com>',
    To: 'ada@home.example',
    Subject: subject,
    'Message-ID': `<${newId()}@example.com>`,
    ...more,
  };
  const header = Object.entries(fields).map(([name, value]) => `${name}: ${value}\r\n`);
  return `${header.join('')}\r\nText of ${subject}\r\n`;
}
