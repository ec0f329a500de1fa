/** Deliveries that are created under the lease of the process that takes the message, and tried without a claim. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { makeLinks } from '../src/contract/links.ts';
import { completeData } from '../src/contract/payload.ts';
import { connect } from '../src/db/client.ts';
import { makeLog } from '../src/lib/log.ts';
import { makeMetrics } from '../src/lib/metrics.ts';
import { makeMailWork } from '../src/mailwork/mailwork.ts';
import { type AcceptParts, acceptMail, type IncomingMail } from '../src/receiving/accept.ts';
import { MailLog } from '../src/receiving/mail-log.ts';
import { MessageRecorder } from '../src/receiving/record.ts';
import { routeRecipient } from '../src/receiving/route.ts';
import { packContent } from '../src/store/content.ts';
import { redeliver } from '../src/store/deliveries.ts';
import { leaseSeconds } from '../src/store/queue-rows.ts';
import { deliveryLimits } from '../src/webhooks/deliver.ts';
import { startTestService, waitFor } from './harness.ts';
import { answer, hang, startReceiver } from './receiver.ts';
import { deliveryKey, startTestDelivery } from './test-delivery.ts';

const service = await startTestService({ POSTHORN_ROLES: 'api', POSTHORN_SECRET_KEY: deliveryKey });
const { sql } = service;
const log = makeLog({ level: 'silent', json: true });
const mailWork = makeMailWork({ dnsServers: ['127.0.0.1:9'], mailHost: 'mx.example', log });
const receiver = await startReceiver();
after(async () => {
  await mailWork.stop();
  await receiver.close();
});

// What PostgreSQL did: a claim is an update that sets a token.
await sql.script(`
  create table seen (id uuid, what text);
  create function see() returns trigger language plpgsql as $$ begin
    if tg_op = 'INSERT' then insert into seen values (new.id, case when new.lease_token is null then 'ready' else 'leased' end);
    elsif old.lease_token is distinct from new.lease_token and new.lease_token is not null then
      insert into seen values (new.id, 'claimed');
    end if;
    return null;
  end $$;
  create trigger see after insert or update on delivery_queue for each row execute function see();`);

const links = makeLinks([randomBytes(32)], () => 'https://posthorn.example');
const startLoop = () =>
  startTestDelivery(service.databaseUrl, { completeData: (stored) => completeData(stored, links, 0) });

/** A loop, and a way in for mail that offers deliveries to it. */
function startProcess(loop: ReturnType<typeof startTestDelivery> = startLoop()) {
  const groupSql = connect(service.databaseUrl, { max: 1, applicationName: 'test mail' });
  after(() => groupSql.end({ timeoutMs: 0 }).catch(() => 'ended by the test'));
  const parts: AcceptParts = {
    ...{ sql, mailWork, metrics: makeMetrics(), tracer: null, mailLog: new MailLog(log) },
    ...{ inlineRawBytes: 50_000, acceptUnverified: true, wakeDelivery: () => loop.wake() },
    recorder: new MessageRecorder({ groupSql, acceptUnverified: true, offerDeliveries: loop.offer }),
  };
  return { loop, parts, groupSql };
}

/** An identity of a new user, and a webhook of that user. */
async function makeListener() {
  const as = await service.makeUser();
  const path = `/${randomBytes(6).toString('hex')}`;
  const webhook = await service.makeWebhook(receiver.url(path), {}, as);
  const address = `a@${randomBytes(5).toString('hex')}.example`;
  const made = await service.call('POST', '/identities', { as, body: { value: address } });
  assert.equal(made.status, 201, made.text);
  const posts = () => receiver.requests.filter(({ url }) => url === path);
  return { as, webhook, address, path, posts };
}
type Listener = Awaited<ReturnType<typeof makeListener>>;

function write(body: string | Buffer = 'Hello\r\n', header = ''): Buffer {
  const id = `Message-ID: <${randomBytes(9).toString('hex')}@x>\r\n`;
  return Buffer.concat([Buffer.from(`${id}${header}\r\n`), Buffer.from(body)]);
}

async function accept(
  parts: AcceptParts,
  { address }: Listener,
  raw = write(),
  runSteps?: Parameters<typeof acceptMail>[2],
): Promise<string> {
  const mail: IncomingMail = {
    ...{ source: 'api', raw, envelope: { mailFrom: null, remoteIp: null, helo: null, tls: null } },
    async recipients() {
      const route = await routeRecipient(parts, address);
      return typeof route === 'string' ? assert.fail(route) : [route];
    },
  };
  const [id] = await acceptMail(parts, mail, runSteps);
  return id ?? 'none';
}

