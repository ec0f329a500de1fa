/**
 * Mail that we send to Postfix, as the server of the recipient and as the relay: records in Knot, signatures that OpenDKIM verifies, and
 * Postfix's own reports, which come back to our bounce addresses.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { startTestService, waitFor } from '../harness.ts';
import { freePort } from '../own-postgres.ts';
import { startMailServer } from './mail-server.ts';
import { startNameServer } from './name-server.ts';
import { startVerifier } from './signer.ts';

const records = `
dest           MX  10 mx.dest
mx.dest        A   127.0.0.1
null           MX  0 .
sts            MX  10 mx.dest
_mta-sts.sts   TXT "v=STSv1; id=20251115"
mta-sts.sts    A   127.0.0.1
`;
const dns = await startNameServer('test', records);
const ports = { direct: await freePort(Math.random), relay: await freePort(Math.random) };
const common = {
  POSTHORN_DNS_SERVERS: dns.address,
  POSTHORN_MAIL_HOST: 'mail.posthorn.test',
  POSTHORN_SEND_SCHEDULE: Array(60).fill('1').join(','),
};
const services = {
  direct: await startTestService({
    ...common,
    POSTHORN_OUTBOUND: 'direct',
    POSTHORN_MX_PORT: String(ports.direct),
  }),
  relay: await startTestService({
    ...common,
    POSTHORN_OUTBOUND: 'relay',
    POSTHORN_RELAY_URL: `smtp://127.0.0.1:${ports.relay}`,
  }),
};

/** An identity whose records stand in the zone. */
async function makeSender(way: keyof typeof services, domain: string): Promise<string> {
  const { call } = services[way];
  const { body } = await call('POST', '/identities', { body: { value: domain, incoming_domain: true } });
  const { text } = await call('GET', `/identities/${body.id}/dns.zone`);
  snippets.push(text);
  await dns.change(records + snippets.join('\n'));
  const verified = await call('POST', `/identities/${body.id}/verify`);
  assert.equal(verified.body.status, 'verified', verified.text);
  return body.id;
}
const snippets: string[] = [];
const identities = {
  direct: await makeSender('direct', 'first.test'),
  relay: await makeSender('relay', 'second.test'),
};

const verifier = await startVerifier({
  ...(await readKeys('direct')),
  ...(await readKeys('relay')),
});
async function readKeys(way: keyof typeof services): Promise<Record<string, string>> {
  const rows = await services[way].sql`
    select selector || '._domainkey.' || value as name, 'v=DKIM1; k=rsa; p=' || public_key as text
    from dkim_keys join identities on identities.id = identity_id`;
  return Object.fromEntries(rows.map(({ name, text }) => [name, text]));
}
const settings = { smtpd_milters: verifier, milter_default_action: 'tempfail' };
const servers = {
  direct: await startMailServer({
    port: ports.direct,
    smtpPort: services.direct.smtpPort,
    settings,
  }),
  relay: await startMailServer({ port: ports.relay, smtpPort: services.relay.smtpPort, settings }),
};

