/** The whole service that sends directly, for tests of addresses that are confirmed by mail: asks for mails, and opens their links. */
import assert from 'node:assert/strict';
import type { Identity } from '../src/store/identities.ts';
import { startDirectMail } from './direct-mail.ts';
import { type Answer, callUrl, type TestUser, waitFor } from './harness.ts';
import { newDomain } from './proving.ts';

export async function startConfirming(settings: Record<string, string> = {}) {
  const direct = await startDirectMail(settings);
  const { service, sink, add, verify, find, makeDestination } = direct;

  function newAddress(local = 'ada'): string {
    const domain = newDomain();
    makeDestination(domain);
    return `${local}@${domain}`;
  }

  const mailsTo = (address: string) => sink.mails.filter(({ rcpt }) => rcpt.includes(`<${address}>`));

  /** Asks for a confirmation mail, and gives the link in the mail. */
  async function askForLink(identity: Identity, as?: TestUser): Promise<string> {
    const before = mailsTo(identity.value).length;
    const answer = await verify(identity, as);
    assert.deepEqual([answer.status, answer.body.status], [200, 'pending'], answer.text);
    return linkTo(identity.value, before);
  }

  /** The link in a mail to the address, by default the first, as soon as the mail has come. */
  async function linkTo(address: string, n = 0): Promise<string> {
    return readLink((await waitFor(`mail to ${address}`, () => mailsTo(address)[n])).raw);
  }

  /** As the API shows it. */
  async function statusOf({ id }: { id: string }, as = service.user): Promise<string> {
    return (await service.call('GET', `/identities/${id}`, { as })).body.status;
  }

  /** An identity of the owner that is confirmed by the link in the mail. */
  async function addConfirmed(address: string, as = service.user): Promise<Identity> {
    const identity = await add(address, {}, as);
    assert.equal((await press(await askForLink(identity, as))).status, 200);
    assert.equal((await find(identity)).status, 'verified');
    return identity;
  }

  /** Moves the mails that were asked for, and what is pending by them, into the past. */
  async function passHours(hours: number, identity: { id: string }): Promise<void> {
    const span = service.sql`${hours} * interval '1 hour'`;
    await service.sql`
      update confirmations set created_at = created_at - ${span}, expires_at = expires_at - ${span}
      where identity_id = ${identity.id}`;
    await service.sql`update identities set pending_until = pending_until - ${span} where id = ${identity.id}`;
  }

  return { ...direct, newAddress, mailsTo, linkTo, askForLink, statusOf, addConfirmed, passHours };
}

/** The one link in a mail whose text is quoted-printable or plain. */
function readLink(raw: string): string {
  const links = raw.replaceAll('=\r\n', '').match(/https?:\/\/\S+/g) ?? [];
  assert.equal(links.length, 1, raw);
  return links[0] ?? '';
}

export function open(link: string): Promise<Answer> {
  return callUrl('GET', link, {});
}

/** What the button of the page does. */
export function press(link: string): Promise<Answer> {
  const headers = { 'content-type': 'application/x-www-form-urlencoded' };
  return callUrl('POST', link, { body: '', headers });
}
