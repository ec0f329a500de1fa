/** The whole service that sends directly, with DNS and a mail server of the test's own. */
import assert from 'node:assert/strict';
import type { DnsRecord } from '../src/contract/identity.ts';
import { openOutbox } from './outbox.ts';
import { type Proving, startProving } from './proving.ts';
import { type Sink, startSink } from './smtp-sink.ts';

interface DirectMail extends Omit<Proving, 'send'>, ReturnType<typeof openOutbox> {
  /** `send` of `Proving`: mail that comes in. */
  sendIn: Proving['send'];
  sink: Sink;
  /** A verified domain identity. `dkim`: its key stands in DNS. */
  makeSender(domain: string, options?: { dkim?: boolean }): Promise<string>;
  /** Publishes the DKIM keys that the identity has now. */
  publishDkim(identityId: string): Promise<void>;
  /** Publishes an MX for the domain: the sink. */
  makeDestination(domain: string): void;
  /** Makes the mail that waits for its next attempt due. */
  passWait(messageId: string): Promise<void>;
}

export async function startDirectMail(settings: Record<string, string> = {}): Promise<DirectMail> {
  const sink = await startSink();
  const proving = await startProving({
    POSTHORN_ROLES: 'api,smtp,deliver,send',
    POSTHORN_OUTBOUND: 'direct',
    POSTHORN_MX_PORT: String(sink.port),
    ...settings,
  });
  const { dns, service } = proving;
  dns.answer('mx.sink.example', { A: ['127.0.0.1'] });

  const publishDkim: DirectMail['publishDkim'] = async (id) => {
    const records: DnsRecord[] = JSON.parse((await proving.find({ id })).dns_records);
    for (const { name, value } of records.filter(({ purpose }) => purpose === 'dkim'))
      dns.answer(name, { TXT: [value] });
  };
  return {
    ...proving,
    ...openOutbox(service),
    sendIn: proving.send,
    sink,
    publishDkim,
    async makeSender(domain, { dkim = false } = {}) {
      const identity = await proving.add(domain);
      await proving.publish(domain, [identity]);
      if (dkim) await publishDkim(identity.id);
      assert.equal(await proving.statusAfterCheck(identity), 'verified');
      return identity.id;
    },
    makeDestination(domain) {
      dns.answer(domain, { MX: ['10 mx.sink.example'] });
    },
    async passWait(messageId) {
      await service.sql`update send_queue set next_attempt_at = now() where message_id = ${messageId}`;
    },
  };
}
