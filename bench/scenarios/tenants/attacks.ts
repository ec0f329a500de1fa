/** What the other owner, or a stranger, does in the scenarios `tenants-…`. Each attack goes on while the first owner is measured. */
import { setTimeout as delay } from 'node:timers/promises';
import type { DeliveryBench } from '../../deliveries.ts';
import { makeIdentity } from '../../mail.ts';
import { connectMailbox, post } from '../../mailboxes.ts';
import type { Bench } from '../../scenario.ts';
import { recipient as mailRecipient, sender } from '../../smtp-session.ts';
import type { AttackQuestion, Filled } from './attacker.control.ts';

export interface Stage {
  size: Bench['size'];
  deliveries: DeliveryBench;
  /** Asks the process of the attacker. Resolves when the attack is over. */
  attack(question: AttackQuestion): Promise<unknown>;
  /** Starts an IMAP server of the attacker; returns its port. */
  startImapServer(mode: 'login' | 'list', folders?: number): Promise<number>;
}

/** What is measured of the first owner beside its API requests and deliveries. */
export type Extra = 'large' | 'relayed';

export interface Attack {
  name: string;
  /** The bytes of text in each message of the first owner. */
  textBytes?: number;
  extras?: readonly Extra[];
  /** Starts what lasts for all rounds. */
  begin(stage: Stage): Promise<void>;
  /** What is done again in each round. */
  repeat?(stage: Stage): Promise<unknown>;
}

const nothing: Filled = { filler: '', times: 0, start: '{}' };

