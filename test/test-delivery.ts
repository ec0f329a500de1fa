/** The delivery loop alone, with limits and parts of the test's own, beside a service that does not deliver. */
import { randomBytes } from 'node:crypto';
import { after } from 'node:test';
import { connect } from '../src/db/client.ts';
import { makeLog } from '../src/lib/log.ts';
import { makeMetrics } from '../src/lib/metrics.ts';
import { makeSealer } from '../src/lib/secrets.ts';
import { makeEgress } from '../src/net/egress.ts';
import { type DeliveryParts, startDelivery } from '../src/webhooks/deliver.ts';
import { Poster } from '../src/webhooks/post.ts';
import { collectLines } from './harness.ts';

/** The secret key of services whose deliveries the test makes with `startTestDelivery`. */
export const deliveryKey = randomBytes(32).toString('base64');

/** Only the delivery loop, with its own connections, for a service with the role `api` and `deliveryKey`. */
export function startTestDelivery(
  databaseUrl: string,
  given: Partial<DeliveryParts> & { timeoutMs?: number; ca?: string; dnsServers?: string[] } = {},
) {
  const { timeoutMs = 15_000, ca, dnsServers = null, ...parts } = given;
  const egress = makeEgress({ allowTargets: ['127.0.0.0/8'], dnsServers });
  const sql = connect(databaseUrl, { max: 4, applicationName: 'posthorn test delivery' });
  const logged: Record<string, unknown>[] = [];
  const metrics = makeMetrics();
  const loop = startDelivery({
    sql,
    sealer: makeSealer([Buffer.from(deliveryKey, 'base64')]),
    poster: new Poster({ egress, timeoutMs, ...(ca ? { ca } : {}) }),
    completeData: ({ data }) => data,
    scheduleSeconds: [],
    userAgent: 'Posthorn/test',
    log: makeLog({ level: 'info', json: true, stream: collectLines(logged) }),
    metrics,
    ...parts,
  });
  let stopped: Promise<void> | undefined;
  const stop = () => {
    stopped ??= loop.stop().finally(() => sql.end({ timeoutMs: 1000 }));
    return stopped;
  };
  after(stop);
  return { wake: () => loop.wake(), offer: loop.offer, stop, logged, metrics };
}
