/** Verification with records in a real name server that change while it runs, in a signed and in an unsigned zone. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import type { DnsRecord } from '../../src/contract/identity.ts';
import { makeLookup } from '../../src/identities/lookup.ts';
import type { Identity } from '../../src/store/identities.ts';
import { startTestService } from '../harness.ts';
import { connectSmtp } from '../smtp-client.ts';
import { type NameServer, startNameServer } from './name-server.ts';

const zones: Record<string, NameServer> = {
  'plain.test': await startNameServer('plain.test', ''),
  'signed.test': await startNameServer('signed.test', '', { signed: true }),
};
const servers = Object.values(zones);
const service = await startTestService({
  // Each server refuses queries for the other zone, and the next server is asked.
  POSTHORN_DNS_SERVERS: servers.map(({ address }) => address).join(','),
  POSTHORN_MAIL_HOST: 'mx.posthorn.test',
  POSTHORN_ACCEPT_UNVERIFIED: 'false',
  POSTHORN_ROLES: 'api,smtp,deliver',
});

async function call(method: string, path: string, body?: unknown) {
  const answer = await service.call(method, path, body === undefined ? {} : { body });
  assert.ok(answer.status < 300, answer.text);
  return answer;
}

/** Starts a DNS check; returns the status of each record by its purpose. */
async function check({ id }: Identity): Promise<{ status: string; records: Record<string, DnsRecord> }> {
  await service.sql`update identities set check_allowance = 10 where id = ${id}`;
  const { body } = await call('POST', `/identities/${id}/verify`);
  const records: DnsRecord[] = JSON.parse(body.dns_records);
  return { status: body.status, records: Object.fromEntries(records.map((one) => [one.purpose, one])) };
}

async function askRecipient(address: string): Promise<number> {
  const client = await connectSmtp(service.smtpPort);
  const { status } = await client.envelope('ada@sender.example', address);
  client.close();
  return status;
}

for (const [zone, server] of Object.entries(zones)) {
  describe(zone, async () => {
    const { body } = await call('POST', '/identities', { value: zone, incoming_domain: true });
    const identity: Identity = body;
    const { text: snippet } = await call('GET', `/identities/${identity.id}/dns.zone`);

    test('is signed or not, as its name says', async () => {
      assert.equal(/DNSKEY/.test(await server.read('@', 'DNSKEY')), zone === 'signed.test');
    });

    test('nothing stands yet', async () => {
      const { status, records } = await check(identity);
      assert.equal(status, 'unverified');
      for (const { purpose, status } of Object.values(records)) assert.equal(status, 'missing', purpose);
    });

    test('what GET dns.zone gives is pasted into the zone, and the domain is verified', async () => {
      await server.change(snippet);
      const { status, records } = await check(identity);
      assert.equal(status, 'verified');
      for (const { purpose, status, note } of Object.values(records))
        assert.equal(status, 'valid', `${purpose}: ${note}`);
      assert.ok((records.dkim?.value.length ?? 0) > 255);
      assert.deepEqual(records.dkim?.found, [records.dkim?.value]);
      assert.equal(await askRecipient(`anyone@${zone}`), 250);
    });

    test('the servers of the zone itself say the same', async () => {
      const lookup = makeLookup({
        dnsServers: null,
        resolvers: [server.address],
        serverAt: (address) => (address === '127.0.0.1' ? server.address : null),
      });
      const questions = [
        { name: `_posthorn.${zone}`, type: 'TXT' },
        { name: zone, type: 'MX' },
        { name: `nothing.${zone}`, type: 'TXT' },
        { name: `ns.${zone}`, type: 'TXT' },
      ] as const;
      const answers = await lookup.ask(questions, new AbortController().signal);
      const { records } = await check(identity);
      assert.deepEqual(
        [...answers.values()],
        [
          { kind: 'records', values: [records.ownership?.value] },
          { kind: 'records', values: ['10 mx.posthorn.test'] },
          { kind: 'none', why: 'no_such_name' },
          { kind: 'none', why: 'no_such_record' },
        ],
      );
    });

    test('records that are wrong or twice are told, and a token behind an alias is found', async () => {
      const { records } = await check(identity);
      await server.change(`
_posthorn  CNAME  proof.elsewhere
proof.elsewhere  TXT  "${records.ownership?.value}"
@  MX 10 MX.Posthorn.TEST.
@  TXT "v=spf1 ip4:192.0.2.1 -all"
@  TXT "v=spf1 mx -all"
_dmarc  TXT "v=DMARC2"
`);
      const after = await check(identity);
      assert.equal(after.status, 'verified');
      const standings = Object.values(after.records).map(({ purpose, status }) => `${purpose} ${status}`);
      assert.deepEqual(standings, [
        'ownership valid',
        'mx valid',
        'spf mismatch',
        'dkim missing',
        'dmarc mismatch',
      ]);
      assert.match(after.records.spf?.note ?? '', /There are 2 SPF records/);
      assert.equal(after.records.spf?.value, 'v=spf1 ip4:192.0.2.1 mx -all');
    });

    test('the proof is removed: a grace; it is back: as before', async () => {
      const lines = snippet.split('\n').filter((line) => !line.startsWith('_posthorn.'));
      await server.change(lines.join('\n'));
      const { status, records } = await check(identity);
      assert.equal(status, 'verified');
      assert.equal(records.ownership?.status, 'missing');
      const hours = (Date.parse(records.ownership?.graceUntil ?? '') - Date.now()) / 3_600_000;
      assert.ok(hours > 71 && hours <= 72, String(hours));
      assert.equal(await askRecipient(`someone@${zone}`), 250);
      await server.change(snippet);
      const back = await check(identity);
      assert.equal(back.status, 'verified');
      assert.deepEqual(
        [back.records.ownership?.status, back.records.ownership?.graceUntil],
        ['valid', undefined],
      );
    });
  });
}

test('the servers are stopped: nothing is known, and nothing is lost', async () => {
  for (const server of servers) await server.stop();
  const { body: all } = await call('GET', '/identities');
  for (const identity of all) {
    const { status, records } = await check(identity);
    assert.equal(status, 'verified');
    assert.equal(records.ownership?.status, 'unknown');
    assert.match(records.ownership?.note ?? '', /could not be checked/);
  }
});
