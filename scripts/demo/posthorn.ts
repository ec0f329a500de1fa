/** The Posthorn of the demo: the one that runs on PORT, if the demo can get an API key of it, or else a new one in a temporary folder. */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { type Config, readConfig } from '../../src/config.ts';
import { openDatabase } from '../../src/db/open.ts';
import { makeLog } from '../../src/lib/log.ts';
import { startService } from '../../src/main.ts';
import { createApiKey } from '../../src/store/api-keys.ts';
import { deleteEmptyUser, ensureUser, findOldestUser } from '../../src/store/users.ts';

export interface Posthorn {
  url: string;
  smtpPort: number;
  apiKey: string;
  /** Removes the user that was created for the demo. Its identities must be deleted before. */
  removeUser?(): Promise<void>;
  /** What to do before the shell commands. */
  preparation: string;
  /** Shell commands that set BASE_URL and API_KEY, for a Posthorn that runs after the demo. */
  setup: string;
  /** The SMTP port of that Posthorn. */
  laterSmtpPort: number;
}

/** How long the purge may take to delete the mail of the demo. */
const purgeMs = 20_000;
const log = makeLog({ level: 'error', json: false, stream: process.stderr });

export function urlOf({ port, basePath }: Config): string {
  return `http://localhost:${port}${basePath}`;
}

/** Long: the service may share a busy machine. Where nothing listens, the answer comes at once. */
const probeMs = 15_000;

export async function isPosthorn(url: string): Promise<boolean> {
  try {
    const response = await fetch(`${url}/openapi.json`, { signal: AbortSignal.timeout(probeMs) });
    return ((await response.json()) as { info?: { title?: string } }).info?.title === 'Posthorn';
  } catch {
    return false;
  }
}

/** Whether an API key of the running Posthorn is given, or can be made in its database. */
export function canUse(config: Config, apiKey: string | undefined): boolean {
  return Boolean(apiKey) || config.databaseUrl !== null || isInUse(config);
}

/** A Posthorn runs on the data folder. */
function isInUse({ dataDir }: Config): boolean {
  return existsSync(path.join(dataDir, 'postgres/postmaster.pid'));
}

/** Without an API key the demo gets a user of its own, so that its mail triggers nobody else's webhooks. */
export async function useRunning(config: Config, apiKey: string | undefined): Promise<Posthorn> {
  const { smtpPort } = config;
  const address = { url: urlOf(config), smtpPort, laterSmtpPort: smtpPort };
  const base = `BASE_URL=${address.url}`;
  const preparation = '';
  if (apiKey) return { ...address, apiKey, preparation, setup: `${base}\nAPI_KEY=$POSTHORN_API_KEY` };
  const database = await openDatabase(config, { purpose: 'tool', log, max: 1 });
  try {
    const oldest = await findOldestUser(database.sql);
    const { userId } = (await ensureUser(database.sql, `demo-${randomBytes(4).toString('hex')}@localhost`))
      .user;
    const { apiKey } = await createApiKey(database.sql, userId, { name: 'npm run demo' });
    const make = oldest ? `keys create --user '${oldest.email}'` : 'users create --email demo@localhost';
    const run = `npm run -s posthorn -- ${make} --json`;
    const setup = `${base}\nAPI_KEY=$(${run} | node -p 'JSON.parse(fs.readFileSync(0)).apiKey')`;
    return { ...address, apiKey, preparation, setup, removeUser: () => removeUser(config, userId) };
  } finally {
    await database.close();
  }
}

async function removeUser(config: Config, userId: string): Promise<void> {
  const database = await openDatabase(config, { purpose: 'tool', log, max: 1 });
  try {
    const end = performance.now() + purgeMs;
    while (!(await deleteEmptyUser(database.sql, userId)) && performance.now() < end) await pause(50);
  } finally {
    await database.close();
  }
}

const freePorts = { PORT: '0', POSTHORN_SMTP_PORT: '0', POSTHORN_SUBMISSION_PORT: '0' };

/** Starts a Posthorn on free ports and in development mode. The environment is ignored, except for what the demo prints. */
export async function startOwn(
  given: Config,
  defer: (cleanup: () => Promise<void>) => void,
): Promise<Posthorn> {
  const folder = mkdtempSync(path.join(tmpdir(), 'posthorn-demo-'));
  const config = readConfig({ ...freePorts, POSTHORN_DATA_DIR: folder });
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
  return { url, smtpPort, apiKey: firstUser.apiKey, ...(await describeNextStart(given)) };
}

/** How to start a Posthorn after the demo, on ports that are free now. */
async function describeNextStart(
  given: Config,
): Promise<Pick<Posthorn, 'preparation' | 'setup' | 'laterSmtpPort'>> {
  const port = await preferPort(given.port);
  const smtpPort = await preferPort(given.smtpPort);
  const submissionPort = given.submissionPort && (await preferPort(given.submissionPort));
  const settings = [
    port === 3000 ? [] : `PORT=${port}`,
    smtpPort === 2525 ? [] : `POSTHORN_SMTP_PORT=${smtpPort}`,
    submissionPort === given.submissionPort ? [] : `POSTHORN_SUBMISSION_PORT=${submissionPort}`,
    isInUse(given) ? 'POSTHORN_DATA_DIR=./data-of-demo' : [],
  ].flat();
  const start = [...settings, 'npm start'].join(' ');
  const preparation = `First, in another terminal: ${start}\nThe first start prints an API key. Write the key in place of ph_… below.\n\n`;
  return {
    preparation,
    setup: `BASE_URL=${urlOf({ ...given, port })}\nAPI_KEY=ph_…`,
    laterSmtpPort: smtpPort,
  };
}

/** The wanted port, or a free one if another program uses it. */
export async function preferPort(wanted: number): Promise<number> {
  const server = createServer();
  const listening = (port: number) => once(server.listen(port, '127.0.0.1'), 'listening');
  await listening(wanted).catch(() => listening(0));
  const { port } = server.address() as AddressInfo;
  await once(server.close(), 'close');
  return port;
}
