/** The control of deliver: the same signed POSTs with the same concurrency, from an undici pool, without a database. */
import { Pool } from 'undici';
import { newId } from '../../src/lib/ids.ts';
import { buildBody } from '../../src/webhooks/bodies.ts';
import { makeSecret } from '../../src/webhooks/secret.ts';
import { signatureHeaders, signingKey } from '../../src/webhooks/sign.ts';
import { sampleJson } from '../deliveries.ts';

const [origin = '', underWay = ''] = process.argv.slice(2);
const pool = new Pool(origin, { connections: Number(underWay), pipelining: 1 });
const keys = [signingKey(makeSecret())];

async function post(): Promise<void> {
  const body = buildBody('message.received', sampleJson);
  const headers = {
    'content-type': 'application/json',
    'user-agent': 'Posthorn/bench',
    ...signatureHeaders(newId(), Math.floor(Date.now() / 1000), body, keys),
  };
  const answer = await pool.request({ path: '/hook', method: 'POST', headers, body });
  await answer.body.dump();
}

process.on('message', async (count: number) => {
  let left = count;
  const began = performance.now();
  const repeat = async () => {
    while (left-- > 0) await post();
  };
  await Promise.all(Array.from({ length: Number(underWay) }, repeat));
  process.send?.(count / ((performance.now() - began) / 1000));
});
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());
