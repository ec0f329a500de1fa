/** The control of api-write: one insert of the same row, with the same concurrency, without HTTP. */
import { randomBytes } from 'node:crypto';
import { newId } from '../../src/lib/ids.ts';
import { makeSealer } from '../../src/lib/secrets.ts';
import { makeSecret } from '../../src/webhooks/secret.ts';
import { runControl } from '../control.ts';
import { measureRate } from '../scenario.ts';

const [ownerId = '', url = ''] = process.argv.slice(2);

// The same value for all rows: only its length matters.
const sealedSecret = makeSealer([randomBytes(32)]).seal(makeSecret(), '');
const events = ['message.received'];

await runControl<number>((sql, durationMs) => {
  const insert = async () => sql`
    insert into webhooks (id, owner_id, url, events, secret)
    values (${newId()}, ${ownerId}, ${url}, ${events}::text[], ${sealedSecret})
    returning id, iso_time(created_at) as "createdAt", iso_time(updated_at) as "updatedAt"`;
  return measureRate(insert, durationMs);
});
