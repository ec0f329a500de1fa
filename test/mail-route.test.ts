/** Routing: the reply to RCPT, and which identity gets the message. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { routeRecipient } from '../src/receiving/route.ts';
import { startDns } from './dns.ts';
import { startTestService, type TestService, type TestUser } from './harness.ts';
import { startReceiver } from './receiver.ts';
import { connectSmtp, type SmtpReply, toWire } from './smtp-client.ts';

const dns = await startDns();
const service = await startTestService({ POSTHORN_DNS_SERVERS: dns.address });
const { makeUser, sql, user } = service;
after(() => dns.close());

const newDomain = () => `d${randomBytes(5).toString('hex')}.example`;

interface Made {
  id: string;
  value: string;
}

async function addIdentity(
  value: string,
  more: Record<string, unknown> = {},
  as = user,
  at = service,
): Promise<Made> {
  const answer = await at.call('POST', '/identities', { as, body: { value, ...more } });
  assert.equal(answer.status, 201, answer.text);
  return answer.body;
}

async function verify({ id }: Made, at = service): Promise<void> {
  assert.equal((await at.sql`update identities set status = 'verified' where id = ${id}`).count, 1);
}

/** The reply to RCPT alone. */
async function ask(address: string, at = service): Promise<string> {
  const client = await connectSmtp(at.smtpPort);
  void client.send(
    `EHLO client.example\r\nMAIL FROM:<ada@sender.example> SMTPUTF8\r\nRCPT TO:<${address}>\r\n`,
  );
  const reply = (await client.replies(3)).at(-1) as SmtpReply;
  client.close();
  return `${reply.status} ${reply.enhanced}`;
}

interface Owned {
  owner: string;
  identity: string;
  recipient: string;
  tag: string | null;
}

let sent = 0;

/** Sends a message and returns who got it, by owner and identity. */
async function send(to: string[], at: TestService = service): Promise<Owned[]> {
  const subject = `route ${++sent}`;
  const client = await connectSmtp(at.smtpPort);
  const recipients = to.map((address) => `RCPT TO:<${address}>\r\n`).join('');
  void client.send(`EHLO client.example\r\nMAIL FROM:<ada@sender.example> SMTPUTF8\r\n${recipients}`);
  for (const reply of await client.replies(2 + to.length)) assert.equal(reply.status, 250, reply.full);
  const taken = await client.data(toWire(`Subject: ${subject}\r\n\r\n`));
  client.close();
  assert.equal(taken.status, 250, taken.full);
  return at.sql<Owned[]>`
    select owner_id as owner, identity_id as identity, summary ->> 'recipient' as recipient, summary ->> 'tag' as tag
    from messages where summary ->> 'subject' = ${subject} order by identity_id`;
}

/** Who gets mail for this one address. */
async function receiverOf(address: string, at = service): Promise<Owned> {
  const [only, ...others] = await send([address], at);
  assert.deepEqual(others, []);
  assert.ok(only, 'somebody has it');
  assert.equal(only.recipient, address, 'as the client spelled it');
  return only;
}

describe('an address is found', () => {
  test('by its exact spelling, in any case of letters', async () => {
    const domain = newDomain();
    const { id } = await addIdentity(`John.Doe@${domain}`);
    for (const spelling of [`John.Doe@${domain}`, `john.doe@${domain}`, `JOHN.DOE@${domain.toUpperCase()}`]) {
      const { identity, tag } = await receiverOf(spelling);
      assert.deepEqual({ identity, tag }, { identity: id, tag: null });
    }
    assert.equal(await ask(`johndoe@${domain}`), '550 5.1.1', 'a dot is a character like any other');
  });

  test('with an international domain, as U-labels, as A-labels and in capitals', async () => {
    const tail = newDomain();
    const { id, value } = await addIdentity(`info@bücher.${tail}`);
    assert.equal(value, `info@xn--bcher-kva.${tail}`);
    for (const spelling of [`info@bücher.${tail}`, `info@xn--bcher-kva.${tail}`, `INFO@BÜCHER.${tail}`]) {
      assert.equal((await receiverOf(spelling)).identity, id);
    }
  });

  test('with an international local part, in any case of letters', async () => {
    const domain = newDomain();
    const { id } = await addIdentity(`Jürgen@${domain}`);
    assert.equal((await receiverOf(`jÜRGEN@${domain}`)).identity, id);
  });

  test('without its tag, and the message has the tag', async () => {
    const domain = newDomain();
    const { id } = await addIdentity(`sales@${domain}`);
    const tags: [string, string | null][] = [
      ['sales+vip', 'vip'],
      ['Sales+VIP', 'VIP'],
      ['sales+a+b', 'a+b'],
      ['sales+', ''],
    ];
    for (const [local, tag] of tags) {
      const found = await receiverOf(`${local}@${domain}`);
      assert.deepEqual({ identity: found.identity, tag: found.tag }, { identity: id, tag });
    }
    assert.equal(await ask(`+vip@${domain}`), '550 5.1.1');
  });

  test('that has a plus itself: exactly, and before the address without it', async () => {
    const domain = newDomain();
    const plus = await addIdentity(`sales+eu@${domain}`);
    assert.equal(await ask(`sales@${domain}`), '550 5.1.1');
    assert.equal(await ask(`sales+us@${domain}`), '550 5.1.1');
    const base = await addIdentity(`sales@${domain}`);
    const exact = await receiverOf(`Sales+EU@${domain}`);
    assert.deepEqual([exact.identity, exact.tag], [plus.id, null]);
    const tagged = await receiverOf(`sales+us@${domain}`);
    assert.deepEqual([tagged.identity, tagged.tag], [base.id, 'us']);
  });

  test('nowhere: 550 5.1.1', async () => {
    await addIdentity(`known@${newDomain()}`);
    for (const address of [`known@${newDomain()}`, 'a@[127.0.0.1]', 'nobody@localhost', 'postmaster']) {
      assert.equal(await ask(address), '550 5.1.1', address);
    }
  });
});

