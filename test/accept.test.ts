/** acceptMail: what is committed, counted and announced, and who gets the mail of an identity that was just deleted. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { transaction } from '../src/db/client.ts';
import { makeLog } from '../src/lib/log.ts';
import { makeMetrics } from '../src/lib/metrics.ts';
import { makeMailWork } from '../src/mailwork/mailwork.ts';
import { type AcceptParts, acceptMail, type IncomingMail } from '../src/receiving/accept.ts';
import { MailLog } from '../src/receiving/mail-log.ts';
import { MessageRecorder } from '../src/receiving/record.ts';
import { type RoutedRecipient, routeRecipient } from '../src/receiving/route.ts';
import { startTestService, type TestUser } from './harness.ts';

const service = await startTestService({ POSTHORN_ROLES: 'api' });
const { call, makeUser, sql, user } = service;
await service.makeWebhook('https://hooks.example/');
const mailWork = makeMailWork({
  dnsServers: ['127.0.0.1:9'],
  mailHost: 'mx.example',
  log: makeLog({ level: 'silent', json: true }),
});
after(() => mailWork.stop());

const mailLog = new MailLog(makeLog({ level: 'silent', json: true }));

/** New parts, with a list of what was counted and woken, in order. */
function makeParts() {
  const done: string[] = [];
  const metrics = makeMetrics();
  const parts: AcceptParts = {
    ...{ sql, mailWork, metrics, tracer: null, inlineRawBytes: 1024, acceptUnverified: true, mailLog },
    recorder: new MessageRecorder({ groupSql: sql, acceptUnverified: true, offerDeliveries: null }),
    wakeDelivery: () => done.push('woken'),
  };
  const counted = async () => {
    const { values } = await metrics.receivedMessages.get();
    return Object.fromEntries(
      values.map(({ labels, value }) => [`${labels.source} ${labels.outcome}`, value]),
    );
  };
  return { parts, done, counted };
}

async function makeIdentity(value: string, more = {}, as: TestUser = user): Promise<string> {
  const answer = await call('POST', '/identities', { as, body: { value, ...more } });
  assert.equal(answer.status, 201, answer.text);
  return answer.body.id;
}

const newDomain = () => `${randomBytes(5).toString('hex')}.example`;

function makeMail(recipients: IncomingMail['recipients'], more: Partial<IncomingMail> = {}): IncomingMail {
  const envelope = { mailFrom: null, remoteIp: null, helo: null, tls: null };
  const raw = Buffer.from(`Message-ID: <${randomBytes(9).toString('hex')}@x>\r\n\r\nHello\r\n`);
  return { source: 'api', raw, envelope, recipients, ...more };
}

async function routeAll(parts: AcceptParts, ...addresses: string[]): Promise<RoutedRecipient[]> {
  const routes = await Promise.all(addresses.map((address) => routeRecipient(parts, address)));
  return routes.map((route) => (typeof route === 'string' ? assert.fail(route) : route));
}

/** The identities of the messages with these ids. */
async function identitiesOf(messageIds: string[]): Promise<string[]> {
  const rows = await sql<{ id: string; identityId: string }[]>`
    select id, identity_id as "identityId" from messages where id = any (${messageIds}::uuid[])`;
  return messageIds.map((id) => rows.find((row) => row.id === id)?.identityId ?? 'nobody');
}

describe('a message', () => {
  test('is counted and announced after the commit, not before', async () => {
    const { parts, done, counted } = makeParts();
    const address = `a@${newDomain()}`;
    const id = await makeIdentity(address);
    const ids = await acceptMail(
      parts,
      makeMail(() => routeAll(parts, address)),
      async (examine, record) => {
        const examined = await examine();
        await transaction(sql, (sql) => record(sql, examined));
        assert.deepEqual(await counted(), {});
        done.push('committed');
      },
    );
    assert.deepEqual(done, ['committed', 'woken']);
    assert.deepEqual(await identitiesOf(ids), [id]);
    assert.deepEqual(await counted(), { 'api recorded': 1 });
  });

  test('that the caller rolls back is not stored, not counted and not announced', async () => {
    const { parts, done, counted } = makeParts();
    const address = `a@${newDomain()}`;
    const id = await makeIdentity(address);
    let seen: string[] = [];
    const accepting = acceptMail(
      parts,
      makeMail(() => routeAll(parts, address)),
      async (examine, record) => {
        const examined = await examine();
        await transaction(sql, async (sql) => {
          seen = await record(sql, examined);
          throw new Error('The answer could not be kept');
        });
      },
    );
    await assert.rejects(accepting, /could not be kept/);
    assert.equal(seen.length, 1);
    assert.equal((await sql`select from messages where identity_id = ${id}`).count, 0);
    assert.equal((await sql`select from events where identity_id = ${id}`).count, 0);
    assert.deepEqual([done, await counted()], [[], {}]);
  });

  test('that came before gives the same id, counts as a repeat and announces nothing', async () => {
    const { parts, done, counted } = makeParts();
    const address = `a@${newDomain()}`;
    await makeIdentity(address);
    const mail = makeMail(() => routeAll(parts, address), { source: 'smtp' });
    const first = await acceptMail(parts, mail);
    assert.deepEqual(await acceptMail(parts, mail), first);
    assert.deepEqual(done, ['woken']);
    assert.deepEqual(await counted(), { 'smtp recorded': 1, 'smtp repeat': 1 });
  });
});

