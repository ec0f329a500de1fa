/** The owner whose waits are measured: a user with an identity, a webhook, and a receiver of its own. */
import { createApiKey } from '../../../src/store/api-keys.ts';
import { ensureUser } from '../../../src/store/users.ts';
import type { DeliveryBench } from '../../deliveries.ts';
import { makeIdentity } from '../../mail.ts';
import { post } from '../../mailboxes.ts';
import { type Child, startChild } from '../../processes.ts';
import type { ReceivedMail } from '../../receiver.control.ts';
import { idPlace } from '../../sample-mail.ts';
import type { Bench } from '../../scenario.ts';
import { sender } from '../../smtp-session.ts';
import type { Extra } from './attacks.ts';
import type { Probed, ProbeQuestion, Sent } from './owner.control.ts';
import type { Arrivals } from './relay.control.ts';

/** What the owner waits for, in milliseconds; each has a limit. */
export type Waits = Partial<Record<'api' | 'delivery' | 'mail' | 'post' | 'relay', number[]>>;

const perSecond = 20;
/** In each round, and without the attack. */
const usualCount = 160;
const usualExtras = 5;

/** `relay`: of an attack on it. Returns the measurement. */
export async function makeOwner(
  bench: Bench,
  { service, sql }: DeliveryBench,
  relay: Child | null,
  { textBytes = 1000, extras = [] }: { textBytes?: number; extras?: readonly Extra[] },
): Promise<() => Promise<Waits>> {
  const [count, extraCount] = [bench.size(usualCount), bench.size(usualExtras)];
  const recipient = 'owner@tenant.example';
  const { user } = await ensureUser(sql, recipient);
  const { apiKey } = await createApiKey(sql, user.userId);
  const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
  const owner = { ...service, headers };
  const identityId = await makeIdentity(owner, recipient);
  await sql`update identities set status = 'verified' where id = ${identityId}`;
  const receiver = startChild(bench, new URL('../../receiver.control.ts', import.meta.url), []);
  const [, port] = await receiver.printed(/port (\d+)/);
  const url = `http://127.0.0.1:${port}/mail`;
  await post(owner, '/webhooks', { url, events: ['message.received'], ownerId: user.userId });
  const client = startChild(bench, new URL('./owner.control.ts', import.meta.url), []);
  const isLarge = extras.includes('large');
  const question: ProbeQuestion = {
    origin: service.url,
    authorization: headers.authorization,
    identityId,
    recipient,
    mail: makeMail(recipient, textBytes),
    perSecond,
    count,
    large: isLarge ? { mail: makeMail(recipient, 300_000), count: extraCount } : null,
    relayed: relay ? { count: extraCount } : null,
  };

  return async () => {
    const receiving = receiver.ask(count + (isLarge ? extraCount : 0)) as Promise<{ mails: ReceivedMail[] }>;
    const relaying = relay?.ask(extraCount) as Promise<Arrivals> | undefined;
    const { apiMs, postMs, mails, largeMails, relayed } = (await client.ask(question)) as Probed;
    const webhook = new Map((await receiving).mails.map((mail) => [mail.messageId, mail.arrivedMs]));
    const atWebhook = ({ id }: Sent) => known(webhook.get(`<${id}@sender.example>`), id);
    const waits: Waits = {
      api: apiMs,
      delivery: mails.map((sent) => atWebhook(sent) - sent.answeredMs),
    };
    if (isLarge) {
      waits.mail = largeMails.map((sent) => atWebhook(sent) - sent.begunMs);
      waits.post = postMs;
    }
    if (relaying) {
      const arrivals = await relaying;
      waits.relay = relayed.map(({ id, begunMs }) => known(arrivals[id], id) - begunMs);
    }
    return waits;
  };
}

function known(arrivedMs: number | undefined, id: string): number {
  if (arrivedMs === undefined) throw new Error(`Message ${id} did not arrive`);
  return arrivedMs;
}

function makeMail(recipient: string, textBytes: number): string {
  const head = `From: <${sender}>\r\nTo: <${recipient}>\r\nSubject: A message\r\nMessage-ID: <${idPlace}@sender.example>`;
  return `${head}\r\n\r\n${`${'x'.repeat(70)}\r\n`.repeat(Math.ceil(textBytes / 72))}`;
}
