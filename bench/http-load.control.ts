/** The HTTP load generator, in its own process: repeats one request on keep-alive connections, without pipelining. */
import { Pool } from 'undici';
import type { LoadRequest } from './load.ts';
import { concurrency, measureRate } from './scenario.ts';

const pools = new Map<string, Pool>();

function poolOf(origin: string): Pool {
  const pool = pools.get(origin) ?? new Pool(origin, { connections: concurrency, pipelining: 1 });
  pools.set(origin, pool);
  return pool;
}

async function send(pool: Pool, path: string, request: LoadRequest): Promise<void> {
  const { method, status, headers = null } = request;
  const { statusCode, body } = await pool.request({ path, method, headers, body: request.body ?? null });
  if (statusCode !== status)
    throw new Error(`${method} ${request.url} responded ${statusCode}: ${await body.text()}`);
  await body.dump();
}

process.on('message', async ({ request, durationMs }: { request: LoadRequest; durationMs: number }) => {
  const { origin, pathname } = new URL(request.url);
  const pool = poolOf(origin);
  process.send?.(await measureRate(() => send(pool, pathname, request), durationMs));
});
for (const event of ['disconnect', 'SIGTERM', 'SIGINT']) process.on(event, () => process.exit());
