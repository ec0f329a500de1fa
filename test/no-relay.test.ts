/**
 * Nobody can use us as a relay: every listener × authentication × sender × recipient, over real sockets. A message is sent only by
 * submission, with a key that may send, from an address of the key's owner.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { makeApiKey } from '../src/lib/api-key.ts';
import { createApiKey, revokeApiKey } from '../src/store/api-keys.ts';
import { startTestService, type TestUser } from './harness.ts';
import type { SmtpClient } from './smtp-client.ts';
import { greet, greetByTls, letterFrom, makeAddress, plainAuth, submit } from './submission-client.ts';

const service = await startTestService();
const { user, call, sql } = service;
const other = await service.makeUser();

async function makeIdentity(value: string, as: TestUser): Promise<void> {
  const { status, text } = await call('POST', '/identities', { as, body: { value } });
  assert.equal(status, 201, text);
}
await makeIdentity('own.example', user);
await makeIdentity('rex@own.example', user);
await makeIdentity('else.example', other);

const revoked = await createApiKey(sql, user.userId);
await revokeApiKey(sql, user.userId, revoked.id);
const reader = await createApiKey(sql, user.userId, { scope: 'read' });

const listeners: Record<string, (address: string) => Promise<SmtpClient>> = {
  mx: (address) => greet(service.smtpPort, address),
  submission: (address) => greet(service.submissionPort, address),
  submissions: (address) => greetByTls(service.submissionsPort, address),
};
const passwords: Record<string, string | null> = {
  none: null,
  'a wrong key': makeApiKey(),
  'a revoked key': revoked.apiKey,
  'a read-only key': reader.apiKey,
  "another owner's key": other.apiKey,
  'the right key': user.apiKey,
};
const senders = {
  'their own identity': 'ada@own.example',
  "another owner's identity": 'ann@else.example',
  "nobody's identity": 'ann@nobody.example',
  '<>': '',
};
const recipients = { 'a local identity': 'rex@own.example', 'an address outside': 'bob@outside.example' };

/** Who a message may be from, for the keys that may send. */
const allowed: Record<string, string> = {
  "another owner's key": 'ann@else.example',
  'the right key': 'ada@own.example',
};

async function countMessages(direction: 'incoming' | 'outgoing'): Promise<number> {
  const pages = await Promise.all(
    [user, other].map((as) => call('GET', `/messages?direction=${direction}&limit=100`, { as })),
  );
  return pages.reduce((sum, { body }) => sum + body.length, 0);
}

for (const [listener, open] of Object.entries(listeners)) {
  describe(listener, () => {
    for (const [authentication, key] of Object.entries(passwords)) {
      test(`${authentication}: every sender and every recipient`, async () => {
        for (const [sender, from] of Object.entries(senders)) {
          for (const [recipient, to] of Object.entries(recipients)) {
            const name = `${listener}, ${authentication}, from ${sender} to ${recipient}`;
            const outgoing = await countMessages('outgoing');
            const incoming = await countMessages('incoming');
            const client = await open(makeAddress());
            const signedIn = key === null ? null : await client.command(plainAuth(key));
            const wire = letterFrom(
              from || 'ada@own.example',
              `Message-ID: <${name.replaceAll(/\W/g, '-')}@x.example>`,
            );
            const { status, full } = await submit(client, { from, to: [to], wire });
            client.close();
            const isMx = listener === 'mx';
            if (isMx && signedIn) assert.equal(signedIn.status, 502, name);
            const isReceived = isMx && to === 'rex@own.example';
            const isSent = !isMx && from !== '' && allowed[authentication] === from;
            assert.equal(status === 250, isReceived || isSent, `${name}: ${full}`);
            if (status !== 250) assert.ok(status === 530 || status === 550, `${name}: ${full}`);
            assert.equal((await countMessages('outgoing')) - outgoing, isSent ? 1 : 0, name);
            assert.equal((await countMessages('incoming')) - incoming, isReceived ? 1 : 0, name);
          }
        }
      });
    }
  });
}