/** What PostgreSQL did with the delivery of a message, when it has ended. */
async function historyOf(messageId: string): Promise<string[]> {
  const history = await waitFor('the end of the delivery', async () => {
    const rows = await sql<{ what: string; status: string }[]>`
      select what, status from events join deliveries on event_id = events.id join seen on seen.id = deliveries.id
      where message_id = ${messageId}`;
    return rows.length > 0 && rows.every(({ status }) => status === 'delivered') ? rows : null;
  });
  return history.map(({ what }) => what);
}

/** The process knows the webhook after its first delivery. */
async function introduce(parts: AcceptParts, listener: Listener): Promise<void> {
  assert.deepEqual(await historyOf(await accept(parts, listener)), ['ready', 'claimed']);
}

/** More than a webhook has places. */
const many = deliveryLimits.perLane + 4;

describe('a delivery', () => {
  test('to a webhook that is known here is tried without a claim, once', async () => {
    const { parts } = startProcess();
    const listener = await makeListener();
    await introduce(parts, listener);
    for (let n = 0; n < 3; n += 1)
      assert.deepEqual(await historyOf(await accept(parts, listener)), ['leased']);
    assert.equal(listener.posts().length, 4);
  });

  test('beyond the places of its webhook is left for a claim', async () => {
    const { parts } = startProcess();
    const listener = await makeListener();
    await introduce(parts, listener);
    receiver.behaveAt(listener.path, hang());
    for (let n = 0; n < many; n += 1) await accept(parts, listener);
    const [{ leased } = {}] = await sql`
      select count(*)::int as leased from seen join deliveries using (id)
      where webhook_id = ${listener.webhook.id} and what = 'leased'`;
    assert.equal(leased, deliveryLimits.perLane);
    receiver.behaveAt(listener.path, answer(200));
    receiver.dropConnections();
  });

  test('of a process that was killed after the commit is claimed when the lease has ended', async () => {
    const { parts, loop } = startProcess();
    const listener = await makeListener();
    await introduce(parts, listener);
    // As if the process had been killed: the deliveries of the offer are never adopted.
    const { recorder } = parts;
    using offers = new DisposableStack();
    let made: { eventId: string } | undefined;
    await accept(parts, listener, write(), async (examine) => {
      const { messages } = await examine();
      const [message] = messages;
      assert.ok(message);
      made = message;
      const data = message.writeData();
      const content = await packContent(message.raw, data);
      const recorded = await recorder.record(sql, { ...message, data, content }, offers);
      assert.equal(recorded.offer?.webhookIds.length, 1);
    });
    assert.equal(listener.posts().length, 1);
    offers.dispose();
    await loop.stop();
    const expired = await sql`
      update delivery_queue set lease_until = now()
      where event_id = ${made?.eventId ?? ''}
        and lease_until between now() + interval '1 s' and now() + ${leaseSeconds} * interval '1 s'`;
    assert.equal(expired.count, 1);
    startLoop().wake();
    await receiver.received(2, ({ url }) => url === listener.path);
  });

  test('has the same body as one that is read from the database', async () => {
    const { parts, loop } = startProcess();
    const listener = await makeListener();
    await introduce(parts, listener);
    const attachment =
      'Content-Type: multipart/mixed; boundary=b\r\nMIME-Version: 1.0\r\nSubject: =?utf-8?q?=C3=A9?=\r\n';
    const parted =
      '--b\r\n\r\n"quoted" \\ é\u2028\r\n--b\r\nContent-Disposition: attachment; filename="a\\"b"\r\n\r\nx\r\n--b--\r\n';
    const kinds = {
      'text in UTF-8': write('"é" \\ \u0001 \u2028 \ufeff\r\n'),
      'other bytes, as base64': write(Buffer.from([0xff, 0xfe, 0x00, 0x80, 0x0a])),
      'NUL in the text': write('a\0b\r\n'),
      attachments: write(parted, attachment),
      'raw bytes that are not part of the body': write(
        `--b\r\n\r\nsmall\r\n--b\r\nContent-Disposition: attachment\r\n\r\n${'x'.repeat(2_000_000)}\r\n--b--\r\n`,
        attachment,
      ),
    };
    const ids = new Map<string, string>();
    for (const [kind, raw] of Object.entries(kinds)) {
      const id = await accept(parts, listener, raw);
      assert.deepEqual(await historyOf(id), ['leased'], kind);
      ids.set(kind, id);
    }
    const large = await accept(parts, listener, write('y'.repeat(45_000)));
    assert.deepEqual(await historyOf(large), ['ready', 'claimed'], 'a large body waits for memory');
    await loop.stop();
    // A new process has no bodies in memory.
    const ended = await sql<{ id: string }[]>`
      select id from ended_deliveries where webhook_id = ${listener.webhook.id}`;
    for (const { id } of ended) assert.ok(await redeliver(sql, listener.as.userId, id));
    const before = listener.posts();
    startLoop().wake();
    await receiver.received(2 * before.length, ({ url }) => url === listener.path);
    const again = listener.posts().slice(before.length);
    for (const [kind, id] of ids) {
      const find = (posts: typeof again) =>
        posts.find(({ body }) => JSON.parse(String(body)).data.message.id === id);
      const [first, second] = [find(before), find(again)];
      assert.ok(first && second, kind);
      assert.deepEqual(first.headers['webhook-id'], second.headers['webhook-id']);
      assert.ok(first.body.equals(second.body), kind);
    }
  });
});

