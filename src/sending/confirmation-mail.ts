/**
 * The mail that asks whether an address may be connected. It is the operator's: nothing in it was written by a user but the address.
 * Guarantee: every try sends the same bytes, as long as the operator's settings are the same.
 */
import { isAscii } from 'node:buffer';
import { composeMail } from '../mime/compose.ts';
import type { ConfirmationMail } from '../store/confirmations.ts';

export interface ConfirmationParts {
  mailHost: string;
  /** Null: the key of the link is no longer in use. */
  linkTo(id: string, tokenHash: Buffer): string | null;
}

export interface WrittenConfirmation {
  raw: Buffer;
  link: string;
  /** An address beyond ASCII is in the header as it is, and everything else is ASCII. */
  isUtf8: boolean;
}

export async function writeConfirmationMail(
  { mailHost, linkTo }: ConfirmationParts,
  { id, address, tokenHash, createdAt }: ConfirmationMail,
): Promise<WrittenConfirmation | null> {
  const link = linkTo(id, tokenHash);
  if (link === null) return null;
  const raw = await composeMail({
    ...{ from: { name: null, address: `posthorn@${mailHost}` }, to: [{ name: null, address }] },
    ...{ cc: [], replyTo: [], inReplyTo: null, references: [], html: null, attachments: [] },
    ...{ messageId: `<${id}@${mailHost}>`, date: createdAt, subject: 'Confirm this email address' },
    headers: [{ name: 'Auto-Submitted', value: 'auto-generated' }],
    text: writeText(address, mailHost, link),
  });
  return { raw, link, isUtf8: !isAscii(raw) };
}

function writeText(address: string, mailHost: string, link: string): string {
  return `Someone wants to connect this email address to an account at the mail
service on ${mailHost}:

    ${address}

If it was you, open this page and press its button:

    ${link}

The link works once, and for 24 hours. Once the address is confirmed, the
account can send mail from it, and receives mail for it that arrives at
this service.

If it was not you, ignore this mail: without the button nothing happens.
`;
}
