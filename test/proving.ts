/**
 * The whole service with its own DNS server, for tests of verification: identities are created by the API, records are added to
 * DNS, and time passes by moving stored times into the past.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after } from 'node:test';
import type { DnsRecord } from '../src/contract/identity.ts';
import type { Identity } from '../src/store/identities.ts';
import { type DnsServer, startDns } from './dns.ts';
import { type Answer, startTestService, type TestService, type TestUser, waitFor } from './harness.ts';
import { connectSmtp, toWire } from './smtp-client.ts';

export const mailHost = 'mx.posthorn.example';
/** For tests that start every DNS check themselves. */
export const withoutLoop = { POSTHORN_ROLES: 'api,smtp,deliver' };

type Purpose = DnsRecord['purpose'];

export interface Proving {
  service: TestService;
  dns: DnsServer;
  /** By default an identity of `user`. */
  add(value: string, more?: Record<string, unknown>, as?: TestUser): Promise<Identity>;
  /** The present state of an identity, of any owner. */
  find({ id }: { id: string }): Promise<Identity>;
  /** The present state of the identity's record with this purpose. */
  record(identity: { id: string }, purpose: Purpose): Promise<DnsRecord>;
  /** Publishes the ownership records of these identities, and no others, at a domain; with `mx` also the MX record. */
  publish(domain: string, owners: readonly { id: string }[], options?: { mx?: boolean }): Promise<void>;
  /** POST …/verify, as the owner. */
  verify(identity: Identity, as?: TestUser): Promise<Answer>;
  /** The same; returns the status afterwards. */
  statusAfterCheck(identity: Identity, as?: TestUser): Promise<string>;
  /** The same twice, one minute apart: a takeover must be confirmed by a second check. */
  statusOnceConfirmed(identity: Identity, as?: TestUser): Promise<string>;
  /** Moves an identity into the past, lets the loop check it, and returns its state. */
  pass(identity: { id: string }, hours: number): Promise<Identity>;
  /** Moves an identity into the past without a check. */
  age(identity: { id: string }, hours: number): Promise<void>;
  /**
   * Sends a message; gives the identities that have it, or the code that it is refused with. Not by RCPT alone: who gets an
   * address is remembered for a second, and held against what is so when the message has come.
   */
  send(address: string, subject?: string): Promise<string[] | string>;
}

export function newDomain(): string {
  return `d${randomBytes(5).toString('hex')}.example`;
}

export async function startProving(settings: Record<string, string> = {}): Promise<Proving> {
  const dns = await startDns();
  const service = await startTestService({
    POSTHORN_DNS_SERVERS: dns.address,
    POSTHORN_MAIL_HOST: mailHost,
    POSTHORN_ACCEPT_UNVERIFIED: 'false',
    ...settings,
  });
  after(async () => {
    await service.stop();
    await dns.close();
  });
  const { sql, user } = service;

  const find: Proving['find'] = async ({ id }) => {
    const [row] = await sql<Identity[]>`
      select *, dns_records::text as dns_records, updated_at::text as updated_at from identities where id = ${id}`;
    return row ?? assert.fail(`there is no ${id}`);
  };
  const record: Proving['record'] = async (identity, purpose) => {
    const { dns_records } = await find(identity);
    const records: DnsRecord[] = JSON.parse(dns_records);
    return records.find((one) => one.purpose === purpose) ?? assert.fail(`no ${purpose} in ${dns_records}`);
  };
  const verify: Proving['verify'] = ({ id }, as = user) =>
    service.call('POST', `/identities/${id}/verify`, { as });
  const age: Proving['age'] = async ({ id }, hours) => {
    await sql`
      update identities
      set standing_since = standing_since - ${hours} * interval '1 hour',
        grace_since = grace_since - ${hours} * interval '1 hour',
        takeover_since = takeover_since - ${hours} * interval '1 hour'
      where id = ${id}`;
  };

  const statusAfterCheck: Proving['statusAfterCheck'] = async (identity, as) => {
    const answer = await verify(identity, as);
    assert.equal(answer.status, 200, answer.text);
    return answer.body.status;
  };

  let sent = 0;
  return {
    ...{ service, dns, find, record, verify, statusAfterCheck, age },
    async add(value, more = {}, as = user) {
      const answer = await service.call('POST', '/identities', { as, body: { value, ...more } });
      assert.equal(answer.status, 201, answer.text);
      return answer.body;
    },
    async publish(domain, owners, { mx = false } = {}) {
      const records = await Promise.all(owners.map((owner) => record(owner, 'ownership')));
      const texts = records.map(({ value }) => value);
      dns.answer(`_posthorn.${domain}`, texts.length > 0 ? { TXT: texts } : 'NXDOMAIN');
      dns.answerType(domain, 'MX', mx ? { MX: [`10 ${mailHost}`] } : {});
    },
    async statusOnceConfirmed(identity, as) {
      assert.notEqual(await statusAfterCheck(identity, as), 'verified');
      await age(identity, 1 / 60);
      return statusAfterCheck(identity, as);
    },
    async pass(identity, hours) {
      await age(identity, hours);
      await sql`update identities set looked_at = null, next_check_at = now() where id = ${identity.id}`;
      await waitFor('the loop to look', async () => {
        const [row] = await sql`select from identities where id = ${identity.id} and looked_at is not null`;
        return row;
      });
      return find(identity);
    },
    async send(address, subject = `proof ${++sent}`) {
      const client = await connectSmtp(service.smtpPort);
      const asked = await client.envelope('ada@sender.example', address);
      const taken =
        asked.status === 250 ? await client.data(toWire(`Subject: ${subject}\r\n\r\nHello\r\n`)) : asked;
      client.close();
      if (taken.status !== 250) return `${taken.status} ${taken.enhanced}`;
      const rows = await sql<{ identity_id: string }[]>`
        select identity_id from messages where summary ->> 'subject' = ${subject}`;
      return rows.map(({ identity_id }) => identity_id);
    },
  };
}