describe('a place in the loop comes back', () => {
  /** The webhook still has a free place after `work` was done more often than it has places. */
  async function keepsPlaces(work: (listener: Listener, parts: AcceptParts) => Promise<unknown>) {
    const process = startProcess();
    const listener = await makeListener();
    await introduce(process.parts, listener);
    for (let n = 0; n < many; n += 1) await work(listener, process.parts);
    return { ...process, listener };
  }

  test('after a rollback, and nothing is POSTed', async () => {
    const { parts, listener } = await keepsPlaces(async (listener, parts) => {
      const accepting = accept(parts, listener, write(), async (examine, record) => {
        const examined = await examine();
        await sql.begin(async (own) => {
          await record(own, examined);
          throw new Error('rolled back');
        });
      });
      await assert.rejects(accepting, /rolled back/);
    });
    assert.deepEqual(await historyOf(await accept(parts, listener)), ['leased']);
    assert.equal(listener.posts().length, 2);
  });

  test('after a repeat', async () => {
    const raw = write();
    const { parts, listener } = await keepsPlaces((listener, parts) => accept(parts, listener, raw));
    assert.deepEqual(await historyOf(await accept(parts, listener)), ['leased']);
    assert.equal(listener.posts().length, 3);
  });

  test('after a message that the database refused', async () => {
    const { parts, listener } = await keepsPlaces(async (listener, parts) => {
      const refused = accept(parts, listener, write(), async (examine, record) => {
        const { messages, ...examined } = await examine();
        await record(sql, {
          ...examined,
          messages: messages.map((one) => ({ ...one, summary: 'not JSON' })),
        });
      });
      await assert.rejects(refused, /json/);
    });
    assert.deepEqual(await historyOf(await accept(parts, listener)), ['leased']);
  });

  test('after a message that a disabled webhook does not get', async () => {
    let isOff = false;
    const { parts, listener } = await keepsPlaces(async (listener, parts) => {
      const { as, webhook } = listener;
      if (!isOff) await service.call('PATCH', `/webhooks/${webhook.id}`, { as, body: { enabled: false } });
      isOff = true;
      await accept(parts, listener);
    });
    const { as, webhook } = listener;
    await service.call('PATCH', `/webhooks/${webhook.id}`, { as, body: { enabled: true } });
    const made = [await accept(parts, listener), await accept(parts, listener)];
    for (const id of made) await historyOf(id);
    assert.equal(listener.posts().length, 3);
  });

  test('after a lost connection, and nothing is POSTed', async () => {
    const { parts, listener, groupSql } = await keepsPlaces(async () => {});
    await groupSql.end({ timeoutMs: 0 });
    for (let n = 0; n < many; n += 1)
      await assert.rejects(accept(parts, listener), { code: 'CONNECTION_LOST' });
    const id = await accept(parts, listener, write(), async (examine, record) => {
      const examined = await examine();
      await sql.begin((own) => record(own, examined));
    });
    assert.deepEqual(await historyOf(id), ['leased']);
    assert.equal(listener.posts().length, 2);
  });
});