test('an address whose domain another user verified after routing gets no mail', async () => {
  const { parts, counted } = makeParts();
  const domain = newDomain();
  await makeIdentity(`ada@${domain}`);
  const mail = makeMail(async () => {
    const routed = await routeAll(parts, `ada@${domain}`);
    const other = await makeUser();
    const { body } = await call('POST', '/identities', { as: other, body: { value: domain } });
    await sql`update identities set status = 'verified' where id = ${body.id}`;
    return routed;
  });
  assert.deepEqual(await acceptMail(parts, mail), []);
  assert.deepEqual(await counted(), { 'api gone': 1 });
});

describe('an identity that is deleted after routing', () => {
  /** Routes to these addresses, then deletes the identity. */
  const routeThenDelete =
    (parts: AcceptParts, id: string, ...addresses: string[]) =>
    async () => {
      const routed = await routeAll(parts, ...addresses);
      assert.equal((await call('DELETE', `/identities/${id}`)).status, 204);
      return routed;
    };

  test('leaves its mail to the catch-all domain', async () => {
    const { parts, done, counted } = makeParts();
    const domain = newDomain();
    const all = await makeIdentity(domain, { incoming_domain: true });
    const one = await makeIdentity(`one@${domain}`);
    const mail = makeMail(routeThenDelete(parts, one, `one@${domain}`), { ownerId: user.userId });
    assert.deepEqual(await identitiesOf(await acceptMail(parts, mail)), [all]);
    assert.deepEqual(done, ['woken']);
    assert.deepEqual(await counted(), { 'api gone': 1, 'api recorded': 1 });
  });

  test('does not affect the other identities of the same message', async () => {
    const { parts } = makeParts();
    const domain = newDomain();
    const all = await makeIdentity(domain, { incoming_domain: true });
    const [one, two] = [await makeIdentity(`one@${domain}`), await makeIdentity(`two@${domain}`)];
    const mail = makeMail(routeThenDelete(parts, one, `one@${domain}`, `two@${domain}`));
    const ids = await acceptMail(parts, mail);
    assert.deepEqual((await identitiesOf(ids)).sort(), [all, two].sort());
    const [{ commits } = {}] = await sql`
      select count(distinct xmin::text)::int as commits from messages where id = any (${ids}::uuid[])`;
    assert.equal(commits, 1);
  });

  test('leaves nothing to another owner if the mail is for one owner', async () => {
    const { parts, done } = makeParts();
    const domain = newDomain();
    const stranger = await service.makeUser();
    await makeIdentity(domain, { incoming_domain: true }, stranger);
    const one = await makeIdentity(`one@${domain}`);
    const mail = makeMail(routeThenDelete(parts, one, `one@${domain}`), { ownerId: user.userId });
    assert.deepEqual(await acceptMail(parts, mail), []);
    assert.deepEqual(done, []);
  });
});

test('messages for which no memory is free wait, and those of another owner do not', async () => {
  const { recorder } = makeParts().parts;
  const largest = 26_214_400;
  using first = await recorder.takeMemory('one', largest);
  using _second = await recorder.takeMemory('one', largest);
  let isTaken = false;
  const third = recorder.takeMemory('one', 1000).then((share) => {
    isTaken = true;
    return share;
  });
  using _other = await recorder.takeMemory('another', largest);
  assert.equal(isTaken, false);
  first.release();
  (await third).release();
});
