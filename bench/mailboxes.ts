/** Used by the scenarios of mailboxes elsewhere: identities whose mailboxes an IMAP server of the bench holds. */
import type { BenchedService } from './service.ts';

export interface ImapLogin {
  port: number;
  /** TLS from the start. */
  secure?: boolean;
  username: string;
  password: string;
}

/** Creates an account at the server, and an identity with this address that uses it. Returns the id of the identity. */
export async function connectMailbox(
  service: BenchedService,
  { port, secure = false, username, password }: ImapLogin,
  value: string,
): Promise<string> {
  const imap = { host: '127.0.0.1', port, secure, username, password };
  const account = await post(service, '/smtp-accounts', { label: value, smtp: imap, imap });
  return (await post(service, '/identities', { value, smtp_account_id: account.id })).id;
}

export async function post(
  { url, headers }: BenchedService,
  path: string,
  body: object,
): Promise<{ id: string }> {
  const answer = await fetch(`${url}${path}`, { method: 'POST', headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`POST ${path} responded ${answer.status}: ${await answer.text()}`);
  return (await answer.json()) as { id: string };
}
