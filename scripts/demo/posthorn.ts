/** The Posthorn that the demo works with: the one that answers on PORT, else one of its own in a temporary folder. */
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
  /** Of a key that was made for the demo and is to be revoked after it. */
  keyId?: string;
  /** How a person gets a key, as a line for a shell. */
  keyLine: string;
}

const user = 'demo@localhost';
const log = makeLog({ level: 'error', json: false, stream: process.stderr });

/** Where it is, or will be after `npm start`. */
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

/** With the key given, else with one of a user of the demo's: nobody else's webhooks hear of its mail. */
export async function useRunning(config: Config, given: string | undefined): Promise<Posthorn> {
  const place = { url: urlOf(config), smtpPort: config.smtpPort };
  if (given) return { ...place, apiKey: given, keyLine: 'API_KEY=$POSTHORN_API_KEY' };
  // Where no database runs, this is not the folder of the service that answers.
  if (!config.databaseUrl && !existsSync(path.join(config.dataDir, 'postgres/postmaster.pid'))) {
    throw new Error(
      `The Posthorn at ${place.url} has another data folder than ${config.dataDir}. ` +
        'Set POSTHORN_API_KEY to a key of its, or PORT=0 for a demo apart from it.',
    );
  }
  const database = await openDatabase(config, { purpose: 'tool', log, max: 1 });
  try {
    const { userId } = (await ensureUser(database.sql, user)).user;
    const { apiKey, id } = await createApiKey(database.sql, userId, { name: 'npm run demo' });
    const make = `npm run -s posthorn -- keys create --user ${user} --json`;
    const keyLine = `API_KEY=$(${make} | node -p 'JSON.parse(fs.readFileSync(0)).apiKey')`;
    return { ...place, apiKey, keyId: id, keyLine };
  } finally {
    await database.close();
  }
}

/** On free ports and in development mode, whatever the environment says. `defer` is told how to end it. */
export async function startOwn(defer: (undo: () => Promise<void>) => void): Promise<Posthorn> {
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
  if (!url || !smtpPort || !firstUser) throw new Error('A new Posthorn has doors and a first user.');
  const keyLine = 'API_KEY=ph_…   # npm start in another terminal prints it, the first time';
  return { url, smtpPort, apiKey: firstUser.apiKey, keyLine };
}