describe('a domain', () => {
  test('receives mail for all its addresses with incoming_domain, and for none without: 550', async () => {
    const [open, closed] = [newDomain(), newDomain()];
    const { id } = await addIdentity(open, { incoming_domain: true });
    const other = await addIdentity(closed);
    for (const address of [
      `any@${open}`,
      `Any.One@${open.toUpperCase()}`,
      `"quoted part"@${open}`,
      `a..b@${open}`,
    ]) {
      const { identity, tag } = await receiverOf(address);
      assert.deepEqual({ identity, tag }, { identity: id, tag: null }, address);
    }
    assert.deepEqual((await receiverOf(`any+tag@${open}`)).tag, 'tag');
    assert.equal(await ask(`any@sub.${open}`), '550 5.1.1', 'a subdomain is another domain');
    assert.equal(await ask(`any@${closed}`), '550 5.1.1');
    await service.call('PATCH', `/identities/${other.id}`, { body: { incoming_domain: true } });
    assert.equal((await receiverOf(`any@${closed}`)).identity, other.id);
    await service.call('PATCH', `/identities/${other.id}`, { body: { incoming_domain: false } });
    assert.equal(await ask(`else@${closed}`), '550 5.1.1');
  });

  test('comes after the address itself and the address without its tag', async () => {
    const domain = newDomain();
    const all = await addIdentity(domain, { incoming_domain: true });
    const one = await addIdentity(`one@${domain}`);
    assert.equal((await receiverOf(`one@${domain}`)).identity, one.id);
    assert.equal((await receiverOf(`one+t@${domain}`)).identity, one.id);
    assert.equal((await receiverOf(`two@${domain}`)).identity, all.id);
  });

  test('receives at once the mail of an address that was deleted: 250', async () => {
    const domain = newDomain();
    const all = await addIdentity(domain, { incoming_domain: true });
    const one = await addIdentity(`one@${domain}`);
    assert.equal((await receiverOf(`one@${domain}`)).identity, one.id);
    assert.equal((await service.call('DELETE', `/identities/${one.id}`)).status, 204);
    assert.equal((await receiverOf(`one@${domain}`)).identity, all.id);
  });
});

