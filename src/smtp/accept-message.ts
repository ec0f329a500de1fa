/**
 * The end of DATA: loads a message into memory, passes it to `accept`, and decides the reply. Guarantees: a message gets its 250
 * only after `accept` resolved with `accepted`, which is after the commit; never rejects.
 */
import type { Log } from '../lib/log.ts';
import type { Share, Slots } from '../lib/slots.ts';
import { clientNetwork } from '../net/client-network.ts';
import type { DataReader } from './data.ts';
import { type Refusal, type Reply, refusal, reply } from './reply.ts';
import { type MailTransaction, tryLater } from './session.ts';

export interface ReceivedMail<Route = unknown> extends MailTransaction<Route> {
  /** The bytes that the client sent, with only the dot-stuffing undone. */
  raw: Buffer;
  remoteIp: string;
  helo: string | null;
  tls: { version: string; cipher: string } | null;
}

/** `accepted`: the message is committed. */
export type MessageDecision = { accepted: true; id: string } | { accepted: false; refusal: Refusal };

export interface AcceptMessageParts<Route> {
  /** Memory for large messages that are being accepted, divided among the owners of the recipients. */
  loading: Slots;
  ownerOf(route: Route): string;
  /** Must resolve with `accepted` only after the commit: the client gets its 250 at once. */
  accept(mail: ReceivedMail<Route>): Promise<MessageDecision>;
  log: Log;
}

const clientLeft = refusal(451, '4.4.2', 'The connection was closed; please try again', 'client_left');

/** `closed` aborts when the client is gone: a message that still waits for memory is then not accepted. */
export async function acceptMessage<Route>(
  parts: AcceptMessageParts<Route>,
  mail: Omit<ReceivedMail<Route>, 'raw'>,
  reader: DataReader,
  closed: AbortSignal,
): Promise<Reply> {
  const { loading, ownerOf, accept, log } = parts;
  const [recipient] = mail.recipients;
  const owner = recipient ? ownerOf(recipient.route) : '';
  let share: Share | undefined;
  try {
    if (reader.isSpilled)
      share = await loading.take(owner, reader.size, { key: clientNetwork(mail.remoteIp), signal: closed });
  } catch {
    return clientLeft;
  }
  using _share = share;
  let raw: Buffer;
  try {
    raw = await reader.load();
  } catch (err) {
    log.error({ err }, 'A temporary file cannot be read; the client got 451');
    return tryLater;
  }
  try {
    const decision = await accept({ ...mail, raw });
    if (!decision.accepted) return decision.refusal;
    // The only line that answers a message with 250. The 250 is safe, because `accept` resolves after the commit.
    return reply(250, '2.0.0', `Accepted as ${decision.id}`);
  } catch (err) {
    log.error({ err, remoteIp: mail.remoteIp }, 'Accepting a message failed; the client got 451');
    return tryLater;
  }
}
