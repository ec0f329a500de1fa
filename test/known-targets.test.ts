/** What the delivery loop keeps of each webhook for a minute is small, however many they are. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { test } from 'node:test';
import { makeLog } from '../src/lib/log.ts';
import { makeSealer } from '../src/lib/secrets.ts';
import { KnownTargets } from '../src/webhooks/known-targets.ts';
import { startTestService } from './harness.ts';

const key = randomBytes(32);
const { sql, call, makeWebhook } = await startTestService({ POSTHORN_SECRET_KEY: key.toString('base64') });

test('a kept secret holds no memory but its own', async () => {
  const { id } = await makeWebhook('http://127.0.0.1:9/');
  assert.equal((await call('POST', `/webhooks/${id}/secret/rotate`)).status, 200);
  const targets = new KnownTargets({
    sql,
    sealer: makeSealer([key]),
    log: makeLog({ level: 'fatal', json: true }),
  });

  const target = await targets.find(id);

  const secrets = typeof target === 'object' ? target.sealedSecrets : [];
  assert.equal(secrets.length, 2, 'the current one and the one before');
  for (const { buffer, length } of secrets) assert.equal(buffer.byteLength, length);
});