export const attacks: readonly Attack[] = [
  {
    // 1,300 webhooks whose receiver answers after 14 s.
    name: 'slow',
    async begin({ deliveries, size }) {
      const webhooks = await deliveries.makeWebhooks(size(1300), '/slow');
      await deliveries.queue(webhooks, webhooks.length * 10);
      await deliveries.turnOn(webhooks, true);
      await waitForLeases(deliveries, webhooks.length);
    },
  },
  {
    // 5,000 webhooks, and three messages for each.
    name: 'many',
    async begin({ deliveries, size }) {
      await makeIdentity(deliveries.service, 'many@customer.example');
      await deliveries.turnOn(await deliveries.makeWebhooks(size(5000)), true);
    },
    repeat({ attack }) {
      const path = '/inbound?recipient=many@customer.example';
      const start = `From: <${sender}>\r\nSubject: A message\r\n\r\n`;
      const body = { start, filler: 'x', times: 1000 };
      return attack({
        kind: 'repeat',
        connections: 1,
        times: 3,
        requests: [{ path, type: 'message/rfc822', body }],
      });
    },
  },
  {
    // Bodies of 4 MB to receivers that answer after 14 s; the bodies of the first owner have 200 KB.
    name: 'large',
    textBytes: 200_000,
    async begin({ deliveries, size }) {
      const webhooks = await deliveries.makeWebhooks(size(20), '/slow');
      const data = JSON.stringify({ message: { text: 'x'.repeat(4_000_000) } });
      await deliveries.queue(webhooks, webhooks.length * 20, data);
      await deliveries.turnOn(webhooks, true);
      await waitForLeases(deliveries, webhooks.length);
    },
  },
  {
    // 4,000 `POST /identities`, pipelined on 400 sockets; every hundredth is a domain.
    name: 'flood',
    begin: async () => {},
    repeat: ({ attack, size }) => attack({ kind: 'flood', sockets: 400, count: size(4000) }),
  },
  {
    // 40 clients that ask for 1,000 identities with much `meta` and read nothing.
    name: 'unread',
    async begin({ deliveries: { service }, attack, size }) {
      const meta = { text: 'x'.repeat(15_000) };
      for (let n = 0; n < size(1000); n += 1)
        await post(service, '/identities', { value: `unread${n}@customer.example`, meta });
      goOn(attack({ kind: 'unread', sockets: 40, path: '/identities?limit=1000' }));
      await delay(1000);
    },
  },
  {
    // Three checks at once of accounts whose IMAP server answers LOGIN without an end.
    name: 'imap-login',
    async begin({ deliveries: { service }, attack, size, startImapServer }) {
      const port = await startImapServer('login');
      const requests = [];
      for (let n = 0; n < 3; n += 1) {
        const server = { host: '127.0.0.1', port, secure: false, username: `u${n}`, password: 'secret' };
        const { id } = await post(service, '/smtp-accounts', { label: `u${n}`, smtp: server, imap: server });
        requests.push({ path: `/smtp-accounts/${id}/verify`, body: nothing });
      }
      goOn(attack({ kind: 'repeat', connections: 3, requests }));
      await delay(size(3000));
    },
  },
  {
    // 20 mailboxes whose server has 1.7 MB of folders, and `POST /identities/{id}/sync` in a loop.
    name: 'imap-list',
    async begin({ deliveries: { service }, attack, size, startImapServer }) {
      const port = await startImapServer('list', size(25_000));
      const requests = [];
      for (let n = 0; n < 20; n += 1) {
        const login = { port, username: `u${n}`, password: 'secret' };
        const id = await connectMailbox(service, login, `list${n}@customer.example`);
        requests.push({ path: `/identities/${id}/sync`, body: nothing });
      }
      goOn(attack({ kind: 'repeat', connections: 4, requests }));
      await delay(size(3000));
    },
  },
  {
    // `POST /messages` with 31 MB of blanks, on two connections.
    name: 'blanks',
    extras: ['large'],
    begin: ({ attack, size }) => {
      const body = { start: '{"subject":"x"', filler: ' ', times: size(31_000_000), end: '}' };
      goOn(attack({ kind: 'repeat', connections: 2, requests: [{ path: '/messages', body }] }));
      return delay(size(3000));
    },
  },
  {
    // `POST /messages` with an HTML part that is 24 million times the character `<`.
    name: 'html',
    extras: ['large'],
    async begin({ deliveries: { service }, attack, size }) {
      const identityId = await makeIdentity(service, 'html@customer.example');
      const start = `{"identityId":"${identityId}","to":"a@good.example","subject":"x","html":"`;
      const body = { start, filler: '<', times: size(24_000_000), end: '"}' };
      goOn(attack({ kind: 'repeat', connections: 2, requests: [{ path: '/messages', body }] }));
      await delay(size(3000));
    },
  },
  {
    // Mail by SMTP with 20 multiparts in each other and 25 MB of lines that are almost a boundary, on two connections.
    name: 'nesting',
    extras: ['large'],
    async begin({ deliveries: { service }, attack, size }) {
      await makeIdentity(service, mailRecipient);
      const mail = nestMultiparts(20, size(25_000_000));
      goOn(attack({ kind: 'mail', connections: 2, port: service.smtpPort, mail }));
      await delay(size(3000));
    },
  },
  {
    // Mail of 255 KB by SMTP, on 40 connections.
    name: 'mail',
    extras: ['large'],
    async begin({ deliveries: { service }, attack, size }) {
      await makeIdentity(service, mailRecipient);
      const start = `From: <${sender}>\r\nTo: <${mailRecipient}>\r\nSubject: A message\r\n\r\n`;
      const line = `${'x'.repeat(70)}\r\n`;
      const mail = { start, filler: line, times: Math.floor(255_000 / line.length), end: '.\r\n' };
      goOn(attack({ kind: 'mail', connections: 40, port: service.smtpPort, mail }));
      await delay(size(3000));
    },
  },
  {
    // `POST /messages` with HTML of 250 KB, on 20 connections.
    name: 'posts',
    extras: ['large'],
    async begin({ deliveries: { service }, attack, size }) {
      const identityId = await makeIdentity(service, 'posts@customer.example');
      const start = `{"identityId":"${identityId}","to":"a@good.example","subject":"x","html":"`;
      const body = { start, filler: '<p>x', times: 62_000, end: '"}' };
      goOn(attack({ kind: 'repeat', connections: 20, requests: [{ path: '/messages', body }] }));
      await delay(size(3000));
    },
  },
  {
    // 1,000 recipients whose mail the operator's relay takes 5 s for.
    name: 'relay',
    extras: ['relayed'],
    async begin({ deliveries: { service, sql }, size }) {
      const identityId = await makeIdentity(service, 'relay@customer.example');
      await sql`update identities set status = 'verified' where id = ${identityId}`;
      const to = Array.from({ length: 50 }, (_, n) => `r${n}@slow.example`);
      for (let n = 0; n < size(20); n += 1)
        await post(service, '/messages', { identityId, to, subject: 'Slow', text: 'Hello' });
      await delay(size(3000));
    },
  },
];

/** The attack has no end: it fails when its process is stopped. */
function goOn(attack: Promise<unknown>): void {
  attack.catch(() => {});
}

/** Waits until so many deliveries have been claimed: the attack is under way. */
async function waitForLeases({ sql }: DeliveryBench, count: number): Promise<void> {
  const leased = () => sql`select from delivery_queue where lease_token is not null limit ${count}`;
  while ((await leased()).count < count) await delay(100);
}

function nestMultiparts(depth: number, bytes: number): Filled {
  const common = 'b'.repeat(60);
  const boundaries = Array.from({ length: depth }, (_, n) => `${common}${String(n).padStart(2, '0')}`);
  const head = `From: <${sender}>\r\nTo: <${mailRecipient}>\r\nSubject: A message\r\nMIME-Version: 1.0\r\n`;
  const parts = boundaries.map((boundary, n) => {
    const type = `Content-Type: multipart/mixed; boundary="${boundary}"\r\n\r\n--${boundary}\r\n`;
    return n === 0 ? `${head}${type}` : type;
  });
  const line = `--${common}zz\r\n`;
  return {
    start: `${parts.join('')}\r\n`,
    filler: line,
    times: Math.floor(bytes / line.length),
    end: '.\r\n',
  };
}
