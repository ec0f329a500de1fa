/** The whole service with a webhook and a receiver, for mail from another program. */
import assert from 'node:assert/strict';
import { after, afterEach } from 'node:test';
import { startDns } from '../dns.ts';
import { startTestService, type TestService, type TestUser } from '../harness.ts';
import { type Receiver, startReceiver } from '../receiver.ts';
import { tellIfFailed } from './programs.ts';

export interface Mailroom {
  service: TestService;
  receiver: Receiver;
  /** An identity of the service's user, or of another. Returns its id. */
  addIdentity(value: string, more?: Record<string, unknown>, as?: TestUser): Promise<string>;
  /** Waits for so many events of messages with this subject, and returns their data in the order of arrival. */
  announced(subject: string, count?: number): Promise<Announced[]>;
  /** The number of stored messages with this subject. */
  countStored(subject: string): Promise<number>;
}

// biome-ignore lint/suspicious/noExplicitAny: tests read any field of an event.
type Announced = { message: any; rawEmail: string };

/** By default with a DNS server that has no names. */
export async function startMailroom(settings: Record<string, string> = {}): Promise<Mailroom> {
  const dns = await startDns();
  after(() => dns.close());
  const service = await startTestService({ POSTHORN_DNS_SERVERS: dns.address, ...settings });
  const receiver = await startReceiver();
  after(() => receiver.close());
  afterEach((context) => {
    const warnings = service.logged.filter(({ level }) => ['warn', 'error', 'fatal'].includes(String(level)));
    tellIfFailed(context, 'the service', warnings.map((line) => JSON.stringify(line)).join('\n'));
  });
  await service.makeWebhook(receiver.url());

  return {
    service,
    receiver,
    async addIdentity(value, more = {}, as = service.user) {
      const { status, body, text } = await service.call('POST', '/identities', {
        as,
        body: { value, ...more },
      });
      assert.equal(status, 201, text);
      return body.id;
    },
    async announced(subject, count = 1) {
      const read = ({ body }: { body: Buffer }) => JSON.parse(body.toString()).data as Announced;
      const requests = await receiver.received(count, (one) => read(one).message.subject === subject);
      return requests.map(read);
    },
    async countStored(subject) {
      const [{ count } = {}] = await service.sql`
        select count(*)::int as count from messages where summary::jsonb ->> 'subject' = ${subject}
      `;
      return count;
    },
  };
}
