/** The Posthorn of the demo: the one that runs on PORT, or else a new one in a temporary folder. */
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { type Config, readConfig } from '../../src/config.ts';
import { openDatabase } from '../../src/db/open.ts';
import { makeLog } from '../../src/lib/log.ts';
import { startService } from '../../src/main.ts';
import { createApiKey } from '../../src/store/api-keys.ts';
import { ensureUser } from '../../src/store/users.ts';

export interface Posthorn {
  url: string;
  smtpPort: number;
  apiKey: string;
  /** The id of an API key that was created for the demo, and is deleted at the end. */
  keyId?: string;
  /** A shell command that sets API_KEY. */
  keyLine: string;
}

const user = 'demo@localhost';
const log = makeLog({ level: 'error', json: false, stream: process.stderr });

export function urlOf({ port, basePath }: Config): string {
  return `http://localhost:${port}${basePath}`;
}

export async function isPosthorn(url: string): Promise<boolean> {
  try {
    const response = await fetch(`${url}/openapi.json`, { signal: AbortSignal.timeout(2000) });
    return ((await response.json()) as { info?: { title?: string } }).info?.title === 'Posthorn';
  } catch {
    return false;
  }
}

/** Without an API key the demo gets a user of its own, so that its mail triggers nobody else's webhooks. */
export async function useRunning(config: Config, apiKey: string | undefined): Promise<Posthorn> {
  const address = { url: urlOf(config), smtpPort: config.smtpPort };
  if (apiKey) return { ...address, apiKey, keyLine: 'API_KEY=$POSTHORN_API_KEY' };
  // Without a running database this is not the data folder of the running Posthorn.
  if (!config.databaseUrl && !existsSync(path.join(config.dataDir, 'postgres/postmaster.pid'))) {
    throw new Error(
      `The Posthorn at ${address.url} uses another data folder than ${config.dataDir}. ` +
        'Set POSTHORN_API_KEY to an API key of that Posthorn, or set PORT=0 to start a separate one for the demo.',
    );
  }
  const database = await openDatabase(config, { purpose: 'tool', log, max: 1 });
  try {
    const { userId } = (await ensureUser(database.sql, user)).user;
    const created = await createApiKey(database.sql, userId, { name: 'npm run demo' });
    const make = `npm run -s posthorn -- keys create --user ${user} --json`;
    const keyLine = `API_KEY=$(${make} | node -p 'JSON.parse(fs.readFileSync(0)).apiKey')`;
    return { ...address, apiKey: created.apiKey, keyId: created.id, keyLine };
  } finally {
    await database.close();
  }
}

/** Starts a Posthorn on free ports and in development mode. The environment is ignored. */
export async function startOwn(defer: (cleanup: () => Promise<void>) => void): Promise<Posthorn> {
  const folder = mkdtempSync(path.join(tmpdir(), 'posthorn-demo-'));
  const config = readConfig({ PORT: '0', POSTHORN_SMTP_PORT: '0', POSTHORN_DATA_DIR: folder });
  const starting = startService(config, log);
  defer(async () => {
    try {
      await (await starting.catch(() => null))?.stop();
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });
  const { url, smtpPort, firstUser } = await starting;
  if (!url || !smtpPort || !firstUser) throw new Error('The new Posthorn has no listeners or no first user.');
  const keyLine = 'API_KEY=ph_…   # the first `npm start` prints the key (run it in another terminal)';
  return { url, smtpPort, apiKey: firstUser.apiKey, keyLine };
}