for (const way of ['direct', 'relay'] as const) {
  const { call } = services[way];
  const from = way === 'direct' ? 'ada@first.test' : 'ada@second.test';

  async function send(to: string, subject: string, text = 'Hello,\n\n.  dots and  spaces \n\n\n') {
    const body = { identityId: identities[way], from, to, subject, text };
    const answer = await call('POST', '/messages', { body });
    assert.equal(answer.status, 202, answer.text);
    return answer.body.id as string;
  }
  /** The recipient, when it has this status. */
  async function recipient(id: string, status: string) {
    return waitFor(`message ${id} to be ${status}`, async () => {
      const { body } = await call('GET', `/messages/${id}`);
      const [one] = body.sending.recipients;
      return one.status === status ? one : null;
    });
  }
  const attempts = async (id: string) => (await call('GET', `/messages/${id}/attempts`)).body;

  describe(way, () => {
    test('a message arrives over TLS, and OpenDKIM verifies its signature', async () => {
      const id = await send('bob@dest.test', 'signed');
      await recipient(id, way === 'direct' ? 'delivered' : 'sent');
      const got = await servers[way].delivered('signed');
      assert.match(got, new RegExp(`dkim=pass[^;]*header\\.d=${from.split('@')[1]}`));
      assert.match(got, /^Return-Path: <bounces\+[a-z2-7]+@mail\.posthorn\.test>/m);
      assert.match(got, /\n\nHello,\n\n\. {2}dots and {2}spaces \n/);
      const [{ tls, response } = assert.fail()] = await attempts(id);
      assert.equal(tls.version, 'TLSv1.3');
      assert.equal(response.code, 250);
    });

    test('a message above its SIZE is not sent', async () => {
      const id = await send('bob@dest.test', 'large', 'x'.repeat(70).concat('\n').repeat(600));
      await recipient(id, 'bounced');
      const [{ error, response } = assert.fail()] = await attempts(id);
      assert.ok(error === 'message_too_large' || response?.enhanced === '5.3.4', JSON.stringify(response));
    });

    test('an unknown user bounces and is suppressed', async () => {
      const id = await send('nobody@dest.test', 'unknown');
      const { lastResponse } = await recipient(id, 'bounced');
      assert.deepEqual([lastResponse.code, lastResponse.enhanced], [550, '5.1.1']);
      const { body } = await call('GET', '/suppressions?address=nobody@dest.test');
      assert.equal(body[0]?.reason, 'bounce');
    });

    test('a greylisted message is sent at a later try, once', async () => {
      const id = await send('slow@dest.test', 'greylisted');
      await recipient(id, way === 'direct' ? 'delivered' : 'sent');
      await servers[way].delivered('greylisted');
      const codes = (await attempts(id)).map(({ response }: { response: { code: number } }) => response.code);
      assert.deepEqual(codes, [250, 450]);
    });

    test('a report of a full mailbox comes back and makes it bounced', async () => {
      const id = await send('full@dest.test', 'full');
      await servers[way].logged(/to=<full@dest\.test>.* dsn=5\.2\.2, status=bounced/);
      await recipient(id, 'bounced');
      const { body } = await call('GET', '/suppressions?address=full@dest.test');
      assert.deepEqual(body, []);
    });

    test('a report of success comes back and makes it delivered', async () => {
      const id = await send('reported@dest.test', 'reported');
      await recipient(id, 'delivered');
      await servers[way].delivered('reported');
      await servers[way].logged(/sender delivery status notification/);
      const count = async () =>
        (await services[way].sql`select from send_reports where message_id = ${id} and action = 'delivered'`)
          .count;
      await waitFor('the report', async () => (await count()) === 1);
    });
  });
}

test('a null MX bounces at once', async () => {
  const body = { identityId: identities.direct, from: 'ada@first.test', subject: 'x', text: 'x' };
  const { body: taken } = await services.direct.call('POST', '/messages', {
    body: { ...body, to: 'bob@null.test' },
  });
  await waitFor('the bounce', async () => {
    const { body } = await services.direct.call('GET', `/messages/${taken.id}`);
    return body.sending.status === 'bounced';
  });
  const { body: all } = await services.direct.call('GET', `/messages/${taken.id}/attempts`);
  assert.deepEqual(
    all.map(({ error }: { error: string }) => error),
    ['null_mx'],
  );
});

test('an MTA-STS record without a policy that can be read changes nothing', async () => {
  const body = { identityId: identities.direct, from: 'ada@first.test', subject: 'x', text: 'x' };
  const { body: taken } = await services.direct.call('POST', '/messages', {
    body: { ...body, to: 'bob@sts.test' },
  });
  // Postfix does not relay for that domain: it was asked.
  await waitFor('an attempt', async () => {
    const { body: all } = await services.direct.call('GET', `/messages/${taken.id}/attempts`);
    return all.some(({ host }: { host: string }) => host === 'mx.dest.test');
  });
});