describe('several identities for one address', () => {
  test('a verified identity wins over every unverified one, at every level', async () => {
    const stranger = await makeUser();
    const levels: ((domain: string) => [string, Record<string, unknown>])[] = [
      (domain) => [`a+t@${domain}`, {}],
      (domain) => [`a@${domain}`, {}],
      (domain) => [domain, { incoming_domain: true }],
    ];
    for (const mine of levels) {
      for (const theirs of levels) {
        const domain = newDomain();
        await addIdentity(...theirs(domain), stranger);
        const { id, ...own } = await addIdentity(...mine(domain));
        await verify({ id, ...own });
        const found = await receiverOf(`a+t@${domain}`);
        assert.deepEqual(
          [found.owner, found.identity],
          [user.userId, id],
          `${mine(domain)} over ${theirs(domain)}`,
        );
      }
    }
  });

  test('the most exact one wins if all are verified, whoever owns them', async () => {
    const other = await makeUser();
    const domain = newDomain();
    const all = await addIdentity(domain, { incoming_domain: true }, other);
    const base = await addIdentity(`a@${domain}`);
    const exact = await addIdentity(`a+t@${domain}`, {}, other);
    for (const one of [all, base, exact]) await verify(one);
    assert.equal((await receiverOf(`a+t@${domain}`)).identity, exact.id);
    assert.equal((await receiverOf(`a+u@${domain}`)).identity, base.id);
    assert.equal((await receiverOf(`b@${domain}`)).identity, all.id);
  });

  test('none gets the mail if none is verified: 450, a line in the log, and no message', async () => {
    const other = await makeUser();
    const domain = newDomain();
    const first = await addIdentity(`a@${domain}`);
    await addIdentity(`A@${domain}`, {}, other);
    assert.equal(await ask(`a@${domain}`), '450 4.2.1');
    const line = service.logged.find(({ recipients }) => String(recipients) === `a@${domain}`);
    assert.deepEqual([line?.msg, line?.reason], ['message put off', 'contested']);
    assert.equal(await ask(`a+t@${domain}`), '450 4.2.1');
    await verify(first);
    // Another spelling: the route of the first is cached for a second.
    assert.equal((await receiverOf(`A@${domain}`)).identity, first.id, 'the verified identity wins');
  });

  test('also for a domain: 450', async () => {
    const other = await makeUser();
    const domain = newDomain();
    await addIdentity(domain, { incoming_domain: true });
    await addIdentity(domain, { incoming_domain: true }, other);
    assert.equal(await ask(`a@${domain}`), '450 4.2.1');
  });

  test('the identity of the address wins, however many have the domain', async () => {
    const domain = newDomain();
    const crowd: TestUser[] = [];
    while (crowd.length < 12) crowd.push(await makeUser());
    for (const one of crowd) await addIdentity(domain, { incoming_domain: true }, one);
    const { id } = await addIdentity(`a@${domain}`);
    assert.equal((await receiverOf(`a@${domain}`)).identity, id);
  });
});

describe('an identity that is deleted', () => {
  test('gets no more mail: 550', async () => {
    const { id, value } = await addIdentity(`a@${newDomain()}`);
    await service.call('DELETE', `/identities/${id}`);
    assert.equal(await ask(value), '550 5.1.1');
  });

  test('between RCPT and the end of the message: 550, and nothing is stored', async () => {
    const { id, value } = await addIdentity(`a@${newDomain()}`);
    const client = await connectSmtp(service.smtpPort);
    assert.equal((await client.envelope('ada@sender.example', value)).status, 250);
    assert.equal((await client.command('DATA')).status, 354);
    await service.call('DELETE', `/identities/${id}`);
    void client.send(toWire('Subject: too late\r\n\r\n'));
    const refused = await client.reply();
    client.close();
    assert.equal(`${refused.status} ${refused.enhanced}`, '550 5.1.1', refused.full);
    assert.equal((await sql`select from messages where identity_id = ${id}`).count, 0);
    assert.equal((await sql`select from events where identity_id = ${id}`).count, 0);
  });

  test('and created again at once gets its mail: 250', async () => {
    const value = `a@${newDomain()}`;
    const first = await addIdentity(value);
    assert.equal((await receiverOf(value)).identity, first.id);
    await service.call('DELETE', `/identities/${first.id}`);
    const second = await addIdentity(value);
    assert.equal((await receiverOf(value)).identity, second.id);
  });

  test('does not affect the others of the same message', async () => {
    const [gone, stays] = [await addIdentity(`a@${newDomain()}`), await addIdentity(`b@${newDomain()}`)];
    const client = await connectSmtp(service.smtpPort);
    await client.envelope('ada@sender.example', gone.value, stays.value);
    await service.call('DELETE', `/identities/${gone.id}`);
    const taken = await client.data(toWire('Subject: half\r\n\r\nBody\r\n'));
    client.close();
    assert.equal(taken.status, 250, taken.full);
    const [message, ...more] = await sql`
      select id from messages where identity_id in (${gone.id}, ${stays.id})`;
    assert.deepEqual(more, []);
    const raw = await service.call('GET', `/messages/${message?.id}/raw`);
    assert.equal(raw.text, 'Subject: half\r\n\r\nBody\r\n');
  });
});

