/** The control of api-write: the same rows with the same statement and the same concurrency, without HTTP. */
import { randomBytes } from 'node:crypto';
import { newId } from '../../src/lib/ids.ts';
import { makeSealer } from '../../src/lib/secrets.ts';
import { createWebhook } from '../../src/store/webhooks.ts';
import { makeSecret } from '../../src/webhooks/secret.ts';
import { runControl } from '../control.ts';
import { measureRate } from '../scenario.ts';

const [ownerId = '', url = ''] = process.argv.slice(2);

// The same value for all rows: only its length matters.
const sealedSecret = makeSealer([randomBytes(32)]).seal(makeSecret(), '');
const row = {
  url,
  events: ['message.received'],
  identityId: null,
  enabled: true,
  description: null,
  sealedSecret,
};

await runControl<number>((sql, durationMs) =>
  measureRate(() => createWebhook(sql, ownerId, { ...row, id: newId() }), durationMs),
);
