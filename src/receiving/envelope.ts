/** The envelope of a message that was found in a mailbox elsewhere, as far as its header tells. Pure. */
import type { Field } from '../mime/headers.ts';
import type { MailboxOwner } from '../store/receivers.ts';
import { matchesAddress } from './route.ts';

/** Fields in which servers note the recipient of the envelope, in the order of trust. */
const recipientFields = ['delivered-to', 'x-original-to', 'envelope-to'];

/**
 * The server that delivers writes its fields in front, so the first of each name counts. A recipient that is not an address of the
 * identity was an alias, or the sender wrote the field: then it is the address of the identity.
 */
export function readEnvelope(
  headers: readonly Field[],
  identity: MailboxOwner,
): { mailFrom: string | null; rcptTo: string } {
  const first = (name: string) => {
    const field = headers.find((field) => field.name.toLowerCase() === name);
    return field && stripBrackets(field.value);
  };
  const named = recipientFields.map(first).find((address) => address && matchesAddress(address, identity));
  return { mailFrom: first('return-path') || null, rcptTo: named ?? identity.value };
}

function stripBrackets(value: string): string {
  return value.trim().replace(/^<(.*)>$/s, '$1');
}