describe('several recipients', () => {
  test('of one identity: one message, and the first is the recipient', async () => {
    const domain = newDomain();
    const { id } = await addIdentity(`a@${domain}`);
    const rows = await send([`a+2@${domain}`, `A@${domain}`, `a@${domain}`, `a+1@${domain}`]);
    assert.deepEqual(
      rows.map((row) => [row.identity, row.recipient, row.tag]),
      [[id, `a+2@${domain}`, '2']],
    );
  });

  test('of several owners: one message each, bytes stored once for each owner, and webhooks get only the events of their owner', async () => {
    const receiver = await startReceiver();
    const [ada, bob] = [await makeUser(), await makeUser()];
    await service.makeWebhook(receiver.url('/ada'), {}, ada);
    await service.makeWebhook(receiver.url('/bob'), {}, bob);
    const domain = newDomain();
    const owned: [TestUser, Made][] = [];
    for (const [as, local] of [
      [ada, 'a1'],
      [bob, 'b1'],
      [ada, 'a2'],
      [bob, 'b2'],
      [ada, 'a3'],
    ] as const) {
      owned.push([as, await addIdentity(`${local}@${domain}`, {}, as)]);
    }
    const rows = await send(owned.map(([, { value }]) => value));
    assert.deepEqual(
      rows.map(({ owner, identity, recipient }) => `${owner} ${identity} ${recipient}`).sort(),
      owned.map(([{ userId }, { id, value }]) => `${userId} ${id} ${value}`).sort(),
    );
    const posts = await receiver.received(5);
    const told = (path: string) =>
      posts
        .filter(({ url }) => url === path)
        .map(({ body }) => JSON.parse(body.toString()).data.message.recipient)
        .sort();
    assert.deepEqual(told('/ada'), [`a1@${domain}`, `a2@${domain}`, `a3@${domain}`]);
    assert.deepEqual(told('/bob'), [`b1@${domain}`, `b2@${domain}`]);
    for (const { body } of posts) {
      const { data } = JSON.parse(body.toString());
      assert.deepEqual(data.message.envelope.rcptTo, [data.message.recipient]);
      assert.equal(await (await fetch(data.rawEmailUrl)).text(), data.rawEmail);
    }
    for (const { userId } of [ada, bob]) {
      assert.equal((await sql`select from raw_chunks where owner_id = ${userId}`).count, 1);
      assert.equal((await sql`select distinct raw_id from messages where owner_id = ${userId}`).count, 1);
    }
    await receiver.close();
  });
});

describe('only verified identities receive mail', () => {
  const production = {
    NODE_ENV: 'production',
    POSTHORN_MAIL_HOST: 'mx.example',
    POSTHORN_PUBLIC_URL: 'https://posthorn.example',
  };
  for (const [name, settings] of [
    ['with NODE_ENV=production', production],
    ['with POSTHORN_ACCEPT_UNVERIFIED=false', { POSTHORN_ACCEPT_UNVERIFIED: 'false' }],
  ] as const) {
    test(name, async () => {
      const strict = await startTestService({ POSTHORN_DNS_SERVERS: dns.address, ...settings });
      const domain = newDomain();
      const one = await addIdentity(`a@${domain}`, {}, strict.user, strict);
      const all = await addIdentity(domain, { incoming_domain: true }, strict.user, strict);
      for (const address of [`a@${domain}`, `a+t@${domain}`, `b@${domain}`]) {
        assert.equal(await ask(address, strict), '550 5.1.1');
      }
      const other = await strict.makeUser();
      await addIdentity(`a@${domain}`, {}, other, strict);
      assert.equal(await ask(`a@${domain}`, strict), '550 5.1.1', 'not contested: nobody has it');
      for (const status of ['pending', 'failed']) {
        await strict.sql`update identities set status = ${status} where id = ${one.id}`;
        assert.equal(await ask(`a@${domain}`, strict), '550 5.1.1', status);
      }
      await verify(all, strict);
      assert.equal((await receiverOf(`a@${domain}`, strict)).identity, all.id);
      await verify(one, strict);
      assert.equal((await receiverOf(`A@${domain}`, strict)).identity, one.id);

      const client = await connectSmtp(strict.smtpPort);
      await client.envelope('ada@sender.example', `a+late@${domain}`);
      await strict.sql`update identities set status = 'failed' where id in (${one.id}, ${all.id})`;
      const refused = await client.data(toWire('Subject: x\r\n\r\n'));
      client.close();
      assert.equal(refused.status, 550, 'the proof was lost before the end of the message');
      await strict.stop();
    });
  }
});

test('PostgreSQL does not plan the routing query anew for every recipient', async () => {
  const { value } = await addIdentity(`ada@${newDomain()}`);
  const plans = await sql.begin(async (sql) => {
    for (let n = 0; n < 20; n += 1) await routeRecipient({ sql, acceptUnverified: true }, value);
    return sql`
      select generic_plans::int as generic, custom_plans::int as custom from pg_prepared_statements
      where statement like '%join mailboxes inbox%' and statement not like '%pg_prepared_statements%'`;
  });
  // PostgreSQL makes five custom plans before it compares them with the generic plan.
  assert.deepEqual(
    plans.map(({ custom }) => custom),
    [5],
  );
});
