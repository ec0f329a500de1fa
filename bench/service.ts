/** The real service as a process of its own, on an empty embedded database in a temporary folder. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { startChild } from './processes.ts';
import type { Bench } from './scenario.ts';

export interface BenchedService {
  url: string;
  dataDir: string;
  ownerId: string;
  /** Headers that its first user calls it with. */
  headers: { authorization: string; 'content-type': string };
}

export async function startService(bench: Bench): Promise<BenchedService> {
  bench.tell('starting the service on an empty database');
  const dataDir = mkdtempSync(path.join(tmpdir(), 'posthorn-bench-'));
  bench.defer(() => rmSync(dataDir, { recursive: true, force: true }));
  const child = startChild(bench, new URL('../src/cli.ts', import.meta.url), ['serve'], {
    PORT: '0',
    POSTHORN_SMTP_PORT: '0',
    POSTHORN_DATA_DIR: dataDir,
    POSTHORN_RATE_LIMIT: '0',
    POSTHORN_LOG_LEVEL: 'warn',
  });
  const [, port, apiKey] = await child.printed(
    /curl http:\/\/localhost:(\d+)\/me -H "Authorization: Bearer (ph_\w+)"/,
  );
  const url = `http://127.0.0.1:${port}`;
  const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
  const { userId } = (await (await fetch(`${url}/me`, { headers })).json()) as { userId: string };
  return { url, dataDir, ownerId: userId, headers };
}
